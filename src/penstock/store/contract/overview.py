"""Pools and workers at one moment, for `penstock top`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

_OTHERS = ("planner ", "relay ", "rebuild ")  # who reads the change feed under a lease


@dataclass(frozen=True, slots=True)
class Activity:
    """The number of jobs of a pool in one place.

    Attributes:
        place: Ready, completing, scheduled or running; or success, failed or canceled.
        count: Their number; for ended jobs, those that ended since a time.
        first: For waiting jobs, when the first one may run; for running ones, when the first one began; for those
            that have ended, when the first one did.
    """

    pool: str
    place: str
    count: int
    first: datetime


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as seen from outside.

    Attributes:
        worker: Host and process of the worker that took it; others begin with their kind, as in ``relay host:7``.
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
