"""Finds the value that the driver could not read: its row and its column. The driver names neither."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

import asyncpg

from penstock.errors import RowInvalid
from penstock.schema.table import TableDefinition
from penstock.store.sql.values import read_interval

AS_JSON = "select row_to_json(found)::text from ({}) as found"
_ENDS = frozenset({"infinity", "-infinity"})  # which the driver reads


def is_unreadable(error: BaseException | None) -> bool:
    """Whether the driver could not read a value of an answer."""
    otherwise = (asyncpg.InterfaceError, UnicodeEncodeError)  # of a parameter
    return isinstance(error, OverflowError | ValueError) and not isinstance(error, otherwise)


def invalid(
    error: BaseException, table: TableDefinition | None, kinds: Mapping[str, str], rows: Sequence[Any]
) -> RowInvalid:
    """The error for an answer, from the types of its columns and its rows as JSON."""
    facts: dict[str, Any] = {} if table is None else {"table": table.name}
    found = ((row, *field) for (text,) in rows for row in (json.loads(text),) for field in row.items())
    value: Any = error
    for row, column, value in found:
        if not _can_read(_READERS.get(kinds[column].removesuffix("[]")), value):
            if table is not None and row.keys() >= set(table.key):
                facts["row"] = table.key_in(row)
            facts["column"] = column
            break
    else:
        value = error
    named = ", ".join(f"{what} {fact}" for what, fact in facts.items())
    what = f"The database holds a value that Python cannot represent: {named}{named and ': '}{value}."
    return RowInvalid(what, fix="Correct the row, or do not read the column.", **facts)


def _can_read(read: Callable[[str], Any] | None, value: Any) -> bool:
    if isinstance(value, list):
        return all(_can_read(read, item) for item in value)
    if read is None or not isinstance(value, str) or value in _ENDS:
        return True
    try:
        read(value)
    except (ValueError, OverflowError):
        return False
    return True


def _read_moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is None else found.astimezone(UTC)


def _read_time(text: str) -> time:
    return time.fromisoformat(text.replace("24:", "x:"))  # which no Python has


_READERS: dict[str, Callable[[str], Any]] = {
    "timestamptz": _read_moment,
    "timestamp": _read_moment,
    "date": date.fromisoformat,
    "time": _read_time,
    "timetz": _read_time,
    "interval": read_interval,
}
