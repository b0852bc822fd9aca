"""Search indexes as a table declares them.

Owns the declaration. `schema/searching` checks it against the columns of its table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from penstock.errors import DeclarationError

MAX_FILTERS = 16


class ColumnIndex:
    """An index over one column of a table with filters, which a program declares as a class attribute."""

    name: str
    _example: ClassVar[str]
    _taken: ClassVar[str]  # a parameter of its searches
    _taken_for: ClassVar[str]

    def __init__(self, column: str, filters: Iterable[str]) -> None:
        given: Any = filters if isinstance(filters, str) else tuple(filters)
        said = f"{type(self).__name__}({column!r}"
        if not isinstance(column, str):
            raise DeclarationError(f"{said}): a column is given by its name.", fix=f"Write {self._example}.")
        if isinstance(given, str) or not all(isinstance(one, str) for one in given):
            raise DeclarationError(
                f"{said}): filters are names of fields, not {given!r}.",
                fix='Write filters=("channel",), with a comma.',
            )
        if len({column, *given}) <= len(given):
            raise DeclarationError(f"{said}, filters={given!r}) names a column twice.")
        if self._taken in given:
            raise DeclarationError(
                f"{said}): a filter cannot be named {self._taken}, which says {self._taken_for}.",
                fix="Give the field another name.",
            )
        if len(given) > MAX_FILTERS:
            raise DeclarationError(
                f"{said}) has {len(given)} filters, more than {MAX_FILTERS}.",
                fix="Leave out those by which no search is limited.",
            )
        self.column = column
        self.filters: tuple[str, ...] = given
        self.name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.column!r}{f', filters={self.filters!r}' if self.filters else ''})"


class SearchIndex(ColumnIndex):
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

    _example = 'SearchIndex("body")'
    _taken, _taken_for = "match", "how many words a row needs"

    def __init__(self, column: str, *, filters: Iterable[str] = ()) -> None:
        super().__init__(column, filters)
