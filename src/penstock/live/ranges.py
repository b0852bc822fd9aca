"""The index of ranges that watched queries have read, to find the queries that a change concerns.

Owns the match: a change concerns a query if the row, before or after it, lies in a range that the query read, or fits
    its search. It costs one look-up for each set of columns by which queries read the table. Each range with bounds and
    its prefix costs a comparison, and so does each search. Values are in the form of `reactive.evaluate`.

Where a value cannot be compared for certain, the match is too wide, and never too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.changes.readset import Bound, RangeRead, Read, SearchRead, VectorRead, above, below
from penstock.schema.fields import Kind
from penstock.search.encoding import encode
from penstock.search.rank import Score, scorer

E = TypeVar("E")
ReadValue = Callable[[Kind, Any], Any]  # a value as the store holds it, in the form of `reactive.evaluate`
Values = Mapping[str, Any]


class _Shape(NamedTuple):
    """The form of a range: the columns that are compared, and whether the last one is bounded, if only by NULL."""

    columns: tuple[str, ...]
    bounded: bool


class Range(NamedTuple):
    """A range of a table, with values in the form of `reactive.evaluate`."""

    shape: _Shape
    prefix: tuple[Any, ...]
    lower: Bound | None
    upper: Bound | None
    nulls: bool = True

    def holds(self, value: Any) -> bool:
        """Whether a value of the last column lies between the bounds."""
        return self.nulls if value is None else above(self.lower, value) and below(self.upper, value)

    def __str__(self) -> str:
        columns = self.shape.columns
        said = [f"{name} = {value!r}" for name, value in zip(columns, self.prefix, strict=False)]
        if self.lower is not None:
            said.append(f"{columns[-1]} {'>=' if self.lower.inclusive else '>'} {self.lower.value!r}")
        if self.upper is not None:
            said.append(f"{columns[-1]} {'<=' if self.upper.inclusive else '<'} {self.upper.value!r}")
        if self.shape.bounded and len(said) == len(self.prefix):
            said.append(f"{columns[-1]} is not NULL")
        return " and ".join(said) + " or NULL" * (self.shape.bounded and self.nulls) or "all rows"


class TableRanges(Generic[E]):
    """The ranges of one table that were read, each with its readers.

    Args:
        kinds: The kind of each column that ranges are read by.
        wide: Columns whose order or equality is not that of their values here; a range is cut off before them.
        read: Reads a value as the store holds it.
    """

    def __init__(self, kinds: Mapping[str, Kind], wide: Iterable[str], read: ReadValue) -> None:
        self._kinds = kinds
        self._wide = frozenset(wide)
        self._read = read
        self._shapes: dict[_Shape, dict[tuple[Any, ...], set[tuple[Range, E]]]] = {}
        self._searches: dict[SearchRead | VectorRead, tuple[Callable[[str], Score | None] | None, set[E]]] = {}

    def __bool__(self) -> bool:
        return bool(self._shapes or self._searches)

    @property
    def columns(self) -> frozenset[str]:
        """The columns whose values tell which ranges a row lies in."""
        ranges = {name for shape in self._shapes for name in shape.columns}
        return frozenset(ranges.union(*(one.columns for one in self._searches)))

    def add(self, reader: E, read: Read) -> None:
        """Note a range that a reader has read, or a search."""
        if not isinstance(read, RangeRead):
            if read not in self._searches:
                self._searches[read] = scorer(read.query) if isinstance(read, SearchRead) else None, set()
            self._searches[read][1].add(reader)
            return
        one = self._range(read)
        self._shapes.setdefault(one.shape, {}).setdefault(one.prefix, set()).add((one, reader))

    def remove(self, reader: E, read: Read) -> None:
        """Forget a range that a reader has read, or a search."""
        if not isinstance(read, RangeRead):
            _, readers = self._searches.get(read, (None, set[E]()))
            readers.discard(reader)
            if not readers:
                self._searches.pop(read, None)
            return
        one = self._range(read)
        prefixes = self._shapes.get(one.shape, {})
        found = prefixes.get(one.prefix, set())
        found.discard((one, reader))
        if not found:
            prefixes.pop(one.prefix, None)
        if not prefixes:
            self._shapes.pop(one.shape, None)

    def readers_of(self, row: Values | None) -> Iterator[tuple[E, Range | SearchRead | VectorRead]]:
        """The readers of ranges in which a row lies, or of searches that it fits, each with that; none of no row."""
        if row is None:
            return
        for shape, prefixes in self._shapes.items():
            length = len(shape.columns) - shape.bounded
            for one, reader in prefixes.get(tuple(row[name] for name in shape.columns[:length]), ()):
                if not shape.bounded or one.holds(row[shape.columns[-1]]):
                    yield reader, one
        tokens = dict[str, str]()
        for read, (score, readers) in self._searches.items():
            if not all(name in self._wide or row[name] in values for name, values in read.choices):
                continue
            if score is not None and isinstance(read, SearchRead):
                if read.column not in tokens:
                    tokens[read.column] = encode(row[read.column])
                if score(tokens[read.column]) is None:
                    continue
            yield from ((reader, read) for reader in readers)

    def all(self) -> set[E]:
        """The readers of any range, and of any search."""
        ranges = {reader for prefixes in self._shapes.values() for found in prefixes.values() for _, reader in found}
        return ranges.union(*(readers for _, readers in self._searches.values()))

    def _range(self, read: RangeRead) -> Range:
        bounded = read.lower is not None or read.upper is not None or not read.nulls
        columns = read.columns[: len(read.prefix) + bounded]
        prefix = tuple(self._value(name, value) for name, value in zip(columns, read.prefix, strict=False))
        for place, name in enumerate(columns):
            if name in self._wide or (place < len(prefix) and prefix[place] is None is not read.prefix[place]):
                columns, prefix, bounded = columns[:place], prefix[:place], False
                break
        if not bounded:
            return Range(_Shape(columns, bounded=False), prefix, None, None)
        lower, upper = self._valid_bound(columns[-1], read.lower), self._valid_bound(columns[-1], read.upper)
        return Range(_Shape(columns, bounded=True), prefix, lower, upper, read.nulls)

    def _valid_bound(self, name: str, bound: Bound | None) -> Bound | None:
        """A bound that is no value of its column bounds nothing."""
        value = None if bound is None else self._value(name, bound.value)
        return None if bound is None or value is None else Bound(value, bound.inclusive)

    def _value(self, name: str, value: Any) -> Any:
        return None if value is None else self._read(self._kinds[name], value)
