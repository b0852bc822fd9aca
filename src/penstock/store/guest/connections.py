"""Connections as type checkers know them: by what they can do, so that no driver is imported."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol


class SyncConnection(Protocol):
    """A connection or a session of psycopg, psycopg2, SQLAlchemy, Django or sqlite3."""

    def commit(self) -> None:
        """Make all of its transaction durable."""


class AsyncConnection(Protocol):
    """An async connection or session of psycopg, SQLAlchemy or aiosqlite."""

    def commit(self) -> Coroutine[Any, Any, None]:
        """Make all of its transaction durable."""


class AsyncpgConnection(Protocol):
    """A connection of asyncpg."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
