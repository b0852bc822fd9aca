"""A search index of a table: its name in the database, and what it stores of a row: its tokens, or its vector.

Owns what the index of a row depends on. Leaves storing to `store`, and looking for rows to `transaction`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from penstock.dataclass import dataclass
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition
from penstock.search import vectors
from penstock.search.encoding import encode, filter_number, filter_token
from penstock.search.index import ColumnIndex
from penstock.search.tokenizer import VERSION

_READER = "search:"


@dataclass(frozen=True)
class TableSearch:
    """A search index with its table. Values of columns are in the form of `reactive.evaluate`."""

    definition: TableDefinition
    index: ColumnIndex

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
        """The columns by which a row is found."""
        return (self.index.column, *self.index.filters)

    @cached_property
    def digest(self) -> str:
        """The hash of all that the stored rows depend on: with another one, all have to be indexed again."""
        kinds = [self.definition.column(name).kind.value for name in self.columns]
        text = repr((self._version, self.columns, kinds, self.definition.key))
        return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()

    @property
    def _version(self) -> str:
        return VERSION

    def entry(self, values: Mapping[str, Any]) -> Sequence[Any] | None:
        """The values that the index stores of a row, after its key; None to store nothing."""
        return values.get("creation_time"), self.tokens(values)

    def tokens(self, values: Mapping[str, Any]) -> str:
        """The stored tokens of a row: those of its words, then those of its filters."""
        text = values[self.index.column]
        filters = self.filter_tokens((name, values[name]) for name in self.index.filters)
        return " ".join((encode(text if isinstance(text, str) else None), *filters)).strip()

    def filter_tokens(self, values: Iterable[tuple[str, Any]]) -> list[str]:
        """The tokens of rows whose filters have these values."""
        return [filter_token(self.index.filters.index(name), value) for name, value in values]


@dataclass(frozen=True)
class TableVectors(TableSearch):
    """A vector index with its table. It stores the vector of a row, and a number for each of its filters."""

    index: vectors.VectorIndex

    @cached_property
    def source_columns(self) -> tuple[str, ...]:
        """The columns that make the stored row."""
        return self.columns

    @property
    def _version(self) -> str:
        return f"vectors {vectors.VERSION} {self.index.dimensions}"

    @cached_property
    def has_decimals(self) -> bool:
        """Whether a filter has numbers of more digits than a float."""
        return any(self.definition.column(name).kind is Kind.DECIMAL for name in self.index.filters)

    def entry(self, values: Mapping[str, Any]) -> Sequence[Any] | None:
        """The values that the index stores of a row; its vector is as any program has stored it."""
        vector = vectors.read_vector(values[self.index.column], self.index.dimensions)
        if vector is None:
            return None
        return vectors.pack(vector), *(filter_number(values[name]) for name in self.index.filters)


def searches_of(definitions: Iterable[TableDefinition]) -> list[TableSearch]:
    """The search indexes of some tables, those of vectors included."""
    return [make_search(one, index) for one in definitions for index in one.searches.values()]


def make_search(definition: TableDefinition, index: ColumnIndex) -> TableSearch:
    """A search index of either kind with its table."""
    return TableVectors(definition, index) if isinstance(index, vectors.VectorIndex) else TableSearch(definition, index)


def reader_name(number: int | str) -> str:
    """The name of the feed's reader for the search index of this number."""
    return f"{_READER}{number}"
