"""Who may ask for work: the types of what the words of pools take first, for type checkers.

Drivers are not imported: a connection is known by what it can do.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from penstock.api.syncbackend import SyncWords
    from penstock.calls.enqueue.jobs import JobCalls
    from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
    from penstock.calls.run.engine import Engine
    from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx


class Program(Protocol):
    """A backend, as pools need it."""

    job_calls: JobCalls
    engine: Engine


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
    SyncWriter: TypeAlias = SyncMutationCtx | SyncActionCtx | SyncWords | SyncConnection
    SyncReader: TypeAlias = SyncQueryCtx | SyncActionCtx | SyncWords | SyncConnection
    SyncWaiter: TypeAlias = SyncActionCtx | SyncWords
    AsyncWriter: TypeAlias = MutationCtx | ActionCtx | Program | AsyncConnection | AsyncpgConnection
    AsyncReader: TypeAlias = QueryCtx | ActionCtx | Program | AsyncConnection | AsyncpgConnection
    AsyncWaiter: TypeAlias = ActionCtx | Program
