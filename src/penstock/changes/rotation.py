"""The rotation of the change feed to its next slot, and the time of the next look: the rules without the slots."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from penstock.dataclass import dataclass

SLOT_BYTES = 32 * 2**20
SLOT_AGE = timedelta(hours=1)
_KEPT_PARTS = 2  # slots over which kept changes are spread; one more is written, and one free
SOONEST, LATEST = 0.05, 10.0  # seconds between looks


@dataclass(frozen=True, slots=True)
class Slots:
    current: int  # the one into which changes are written
    since: datetime  # since when
    sizes: Mapping[int, int]  # how many bytes each holds
    keep_for: timedelta = timedelta(0)  # how long changes are kept at least, though all readers have passed them

    def to_empty(self) -> list[int]:
        """Slots that may be emptied once all readers have passed them."""
        return [slot for slot, size in sorted(self.sizes.items()) if size and slot != self.current]

    def following(self, now: datetime, *, early: bool = False) -> int | None:
        """The slot to write to from now on; None if it is not time, or no slot is free.

        `early` waits for no size and no age.
        """
        size = self.sizes[self.current]
        age = now - self.since
        if size < SLOT_BYTES and not (size and (early or age >= SLOT_AGE)):
            return None
        if age < self.keep_for / _KEPT_PARTS:  # else slots would soon all be kept, but for the last one, for too long
            return None
        ring = sorted(self.sizes, key=lambda slot: (slot - self.current) % len(self.sizes))
        return next((slot for slot in ring[1:] if not self.sizes[slot]), None)


def pause_after(pause: float, *, more: bool) -> float:
    """Seconds until the next look: soon while there is `more` to do, else ever longer."""
    return SOONEST if more else min(2 * pause, LATEST)
