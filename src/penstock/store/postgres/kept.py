"""Statements that are kept back are sent together: as text, since only a text can hold several.

Each was prepared on its connection before. The text names it, and spells its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from penstock.values import is_storable

MOST_PREPARED = 256  # statements that have a name on one connection
_MOST_LETTERS = 16 * 1024  # in one statement; a driver sends larger values more cheaply
MANY = 8  # runs of one statement in a row, which the driver sends more cheaply than their text
MOST_KEPT = 64  # statements that are kept back; then they are sent


def spell(name: str, args: Sequence[Any]) -> str | None:
    """The text that runs a prepared statement with these values; None if only the driver can send them."""
    spelled = [text for text in map(_spell, args) if text is not None]
    if len(spelled) < len(args) or sum(map(len, spelled)) > _MOST_LETTERS:
        return None
    return f"execute {name}({', '.join(spelled)})" if spelled else f"execute {name}"


def _spell(value: Any) -> str | None:
    """A value as a literal of SQL, whose type the statement knows; None if only the driver can send it."""
    if value is None:
        return "null"
    how = _SPELLINGS.get(type(value))
    if how is None and isinstance(value, str):  # an id, or a text of the user's class
        return _quote(str.__str__(value))
    return None if how is None else how(value)


def _quote(text: str) -> str | None:
    if not is_storable(text):
        return None  # the driver refuses it
    text = text.replace("'", "''")
    return f"'{text}'" if "\\" not in text else "e'" + text.replace("\\", "\\\\") + "'"


def _is_finite(value: date) -> bool:
    """Whether the driver sends it as it is: it takes the first and the last as infinite."""
    return MINYEAR < value.year < MAXYEAR


def _quote_plain(value: object) -> str:
    return f"'{value}'"


_SPELLINGS: Mapping[type, Callable[[Any], str | None]] = {
    bool: lambda value: "true" if value else "false",
    int: _quote_plain,
    float: _quote_plain,
    str: _quote,
    bytes: lambda value: f"e'\\\\x{value.hex()}'",
    Decimal: _quote_plain,
    UUID: _quote_plain,
    date: lambda value: _quote_plain(value) if _is_finite(value) else None,
    datetime: lambda value: _quote_plain(value.isoformat()) if value.tzinfo is not None and _is_finite(value) else None,
}
