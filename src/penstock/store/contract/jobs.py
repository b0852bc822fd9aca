"""What verbs about jobs, and about the leases under which they run, take and give (`store.nouns`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from penstock.jobs.job import Job, Settlement

ABOVE_ALL = UUID(int=2**128 - 1)  # an id that no job has
_OTHERS = ("planner ", "relay ", "rebuild ")  # who reads the change feed under a lease
Settle = Callable[[list[Job]], list[Settlement]]


@dataclass(frozen=True, slots=True)
class Room:
    """For how many more jobs of a pool a worker has room.

    Attributes:
        room: How many.
        epoch: Of a pool with a limit: the number of that limit; if it has been changed, nothing is claimed.
        running: How many of its jobs the worker runs.
    """

    pool: str
    room: int
    epoch: int | None = None
    running: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """What one look for work found.

    Attributes:
        jobs: Jobs now running under the lease.
        next_run_at: When the next scheduled job is due, of those that nobody wants to be canceled.
        cancels: Whether anybody has asked for a cancel that may still be to be carried out.
        promoted: Whether scheduled jobs were due and are ready now.
        again: After which time more jobs may start, if a rate limit was in their way.
    """

    jobs: list[Job]
    next_run_at: datetime | None
    cancels: bool = False
    promoted: bool = False
    again: timedelta | None = None


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as seen from outside.

    Attributes:
        worker: Host and process of the worker that took it; others say first what they are, as in ``relay host:7``.
        running: How many jobs run under it.
    """

    lease: int
    worker: str
    started_at: datetime
    expires_at: datetime
    running: int

    @property
    def is_worker(self) -> bool:
        """Whether it was taken to run jobs."""
        return not self.worker.startswith(_OTHERS)
