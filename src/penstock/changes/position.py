"""The position of a reader in the change feed: a snapshot, as commits do not follow the order of numbers.

Owns the meaning of a position and its text, which is opaque to all others. Leaves taking snapshots to the store.
"""

from __future__ import annotations

import json
from dataclasses import field, replace
from typing import Any

from penstock.dataclass import dataclass
from penstock.errors import CursorInvalid

_BEFORE_ALL = -(2**62)
_LARGEST = 2**63 - 1
ERA = 2**48  # the distance by which transactions of a lost server are moved below those of its successor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The committed transactions: all below `end` except those in `open`. Changes of the others are still to be read.

    Its text is that of PostgreSQL: the first that is open, the end, the open ones.
    """

    end: int
    open: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        _first, end, still_open = text.split(":")
        return cls(_number(end), tuple(_number(xid) for xid in still_open.split(",") if xid))

    def __str__(self) -> str:
        return f"{min(self.open, default=self.end)}:{self.end}:{','.join(map(str, self.open))}"

    def shows(self, xid: int) -> bool:
        return xid < self.end and xid not in self.open

    def below(self, xid: int) -> Snapshot:
        """The part of it that shows the transactions before one."""
        return Snapshot(min(self.end, xid), tuple(one for one in self.open if one < xid))

    def shift(self, by: int) -> Snapshot:
        """This snapshot with all transaction numbers lowered, except the one before all."""
        return self if self.end == _BEFORE_ALL else Snapshot(self.end - by, tuple(xid - by for xid in self.open))


NOTHING = Snapshot(_BEFORE_ALL)
ALL = Snapshot(-_BEFORE_ALL)


@dataclass(frozen=True, slots=True)
class Position:
    # every change that this snapshot shows has been handed over. On SQLite commits follow the order of numbers: `high`
    # is enough
    seen: Snapshot = NOTHING
    batch: Snapshot | None = None  # inside an unfinished batch: the snapshot under which it is read to its end
    last: int = 0  # inside an unfinished batch: the number of the last change handed over
    high: int = 0  # no change with a greater number was ever handed over
    # the server, since its last crash, whose snapshot this is; None if it comes from the database, where it outlives
    # a crash. Not in the text
    server: str | None = field(default=None, compare=False)

    @property
    def end(self) -> int:
        """All transactions that it shows come before this one; on SQLite the last change that it shows."""
        return self.high if self.seen == NOTHING else self.seen.end

    @classmethod
    def parse(cls, text: str) -> Position:
        try:
            given = json.loads(text)
            batch = None if given["batch"] is None else Snapshot.parse(given["batch"])
            return cls(Snapshot.parse(given["seen"]), batch, _number(given["last"]), _number(given["high"]))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise CursorInvalid(
                f"{text!r} is no position in the change feed.", fix="Use a position that a reader has reported."
            ) from None

    def __str__(self) -> str:
        batch = None if self.batch is None else str(self.batch)
        return json.dumps({"seen": str(self.seen), "batch": batch, "last": self.last, "high": self.high})

    def advance(self, snapshot: Snapshot, numbers: list[int], *, complete: bool) -> Position:
        """The position after these numbers of the batch that a snapshot shows; `complete` if they were its last."""
        high = max(self.high, *numbers[-1:], 0)
        if complete:
            return Position(snapshot, high=high, server=self.server)
        return Position(self.seen, snapshot, numbers[-1], high, self.server)

    def has_passed(self, xid: int, number: int) -> bool:
        """Whether a change was handed over, or skipped, before this position."""
        if self.seen.shows(xid):
            return True
        return self.batch is not None and self.batch.shows(xid) and number <= self.last

    def bounds(self) -> dict[str, Any]:
        batch = self.batch or NOTHING
        return {
            "seen_end": self.seen.end,
            "seen_open": list(self.seen.open),
            "batch_end": batch.end,
            "batch_open": list(batch.open),
            "last": self.last,
        }

    def shift(self, by: int) -> Position:
        batch = None if self.batch is None else self.batch.shift(by)
        return replace(self, seen=self.seen.shift(by), batch=batch)


BEGINNING = Position()


def _number(given: Any) -> int:
    found = int(given)
    if not _BEFORE_ALL <= found <= _LARGEST:
        raise ValueError("No store has such a number.")
    return found
