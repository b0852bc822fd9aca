"""`ctx.sql`: a query in SQL with named values, as a store runs it.

Owns finding the names and checking the values. Leaves refusing to write to the stores, which run it read-only.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from penstock.errors import DataError
from penstock.schema.fields import ENCODERS, PLAIN
from penstock.store.sql.dialect import Dialect, Placeholders

_QUERY = re.compile(r"(?:\s|\(|--[^\n]*+|/\*.*?\*/)*+(?:select|with|values|explain)\b", re.IGNORECASE | re.DOTALL)
_NAMES = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|(?<![:\w]):(?P<name>[A-Za-z_]\w*)""", re.DOTALL
)


def prepare_sql(query: str, values: Mapping[str, Any], dialect: Dialect) -> tuple[str, list[Any]]:
    """SQL with placeholders in place of the ``:names`` that have a value, and the values that it takes, in order.

    Raises:
        DataError: It is no query, or a value's name does not occur in it.
        ValueInvalid: A value cannot be one of a column.
    """
    if not _QUERY.match(query):
        raise DataError(
            "ctx.sql takes a query: SELECT, WITH, VALUES or EXPLAIN.", fix="It only reads; write with ctx.db."
        )
    placeholders = Placeholders(dialect.parameter)

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        return placeholders.put(name) if name in values else match[0]

    sql = _NAMES.sub(put, query)
    unused = values.keys() - set(placeholders.names)
    if unused:
        raise DataError(f"ctx.sql: {', '.join(sorted(unused))} does not occur in the query.", fix="Write :name there.")
    encoded = {name: _encode(name, value, dialect) for name, value in values.items()}
    return sql, [encoded[name] for name in placeholders.names]


def plain(value: Any) -> Any:
    """A value with UUIDs of Python's class: PostgreSQL's driver has one of its own."""
    many = isinstance(value, list)
    return [*map(plain, value)] if many else UUID(int=value.int) if isinstance(value, UUID) else value


def _encode(name: str, value: Any, dialect: Dialect) -> Any:
    """A value in the form in which the store holds such values, so that they compare."""
    plain = value.value if isinstance(value, enum.Enum) else value
    kind = PLAIN.get(type(plain))
    return plain if kind is None else dialect.encode_value(kind, ENCODERS[kind](f"ctx.sql: {name}", plain))
