"""Who may ask for work: the types of what the words of pools take first, for type checkers.

Drivers are not imported: a connection is known by what it can do.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from penstock.api.backend import BackendWords
    from penstock.api.syncwords import SyncBackendWords
    from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
    from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx


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


if TYPE_CHECKING:
    SyncWriter: TypeAlias = SyncMutationCtx | SyncActionCtx | SyncBackendWords | SyncConnection
    SyncReader: TypeAlias = SyncQueryCtx | SyncActionCtx | SyncBackendWords | SyncConnection
    SyncWaiter: TypeAlias = SyncActionCtx | SyncBackendWords
    AsyncWriter: TypeAlias = MutationCtx | ActionCtx | BackendWords | AsyncConnection | AsyncpgConnection
    AsyncReader: TypeAlias = QueryCtx | ActionCtx | BackendWords | AsyncConnection | AsyncpgConnection
    AsyncWaiter: TypeAlias = ActionCtx | BackendWords
