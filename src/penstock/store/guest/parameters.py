"""Statements, values and rows on their way through the user's driver: translates penstock's placeholders.

The translation is exact: texts, quoted names and comments stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.values import check_text

# A piece without parameters, or a parameter with its number. An E before a text gives backslashes their meaning.
_PLAIN = r"""
      '(?: [^'] | '' )*'
    | "(?: [^"] | "" )*"
    | -- [^\n]*
    | /\* .*? \*/
"""
_POSTGRES_PIECE = re.compile(
    rf"""
      (?<!\w) [eE] '(?: [^'\\] | \\. | '' )*'
    | {_PLAIN}
    | (?<![\w$]) \$ (?P<tag> [A-Za-z_]\w* )? \$ .*? \$ (?P=tag) \$
    | (?<![\w$]) \$\$ .*? \$\$
    | (?<![\w$]) \$ (?P<number> \d+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_SQLITE_PIECE = re.compile(rf"{_PLAIN} | (?P<nameless> \? )", re.VERBOSE | re.DOTALL)
_TRANSLATIONS = 512


@dataclass(frozen=True, slots=True)
class Style:
    """The form in which a driver takes statements: text from penstock's, and parameters from values in order."""

    sql: Callable[[str], str]
    values: Callable[[Sequence[Any]], Any]


@lru_cache(maxsize=_TRANSLATIONS)
def name_parameters(sql: str) -> str:
    """A statement of PostgreSQL with parameters named ``%(p1)s``; its own % are doubled.

    The parentheses keep a minus sign with its number when a driver writes values into the text: ``(-1)::smallint``.
    """

    def piece(match: re.Match[str]) -> str:
        return f"(%(p{match['number']})s)" if match["number"] else match[0]

    return _POSTGRES_PIECE.sub(piece, sql.replace("%", "%%"))


@lru_cache(maxsize=_TRANSLATIONS)
def nameless_sql(sql: str) -> str:
    """A statement of SQLite with parameters ``%s``; its own % are doubled, and parentheses keep them apart."""

    def piece(match: re.Match[str]) -> str:
        return "(%s)" if match["nameless"] else match[0]

    return _SQLITE_PIECE.sub(piece, sql.replace("%", "%%"))


def _name_values(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(values, 1)}


def _uuid_as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_uuid_as_text(item) for item in value]
    return str(value) if isinstance(value, UUID) else value


AS_IT_IS = Style(str, tuple)  # for drivers that penstock uses itself
NAMELESS = Style(nameless_sql, tuple)
NAMED = Style(name_parameters, _name_values)
# For drivers that take UUIDs only if taught to.
NAMED_WITHOUT_UUID = Style(name_parameters, lambda values: _name_values([*map(_uuid_as_text, values)]))


def check_values(values: Sequence[Any]) -> None:
    """Refuse texts with a NUL character or a lone surrogate: drivers differ in how they fail."""
    for value in values:
        if isinstance(value, str):
            check_text(value, "A value")
        elif isinstance(value, list):
            check_values(value)


def plain_result(value: Any) -> Any:
    """A value of a row as penstock's own drivers give it: times in UTC, bytes as bytes."""
    if isinstance(value, list):
        return [plain_result(item) for item in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, memoryview | bytearray) else value
