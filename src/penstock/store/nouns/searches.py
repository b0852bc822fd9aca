"""Search indexes at rest: the tokens of each row in a table of their own, and the place of the backfill.

Each store has its own engine, and so its own statements on the tables of tokens.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar

from penstock.changes.searches import TableSearch, reader_name
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
    """The tokens of a row."""

    key: str  # as the change feed spells it; of any length
    created: int | None  # in microseconds; None for a table without creation times
    tokens: str


class Searches(Noun, ABC, queries=("searches",)):
    """Search indexes at rest. In its statements {t} stands for the table of tokens."""

    _make: ClassVar[Sequence[str]]
    _drop: ClassVar[Sequence[str]]
    _put: ClassVar[str]  # a row; on PostgreSQL lists of rows
    _delete: ClassVar[str]
    _hits: ClassVar[str]
    _complete: ClassVar[Sequence[str]] = ()  # before an index is filled; each by itself, as it may take long

    async def list(self) -> builtins.list[SearchRow]:
        """All search indexes of the database."""
        return self._read(SearchRow, await self._look("list"))

    async def add(self, search: TableSearch) -> None:
        """Add a search index, with a table for its tokens, unless it is there."""
        async with self._writing() as session:
            for (number,) in await self._fetch(session, "add", name=search.name, digest=search.digest):
                for text in self._make:
                    await session.execute(self._on(number, text))

    async def capture(self, number: int, interest: int) -> bool:
        """Note the interest that captures the changes of an index; False if it is known. Otherwise all begins again."""
        return bool(await self._run("capture", id=number, interest=interest))

    async def find(self, session: OpenTransaction | None, search: TableSearch) -> SearchState | None:
        """A search index as a transaction sees it, or as it is now; None if it was never added."""
        values = {"name": search.name, "digest": search.digest, "reader": reader_name("")}
        return self._one(SearchState, await self._ask(session, "find", **values))

    async def hits(self, session: OpenTransaction, number: int, query: Query, filters: Sequence[str]) -> Sequence[Row]:
        """The newest rows of an index that have words of a query, and all tokens of filters, as `Indexed` has them."""
        return await session.fetch(self._on(number, self._hits), [self._match(query, filters)])

    async def fill(self, number: int, before: str, after: str | None, rows: Sequence[Indexed]) -> bool:
        """Write rows of a backfill and move its place; False if somebody else has moved it."""
        async with self._writing() as session:
            if not await self._fetch(session, "advance", id=number, before=before, after=after):
                return False
            await self._write(session, number, rows)
        return True

    def complete(self, number: int) -> builtins.list[Change]:
        """The changes of the schema that end a backfill: an index over all rows is built sooner than row by row."""
        return [Change("", (self._on(number, text).sql,), alone=True) for text in self._complete]

    async def apply(
        self,
        number: int,
        rows: Sequence[Indexed],
        gone: Sequence[str],
        move: Callable[[Session], Awaitable[bool]],
        *,
        clear: bool = False,
        restart: bool = False,
    ) -> bool:
        """Write rows, and remove deleted ones, in the transaction that moves the reader; False if it was lost.

        Args:
            number: The index.
            rows: The rows to write.
            gone: The keys of the ones to remove.
            move: Moves the reader; whether it was still this one's.
            clear: Whether to remove all rows before.
            restart: Whether all rows have to be indexed again.
        """
        async with self._writing() as session:
            if not await move(session):
                return False
            if clear:
                await session.execute(self._on(number, "delete from {t}"))
            if restart:
                await self._execute(session, "restart", id=number)
            if gone:
                await session.execute_many(self._on(number, self._delete), [[self._mark(key)] for key in gone])
            await self._write(session, number, rows)
        return True

    async def restart(self, number: int) -> None:
        """Have all rows indexed again."""
        async with self._writing() as session:
            await session.execute(self._on(number, "delete from {t}"))
            await self._execute(session, "restart", id=number)

    async def drop(self, number: int) -> None:
        """Forget a search index, and drop its tokens."""
        async with self._writing() as session:
            await self._execute(session, "remove", id=number)
            for text in self._drop:
                await session.execute(self._on(number, text))

    # ----- steps

    def _mark(self, key: str) -> str | bytes:
        """The value by which the table of tokens finds a key."""
        return key

    @abstractmethod
    def _match(self, query: Query, filters: Iterable[str]) -> str:
        """A query as the store's engine takes it."""

    async def _write(self, session: OpenTransaction, number: int, rows: Sequence[Indexed]) -> None:
        if rows:
            values = [[one.key, one.created, one.tokens] for one in rows]
            await session.execute_many(self._on(number, self._put), values)

    def _on(self, number: int, text: str) -> Statement:
        dialect = self._access.dialect
        table = f"penstock.search_{number}" if dialect.schemas else f"penstock_search_{number}"
        text = text.replace("{t}", table).replace("{n}", str(number))
        return Statement(dialect.qualify(text), bounded=False)
