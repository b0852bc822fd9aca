"""The readers of the change feed that are behind: they have stopped, are slow, or keep the feed from being emptied.

Owns the rule, and the times of its log events. Leaves counting unread changes to the stores.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.dataclass import dataclass

STOPPED_AFTER = timedelta(minutes=1)
SLOW_AFTER = timedelta(minutes=10)
REMIND_AFTER = timedelta(hours=1)
LARGE, FULL = 256 * 2**20, 2**30  # bytes of the feed: twice its size when readers pass, and the size that is an error


@dataclass(frozen=True, slots=True)
class ReaderLag:
    name: str
    moved_at: datetime  # when it last moved
    rows: int  # how many changes it has still to read, as far as they were counted
    oldest_at: datetime | None  # when the oldest of these was written; None if there are none

    def age(self, now: datetime) -> timedelta:
        return timedelta(0) if self.oldest_at is None else max(now - self.oldest_at, timedelta(0))

    def still(self, now: datetime) -> timedelta:
        """The time for which it has not moved although it could have."""
        return timedelta(0) if self.oldest_at is None else max(now - max(self.oldest_at, self.moved_at), timedelta(0))


@dataclass(frozen=True, slots=True)
class LagAlert:
    stopped: bool  # whether it does not move at all
    full: bool  # whether the feed takes so much room by now that somebody has to do something


def lag_alert(reader: ReaderLag, size: int, now: datetime) -> LagAlert | None:
    """Whether a reader is behind, and how; `size` is the bytes that the feed takes."""
    stopped = reader.still(now) >= STOPPED_AFTER
    slow = reader.age(now) >= (STOPPED_AFTER if size >= LARGE else SLOW_AFTER)
    return LagAlert(stopped, full=size >= FULL) if stopped or slow else None


@dataclass(frozen=True, slots=True)
class SentAlert:
    behind: LagAlert
    at: datetime


def is_news(found: LagAlert, told: SentAlert | None, now: datetime) -> bool:
    """Whether to log a reader that is behind: something has changed, or an hour has passed."""
    return told is None or told.behind != found or now - told.at >= REMIND_AFTER


def retries_at(look: int) -> bool:
    """Whether to retry a failed repair, at this look after the first one: ever more rarely, at last hourly."""
    return look & (look - 1) == 0 or look % 60 == 0
