"""A search index of a table: its name in the database, and the tokens of a row.

Owns what the index of a row depends on. Leaves storing tokens to `store`, and looking for them to `transaction`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from penstock.dataclass import dataclass
from penstock.schema.table import TableDefinition
from penstock.search.encoding import encode, filter_token
from penstock.search.index import SearchIndex
from penstock.search.tokenizer import VERSION

_READER = "search:"


@dataclass(frozen=True)
class TableSearch:
    """A search index with its table. Values of columns are in the form of `reactive.evaluate`."""

    definition: TableDefinition
    index: SearchIndex

    @property
    def name(self) -> str:
        """Its name in the database, where another table may have an index of the same name."""
        return f"{self.definition.name}.{self.index.name}"

    @cached_property
    def source_columns(self) -> tuple[str, ...]:
        """The columns that make the stored row: those of its tokens, and the time by which rows are ordered."""
        return tuple(dict.fromkeys((*self.columns, *(("creation_time",) if self.definition.managed else ()))))

    @property
    def interest_name(self) -> str:
        """The name of the interest that captures its changes."""
        return f"search {self.name} {self.digest}"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that make the tokens of a row."""
        return (self.index.column, *self.index.filters)

    @cached_property
    def digest(self) -> str:
        """The hash of all that tokens depend on: with another one, all rows have to be indexed again."""
        kinds = [self.definition.column(name).kind.value for name in self.columns]
        text = repr((VERSION, self.columns, kinds, self.definition.key))
        return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()

    def tokens(self, values: Mapping[str, Any]) -> str:
        """The stored tokens of a row: those of its words, then those of its filters."""
        text = values[self.index.column]
        filters = self.filter_tokens((name, values[name]) for name in self.index.filters)
        return " ".join((encode(text if isinstance(text, str) else None), *filters)).strip()

    def filter_tokens(self, values: Iterable[tuple[str, Any]]) -> list[str]:
        """The tokens of rows whose filters have these values."""
        return [filter_token(self.index.filters.index(name), value) for name, value in values]


def searches_of(definitions: Iterable[TableDefinition]) -> list[TableSearch]:
    """The search indexes of some tables."""
    return [TableSearch(one, index) for one in definitions for index in one.searches.values()]


def reader_name(number: int | str) -> str:
    """The name of the feed's reader for the search index of this number."""
    return f"{_READER}{number}"
