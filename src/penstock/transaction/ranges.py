"""Ranges of an index's column, as a query names them: ``starts_at=gte(today) & lt(tomorrow)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import ValueInvalid


@dataclass(frozen=True, slots=True)
class Range:
    """Values between two bounds; a bound is a value and whether it belongs to the range. None is in no range."""

    lower: tuple[Any, bool] | None = None
    upper: tuple[Any, bool] | None = None

    def __and__(self, other: Range) -> Range:
        if (self.lower and other.lower) or (self.upper and other.upper):
            raise ValueInvalid("A range has at most one lower and one upper bound.", fix="Combine one of each.")
        return Range(self.lower or other.lower, self.upper or other.upper)


def gt(value: Any) -> Range:
    """Greater than a value."""
    return Range(lower=(value, False))


def gte(value: Any) -> Range:
    """Greater than or equal to a value."""
    return Range(lower=(value, True))


def lt(value: Any) -> Range:
    """Less than a value."""
    return Range(upper=(value, False))


def lte(value: Any) -> Range:
    """Less than or equal to a value."""
    return Range(upper=(value, True))


def between(low: Any, high: Any) -> Range:
    """From `low` to `high`, both included."""
    return Range(lower=(low, True), upper=(high, True))
