"""The unit of work: one database transaction, what it read and wrote, the jobs it wants, and its limits.

Owns the gathering and the turn-taking on the connection. Leaves the words in which users read and write to `database`
and `scan`, and ending to `commit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from penstock.changes.readset import RangeRead, ReadSet
from penstock.changes.writeset import RowChange, WriteSet
from penstock.clock import Clock, Random, random_of
from penstock.config import Config
from penstock.errors import (
    Conflict,
    ContextError,
    DatabaseUnavailable,
    LimitExceeded,
    UnawaitedCall,
)
from penstock.jobs.job import NewJob
from penstock.schema.table import Table, definition_of
from penstock.store.contract import Row, Session, Statement, Store
from penstock.store.statements import Statements, TableStatements

T = TypeVar("T")

_PRUNE_AT = 512
_WORD = 8


class Transaction:
    """One database transaction and all that belongs to it.

    Attributes:
        now: The time of this execution; a retry has the same.
        rows: Rows known in this transaction, by table and key, as the store holds them; None where there is none.
    """

    __slots__ = (
        "_bytes_read", "_bytes_written", "_config", "_random", "_rows_read", "_rows_written", "_savepoints",
        "_seed", "cancels", "clock", "failure", "jobs", "now", "read_set", "rows", "session", "statements", "store",
        "write_set",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        store: Store,
        statements: Statements,
        config: Config,
        clock: Clock,
        now: datetime,
        seed: int,
    ) -> None:
        self.session = session
        self.store = store
        self.statements = statements
        self.clock = clock
        self.now = now
        self.read_set = ReadSet()
        self.write_set = WriteSet()
        self.jobs: list[NewJob] = []
        self.cancels: list[UUID] = []
        self.rows: dict[tuple[type[Table], Any], Row | None] = {}
        self.failure: Exception | None = None
        self._config = config
        self._seed = seed
        self._random: Random | None = None
        self._savepoints = 0
        self._rows_read = self._rows_written = self._bytes_read = self._bytes_written = 0

    @property
    def random(self) -> Random:
        """Random numbers of this execution; a retry gets the same ones."""
        if self._random is None:
            self._random = random_of(self._seed)
        return self._random

    def table(self, table: type[Table]) -> TableStatements:
        """The statements of a table."""
        return self.statements.of(table, definition_of(table))

    async def fetch(self, statement: Statement, args: Sequence[Any]) -> Sequence[Row]:
        """Run a statement. What means "try again" is remembered, so that no function can swallow it."""
        try:
            return await self.session.fetch(statement, args)
        except (Conflict, DatabaseUnavailable) as error:
            self.failure = error
            raise

    async def execute(self, statement: Statement, args: Sequence[Any]) -> int:
        """Run a statement that changes rows. What means "try again" is remembered."""
        try:
            return await self.session.execute(statement, args)
        except (Conflict, DatabaseUnavailable) as error:
            self.failure = error
            raise

    # ----- what was read and written

    def note_rows(self, read: RangeRead, rows: Sequence[Row]) -> None:
        """Count rows that were read, and note the range.

        Raises:
            LimitExceeded: The transaction has read too much.
        """
        self.read_set.ranges.append(read)
        self._rows_read += len(rows)
        for row in rows:
            self._bytes_read += row_bytes(row)
        if self._rows_read > self._config.max_rows_read:
            raise _exceeded(
                "read",
                "rows",
                self._config.max_rows_read,
                "Read less at once: use an index, take or paginate.",
            )
        if self._bytes_read > self._config.max_bytes_read:
            raise _exceeded(
                "read",
                "bytes",
                self._config.max_bytes_read,
                "Read less at once: use an index, take or paginate.",
            )

    @property
    def rows_left(self) -> int:
        """How many more rows may be read."""
        return max(0, self._config.max_rows_read - self._rows_read)

    def note_write(self, change: RowChange) -> None:
        """Count and note a written row.

        Raises:
            LimitExceeded: The row is too large, or the transaction has written too much.
        """
        if change.new is not None:
            size = row_bytes(change.new)
            if size > self._config.max_row_bytes:
                raise LimitExceeded(
                    f"Table {change.table}: a row of {size} bytes exceeds the limit of {self._config.max_row_bytes}.",
                    fix="Keep large values outside, or in several rows.",
                    limit=self._config.max_row_bytes,
                )
            self._bytes_written += size
        self._rows_written += 1
        if self._rows_written > self._config.max_rows_written:
            raise _exceeded("written", "rows", self._config.max_rows_written, "Write in several transactions.")
        if self._bytes_written > self._config.max_bytes_written:
            raise _exceeded("written", "bytes", self._config.max_bytes_written, "Write in several transactions.")
        self.write_set.changes.append(change)

    def add_job(self, job: NewJob) -> None:
        """Enqueue a job when this transaction commits.

        Raises:
            LimitExceeded: The transaction has scheduled too many.
        """
        if len(self.jobs) >= self._config.max_jobs_scheduled:
            raise _exceeded("scheduled", "jobs", self._config.max_jobs_scheduled, "Schedule in several transactions.")
        self.jobs.append(job)

    # ----- sub-transactions

    async def begin_branch(self) -> Branch:
        """Begin a sub-transaction."""
        self._savepoints += 1
        name = f"branch_{self._savepoints}"
        await self.session.savepoint(name)
        return Branch(name, len(self.write_set.changes), len(self.jobs), len(self.cancels))

    async def keep_branch(self, branch: Branch) -> None:
        """End a sub-transaction; its changes are part of this one."""
        await self.session.release(branch.name)

    async def undo_branch(self, branch: Branch) -> None:
        """Undo a sub-transaction. What it read stays noted: its failure may depend on it."""
        if self.failure is not None:
            return  # the whole transaction starts again
        await self.session.rollback_to(branch.name)
        del self.write_set.changes[branch.changes :]
        del self.jobs[branch.jobs :]
        del self.cancels[branch.cancels :]
        self.rows.clear()


class Branch:
    """Where a sub-transaction began."""

    __slots__ = ("cancels", "changes", "jobs", "name")

    def __init__(self, name: str, changes: int, jobs: int, cancels: int) -> None:
        self.name = name
        self.changes = changes
        self.jobs = jobs
        self.cancels = cancels


class Scope:
    """What one run of a function does in a transaction: one call at a time, and none left un-awaited.

    While a sub-transaction runs, its parent's scope is held, so that calls of the parent that run beside it wait and
    are not undone with it.
    """

    __slots__ = ("_calls", "_function", "ended", "holder", "lock", "transaction", "writable")

    def __init__(self, transaction: Transaction, function: str, *, writable: bool) -> None:
        self.transaction = transaction
        self.writable = writable
        self.lock = asyncio.Lock()
        self.ended = False
        self.holder: asyncio.Task[Any] | None = None
        self._function = function
        self._calls: list[Coroutine[Any, Any, Any]] = []

    def track(self, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Remember a call of this run, so that it is noticed if nobody awaits it."""
        if self.ended:
            call.close()
            raise ContextError(f"{self._function} has ended; its ctx cannot be used any more.")
        if self.holder is not None and self.holder is asyncio.current_task():
            call.close()
            raise ContextError(
                f"{self._function} used its own ctx inside a sub-transaction.",
                fix="Use the ctx that the inner function got.",
            )
        if len(self._calls) >= _PRUNE_AT:
            self._calls = [known for known in self._calls if is_unfinished(known)]
        self._calls.append(call)
        return call

    def end(self) -> None:
        """End the run.

        Raises:
            UnawaitedCall: Calls were made and not awaited.
        """
        self.ended = True
        left = [call for call in self._calls if is_unfinished(call)]
        self._calls.clear()
        if left:
            names = ", ".join(sorted({call_name(call) for call in left}))
            close_calls(left)
            raise UnawaitedCall(
                f"{self._function} ended, but these calls were not awaited: {names}.",
                fix="Write await before them.",
                calls=names,
            )

    def abandon(self) -> None:
        """End a run that has failed; calls it left are closed silently."""
        self.ended = True
        close_calls([call for call in self._calls if is_unfinished(call)])
        self._calls.clear()


def is_unfinished(call: Coroutine[Any, Any, Any]) -> bool:
    """Whether a coroutine has not come to its end."""
    return getattr(call, "cr_frame", None) is not None


def call_name(call: Coroutine[Any, Any, Any]) -> str:
    """What a ctx call is called, such as ``ctx.db.patch``."""
    owner, _, name = str(getattr(call, "__qualname__", "call")).rpartition(".")
    part = {
        "DatabaseWriter": "db.",
        "DatabaseReader": "db.",
        "Scan": "db.query(…).",
        "Scheduler": "scheduler.",
    }
    return f"ctx.{part.get(owner, '')}{name.lstrip('_')}"


def close_calls(calls: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Close coroutines that nobody has begun; those that run in a task of their own are left to it."""
    for call in calls:
        if not getattr(call, "cr_running", False) and getattr(call, "cr_await", None) is None:
            call.close()


def row_bytes(row: Row) -> int:
    """About how large a row is: texts and bytes by their length, all else as one word."""
    total = 0
    for value in row:
        total += len(value) if isinstance(value, str | bytes) else _WORD
    return total


def _exceeded(done: str, what: str, limit: int, fix: str) -> LimitExceeded:
    return LimitExceeded(f"One transaction has {done} more than {limit} {what}.", fix=fix, limit=limit)
