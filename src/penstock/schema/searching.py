"""The check of a table's search indexes against its columns, and of vectors that are written.

Owns which columns can be searched and which can filter a search. Leaves the declaration to `search`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args, get_origin

from penstock.errors import DeclarationError
from penstock.schema.fields import Column, Kind, strip_annotated, strip_optional
from penstock.search.index import ColumnIndex
from penstock.search.vectors import VectorIndex, unit_vector


def check_search(table: str, index: ColumnIndex, columns: Mapping[str, Column]) -> None:
    """Refuse a search index whose columns do not exist, have no words or vectors, or cannot be compared."""
    where = f"Table {table}: {index_title(index)} {index.name}"
    unknown = [name for name in (index.column, *index.filters) if name not in columns]
    if unknown:
        raise DeclarationError(
            f"{where} names {', '.join(unknown)}, which is no field of the table.",
            fix=f"Its fields are {', '.join(columns)}.",
        )
    column = columns[index.column]
    fits = _holds_vectors(column) if isinstance(index, VectorIndex) else column.kind is Kind.TEXT
    if not fits:
        secret = column.kind is Kind.ENCRYPTED
        wanted, other = ("list of floats", "list[float]") if isinstance(index, VectorIndex) else ("text", "str")
        raise DeclarationError(
            f"{where} is over {index.column}, which is {'encrypted' if secret else f'no {wanted}'}.",
            fix="A search needs the words themselves in the database."
            if secret
            else f"Name a field of type {other}, or {other} | None.",
        )
    for name in index.filters:
        if obstacle := columns[name].order_obstacle:
            raise DeclarationError(
                f"{where} has the filter {name}, which {obstacle} and cannot be compared.",
                fix="Store what is looked for in a field of its own, such as an HMAC of the value.",
            )


def index_title(index: ColumnIndex) -> str:
    """The kind of an index, for people."""
    return "vector index" if isinstance(index, VectorIndex) else "search index"


def check_vectors(table: str, column: Column, indexes: Sequence[ColumnIndex]) -> Column:
    """A column that refuses vectors which its vector index cannot hold; any other column as it is."""
    lengths = {one.dimensions for one in indexes if isinstance(one, VectorIndex) and one.column == column.name}
    if not lengths:
        return column
    if len(lengths) > 1:
        raise DeclarationError(
            f"Table {table}: vector indexes give {column.name} {' and '.join(map(str, sorted(lengths)))} dimensions.",
            fix="Vectors of another model belong into a field of their own.",
        )
    dimensions, where, encode = lengths.pop(), f"{table}.{column.name}", column.encode

    def check(value: Any) -> Any:
        unit_vector(where, value, dimensions)
        return encode(type(value)(one + 0.0 for one in value))  # without minus zeros, which JSON columns refuse

    return replace(column, encode=check)


def _holds_vectors(column: Column) -> bool:
    annotation = None if column.info is None else strip_optional(column.info.annotation)[0]
    items = get_args(annotation)
    is_list = get_origin(annotation) in {list, tuple, Sequence} and bool(items)
    return column.kind is Kind.JSON and is_list and strip_annotated(items[0]) is float
