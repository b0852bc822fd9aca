"""Closes Django's lost and expired connections around functions, as Django does around requests.

Finds out whether the program uses Django; imports nothing of it. Django leaves connections in atomic blocks alone.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

R = TypeVar("R")

_used_by_loops = threading.Event()  # whether code that runs on an event loop has ever connected


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
    """Close connections before an async function, in the one thread where Django's `sync_to_async` runs its code."""
    if (db := _django()) is None:
        return
    _watch()
    if _used_by_loops.is_set():
        await sys.modules["asgiref.sync"].sync_to_async(db.close_old_connections)()


def _django() -> Any:
    db = sys.modules.get("django.db")
    return db if db is not None and sys.modules["django.conf"].settings.configured else None


@cache
def _watch() -> None:
    importlib.import_module("django.db.backends.signals").connection_created.connect(_note)


def _note(**_facts: Any) -> None:
    if not threading.current_thread().name.startswith("penstock"):
        _used_by_loops.set()
