"""Looking at all rows of a task: those that are older than it, and those whose changes nobody could tell.

Owns how far that has come, as text that outlives processes. Leaves reading rows and records to the store.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

from penstock.reactive.task import OnVersionChange

Part = Literal["rows", "records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciling:
    """How far looking at the rows of a task has come: first at all rows of its table, then at all of its records.

    Attributes:
        part: Which of both it is at.
        after: The key of the last one that was looked at; None at the beginning.
        looked: How many were looked at.
        found: How many of them were to be run, or forgotten.
        reprocess: Which rows are run again though nothing of them has changed.
        audit: Whether nothing should be found, as it is only looked whether all is well.
    """

    part: Part = "rows"
    after: str | None = None
    looked: int = 0
    found: int = 0
    reprocess: OnVersionChange = "none"
    audit: bool = False

    def text(self) -> str:
        """The same as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Reconciling:
        """What `text` has written."""
        given = json.loads(text)
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})

    def begun(self) -> Reconciling:
        """The same from the beginning."""
        return replace(self, part="rows", after=None, looked=0, found=0, audit=False)

    def moved(self, after: str | None, looked: int, found: int) -> Reconciling | None:
        """After a piece: `after` is None if that was the last of its part; None if all is done."""
        moved = replace(self, after=after, looked=self.looked + looked, found=self.found + found)
        if after is not None:
            return moved
        return replace(moved, part="records") if self.part == "rows" else None
