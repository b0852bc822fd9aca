"""The access of nouns to SQLite: ids are bytes, times are text, lists are JSON; one statement writes one row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.schema.table import TableDefinition
from penstock.store.nouns.noun import Access, Values, keep
from penstock.store.session import Begin, OpenTransaction, Row
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import Query
from penstock.store.sqlite.capture import is_known, key_text
from penstock.store.sqlite.dialect import encode_datetime


def _item(value: UUID | datetime) -> str:
    return value.hex if isinstance(value, UUID) else encode_datetime(value)


_list_text = json.JSONEncoder(default=_item).encode
_ENCODE: Mapping[type, Callable[[Any], Any]] = {
    datetime: encode_datetime,
    UUID: lambda value: value.bytes,
    timedelta: timedelta.total_seconds,
    list: _list_text,
    tuple: _list_text,
}


class SqliteAccess(Access):
    """See `store.nouns.Access`."""

    looks_first = True  # one transaction writes at a time, of all processes
    time = staticmethod(lambda value: None if value is None else datetime.fromisoformat(value))
    uuid = staticmethod(lambda value: UUID(bytes=value))
    items = staticmethod(json.loads)
    duration = staticmethod(lambda value: timedelta(seconds=value))

    def __init__(self, begin_read: Begin, begin_write: Begin, dialect: Dialect) -> None:
        self.dialect = dialect
        self.begin_read = begin_read
        self.begin_write = begin_write

    async def fetch_each(
        self, session: OpenTransaction, query: Query, rows: Sequence[Values], values: Values
    ) -> Sequence[Row]:
        return [row for own in rows for row in await self.fetch(session, query, {**values, **own})]

    def args(self, query: Query, values: Values) -> list[Any]:
        bound: dict[str, Any] = {}  # a name that comes again stands for the same value
        for name in query.parameters:
            if name not in bound:
                value = values[name]
                bound[name] = _ENCODE.get(type(value), keep)(value)
        return [bound[name] for name in query.parameters]

    def key_text(self, definition: TableDefinition) -> str:
        return key_text("r", definition.key)

    def key_conditions(self, definition: TableDefinition) -> Sequence[str]:
        return [is_known(definition.key)]
