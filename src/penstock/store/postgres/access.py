"""The access of nouns to PostgreSQL: the driver converts no values, and one statement writes many rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import asyncpg

from penstock.schema.table import TableDefinition
from penstock.store.nouns.noun import Access, Values, keep
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.errors import had_no_effect, is_connection_lost, translate, uncertain
from penstock.store.postgres.session import BEGIN_INTERNAL, BEGIN_READ, begin
from penstock.store.postgres.spelling import key_text
from penstock.store.session import OpenTransaction, Row, writing
from penstock.store.sql.queries import Query


class PostgresAccess(Access):
    """See `store.nouns.Access`."""

    looks_first = False
    time = items = duration = uuid = staticmethod(keep)

    def __init__(self, connections: Connections) -> None:
        self._connections, self.dialect = connections, connections.dialect
        self.begin_read = partial(begin, connections, BEGIN_READ)
        self.begin_write = partial(begin, connections, BEGIN_INTERNAL)

    @property
    def is_pooled(self) -> bool:  # type: ignore[override]  # known once a connection is open
        return self._connections.route.pooled

    async def look(self, query: Query, values: Values, rows: Sequence[Values] | None = None) -> Sequence[Row]:
        return await run(self._connections, query, values if rows is None else _lists(rows, values))

    run = look

    async def fetch_each(
        self, session: OpenTransaction, query: Query, rows: Sequence[Values], values: Values
    ) -> Sequence[Row]:
        return await self.fetch(session, query, _lists(rows, values))

    def args(self, query: Query, values: Values) -> list[Any]:
        return query.args(values)

    def key_text(self, definition: TableDefinition) -> str:
        return key_text("r", {column.name: POSTGRES.types[column.kind] for column in definition.key_columns})

    def key_casts(self, definition: TableDefinition) -> Sequence[str]:
        return [f"::{POSTGRES.types[column.kind]}" for column in definition.key_columns]


async def run(
    connections: Connections, query: Query, values: Mapping[str, Any], *, once: bool = False
) -> Sequence[Row]:
    """Run one query in a transaction of its own; `once` if it must not run again where nobody knows whether it has."""
    if connections.route.pooled:  # settings hold within a transaction only
        async with writing(lambda: begin(connections, BEGIN_INTERNAL)) as session:
            return await session.fetch(query.statement, query.args(values))
    connection = await connections.acquire()
    broken = True
    try:
        rows: Sequence[Row] = await connection.fetch(
            query.statement.sql, *query.args(values), timeout=connections.answer_timeout
        )
        broken = False
    except BaseException as error:
        broken = is_connection_lost(error) or not isinstance(error, asyncpg.PostgresError)
        if is_connection_lost(error):
            connections.drop_free()
        if once and not had_no_effect(error) and (is_connection_lost(error) or isinstance(error, TimeoutError)):
            raise uncertain(error) from error
        raise translate(error) from error
    finally:
        connections.release(connection, broken=broken)
    return rows


def _lists(rows: Sequence[Values], values: Values) -> Values:
    return {**values, **{name: [row[name] for row in rows] for name in rows[0]}}
