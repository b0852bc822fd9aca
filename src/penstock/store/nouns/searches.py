"""Search indexes at rest: the tokens or the vector of each row in a table of their own, and the place of the backfill.

Each store has its own engines, and so its own statements on these tables.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from penstock.changes.searches import TableSearch, TableVectors, reader_name
from penstock.dataclass import dataclass
from penstock.search.query import Query
from penstock.store.nouns.catalog import Change
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction, Row, Session, Statement

MOST_HITS = 10_000  # the newest rows that are ranked


@dataclass(frozen=True, slots=True)
class SearchRow:
    """A search index as it is kept."""

    id: int
    name: str
    digest: str
    interest: int | None  # the number of the interest that captures its changes, once there is one
    cursor: str | None  # the place of its backfill: '' at the beginning, None once all rows are indexed


@dataclass(frozen=True, slots=True)
class SearchState(SearchRow):
    """A search index as a transaction sees it."""

    position: str | None  # how far its reader has read the change feed; None if there is no reader


@dataclass(frozen=True, slots=True)
class Indexed:
    """A row of an index."""

    key: str  # as the change feed spells it; of any length
    values: Sequence[Any]  # as `TableSearch.entry` gives them


@dataclass(frozen=True, slots=True)
class Nearest:
    """A search for the nearest vectors."""

    vector: tuple[float, ...]  # of length one
    filters: Mapping[int, Sequence[int]]  # by the place of a filter, the numbers that a row may have there
    without: Sequence[str]  # keys of rows to leave out
    count: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The statements of one index, in which {t} stands for its table, and {n} for its number."""

    make: Sequence[str]
    put: str  # a row; for words on PostgreSQL lists of rows
    complete: Sequence[str] = ()  # before an index is filled; each by itself, as it may take long


class Searches(Noun, ABC, queries=("searches",)):
    """Search indexes at rest. Its statements are those of a `Layout`."""

    _words: ClassVar[Layout]
    _drop: ClassVar[Sequence[str]]
    _delete: ClassVar[str]
    _hits: ClassVar[str]

    async def list(self) -> builtins.list[SearchRow]:
        """All search indexes of the database."""
        return self._read(SearchRow, await self._look("list"))

    async def check(self, searches: Sequence[TableSearch]) -> None:
        """Raise `ConfigError` if the indexes of vectors lack what they need."""
        if any(isinstance(one, TableVectors) for one in searches):
            await self._check_vectors()

    async def add(self, search: TableSearch) -> None:
        """Add a search index, with a table for its rows, unless it is there."""
        layout = await self._layout(search)
        async with self._writing() as session:
            for (number,) in await self._fetch(session, "add", name=search.name, digest=search.digest):
                for text in layout.make:
                    await session.execute(self._on(number, text))

    async def capture(self, number: int, interest: int) -> bool:
        """Note the interest that captures the changes of an index; False if it is known. Otherwise all begins again."""
        return bool(await self._run("capture", id=number, interest=interest))

    async def find(self, session: OpenTransaction | None, search: TableSearch) -> SearchState | None:
        """A search index as a transaction sees it, or as it is now; None if it was never added."""
        values = {"name": search.name, "digest": search.digest, "reader": reader_name("")}
        return self._one(SearchState, await self._ask(session, "find", **values))

    async def hits(self, session: OpenTransaction, number: int, query: Query, filters: Sequence[str]) -> Sequence[Row]:
        """The newest rows of an index that have words of a query, and all tokens of filters: key, time and tokens."""
        return await session.fetch(self._on(number, self._hits), [self._match(query, filters)])

    @abstractmethod
    async def nearest(self, session: OpenTransaction, number: int, wanted: Nearest) -> Sequence[Row]:
        """The rows of an index whose vectors are the nearest, or a few more: keys and packed vectors.

        Fewer than `wanted.count` come only if there are no more.
        """

    async def fill(
        self, number: int, search: TableSearch, before: str, after: str | None, rows: Sequence[Indexed]
    ) -> bool:
        """Write rows of a backfill and move its place; False if somebody else has moved it."""
        layout = await self._layout(search)
        async with self._writing() as session:
            if not await self._fetch(session, "advance", id=number, before=before, after=after):
                return False
            await self._write(session, number, layout, rows)
        return True

    async def complete(self, number: int, search: TableSearch) -> builtins.list[Change]:
        """The changes of the schema that end a backfill: an index over all rows is built sooner than row by row."""
        layout = await self._layout(search)
        return [Change("", (self._on(number, text).sql,), alone=True) for text in layout.complete]

    async def apply(
        self,
        number: int,
        search: TableSearch,
        rows: Sequence[Indexed],
        gone: Sequence[str],
        move: Callable[[Session], Awaitable[bool]],
        *,
        clear: bool = False,
        restart: bool = False,
    ) -> bool:
        """Write rows, and remove deleted ones, in the transaction that moves the reader; False if it was lost.

        Args:
            number: The number of the index.
            search: The index.
            rows: The rows to write.
            gone: The keys of the ones to remove.
            move: Moves the reader; whether it was still this one's.
            clear: Whether to remove all rows before.
            restart: Whether all rows have to be indexed again.
        """
        layout = await self._layout(search)
        async with self._writing() as session:
            if not await move(session):
                return False
            if clear:
                await session.execute(self._on(number, "delete from {t}"))
            if restart:
                await self._execute(session, "restart", id=number)
            if gone:
                await session.execute_many(self._on(number, self._delete), [[self._mark(key)] for key in gone])
            await self._write(session, number, layout, rows)
        return True

    async def restart(self, number: int) -> None:
        """Have all rows indexed again."""
        async with self._writing() as session:
            await session.execute(self._on(number, "delete from {t}"))
            await self._execute(session, "restart", id=number)

    async def drop(self, number: int) -> None:
        """Forget a search index, and drop its table."""
        async with self._writing() as session:
            await self._execute(session, "remove", id=number)
            for text in self._drop:
                await session.execute(self._on(number, text))

    # ----- steps

    def _mark(self, key: str) -> str | bytes:
        """The value by which the table of an index finds a key."""
        return key

    @abstractmethod
    def _match(self, query: Query, filters: Iterable[str]) -> str:
        """A query as the store's engine takes it."""

    @abstractmethod
    async def _check_vectors(self) -> None:
        """Raise `ConfigError` if vectors cannot be stored or searched."""

    async def _layout(self, search: TableSearch) -> Layout:
        return await self._vectors(search) if isinstance(search, TableVectors) else self._words

    @abstractmethod
    async def _vectors(self, search: TableVectors) -> Layout:
        """The statements of an index of vectors. The numbers of its filters are in columns f0, f1 and so on."""

    async def _write(self, session: OpenTransaction, number: int, layout: Layout, rows: Sequence[Indexed]) -> None:
        if rows:
            await session.execute_many(self._on(number, layout.put), [[one.key, *one.values] for one in rows])

    def _on(self, number: int, text: str) -> Statement:
        dialect = self._access.dialect
        table = f"penstock.search_{number}" if dialect.schemas else f"penstock_search_{number}"
        text = text.replace("{t}", table).replace("{n}", str(number))
        return Statement(dialect.qualify(text), bounded=False)
