"""Interests on demand, which are captured only while a reader demands them: what the reader may have missed.

A demand ends after a number of transactions, on SQLite of changes. So it ends by itself if its reader is killed. From a
position of the feed the reader can tell whether its demand has held up to there. No clock decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.changes.position import Position, Snapshot
from penstock.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """The outcome of a demand."""

    since: int  # a transaction begun after the demand. Older ones may have written before it; on SQLite the last change
    # by the number of each interest: the transaction from which on nothing is captured; on SQLite the last change
    # behind which rows are captured. Interests that are gone are left out
    until: Mapping[int, int]


@dataclass(slots=True)
class _Held:
    since: int
    until: int
    shown: Snapshot | None = None  # the older transactions that the last position shows


class Demands:
    """The demands of one reader."""

    room = 100_000  # transactions, on SQLite changes, for which a demand holds

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}

    @property
    def numbers(self) -> frozenset[int]:
        """The interests that are demanded."""
        return frozenset(self._held)

    @property
    def since(self) -> int:
        """A transaction before which some may lack in the feed; 0 if none does."""
        return max((held.since for held in self._held.values()), default=0)

    def lapsing(self, wanted: Iterable[int], position: Position | None) -> list[int]:
        """The interests, of some, that are to be demanded at a position: not demanded, or not for long any more."""
        soon = (0 if position is None else position.end) + self.room // 2
        return [number for number in wanted if number not in self._held or self._held[number].until < soon]

    def add(self, demand: Demand) -> None:
        """Note a demand."""
        for number, until in demand.until.items():
            held = self._held.get(number)
            if held is not None and demand.since <= held.until:
                held.until = until
            else:
                self._held[number] = _Held(demand.since, until)

    def find_missed(self, position: Position) -> list[int]:
        """The interests whose changes the feed may lack between the last position and this one."""
        missed = []
        for number, held in list(self._held.items()):
            shown = position.seen.below(held.since)
            if position.end > held.until:
                del self._held[number]
            elif shown == held.shown:
                continue
            held.shown = shown
            missed.append(number)
        return missed
