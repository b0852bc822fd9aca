"""Closes Django's lost and expired connections around functions, as Django does around requests.

Django leaves connections in atomic blocks alone. This module imports Django only in the process of an action, for a
program that uses it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def in_thread(work: Callable[[], R]) -> R:
    """Run the work of a function in its thread, whose connections are its own."""
    if (db := _django()) is None:
        return work()
    db.reset_queries()
    db.close_old_connections()
    try:
        return work()
    finally:
        db.close_old_connections()


async def on_loop() -> None:
    """Close connections before an async function, in the thread of `sync_to_async` if it has ever been used."""
    if (db := _django()) is None:
        return
    sync = sys.modules["asgiref.sync"]
    if sync.SyncToAsync.single_thread_executor._threads:  # noqa: SLF001 - nothing else tells, and a hop costs each call
        await sync.sync_to_async(db.close_old_connections)()


def is_loaded() -> bool:
    """Whether this process has loaded Django's connections."""
    return "django.db" in sys.modules


def is_used() -> bool:
    """Whether another process can load the apps of this one's Django."""
    return _django() is not None and bool(os.environ.get("DJANGO_SETTINGS_MODULE"))


def load() -> None:
    """Load the apps of Django, unless that is done: a module of functions may import models."""
    if not importlib.import_module("django.apps").apps.ready:
        importlib.import_module("django").setup()


def _django() -> Any:
    db = sys.modules.get("django.db")
    return db if db is not None and sys.modules["django.conf"].settings.configured else None
