"""Indexes as a table declares them.

Owns the declaration. Leaves its SQL to the stores, and reading through it to `transaction/scan`.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import DeclarationError


class Index:
    """An index over one or more columns of a table, declared as a class attribute.

    Rows with equal columns follow in order of their id, which is the order of their creation.

    Args:
        columns: Names of fields of the table, in order.
        unique: At most one row may hold each combination; rows with None in one of the columns do not count.

    Raises:
        DeclarationError: At import, if a column does not exist, is named twice, or is stored as JSON; see `Table`.
    """

    name: str

    def __init__(self, *columns: str, unique: bool = False) -> None:
        if not columns:
            raise DeclarationError("An Index needs at least one column.", fix='Write Index("column", …).')
        if not all(isinstance(column, str) for column in columns):
            raise DeclarationError(
                f"Index{columns!r}: columns are given by their names, one after another.",
                fix='Write Index("shop", "day").',
            )
        if len(set(columns)) != len(columns):
            raise DeclarationError(f"Index{columns!r} names a column twice.")
        self.columns = columns
        self.unique = unique
        self.name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        unique = ", unique=True" if self.unique else ""
        return f"Index({', '.join(map(repr, self.columns))}{unique})"


def redundant_indexes(indexes: list[Index]) -> list[tuple[Index, Index]]:
    """Pairs (redundant, covering): indexes whose columns are the first columns of another one.

    A unique index is a constraint, and never redundant. A prefix may still serve reads in order of creation.
    """
    found = []
    for index in indexes:
        for other in indexes:
            longer = len(other.columns) > len(index.columns)
            if not index.unique and longer and other.columns[: len(index.columns)] == index.columns:
                found.append((index, other))
                break
    return found
