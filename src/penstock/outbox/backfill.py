"""The progress of a backfill: rows that are older than their outbox are delivered before captured changes.

Owns its text, which is kept with the outbox. Leaves reading the rows to `services/relay/backfill`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from penstock.dataclass import dataclass

BEFORE_ALL = 1 - 2**53  # where the numbers of rows begin that are older than their outbox: every program can read them
_OF_ONE_BEGINNING, _BEGINNINGS = 2**32, 2**20  # so that no number comes again soon after another beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillProgress:
    """The progress of the delivery of rows that are older than their outbox."""

    after: str | None = None  # the place of the last one in their order, as JSON; None before the first
    count: int = 0  # how many numbers were given
    order: tuple[str, ...] = ()  # the columns by which they are ordered, before their key
    base: int = 0  # added to the numbers
    # the number and the key of the next one, if it has failed before the outbox was moved
    failed: tuple[int, str] | None = None

    @property
    def number(self) -> int:
        return BEFORE_ALL + self.base + self.count

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> BackfillProgress:
        said = json.loads(text)
        failed = said.pop("failed")
        return cls(**said | {"order": tuple(said["order"]), "failed": None if failed is None else tuple(failed)})

    def at_number(self, number: int) -> BackfillProgress:
        return replace(self, count=max(self.count, number - BEFORE_ALL - self.base), failed=None)

    def at(self, place: str) -> BackfillProgress:
        """The progress after the row at a place, which got no number."""
        return replace(self, after=place)

    def after_row(self, place: str, number: int | None = None) -> BackfillProgress:
        """The progress after the row at a place, which gets the next number, or this one."""
        return self.at(place).at_number(self.number + 1 if number is None else number)


def new_backfill(order: tuple[str, ...] = (), epoch: int = 0) -> str:
    """The text of a backfill from the beginning. `epoch` counts changes of the outbox, and keeps numbers apart."""
    return BackfillProgress(order=order, base=epoch % _BEGINNINGS * _OF_ONE_BEGINNING).text()
