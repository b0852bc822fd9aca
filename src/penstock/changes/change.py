"""A captured change: the change feed's account of one written row, and the reading of its values.

Owns the kinds of change and the form of captured values. Leaves capturing to the stores' triggers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from penstock.dataclass import dataclass

KINDS = ("enter", "change", "leave", "delete", "truncate")
LOST = "lost"
RESENT = "resent"
_NEXT = "\x1e"  # no JSON holds it

_decode = json.JSONDecoder(parse_float=Decimal).decode  # made once: that takes as long as reading a row
_decode_any = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal).decode


@dataclass(slots=True)  # not frozen: thousands are made at once, and that takes twice as long
class CapturedChange:
    """One change of a row that some interest wants."""

    seq: int  # its number; numbers of one transaction follow its statements, numbers of one row follow its locks
    interest: int  # the number of the interest
    # ``enter``, ``change`` or ``leave`` the rows that the interest is about; ``delete``; ``truncate``, if all rows of
    # the table or of one of its partitions are gone; ``lost``, if it could not be captured, as a column is gone or has
    # another name; ``resent``, if the row is as it was and somebody asked for it
    kind: str
    # the key of the row as JSON, always spelled alike for the same row; None of a truncation, or if it is lost
    key: str | None
    before: str | None  # columns that the interest captures, as they were, as JSON
    after: str | None  # the same as they are then
    changed_at: datetime  # when it was written, by the database's clock; it is committed later

    def key_values(self) -> tuple[Any, ...]:
        return () if self.key is None else tuple(read_values(self.key))

    def values(self, when: str) -> dict[str, Any]:
        """Captured columns ``before`` or ``after``, by name; none if there was no row."""
        text = self.before if when == "before" else self.after
        return {} if text is None else read_values(text)


def changes_told(rows: Iterable[Iterable[Any]], interests: Collection[int] | None = None) -> list[CapturedChange]:
    """The changes in rows of the feed: one for each interest, or for each of these."""
    told = []
    for seq, numbers, kinds, key, before, after, changed_at in rows:
        for number, kind, piece in _parse_interests(numbers, kinds):
            if interests is None or number in interests:
                own = (before, after) if piece is None else (_piece(before, piece), _piece(after, piece))
                told.append(CapturedChange(seq, number, kind, key, own[0], own[1], changed_at))
    return told


def is_lost(interest: int, numbers: str, kinds: str) -> bool:
    """Whether a row of the feed tells an interest that changes may have been lost."""
    return any(number == interest and kind == LOST for number, kind, _ in _parse_interests(numbers, kinds))


@lru_cache(maxsize=1024)
def _parse_interests(numbers: str, kinds: str) -> list[tuple[int, str, int | None]]:
    """Each interest of a row, its kind of change, and its piece of the captured values."""
    names = [kind.partition(" ") for kind in kinds.split(",")]
    each = zip(map(int, numbers.strip("{[]}").split(",")), names, strict=True)
    return [(number, name, int(piece) if piece else None) for number, (name, _, piece) in each]


def _piece(text: str | None, number: int) -> str | None:
    return (text.split(_NEXT)[number] or None) if text else None


def read_values(text: str) -> Any:
    """Captured values from JSON: fractions are Decimal, times text in UTC without offset, bytes hex text.

    All numbers are Decimal if one has more digits than Python reads as an int.
    """
    try:
        return _decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _decode_any(text)
