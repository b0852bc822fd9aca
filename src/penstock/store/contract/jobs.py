"""What verbs about jobs, and about the leases under which they run, take and give (`store.nouns`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from penstock.jobs.job import Job, Settlement
from penstock.jobs.token import Told

ABOVE_ALL = UUID(int=2**128 - 1)  # an id that no job has
OUTSIDE = 0  # the lease, which never ends, of a job that an outside system is to complete, and of its slot
TOKEN_KEPT = timedelta(days=1)  # the time for which the outcome of a token is kept
_OTHERS = ("planner ", "relay ", "rebuild ")  # who reads the change feed under a lease
Settle = Callable[[list[Job]], list[Settlement]]


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a worker for jobs of a pool."""

    pool: str
    room: int  # the number of jobs it can still take
    # of a pool with a limit: the number of that limit; if it has been changed, nothing is claimed
    epoch: int | None = None
    running: int = 0  # the number of its jobs that the worker runs


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of one look for work."""

    jobs: list[Job]  # jobs now running under the lease
    next_run_at: datetime | None  # the due time of the next scheduled job that nobody wants to be canceled
    cancels: bool = False  # whether anybody has asked for a cancel that may still be to be carried out
    promoted: bool = False  # whether scheduled jobs were due and are ready now
    again: timedelta | None = None  # the wait until more jobs may start, if a rate limit was in their way


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as seen from outside."""

    lease: int
    holder: str  # host and process of the worker that took it; others begin with their kind, as in ``relay host:7``
    started_at: datetime
    expires_at: datetime
    running: int  # how many jobs run under it
    blocked: str = ""  # what has blocked the event loop of its process

    @property
    def is_worker(self) -> bool:
        """Whether it was taken to run jobs."""
        return not self.holder.startswith(_OTHERS)


@dataclass(frozen=True, slots=True)
class Redeemed:
    """The outcome of redeeming a token."""

    accepted: bool  # whether the job has been settled by it
    told: Told  # the outcome that counts: the first one, or that its time or its attempt is over
