"""The read set: which keys and ranges a transaction looked at, so that it can be known which changes concern it.

Owns the noun and the test whether a row lies in it. Values are in the form in which the store holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.changes.writeset import RowChange


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range on a column; `inclusive` says whether the value itself belongs to it."""

    value: Any
    inclusive: bool


@dataclass(frozen=True, slots=True)
class RangeRead:
    """Rows of a table whose `columns` begin with `prefix`, and whose next column lies between two bounds.

    Attributes:
        index: Name of the index that was read, or None for the table by its key.
        columns: The columns of the index, in order.
        prefix: Values that the first columns equal; None stands for NULL.
        lower: Lower bound of the next column, or None for no bound.
        upper: Upper bound of the next column, or None for no bound.
    """

    table: str
    index: str | None
    columns: tuple[str, ...]
    prefix: tuple[Any, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None

    def covers(self, row: Sequence[Any], positions: dict[str, int]) -> bool:
        """Whether a row, given as its column values, lies in the range."""
        values = [row[positions[column]] for column in self.columns]
        if any(value != wanted for value, wanted in zip(values, self.prefix, strict=False)):
            return False
        if self.lower is None and self.upper is None:
            return True
        value = values[len(self.prefix)]
        return value is not None and _above(self.lower, value) and _below(self.upper, value)


@dataclass(slots=True)
class ReadSet:
    """What one transaction looked at.

    Attributes:
        ranges: Every range read, in order.
        everything: Whether it read by SQL, so that any change may concern it.
    """

    ranges: list[RangeRead] = field(default_factory=list)
    everything: bool = False

    def note(self, read: RangeRead) -> None:
        """Add a range."""
        self.ranges.append(read)

    def note_everything(self) -> None:
        """Add all tables: a read that the builder could not say."""
        self.everything = True

    def concerns(self, change: RowChange, positions: dict[str, int]) -> bool:
        """Whether a change touched what was read: the row as it was, or as it is, lies in a range."""
        if self.everything:
            return True
        images = [image for image in (change.old, change.new) if image is not None]
        return any(
            read.table == change.table and any(read.covers(image, positions) for image in images)
            for read in self.ranges
        )


def _above(bound: Bound | None, value: Any) -> bool:
    return bound is None or value > bound.value or (bound.inclusive and value == bound.value)


def _below(bound: Bound | None, value: Any) -> bool:
    return bound is None or value < bound.value or (bound.inclusive and value == bound.value)
