"""The unit of work: one database transaction, its read set, its writes, its jobs, and its limits.

Owns the gathering and the turn-taking on the connection. Leaves the words in which users read and write to `database`
and `scan`, and ending to `commit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Protocol, TypeVar
from uuid import UUID

from penstock import errors
from penstock.changes.readset import RangeRead, Read, ReadSet
from penstock.clock import Clock, Random, profile_timer, random_of
from penstock.config import Config
from penstock.functions.component import Component
from penstock.identity.caller import SYSTEM, Caller, RequestInfo
from penstock.identity.identity import Identity
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import NewJob
from penstock.observe import practices
from penstock.observe.timing import current_spent
from penstock.schema.table import Table, TableDefinition, definition_of
from penstock.store.nouns.files import FILES, FileRow
from penstock.store.session import Change, Row, Session, Statement
from penstock.store.sql.statements import Statements, TableStatements
from penstock.store.store import Store
from penstock.transaction.shared import Part
from penstock.transaction.tracking import Calls
from penstock.values import EPOCH, text_bytes, total_bytes

T = TypeVar("T")

_READ_LESS = "Read less at once: use an index, take or paginate."

_holds: ContextVar[tuple[object, ...]] = ContextVar("penstock_holds", default=())


class Home(Protocol):
    """The values that all transactions of an open app share."""

    store: Store
    statements: Statements
    config: Config
    clock: Clock


class Transaction:
    """One database transaction and all that belongs to it. Errors that mean "try again" are remembered in `failure`."""

    __slots__ = (
        "_bytes_scheduled", "_bytes_written", "_config", "_random", "_rows_read", "_rows_written", "_savepoints",
        "_seed", "again", "ask", "assumes", "bytes_read", "caller", "cancels", "clock", "committed", "facts", "failure",
        "given_ends", "jobs", "keyed", "now", "owes_bytes", "page_ends", "read_set", "rows", "rules", "session",
        "shared", "spelled", "statements", "store", "wakes", "writes", "wrote",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        home: Home,
        now: datetime,
        seed: int = 0,
        caller: Caller = SYSTEM,
    ) -> None:
        self.session = session
        self.shared = session if isinstance(session, Part) else None  # its session, if it shares that with others
        self.store, self.statements, self.clock, self._config = home.store, home.statements, home.clock, home.config
        self.now = now  # the time of this execution; a retry has the same
        self.read_set = ReadSet()
        self.given_ends: Sequence[str] = ()  # where the pages end that it reads, in the order of calls: its journal
        self.page_ends: list[str] = []  # where those ended that it has read; empty for one that failed
        self.jobs: list[NewJob] = []
        self.keyed: list[NewJob] = []  # jobs with keys, which are stored already
        self.cancels: list[UUID] = []
        # rows known in this transaction, by table and key, as the store holds them; None where there is none
        self.rows: dict[tuple[type[Table], Any], Row | None] = {}
        # keys that their table spells otherwise than penstock does, by table and key, as the driver takes their values
        self.spelled: dict[tuple[type[Table], Any], list[Any]] = {}
        self.assumes = False  # whether it has told a row as it was before a change of another one, or as it was written
        self.failure: Exception | None = None
        self.again: errors.TryAgain | None = None  # the last error of the database that its function has seen
        self.owes_bytes = False  # whether bytes of files are to be deleted after the commit
        self.wakes = False  # whether workers are to be woken after the commit
        self.writes = list[tuple[str, Any]]()  # the tables and keys of written rows
        self.wrote = set[str]()  # the tables of written rows
        self.committed: list[Callable[[], None]] = []  # called once it has committed; never raises
        self.caller = caller
        self.rules: dict[tuple[type[Table], str], Any] = {}  # of tables, for the caller
        self.facts: dict[Any, tuple[Any, set[str] | None]] = {}  # that rules need, and the tables they were read from
        self.ask: Callable[
            [Any, Component | None], Awaitable[Any]
        ]  # reads facts; set before a function that rules hold for
        self._seed = seed
        self._random: Random | None = None
        self._savepoints = 0
        self._rows_read = self._rows_written = self.bytes_read = self._bytes_written = self._bytes_scheduled = 0

    @property
    def random(self) -> Random:
        """Random numbers of this execution; a retry gets the same ones."""
        if self._random is None:
            self._random = random_of(self._seed)
        return self._random

    def fetch(self, statement: Statement, args: Sequence[Any] = ()) -> Coroutine[Any, Any, Sequence[Row]]:
        return self.remembering(self.session.fetch(statement, args))

    def execute(self, statement: Statement, args: Sequence[Any] = ()) -> Coroutine[Any, Any, int]:
        return self.remembering(self.session.execute(statement, args))

    def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> Coroutine[Any, Any, None]:
        return self.remembering(self.session.execute_many(statement, rows))

    def key_args(self, statements: TableStatements, key: Any) -> list[Any]:
        """A key as the driver takes its values, spelled as its row is known to spell it."""
        return self.spelled.get((statements.definition.table, key)) or statements.key_args(key)

    async def fetch_row(self, statements: TableStatements, key: Any) -> Sequence[Row]:
        args = self.key_args(statements, key)
        if self.shared is not None:
            return await self.remembering(self.shared.row(statements, key, args))
        return await self.fetch(statements.get(), args)

    def fetch_range(
        self, read: RangeRead, statement: Statement, args: Sequence[Any]
    ) -> Coroutine[Any, Any, Sequence[Row]]:
        """Run a statement that reads rows of a range, and nothing else."""
        return self.remembering(self.session.fetch_range(read, statement, args))

    def change_row(self, change: Change) -> Coroutine[Any, Any, None]:
        return self.remembering(self.session.change(change))

    def know(self, definition: TableDefinition, rows: Sequence[Row]) -> None:
        """Remember rows as they are now, so that they need not be read by their keys."""
        self.rows.update({(definition.table, definition.key_at(row)): row for row in rows})

    def foresees(self, definition: TableDefinition) -> bool:
        """Whether a write to a table changes its row as it says, and no other one."""
        return definition.managed and definition.name not in self.statements.triggered

    def forget_rows(self) -> None:
        self.rows.clear()
        self.facts.clear()
        if self.shared is not None:
            self.shared.forget_rows()

    def forget_facts(self, table: str) -> None:
        """Forget what rules know, after a write to a table from which they may have read it."""
        if self.facts:
            self.facts = {ask: (value, of) for ask, (value, of) in self.facts.items() if of and table not in of}

    def identity(self) -> Identity | None:
        """The identity of the caller. What depends on it concerns no other caller."""
        self.read_set.identity = True
        practices.note_identity()
        return self.caller.identity

    def request(self) -> RequestInfo | None:
        """The request that the call came with. What depends on it concerns no other request."""
        self.read_set.request = True
        return self.caller.request

    def time(self, every: timedelta | None) -> datetime:
        """The time, or the last multiple of `every`; the read set then holds until the next multiple."""
        if every is None:
            return self.now
        given: object = every
        if not isinstance(given, timedelta) or every <= timedelta(0):
            raise errors.ValueInvalid(
                "every is no length of time.", fix="Pass a timedelta, such as timedelta(minutes=1)."
            )
        last = self.now - (self.now - EPOCH) % every
        self.read_set.until = min(last + every, self.read_set.until or last + every)
        return last

    async def fetch_read_only(
        self, sql: str, args: Sequence[Any], reads: Sequence[type[Table]] | None = None
    ) -> tuple[list[str], Sequence[Row]]:
        """Run a user's SQL, which reads these tables, or by default any; its column names and rows."""
        if reads is None:
            self.read_set.everything = True
        for definition in map(definition_of, reads or ()):
            self.note_range(RangeRead(definition.name, None, definition.key))
        names, rows = await self.remembering(self.session.fetch_read_only(sql, args, self.rows_left, self.bytes_left))
        self.count_read(len(rows), total_bytes(chain.from_iterable(rows)))
        return names, rows

    async def remembering(self, work: Awaitable[T]) -> T:
        """Remember errors that mean "try again", so that no function can swallow them."""
        spent = current_spent()
        begun = 0.0 if spent is None else profile_timer()
        try:
            return await work
        except errors.TryAgain as error:
            self.again = error
            if isinstance(error, (errors.Conflict, errors.DatabaseUnavailable, errors.Overloaded)):
                self.failure = error
            raise
        finally:
            if spent is not None:
                spent.database += profile_timer() - begun

    # ----- reads and writes

    def count_rows(self, statements: TableStatements, rows: Sequence[Row]) -> None:
        size = statements.bytes_of(rows)
        statements.note_size(len(rows), size)
        self.count_read(len(rows), size)

    def begin_page(self) -> int:
        """Its number among the pages of this execution."""
        self.page_ends.append("")
        return len(self.page_ends) - 1

    def end_of_page(self, number: int) -> str | None:
        """The end that the journal has for a page."""
        return self.given_ends[number] or None if number < len(self.given_ends) else None

    def note_range(self, read: Read) -> None:
        self.read_set.ranges.append(read)
        if len(self.read_set.ranges) > self._config.max_ranges_read:
            raise self._excess("read", "ranges", self._config.max_ranges_read, _READ_LESS)

    def count_read(self, rows: int, size: int) -> None:
        self._rows_read += rows
        self.bytes_read += size
        if self._rows_read > self._config.max_rows_read:
            raise self._excess("read", "rows", self._config.max_rows_read, _READ_LESS)
        if self.bytes_read > self._config.max_bytes_read:
            raise self._excess("read", "bytes", self._config.max_bytes_read, _READ_LESS)

    @property
    def rows_counted(self) -> tuple[int, int]:
        """How many rows it has read, and written."""
        return self._rows_read, self._rows_written

    @property
    def bytes_counted(self) -> int:
        return self.bytes_read + self._bytes_written

    @property
    def rows_left(self) -> int:
        return max(0, self._config.max_rows_read - self._rows_read)

    @property
    def bytes_left(self) -> int:
        return max(0, self._config.max_bytes_read - self.bytes_read)

    def check_size(self, table: str, row: Row) -> int:
        """The approximate size of a row that is to be written."""
        size = total_bytes(row)
        if size > self._config.max_row_bytes:
            raise errors.LimitExceeded(
                f"Table {table}: a row of {size} bytes exceeds the limit of {self._config.max_row_bytes}.",
                fix="Keep large values in files or in several rows, or raise the setting max_row_bytes.",
                limit=self._config.max_row_bytes,
            )
        return size

    def count_write(self, table: str, row: Row | None) -> None:
        """Count a row that is about to be written, or deleted if it is None."""
        size = 0 if row is None else self.check_size(table, row)
        self.wakes = self.wakes or table in self.statements.reactive
        self.wrote.add(table)
        self._count_written(size)

    async def send(self, topic: str, payload: str, key: str | None, trace: str | None) -> bool:
        """Send a message now, with its trace; False if nobody knows the topic. It counts as a written row."""
        self._count_written(text_bytes(payload))
        self.wakes = True
        return await self.remembering(self.store.outboxes.send(self.session, topic, payload, key, trace))

    async def add_file(self, row: FileRow, *, claimed: bool = False) -> None:
        """Add a file now. It counts as a written row. Nobody looks whether a row refers to a claimed one."""
        self._note_file()
        await self.remembering(self.store.files.add(self.session, row, claimed=claimed))

    async def remove_file(self, file_id: str) -> bool:
        """Delete a file now, and its bytes after the commit; False if there is none. It counts as a written row."""
        self._note_file()
        self.wakes = self.owes_bytes = True
        return await self.remembering(self.store.files.remove(self.session, file_id))

    def _note_file(self) -> None:
        self.wrote.add(FILES)
        self._count_written(0)

    def _count_written(self, size: int) -> None:
        self._bytes_written += size
        self._rows_written += 1
        if self._rows_written > self._config.max_rows_written:
            raise self._excess("written", "rows", self._config.max_rows_written, "Write in several transactions.")
        if self._bytes_written > self._config.max_bytes_written:
            raise self._excess("written", "bytes", self._config.max_bytes_written, "Write in several transactions.")

    def add_job(self, job: NewJob) -> None:
        """Enqueue a job when this transaction commits."""
        config, fix = self._config, "Schedule in several transactions."
        self._bytes_scheduled += text_bytes(job.args)
        if len(self.jobs) >= config.max_jobs_scheduled:
            raise self._excess("scheduled", "jobs", config.max_jobs_scheduled, fix)
        if self._bytes_scheduled > config.max_bytes_scheduled:
            raise self._excess("scheduled", "bytes of arguments", config.max_bytes_scheduled, fix)
        self.jobs.append(job)

    async def enqueue(self, jobs: Iterable[NewJob]) -> None:
        """Store jobs now, in this transaction, however many that are alike."""
        await self.remembering(self.store.jobs.enqueue_alike(self.session, jobs, self.now))
        self.wakes = True

    async def find_runs(self, runs: Sequence[UUID], most: int) -> Mapping[UUID, bool]:
        """Find which of these runs have not ended, new ones included, and whether they have so many unread events."""
        found = await self.remembering(self.store.workflows.find_unfinished(runs, most, self.session))
        return {job.id: False for job in (*self.jobs, *self.keyed)} | found

    async def find_keyed_runs(self, function: str, key: str) -> set[UUID]:
        """Find the unfinished runs of a workflow that have a key, those of this transaction too."""
        found = await self.remembering(self.store.workflows.find_keyed(function, key, self.session))
        return {*found, *(job.id for job in self.keyed if (job.function, job.options.key) == (function, key))}

    async def cancel_all(self, where: JobFilter) -> int:
        """Request now, in this transaction, that matching jobs be canceled; how many have not ended."""
        count = await self.remembering(self.store.jobs.request_cancel_all(self.session, where, self.now))
        self.wakes = True
        return count

    async def change_cron(self, change: Awaitable[T]) -> T:
        """Change a cron now; schedulers are told after the commit."""
        self.wakes = True
        return await self.remembering(change)

    def add_cancel(self, job_id: UUID) -> None:
        """Request that a job be canceled when this transaction commits."""
        if len(self.cancels) >= self._config.max_jobs_scheduled:
            fix = "Cancel in several transactions."
            raise self._excess("asked to cancel", "jobs", self._config.max_jobs_scheduled, fix)
        self.cancels.append(job_id)

    def _excess(self, done: str, what: str, limit: int, fix: str) -> errors.LimitExceeded:
        """The error of a transaction that does too much; it cannot be swallowed, since more would follow."""
        error = errors.LimitExceeded(f"One transaction has {done} more than {limit} {what}.", fix=fix, limit=limit)
        self.failure = error
        return error

    # ----- sub-transactions

    @asynccontextmanager
    async def branch(self) -> AsyncIterator[None]:
        """A sub-transaction: its changes are undone if the block raises, and part of this transaction if not."""
        self._savepoints += 1
        name = f"branch_{self._savepoints}"
        jobs, cancels, told, keyed = len(self.jobs), len(self.cancels), len(self.committed), len(self.keyed)
        await self.remembering(self.session.savepoint(name))
        try:
            yield
            await self.remembering(self.session.release(name))
        except BaseException:
            del self.jobs[jobs:]
            del self.keyed[keyed:]
            del self.cancels[cancels:]
            del self.committed[told:]
            await self._undo(name)
            raise

    async def _undo(self, savepoint: str) -> None:
        """Undo all since a savepoint. Its reads stay noted: its failure may depend on them."""
        self.forget_rows()
        if self.failure is not None:
            return  # the whole transaction starts again
        try:
            await self.session.rollback_to(savepoint)
        except errors.PenstockError as error:
            self.failure = error  # a part that cannot be undone alone is undone with all


class Scope(Calls):
    """The calls of one run of a function in a transaction: one at a time, and none left un-awaited.

    While a sub-transaction runs, its parent's scope is held. So concurrent calls of the parent wait and are not undone
    with it. Calls of the parent from inside of it would wait for ever, and are refused.
    """

    __slots__ = ("_hold", "lock", "ruled", "transaction", "writable")

    def __init__(
        self,
        transaction: Transaction,
        function: str,
        component: Component | None = None,
        *,
        writable: bool,
        ruled: bool = False,
    ) -> None:
        super().__init__(function, component)
        self.transaction = transaction
        self.writable = writable
        self.ruled = ruled  # whether it acts for the caller, so that the rules of tables hold
        self.lock = asyncio.Lock()
        self._hold: object = None

    def table(self, table: type[Table]) -> TableStatements:
        """The statements of a table, or of the table that it is in the component whose function runs.

        Raises:
            ContextError: It is a table of another component, or of the program.
        """
        given: object = table
        if self.component is not None:
            table = self.component.table(table)
        elif (foreign := self.transaction.statements.foreign) and isinstance(given, type) and table in foreign:
            raise errors.ContextError(
                f"{table.__name__} is a table of component {foreign[table]}, and only its functions reach it.",
                fix="Run one of its functions. If the program has such a table of its own, name it in App(tables=[…]).",
            )
        return self.transaction.statements.of(table, definition_of(table))

    def track(self, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        try:
            self.check_outside()
        except errors.ContextError:
            call.close()
            raise
        return super().track(call)

    def check_outside(self) -> None:
        """Refuse a call from inside a sub-transaction of this scope."""
        if self._hold is not None and self._hold in _holds.get():
            raise errors.ContextError(
                f"{self.function} used its own ctx inside a sub-transaction.",
                fix="Use the ctx that the inner function got.",
            )

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        async with self.lock:
            self._hold = object()
            token = _holds.set((*_holds.get(), self._hold))
            try:
                yield
            finally:
                _holds.reset(token)
                self._hold = None
