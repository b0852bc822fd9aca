"""Closes Django's lost and expired connections around functions, as Django does around requests.

Imports nothing of Django, which leaves connections in atomic blocks alone.
"""

from __future__ import annotations

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


def _django() -> Any:
    db = sys.modules.get("django.db")
    return db if db is not None and sys.modules["django.conf"].settings.configured else None
