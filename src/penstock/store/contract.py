"""The promises of a store: one small protocol per noun. Both stores keep them; `testing/conformance` checks them.

A statement is SQL with placeholders; a row is a tuple of values in the store's own form, which the dialect
converts. Errors of a driver leave a store only as errors of penstock's tree.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from penstock.changes.position import Position
from penstock.errors import ContextError
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import Job, JobStatus, NewJob, Settlement
from penstock.schema.stored import StoredTable
from penstock.schema.table import TableDefinition
from penstock.store.changes import Changes, Interests
from penstock.store.crons import Crons
from penstock.store.dialect import Dialect
from penstock.store.keys import Keys, Rates
from penstock.store.locks import Locks
from penstock.store.outboxes import Outboxes
from penstock.store.outside import Tokens
from penstock.store.pools import Pools
from penstock.store.records import Records
from penstock.store.seen import LeaseRow
from penstock.store.tasks import Tasks

Row = Sequence[Any]
PIECE_ROWS = 256
QUEUES = 8  # of write transactions that conflict
EVERY_QUEUE = 0
ABOVE_ALL = UUID(int=2**128 - 1)  # an id that no job has
Settle = Callable[[list[Job]], list[Settlement]]


def not_open() -> ContextError:
    """What a store raises if it is asked to begin something and is not open, or not any more."""
    return ContextError("The backend is closed.", fix="Use it inside async with app.open().")


def left_behind() -> ContextError:
    """What a statement raises that was under way when the function that asked for it ended."""
    return ContextError(
        "The function that made this call has ended, so the call was stopped.", fix="Await all calls of a ctx."
    )


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with placeholders, as `dialect.placeholder` writes them.

    Attributes:
        bounded: Whether it touches few rows through an index, whatever the size of the table. SQLite runs such
            statements on the event loop, and all others in a thread.
        reads: Whether it is known to change nothing.
        many: The same for many rows, of which no two have the same last parameter: each of its parameters is a list.
            None where many statements are as fast.
    """

    sql: str
    bounded: bool = True
    reads: bool = False
    many: Statement | None = None


class OpenTransaction(Protocol):
    """A database transaction that somebody else ends: a session's, or one of the user's own (see `store.guest`)."""

    async def fetch(self, statement: Statement, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run a statement; its rows."""

    async def execute(self, statement: Statement, args: Sequence[Any] = ()) -> int:
        """Run a statement; the number of rows it changed."""

    async def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of many rows."""


class Session(OpenTransaction, Protocol):
    """One database transaction: a snapshot to read, or a serializable transaction to write."""

    async def fetch_read_only(
        self, sql: str, args: Sequence[Any], limit: int, most_bytes: int
    ) -> tuple[list[str], Sequence[Row]]:
        """Run any SQL that only reads; its column names and at most `limit` + 1 rows. Writing is refused.

        It reads in pieces of `PIECE_ROWS`, and no further than the one that brings it beyond `most_bytes`.
        """

    async def savepoint(self, name: str) -> None:
        """Remember this point of the transaction."""

    async def release(self, name: str) -> None:
        """Forget a savepoint; its changes stay part of the transaction."""

    async def rollback_to(self, name: str) -> None:
        """Undo all since a savepoint, and forget it. Works after a failed statement too."""

    async def commit(self) -> None:
        """Make all of it durable, or raise: `Conflict` to try again, `DatabaseUnavailable` if nobody can know."""

    async def rollback(self) -> None:
        """Undo all of it; never raises for a connection that is gone."""


@dataclass(frozen=True, slots=True)
class Room:
    """For how many more jobs of a pool a worker has room.

    Attributes:
        room: How many.
        epoch: Of a pool with a limit: the number of that limit; if it has been changed, nothing is claimed.
        running: How many of its jobs the worker runs.
    """

    pool: str
    room: int
    epoch: int | None = None
    running: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """What one look for work found.

    Attributes:
        jobs: Jobs now running under the lease.
        next_run_at: When the next scheduled job is due, of those that nobody wants to be canceled.
        cancels: Whether anybody has asked for a cancel that may still be to be carried out.
        promoted: Whether scheduled jobs were due and are ready now.
        again: After which time more jobs may start, if a rate limit was in their way.
    """

    jobs: list[Job]
    next_run_at: datetime | None
    cancels: bool = False
    promoted: bool = False
    again: timedelta | None = None


class Programs(Protocol):
    """What the programs that run on a database have declared, for those who enqueue in plain SQL."""

    async def declare(self, kinds: Mapping[str, str]) -> None:
        """Make functions known: the kind of each by its name. Those of other programs stay."""


class Jobs(Protocol):
    """Jobs at rest. Transactions of users only insert here; services move.

    What takes an `OpenTransaction` runs in a transaction of the user's own as well, and waits for nothing else.
    """

    async def enqueue(self, session: OpenTransaction, jobs: Sequence[NewJob], now: datetime) -> None:
        """Store jobs in a transaction, in one statement on Postgres."""

    async def enqueue_alike(self, session: Session, jobs: Iterable[NewJob], now: datetime) -> None:
        """Store any number of jobs in a transaction while they are made; they differ in id and arguments only.

        After each piece of them all else that is ready has its turn.
        """

    async def enqueue_alone(self, job: NewJob, now: datetime) -> None:
        """Store a job in a transaction of its own; on Postgres in one round trip.

        Raises:
            DatabaseUnavailable: With ``facts["uncertain"]``, nobody knows whether it was stored.
        """

    async def request_cancel(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> None:
        """Ask in a transaction that jobs be canceled; once it commits, those pending never start."""

    async def request_cancel_all(self, session: OpenTransaction, where: JobFilter, now: datetime) -> int:
        """The same for all jobs that meet a filter and have not ended; how many."""

    async def prepare(self, connections: int) -> None:
        """Get so many connections ready to claim and to settle, so that the first jobs wait no longer than others."""

    async def claim(self, lease: int, limit: int, rooms: Sequence[Room], now: datetime) -> Claim:
        """Move due jobs to ready, and up to `limit` ready jobs to running under a lease.

        Those that wait for their on_complete come first. Of the others each comes from the pool that then runs the
        least, of equals from the one named first, and of a pool the most urgent and oldest comes first. Those that
        pass a gate come last, as `pools.turns` decides.
        """

    async def settle(self, lease: int, settlements: Sequence[Settlement]) -> set[UUID]:
        """Write what became of running jobs; the ids that this lease still held."""

    async def settle_within(self, session: Session, lease: int, settlement: Settlement) -> bool:
        """The same for one job, in the transaction that is its effect; False if the lease is lost."""

    async def settle_all_within(self, session: Session, lease: int, settlements: Sequence[Settlement]) -> int:
        """The same for many jobs that share a transaction; how many the lease still held."""

    async def cancel_pending(self, now: datetime, limit: int, settle: Settle) -> list[UUID]:
        """Carry out requests to cancel pending jobs as `settle` says; the running jobs for which a request stands."""

    async def retry(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        """Make jobs pending again that have failed or were canceled; those that were so, each for one caller only.

        Attempts that failed are kept, and counted anew. A transaction of its own, never one of a user's function.
        """

    async def recall(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        """Let jobs whose on_complete has raised for the last time wait for it again; those that were so, as above.

        How they end stays as it is, and calls that failed are kept, and counted anew.
        """

    async def find(self, session: OpenTransaction, job_id: UUID, now: datetime) -> JobStatus | None:
        """One job, wherever it stands; None if unknown, or its time is over."""

    async def find_many(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> dict[UUID, JobStatus]:
        """The same for many; those that are found."""

    async def list(self, session: Session, where: JobFilter, limit: int, now: datetime) -> builtins.list[JobStatus]:
        """Jobs that meet a filter, newest first."""

    async def matching(
        self, session: Session, where: JobFilter, limit: int, now: datetime, below: UUID = ABOVE_ALL
    ) -> builtins.list[UUID]:
        """Ids of jobs that meet a filter, newest first, those below one id."""

    async def count(self, session: Session, now: datetime) -> dict[str, int]:
        """How many jobs stand in each place: ready, scheduled, running, finished."""

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget finished jobs whose time is over, in one bounded step; how many, or about how many beyond `limit`."""


class Leases(Protocol):
    """Leases of workers: who may move which running jobs, and until when."""

    async def take(self, worker: str, ttl: timedelta, now: datetime) -> int:
        """A new lease; its number fences everything done under it."""

    async def renew(self, lease: int, ttl: timedelta, now: datetime) -> bool:
        """Extend a lease; False if it was lost."""

    async def jobs(self, lease: int) -> builtins.list[Job]:
        """The jobs that run under a lease."""

    async def list(self, session: Session) -> builtins.list[LeaseRow]:
        """All leases, oldest first."""

    async def give_back(self, lease: int) -> None:
        """End a lease under which no job runs any more."""

    async def expired(self, now: datetime) -> builtins.list[int]:
        """Leases that have run out, and leases that are gone while jobs still run under them."""

    async def rescue(self, lease: int, now: datetime, settle: Settle) -> int:
        """End an expired lease: settle the jobs that still run under it as `settle` decides; how many.

        A job whose own transaction is about to settle it is left to that transaction; the lease is expired until
        none is left.
        """


@dataclass(frozen=True, slots=True)
class Change:
    """A piece of a schema push: statements that take effect together, or one that runs alone.

    Attributes:
        table: What it changes, for errors and logs.
        alone: Whether it runs outside a transaction: it may take long, but keeps nobody from reading and writing.
        undo: Takes away what a statement run alone leaves behind when it fails.
    """

    table: str
    statements: tuple[str, ...]
    alone: bool = False
    undo: str = ""


class Description(Protocol):
    """The database's own description of its tables."""

    async def stored_tables(self, names: Sequence[str]) -> dict[str, StoredTable]:
        """Those of the named tables and views that exist, in one query; views and tables of others too."""

    async def applied_migrations(self) -> set[str]:
        """Names of penstock's own migrations that are applied."""

    async def count(self, sql: str) -> int:
        """The number that a query gives: rows that a change would lose or break."""


class Catalog(Description, Protocol):
    """The description of tables, and the way to change them."""

    def lock(self) -> AbstractAsyncContextManager[SchemaLock]:
        """Keep all other processes from changing the schema; `DatabaseBusy` if one does so for too long."""


class SchemaLock(Description, Protocol):
    """The right to change the schema. On SQLite all that is done under it is one transaction."""

    async def migrate(self, name: str, sql: str) -> None:
        """Apply one of penstock's own migrations, and remember that it is applied."""

    async def apply(self, change: Change) -> None:
        """Make one change; `UniqueViolation` or `ConstraintViolation` if rows stand against it."""


class Signals(Protocol):
    """Wake-ups between processes. Lost wake-ups only cost time: services also look by themselves."""

    def notify(self) -> None:
        """Tell the services of all processes that there is work; coalesced, after commit, never waits."""

    def subscribe(self, event: asyncio.Event) -> None:
        """Set an event at each wake-up."""

    def unsubscribe(self, event: asyncio.Event) -> None:
        """Stop doing so."""

    def until_fed(self, reader: asyncio.Event, position: Position) -> float:
        """For how many seconds a reader of the change feed need not look that has come to a position.

        Its event is set before that if anybody writes to the feed.
        """


class Store(Protocol):
    """A database that remembers.

    Attributes:
        writers: How many write transactions of one process may be under way at once.
    """

    dialect: Dialect
    writers: int
    jobs: Jobs
    keys: Keys
    rates: Rates
    pools: Pools
    programs: Programs
    crons: Crons
    interests: Interests
    changes: Changes
    tasks: Tasks
    records: Records
    outboxes: Outboxes
    leases: Leases
    tokens: Tokens
    locks: Locks
    catalog: Catalog
    signals: Signals

    async def open(self, *, look: bool = False) -> None:
        """Connect; to `look` only, the settings of the database stay too. Raises `DatabaseUnavailable`."""

    async def close(self) -> None:
        """Release all connections; nothing may be under way."""

    async def begin_read(self) -> Session:
        """A read-only snapshot. Raises `ContextError` if the store was closed, as `begin_write` does."""

    async def begin_write(self, queue: int | None = None) -> Session:
        """A serializable transaction.

        Args:
            queue: One of so many `QUEUES`, in which it waits until those before it have ended; or `EVERY_QUEUE`. Its
                snapshot is of the time after.
        """

    async def synchronize(self, transaction: OpenTransaction | None = None) -> None:
        """Set the clock by the database's, so that all machines on it agree on the time.

        Args:
            transaction: In which to ask; one of its own by default.
        """

    async def ping(self) -> None:
        """Raise unless the database answers."""

    def check_definition(self, definition: TableDefinition) -> None:
        """Raise `DeclarationError` for a table that this store cannot hold."""
