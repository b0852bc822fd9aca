"""The check of a table's search indexes against its columns.

Owns which columns can be searched and which can filter a search. Leaves the declaration to `search/index`.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import DeclarationError
from penstock.schema.fields import Column, Kind
from penstock.search.index import SearchIndex


def check_search(table: str, index: SearchIndex, columns: Mapping[str, Column]) -> None:
    """Refuse a search index whose columns do not exist, have no words, or cannot be compared."""
    where = f"Table {table}: search index {index.name}"
    unknown = [name for name in (index.column, *index.filters) if name not in columns]
    if unknown:
        raise DeclarationError(
            f"{where} names {', '.join(unknown)}, which is no field of the table.",
            fix=f"Its fields are {', '.join(columns)}.",
        )
    kind = columns[index.column].kind
    if kind is not Kind.TEXT:
        secret = kind is Kind.ENCRYPTED
        raise DeclarationError(
            f"{where} is over {index.column}, which is {'encrypted' if secret else 'no text'}.",
            fix="A search needs the words themselves in the database."
            if secret
            else "Name a field of type str, or str | None.",
        )
    for name in index.filters:
        if obstacle := columns[name].order_obstacle:
            raise DeclarationError(
                f"{where} has the filter {name}, which {obstacle} and cannot be compared.",
                fix="Store what is looked for in a field of its own, such as an HMAC of the value.",
            )
