"""The promises of a transaction: its statements, savepoints and end, and the queues of writers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.changes.readset import RangeRead
from penstock.dataclass import dataclass
from penstock.errors import Conflict, ContextError
from penstock.schema.table import Table, TableDefinition

PIECE_ROWS = 256
QUEUES = 8  # of write transactions that conflict
EVERY_QUEUE = 0
_EXACT = (str, int, bool)  # types whose values databases compare as Python does


def not_open() -> ContextError:
    """The error of a store that is asked to begin a transaction and is not open."""
    return ContextError("The backend is closed.", fix="Use it inside async with app.open().")


def call_after_end() -> ContextError:
    """The error of a statement that was under way when its function ended."""
    return ContextError(
        "The function that made this call has ended, so the call was stopped.", fix="Await all calls of a ctx."
    )


class Row(Protocol):
    """A row: its values in order, by place, and by the names of its columns if its statement is `by_name`."""

    def __getitem__(self, key: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with placeholders, as `dialect.placeholder` writes them."""

    sql: str
    # whether it touches few rows through an index, whatever the size of the table. SQLite runs such statements on the
    # event loop, and all others in a thread
    bounded: bool = True
    reads: bool = False  # whether it is known to change nothing
    by_name: bool = False  # whether its rows are read by name; those of SQLite are plain tuples otherwise
    # the same for many rows, no two with the same last parameter: each of its parameters is a list. None where
    # many statements are as fast
    many: Statement | None = None
    of: TableDefinition | None = field(default=None, compare=False)  # the table whose rows it gives


class Change(NamedTuple):
    """A change of one row, by a statement that no index and no trigger can refuse."""

    of: TableDefinition
    key: Any
    statement: Statement
    args: Sequence[Any]
    images: Sequence[Row]  # the row before it and after it, where there is one

    @property
    def row(self) -> tuple[type[Table], Any]:
        """The row, by its table and its key."""
        return self.of.table, self.key


def is_concerned(read: RangeRead, changes: Iterable[Change]) -> bool:
    """Whether rows that are changed may lie in a range: none of what is compared exactly is known to differ."""
    wanted: list[tuple[int, Any]] | None = None
    for change in changes:
        if change.of.name != read.table:
            continue
        if wanted is None:
            columns = zip(read.columns, read.prefix, strict=False)
            wanted = [(change.of.positions[name], value) for name, value in columns if type(value) in _EXACT]
        for image in change.images:
            for place, value in wanted:
                if (found := image[place]) != value and type(found) is type(value):
                    break
            else:
                return True
    return False


class ChangedRows:
    """The rows that a transaction has changed so far, by their values before and after."""

    def __init__(self) -> None:
        self._images: dict[str, list[Row]] = {}
        self._positions: dict[str, Mapping[str, int]] = {}
        # by table and columns: the values there of the first so many images
        self._values: dict[tuple[str, tuple[int, ...]], tuple[int, set[tuple[Any, ...]]]] = {}

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._images)

    def add(self, change: Change) -> None:
        """Add a change."""
        self._positions[change.of.name] = change.of.positions
        self._images.setdefault(change.of.name, []).extend(change.images)

    def concern(self, read: RangeRead) -> bool:
        """Whether one of them may lie in a range, as `is_concerned` says it."""
        images = self._images.get(read.table)
        if images is None:
            return False
        positions, columns = self._positions[read.table], zip(read.columns, read.prefix, strict=False)
        wanted = [(positions[name], value) for name, value in columns if type(value) in _EXACT]
        places = tuple(place for place, _ in wanted)
        count, values = self._values.get((read.table, places), (0, set()))
        for image in images[count:]:
            found = tuple(image[place] for place in places)
            if any(type(value) not in _EXACT and value is not None for value in found):
                return True
            values.add(found)
        self._values[read.table, places] = len(images), values
        return tuple(value for _, value in wanted) in values


class TriggerFound(Conflict):
    """A managed table has a trigger that nobody knew: what was known of rows may be wrong, so all runs again."""

    def __init__(self, table: str) -> None:
        super().__init__(f"Table {table} has got a trigger.")
        self.table = table


class NeedsTransaction(Conflict):
    """A single statement was not enough: all is read again in a transaction. `lasts`: so it will be the next time."""

    def __init__(self, *, lasts: bool = True) -> None:
        super().__init__("A query of a single statement read more.")
        self.lasts = lasts


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

    @property
    def passed(self) -> bool:
        """Whether something was read before changes of other rows that were made earlier."""

    async def fetch_read_only(
        self, sql: str, args: Sequence[Any], limit: int, most_bytes: int
    ) -> tuple[list[str], Sequence[Row]]:
        """Run any SQL that only reads; its column names and at most `limit` + 1 rows. Writing is refused.

        It reads in pieces of `PIECE_ROWS`, and no further than the one that brings it beyond `most_bytes`.
        """

    async def fetch_range(self, read: RangeRead, statement: Statement, args: Sequence[Any]) -> Sequence[Row]:
        """Run a statement that reads rows of a range, and nothing else."""

    async def change(self, change: Change) -> None:
        """Change a row: now, or before anything reads it."""

    async def refuse_trigger(self, of: TableDefinition, look: Statement) -> None:
        """Raise TriggerFound if a look at a table finds one: now, or at the commit."""

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


Begin = Callable[[], Awaitable[Session]]
S = TypeVar("S", bound=Session)


@asynccontextmanager
async def writing(begin: Callable[[], Awaitable[S]]) -> AsyncIterator[S]:
    """A transaction that commits at the end of the block, and is undone if it raises."""
    session = await begin()
    try:
        yield session
        await session.commit()
    finally:
        await session.rollback()


@asynccontextmanager
async def reading(begin: Callable[[], Awaitable[S]]) -> AsyncIterator[S]:
    """A snapshot for a block."""
    session = await begin()
    try:
        yield session
    finally:
        await session.rollback()
