"""Search indexes as a table declares them.

Owns the declaration. `schema/searching` checks it against the columns of its table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.errors import DeclarationError

MAX_FILTERS = 16


class SearchIndex:
    """A text search index over one column of a table, declared as a class attribute.

    Rows are found by the words of the column, whatever their case and accents, and by the values of the filters.

    Args:
        column: Name of the field whose words are found: a `str`, or a `str | None`.
        filters: Names of at most 16 other fields. A search may ask for one value of each, and
            for eight at most. None by default.

    Raises:
        DeclarationError: At import, if a field does not exist, is named twice, or cannot be searched or compared; see
            `Table`.
    """

    name: str

    def __init__(self, column: str, *, filters: Iterable[str] = ()) -> None:
        given: Any = filters if isinstance(filters, str) else tuple(filters)
        if not isinstance(column, str):
            raise DeclarationError(
                f"SearchIndex({column!r}): a column is given by its name.", fix='Write SearchIndex("body").'
            )
        if isinstance(given, str) or not all(isinstance(one, str) for one in given):
            raise DeclarationError(
                f"SearchIndex({column!r}): filters are names of fields, not {given!r}.",
                fix='Write filters=("channel",), with a comma.',
            )
        if len({column, *given}) <= len(given):
            raise DeclarationError(f"SearchIndex({column!r}, filters={given!r}) names a column twice.")
        if "match" in given:
            raise DeclarationError(
                f"SearchIndex({column!r}): a filter cannot be named match, which says how many words a row needs.",
                fix="Give the field another name.",
            )
        if len(given) > MAX_FILTERS:
            raise DeclarationError(
                f"SearchIndex({column!r}) has {len(given)} filters, more than {MAX_FILTERS}.",
                fix="Leave out those by which no search is limited.",
            )
        self.column = column
        self.filters: tuple[str, ...] = given
        self.name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"SearchIndex({self.column!r}{f', filters={self.filters!r}' if self.filters else ''})"
