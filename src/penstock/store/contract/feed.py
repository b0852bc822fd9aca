"""What is seen of the change feed at one moment: how its readers stand, and how much room it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from penstock.changes.lag import ReaderLag
from penstock.store.contract.changes import ReaderRow
from penstock.store.nouns.changes import Changes

BY_ITSELF = 0.1  # seconds after which a reader looks that nobody tells of what is written
BACKSTOP = 1.0  # the same of one that is told


@dataclass(frozen=True, slots=True)
class FeedSeen:
    """The feed at one moment.

    Attributes:
        readers: Each reader and how it stands, by name.
        size: How many bytes the feed takes.
        oldest_transaction: For how long the oldest transaction has been open; None if nobody can say.
    """

    readers: Sequence[tuple[ReaderRow, ReaderLag]]
    size: int
    oldest_transaction: timedelta | None


async def see_feed(changes: Changes, most: int) -> FeedSeen:
    """Look at the feed; of each reader no more than `most` unread changes are counted."""
    readers = [(row, await _standing(changes, row, most)) for row in await changes.readers()]
    return FeedSeen(readers, await changes.size(), await changes.oldest_transaction())


async def _standing(changes: Changes, row: ReaderRow, most: int) -> ReaderLag:
    lag = await changes.lag(row.position, most)
    return ReaderLag(row.name, row.moved_at, lag.rows, lag.oldest_at)
