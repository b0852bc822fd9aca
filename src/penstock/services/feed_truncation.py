"""Truncates the change feed behind all readers, a bounded step at a time. A part of the pruner.

The store decides what may be dropped, and waits for nobody.
"""

from __future__ import annotations

from penstock.changes.rotation import LATEST, pause_after
from penstock.clock import Clock
from penstock.observe.logs import event as log_event
from penstock.store.nouns.changes import Changes

_AT_ONCE = 2000


class FeedTruncation:
    """Decides how often the feed is truncated."""

    def __init__(self, changes: Changes, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._pause = LATEST
        self._emptied = 0

    async def look(self) -> float:
        """Truncate one step; seconds until the next look."""
        done = await self._changes.rotate(self._clock.now(), _AT_ONCE)
        more = done.moved or done.emptied >= _AT_ONCE
        self._emptied += done.emptied
        if done.moved or (self._emptied and not more):
            log_event("changes.rotated", emptied=self._emptied, kept=done.kept, moved=done.moved)
            self._emptied = 0
        self._pause = pause_after(self._pause, more=more)
        return self._pause
