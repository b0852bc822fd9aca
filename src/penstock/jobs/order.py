"""The order in which jobs of a pool start, as one number that is known when a job is enqueued.

A job gains a step of priority whenever it has waited for a certain time. A comparison at any moment is one of
``priority + waited / ageing``. The moment is the same for all jobs, so that it does not matter when they are
compared, and the order can be an index.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.values import EPOCH

PRIORITIES = range(-32_000, 32_001)
NO_AGEING = timedelta(days=2922)  # for most purposes never; more would not fit a column with the priorities
FARTHEST = timedelta(days=5 * 366)  # the furthest start ahead, and the longest run; penstock's SQL has the same number
_TICK = timedelta.resolution


def rank(run_at: datetime, priority: int = 0, ageing: timedelta | None = None) -> int:
    """The place of a job among others: the lowest starts first. After `ageing` a job gains one priority."""
    return (run_at - EPOCH) // _TICK - priority * ((ageing or NO_AGEING) // _TICK)


def rank_of_begun(enqueued_at: datetime) -> int:
    """The place of a workflow's run that has begun, at the gate of its pool: before all others, the oldest first."""
    return (enqueued_at - EPOCH) // _TICK - 9 * 10**18
