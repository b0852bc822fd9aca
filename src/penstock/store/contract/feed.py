"""The change feed at one moment: its readers, and its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from penstock.changes.lag import ReaderLag
from penstock.store.contract.changes import ReaderRow
from penstock.store.nouns.changes import Changes

BY_ITSELF = 0.1  # seconds after which a reader without signals looks
BACKSTOP = 1.0  # the same for a reader with signals


@dataclass(frozen=True, slots=True)
class FeedSeen:
    """The feed at one moment."""

    readers: Sequence[tuple[ReaderRow, ReaderLag]]  # each reader and its backlog, by name
    size: int  # the size of the feed in bytes
    oldest_transaction: timedelta | None  # the age of the oldest open transaction; None if it cannot be known


async def see_feed(changes: Changes, most: int) -> FeedSeen:
    """Look at the feed; of each reader no more than `most` unread changes are counted."""
    readers = []
    for row in await changes.readers():
        lag = await changes.lag(row.position, most)
        readers.append((row, ReaderLag(row.name, row.moved_at, lag.rows, lag.oldest_at)))
    return FeedSeen(readers, await changes.size(), await changes.oldest_transaction())
