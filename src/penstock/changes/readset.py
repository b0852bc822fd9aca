"""The read set: the keys and ranges that a transaction has read, to find the changes that concern it.

Owns the noun and the test whether a row lies in it. Values are in the form in which the store holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

Columns = Mapping[str, tuple[int, Callable[[Any], Any] | None]]


class Bound(NamedTuple):
    """One end of a range on a column; `inclusive` says whether the value itself belongs to it."""

    value: Any
    inclusive: bool


@dataclass(frozen=True, slots=True)
class RangeRead:
    """Rows of a table whose `columns` begin with `prefix`, and whose next column lies between two bounds."""

    table: str
    index: str | None  # name of the index that was read, or None for the table by its key
    columns: tuple[str, ...]  # the columns of the index, in order
    prefix: tuple[Any, ...] = ()  # values that the first columns equal; None stands for NULL
    lower: Bound | None = None  # lower bound of the next column, or None for no bound
    upper: Bound | None = None  # upper bound of the next column, or None for no bound

    def covers(self, row: Sequence[Any], columns: Columns) -> bool:
        """Whether a row lies in the range. `columns` has each column's place and comparison key."""
        for name, wanted in zip(self.columns, self.prefix, strict=False):
            place, key = columns[name]
            if _comparable(row[place], key) != _comparable(wanted, key):
                return False
        if self.lower is None and self.upper is None:
            return True
        place, key = columns[self.columns[len(self.prefix)]]
        value = _comparable(row[place], key)
        return value is not None and above(self.lower, value, key) and below(self.upper, value, key)


@dataclass(slots=True)
class ReadSet:
    ranges: list[RangeRead] = field(default_factory=list)  # every range read, in order
    everything: bool = False  # whether it read by SQL, so that any change may concern it
    jobs: set[UUID] = field(default_factory=set)  # whose statuses it read
    untold: bool = False  # whether it read data that is not captured, such as the number of waiting jobs
    until: datetime | None = None  # the end of the time that it read: `ctx.now(every=…)` then gives another one

    def note(self, read: RangeRead) -> None:
        self.ranges.append(read)

    def note_everything(self) -> None:
        self.everything = True

    def note_jobs(self, jobs: Iterable[UUID] | None) -> None:
        """Note the jobs whose statuses were read; None for other data that is not captured."""
        if jobs is None:
            self.untold = True
        else:
            self.jobs.update(jobs)

    def concerns(self, change: RowChange, columns: Columns) -> bool:
        """Whether a change touched the read set: the row before or after it lies in a range."""
        if self.everything:
            return True
        images = [image for image in (change.old, change.new) if image is not None]
        return any(
            read.table == change.table and any(read.covers(image, columns) for image in images) for read in self.ranges
        )


def _comparable(value: Any, key: Callable[[Any], Any] | None) -> Any:
    return value if key is None or value is None else key(value)


def above(bound: Bound | None, value: Any, key: Callable[[Any], Any] | None = None) -> bool:
    """Whether a value is not below a lower bound."""
    if bound is None:
        return True
    end = _comparable(bound.value, key)
    return bool(value >= end if bound.inclusive else value > end)


def below(bound: Bound | None, value: Any, key: Callable[[Any], Any] | None = None) -> bool:
    """Whether a value is not above an upper bound."""
    if bound is None:
        return True
    end = _comparable(bound.value, key)
    return bool(value <= end if bound.inclusive else value < end)


@dataclass(frozen=True, slots=True)
class RowChange:
    """`old` is None for an insert, `new` for a delete. Rows are column values in order."""

    table: str
    key: Any
    old: Sequence[Any] | None
    new: Sequence[Any] | None


@dataclass(slots=True)
class WriteSet:
    changes: list[RowChange] = field(default_factory=list)

    def note(self, change: RowChange) -> None:
        self.changes.append(change)
