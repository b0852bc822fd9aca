"""The order in which jobs of a pool start, as one number that is known when a job is enqueued.

A job gains a step of priority whenever it has waited for a certain time. Who compares jobs at any moment compares
``priority + waited / ageing``; the moment is the same for all of them, so that it does not matter when they are
compared, and the order can be an index.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

PRIORITIES = range(-32_000, 32_001)
NO_AGEING = timedelta(days=2922)  # for most purposes never; more would not fit a column beside the priorities
FARTHEST = timedelta(days=5 * 366)  # how far ahead jobs start, and how long they take; penstock's SQL says so too
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta.resolution


def rank(run_at: datetime, priority: int = 0, ageing: timedelta | None = None) -> int:
    """The place of a job among others: the lowest starts first. After `ageing` a job gains one priority."""
    return (run_at - _EPOCH) // _TICK - priority * ((ageing or NO_AGEING) // _TICK)
