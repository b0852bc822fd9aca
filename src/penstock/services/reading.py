"""How many changes a service reads at once: fewer if they are large, so that its memory does not depend on that.

Owns the number. It begins small, since nobody knows beforehand how large they are, and a process that was ended for the
memory it took would read as much again.
"""

from __future__ import annotations

from penstock.store.contract.changes import Batch

_BYTES = 16 * 2**20  # about
_FIRST, _GROWTH = 25, 4
_USUAL = 100  # next, where they were small: what is handed over together should not be read in two
_SMALL = 10  # times as many would fit


class ReadSize:
    """How many changes are read at once.

    Args:
        most: The most.

    Attributes:
        number: How many are read next.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.number = min(most, _FIRST)

    def adapt(self, batch: Batch) -> None:
        """This was read. More at once are worth it only while there is more."""
        changes = batch.changes
        if not changes:
            self.number = min(self.number, _USUAL)
            return
        size = sum(len(one.before or "") + len(one.after or "") for one in changes)
        fitting = _BYTES * len(changes) // max(1, size)
        if not batch.complete:
            self.number = max(1, min(self._most, self.number * _GROWTH, fitting))
        elif fitting >= _SMALL * _USUAL:
            self.number = min(self._most, max(_USUAL, min(self.number, len(changes))))
        else:
            self.number = min(self.number, max(_FIRST, len(changes)))
