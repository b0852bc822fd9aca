"""The number of changes that a service reads at once: fewer if they are large, so that its memory stays bounded.

The number begins small. A process that was killed for its memory would otherwise read as much again.
"""

from __future__ import annotations

from penstock.store.nouns.changes import Batch

_BYTES = 16 * 2**20  # about
_FIRST, _GROWTH = 25, 4
_USUAL = 100  # for small changes, so that one read fills a batch
_SMALL = 10  # times as many would fit


class ReadSize:
    """The number of changes to read next, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.number = min(most, _FIRST)

    def adapt(self, batch: Batch) -> None:
        """Learn from a batch. The number grows only while more changes wait."""
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
