"""The room of the change feed: what all readers have passed is dropped, a bounded step at a time. A part of the pruner.

Owns how often. Leaves what may be dropped to the store, which waits for nobody.
"""

from __future__ import annotations

from penstock.changes.rotation import LATEST, pause_after
from penstock.clock import Clock
from penstock.observe.logs import event as log_event
from penstock.store.contract.changes import Changes

_AT_ONCE = 2000


class FeedTruncation:
    """Looks after the room of the feed.

    Args:
        changes: The feed.
        clock: The time.
    """

    def __init__(self, changes: Changes, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._pause = LATEST
        self._emptied = 0

    async def look(self) -> float:
        """Drop one piece; seconds until the next look."""
        done = await self._changes.rotate(self._clock.now(), _AT_ONCE)
        more = done.moved or done.emptied >= _AT_ONCE
        self._emptied += done.emptied
        if done.moved or (self._emptied and not more):
            log_event("changes.rotated", emptied=self._emptied, kept=done.kept, moved=done.moved)
            self._emptied = 0
        self._pause = pause_after(self._pause, more=more)
        return self._pause
