"""Reads the change feed in the snapshots of ticks, and notices if changes were dropped before they were read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.errors import Conflict
from penstock.services.reading import ReadSize
from penstock.store.nouns.changes import Changes, Dropped
from penstock.store.session import Session

_AT_ONCE = 2000
_MOST_CHANGES = 10_000  # of one tick; to run all queries again takes less time then


class LiveFeed:
    """The change feed, as live queries read it. No store remembers their position."""

    def __init__(self, changes: Changes) -> None:
        # that of the last tick's snapshot, or None if the next tick is to run all queries
        self.position: Position | None = None
        self._changes = changes
        self._dropped: Dropped | None = None  # as the last tick found it
        self._size = ReadSize(_AT_ONCE)

    async def read(
        self,
        session: Session,
        interests: Sequence[int],
        take: Callable[[CapturedChange], None],
        take_all: Callable[[str], None],
    ) -> tuple[Position, int]:
        """Read the changes since the last tick.

        Args:
            session: The snapshot.
            interests: Those whose changes are read.
            take: Called with each change.
            take_all: Called if all queries are to run instead, with the cause.

        Returns:
            The position and the clock of the snapshot.
        """
        changes, position, count = self._changes, self.position, 0
        if position is None:
            position = await changes.end(session)
        while True:
            try:
                batch = await changes.read(position, self._size.number, interests, session)
            except Conflict:
                take_all("the database was restored or has crashed")
                position = await changes.end(session)
                continue
            self._size.adapt(batch)
            for change in batch.changes:
                take(change)
            position, count = batch.position, count + len(batch.changes)
            if batch.complete:
                return position, batch.clock
            if count > _MOST_CHANGES:
                take_all(f"there are more than {_MOST_CHANGES} changes")
                position = await changes.end(session)

    async def has_read_all(self, since: Position | None) -> bool:
        """Whether nothing that came since a position was dropped before it was read. Asked once a tick."""
        before, self._dropped = self._dropped, await self._changes.read_dropped()
        if since is None or before is None:
            return True
        return self._dropped.was_passed(since) and self._dropped.origin == before.origin
