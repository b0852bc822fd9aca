"""How nouns reach PostgreSQL: the driver takes and gives values as they are, and one statement writes many rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from penstock.jobs.job import Job
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.nouns.noun import Access, Values
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.jobs import run
from penstock.store.postgres.session import BEGIN_INTERNAL, BEGIN_READ, begin
from penstock.store.rows.jobs import job_of
from penstock.store.sql.queries import Query


class PostgresAccess(Access):
    """See `store.nouns.Access`."""

    dialect = POSTGRES
    looks_first = False

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def begin_read(self) -> Session:
        return await begin(self._connections, BEGIN_READ)

    async def begin_write(self) -> Session:
        return await begin(self._connections, BEGIN_INTERNAL)

    async def look(self, query: Query, values: Values) -> Sequence[Row]:
        return await run(self._connections, query, values)

    async def run(self, query: Query, values: Values) -> Sequence[Row]:
        return await run(self._connections, query, values)

    async def run_each(self, query: Query, rows: Sequence[Values], values: Values) -> Sequence[Row]:
        return await run(self._connections, query, _lists(rows, values))

    async def fetch_each(
        self, session: OpenTransaction, query: Query, rows: Sequence[Values], values: Values
    ) -> Sequence[Row]:
        return await self.fetch(session, query, _lists(rows, values))

    def args(self, query: Query, values: Values) -> list[Any]:
        return query.args(values)

    def time(self, value: Any) -> Any:
        return value

    def uuid(self, value: Any) -> UUID:
        return UUID(int=value.int)  # the driver's own class is another one

    def items(self, value: Any) -> list[Any]:
        return list(value)

    def duration(self, value: Any) -> timedelta:
        found: timedelta = value
        return found

    def job(self, row: Row) -> Job:
        return job_of(row)


def _lists(rows: Sequence[Values], values: Values) -> Values:
    return {**values, **{name: [row[name] for row in rows] for name in rows[0]}}
