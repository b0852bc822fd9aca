"""The base of the classes of nouns: named queries, run through a store's `Access`.

Owns the seam between nouns and stores. A noun composes queries into verbs; a store runs a query, and knows how
values look in its database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from penstock.codec import Encryption
from penstock.schema.table import TableDefinition
from penstock.store.nouns.jobtext import FORMS
from penstock.store.session import Begin, OpenTransaction, Row, Session, Statement, reading, writing
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import Query, load_queries
from penstock.store.sql.rows import Convert, Part, reader_of

T = TypeVar("T")
Values = Mapping[str, Any]


def keep(value: Any) -> Any:
    """Leave a value as the driver gives it."""
    return value


class Access(ABC):
    """The database of one store, as nouns reach it."""

    dialect: Dialect  # the store's
    looks_first: ClassVar[bool]  # whether writing waits for all others who write, so that a look comes before it
    forms: ClassVar[Mapping[Any, Convert]]  # by type, what converts values as the driver gives them
    # Some of these: of a time or None, an id, a list, and a duration.
    time: Callable[[Any], Any]
    uuid: Callable[[Any], UUID]
    items: Callable[[Any], list[Any]]
    duration: Callable[[Any], timedelta]
    is_pooled = False  # whether a pooler lends a connection for each transaction, which may be one too few for a second
    begin_read: Begin  # begins a snapshot
    begin_write: Begin  # begins a transaction for writes of services: it need not be serializable
    encryption = Encryption()  # replaced by that of the store
    # The functions whose jobs this process leaves to others: parameters of queries that look for jobs.
    left: Values = {"others": (), "shared": (), "programs": ()}  # noqa: RUF012 - replaced, and never changed

    def read(self, kind: type[T], rows: Sequence[Row], **own: Part) -> list[T]:
        """Rows as values of a class: a field is the column of its name, or what `own` makes of the row."""
        if not rows:
            return []
        first: Any = rows[0]
        made: Any = kind
        read = reader_of(made, tuple(first.keys()), type(self), tuple(own))
        return [read(row, own) for row in rows]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        given: dict[type, Convert] = {datetime: cls.time, UUID: cls.uuid, timedelta: cls.duration, tuple: cls.items}
        cls.forms = {bool: bool, **{kind: one for kind, one in given.items() if one is not keep}, **FORMS}

    async def look(self, query: Query, values: Values, rows: Sequence[Values] | None = None) -> Sequence[Row]:
        """Run a query that only reads, in a transaction of its own; with `rows` for each of these, at least one."""
        async with reading(self.begin_read) as session:
            return await self.fetch(session, query, values, rows)

    async def run(self, query: Query, values: Values, rows: Sequence[Values] | None = None) -> Sequence[Row]:
        """Run a query in a transaction of its own; with `rows` for each of these, at least one."""
        async with writing(self.begin_write) as session:
            return await self.fetch(session, query, values, rows)

    @abstractmethod
    async def fetch_each(
        self, session: OpenTransaction, query: Query, rows: Sequence[Values], values: Values
    ) -> Sequence[Row]:
        """Run a query for each of some rows, at least one: once with lists of their values, or as often.

        `values` are parameters that are the same for all.
        """

    async def fetch(
        self, session: OpenTransaction, query: Query, values: Values, each: Sequence[Values] | None = None
    ) -> Sequence[Row]:
        """Run a query with the statements that follow it; the rows of all."""
        if each is not None:
            return await self.fetch_each(session, query, each, values)
        rows = await session.fetch(query.statement, self.args(query, values))
        for then in query.then:
            rows = [*rows, *await session.fetch(then.statement, self.args(then, values))]
        return rows

    @abstractmethod
    def args(self, query: Query, values: Values) -> list[Any]:
        """Values as the driver takes them, in the order of a query's parameters."""

    @abstractmethod
    def key_text(self, definition: TableDefinition) -> str:
        """The SQL that spells the key of a row of a user's table, called ``r``, as the change feed does."""

    def key_conditions(self, definition: TableDefinition) -> Sequence[str]:  # noqa: ARG002 - of some stores not all have one
        """The conditions on rows, called ``r``, whose key can be spelled."""
        return ()

    def key_casts(self, definition: TableDefinition) -> Sequence[str]:
        """SQL that gives each value of a key its type."""
        return [""] * len(definition.key)


class Noun:
    """One noun at rest, the same for both stores; `queries` names its files of queries."""

    _files: tuple[str, ...] = ()

    def __init_subclass__(cls, queries: tuple[str, ...] = ()) -> None:
        super().__init_subclass__()
        cls._files = queries or cls._files

    def __init__(self, access: Access) -> None:
        self._access = access
        self._queries = {name: one for file in self._files for name, one in load_queries(file, access.dialect).items()}

    def _own(self, sql: str) -> Statement:
        """A statement that is no query of a .sql file, as the name of a table cannot be a parameter."""
        return Statement(self._access.dialect.qualify(sql))

    def _reading(self) -> AbstractAsyncContextManager[Session]:
        return reading(self._access.begin_read)

    def _writing(self) -> AbstractAsyncContextManager[Session]:
        return writing(self._access.begin_write)

    def _begin_kept(self) -> AbstractAsyncContextManager[Session]:
        return reading(self._access.begin_write)

    async def _fetch(self, session: OpenTransaction, query_name: str, /, **values: Any) -> Sequence[Row]:
        return await self._access.fetch(session, self._queries[query_name], values)

    async def _fetch_each(
        self, session: OpenTransaction, query_name: str, rows: Sequence[Values], /, **values: Any
    ) -> Sequence[Row]:
        return () if not rows else await self._access.fetch_each(session, self._queries[query_name], rows, values)

    async def _look(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        return await self._access.look(self._queries[query_name], values)

    async def _look_each(self, query_name: str, rows: Sequence[Values], /, **values: Any) -> Sequence[Row]:
        return () if not rows else await self._access.look(self._queries[query_name], values, rows)

    async def _ask(self, session: OpenTransaction | None, query_name: str, /, **values: Any) -> Sequence[Row]:
        return await (
            self._look(query_name, **values) if session is None else self._fetch(session, query_name, **values)
        )

    async def _run(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        return await self._access.run(self._queries[query_name], values)

    async def _run_each(self, query_name: str, rows: Sequence[Values], /, **values: Any) -> Sequence[Row]:
        return () if not rows else await self._access.run(self._queries[query_name], values, rows)

    async def _execute(self, session: OpenTransaction, query_name: str, /, **values: Any) -> int:
        query = self._queries[query_name]
        return await session.execute(query.statement, self._access.args(query, values))

    def _read(self, kind: type[T], rows: Sequence[Row], **own: Part) -> list[T]:
        return self._access.read(kind, rows, **own)

    def _one(self, kind: type[T], rows: Sequence[Row], **own: Part) -> T | None:
        found = self._read(kind, rows[:1], **own)
        return found[0] if found else None

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget rows whose time is over, in one bounded step, if the noun has a query for it; their number."""
        values = {"now": now, "limit": limit}
        if self._access.looks_first and "any_old" in self._queries and not await self._look("any_old", **values):
            return 0
        async with self._writing() as session:
            return await self._execute(session, "prune", **values)
