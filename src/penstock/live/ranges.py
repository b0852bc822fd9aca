"""Which watched queries a change concerns: those that read a range in which the row lies, as it was or as it is.

Owns the index of what was read. A change costs one look-up for each set of columns that queries read the table by, and
a comparison for each range with bounds that has its prefix. Values are those of `reactive.evaluate`.

Where a value is not known for certain, more is concerned than need be, and never less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.changes.readset import Bound, RangeRead
from penstock.schema.fields import Kind

E = TypeVar("E")
Read = Callable[[Kind, Any], Any]  # a value as the store holds it, in the form of `reactive.evaluate`
Values = Mapping[str, Any]


class _Shape(NamedTuple):
    """What ranges of a table have in common: the columns that are compared, and whether the last one has bounds."""

    columns: tuple[str, ...]
    bounded: bool


class _Range(NamedTuple):
    shape: _Shape
    prefix: tuple[Any, ...]
    lower: Bound | None
    upper: Bound | None

    def holds(self, value: Any) -> bool:
        if value is None:
            return False
        return not (
            (
                self.lower is not None
                and (value < self.lower.value or (value == self.lower.value and not self.lower.inclusive))
            )
            or (
                self.upper is not None
                and (value > self.upper.value or (value == self.upper.value and not self.upper.inclusive))
            )
        )


class TableRanges(Generic[E]):
    """The ranges of one table that were read, each with its readers.

    Args:
        kinds: The kind of each column that ranges are read by.
        wide: Columns whose order or equality is not that of their values here; a range is cut off before them.
        read: Reads a value as the store holds it.
    """

    def __init__(self, kinds: Mapping[str, Kind], wide: Iterable[str], read: Read) -> None:
        self._kinds = kinds
        self._wide = frozenset(wide)
        self._read = read
        self._shapes: dict[_Shape, dict[tuple[Any, ...], dict[_Range, set[E]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._shapes)

    @property
    def columns(self) -> frozenset[str]:
        """The columns whose values tell which ranges a row lies in."""
        return frozenset(name for shape in self._shapes for name in shape.columns)

    def add(self, reader: E, ranges: Iterable[RangeRead]) -> None:
        """Note what a reader has read."""
        for one in map(self._range, ranges):
            self._shapes.setdefault(one.shape, {}).setdefault(one.prefix, {}).setdefault(one, set()).add(reader)

    def remove(self, reader: E, ranges: Iterable[RangeRead]) -> None:
        """Forget what a reader has read."""
        for one in map(self._range, ranges):
            prefixes = self._shapes.get(one.shape, {})
            found = prefixes.get(one.prefix, {})
            readers = found.get(one, set())
            readers.discard(reader)
            if not readers:
                found.pop(one, None)
            if not found:
                prefixes.pop(one.prefix, None)
            if not prefixes:
                self._shapes.pop(one.shape, None)

    def concerned(self, row: Values | None) -> Iterator[tuple[E, str]]:
        """The readers of ranges in which a row lies, and which range that is; none if there is no row."""
        if row is None:
            return
        for shape, prefixes in self._shapes.items():
            length = len(shape.columns) - shape.bounded
            for one, readers in prefixes.get(tuple(row[name] for name in shape.columns[:length]), {}).items():
                if not shape.bounded or one.holds(row[shape.columns[-1]]):
                    for reader in readers:
                        yield reader, describe(one)

    def all(self) -> set[E]:
        """The readers of any range."""
        return {
            reader
            for prefixes in self._shapes.values()
            for found in prefixes.values()
            for readers in found.values()
            for reader in readers
        }

    def _range(self, read: RangeRead) -> _Range:
        bounded = read.lower is not None or read.upper is not None
        columns = read.columns[: len(read.prefix) + bounded]
        known = next((place for place, name in enumerate(columns) if name in self._wide), len(columns))
        if known < len(columns):
            columns, bounded = columns[:known], False
        prefix = tuple(self._value(name, value) for name, value in zip(columns, read.prefix, strict=False))
        if not bounded:
            return _Range(_Shape(columns, bounded=False), prefix, None, None)
        lower, upper = self._bound(columns[-1], read.lower), self._bound(columns[-1], read.upper)
        return _Range(_Shape(columns, bounded=True), prefix, lower, upper)

    def _bound(self, name: str, bound: Bound | None) -> Bound | None:
        """A bound that is no value of its column bounds nothing."""
        value = None if bound is None else self._value(name, bound.value)
        return None if bound is None or value is None else Bound(value, bound.inclusive)

    def _value(self, name: str, value: Any) -> Any:
        return None if value is None else self._read(self._kinds[name], value)


def describe(one: _Range) -> str:
    """A range for people."""
    columns = one.shape.columns
    said = [f"{name} = {value!r}" for name, value in zip(columns, one.prefix, strict=False)]
    if one.lower is not None:
        said.append(f"{columns[-1]} {'>=' if one.lower.inclusive else '>'} {one.lower.value!r}")
    if one.upper is not None:
        said.append(f"{columns[-1]} {'<=' if one.upper.inclusive else '<'} {one.upper.value!r}")
    return " and ".join(said) or "all rows"
