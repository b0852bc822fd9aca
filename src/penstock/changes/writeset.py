"""The write set: which rows a transaction changed, each with the row before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of one row: `old` is None for an insert, `new` for a delete. Rows are column values in order."""

    table: str
    key: Any
    old: Sequence[Any] | None
    new: Sequence[Any] | None


@dataclass(slots=True)
class WriteSet:
    """Every change of one transaction, in order."""

    changes: list[RowChange] = field(default_factory=list)

    def note(self, change: RowChange) -> None:
        """Add a change."""
        self.changes.append(change)
