"""What a store should remember of jobs and leases, in plain Python. `machine` compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from penstock.jobs.job import Settlement
from penstock.jobs.states import JobEvent, JobState

_FAILURES = {JobEvent.RAISED, JobEvent.EXHAUSTED, JobEvent.LOST, JobEvent.ABANDONED}


@dataclass
class ModelJob:
    """A job as the model knows it."""

    id: UUID
    priority: int
    run_at: datetime
    place: str
    seq: int
    attempt: int = 0
    lease: int | None = None
    asked_at: datetime | None = None
    failures: tuple[tuple[int, str], ...] = ()
    tokens: dict[int, tuple[str, datetime]] = field(default_factory=dict)  # by attempt

    @property
    def state(self) -> str:
        """Its state as seen from outside."""
        return "pending" if self.place in {"ready", "scheduled", "waiting"} else self.place


class Model:
    """What a store should remember."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, ModelJob] = {}
        self.leases: dict[int, datetime] = {}
        self._seq = 0

    def seq(self) -> int:
        """The next place in the line of ready jobs."""
        self._seq += 1
        return self._seq

    def line(self, place: str, now: datetime | None = None) -> list[ModelJob]:
        """The jobs in a place, in the order in which they start: all, or those that are due."""
        found = [job for job in self.jobs.values() if job.place == place and (now is None or job.run_at <= now)]
        if place == "scheduled":
            return sorted(found, key=lambda job: (job.run_at, job.id))
        return sorted(found, key=lambda job: (-job.priority, job.run_at, job.seq))

    def promote(self, now: datetime) -> list[ModelJob]:
        """Move due jobs to ready, but for those that are to be canceled; these."""
        due = [job for job in self.line("scheduled", now) if job.asked_at is None]
        for job in due:
            job.place, job.seq = "ready", self.seq()
        return due

    def settle(self, lease: int, settlement: Settlement) -> bool:
        """Settle a job if it runs under a lease; whether it did."""
        job = self.jobs[settlement.id]
        if job.lease != lease:
            return False
        job.lease, job.attempt, job.run_at = None, settlement.attempt, settlement.run_at
        job.place = "scheduled" if settlement.state is JobState.PENDING else settlement.state.value
        if settlement.event in _FAILURES:
            job.failures += ((settlement.attempt, settlement.event.value),)
        return True

    def cancel(self, job: ModelJob) -> None:
        """End a pending job that is to be canceled."""
        job.place = "canceled"

    def retry(self, job: ModelJob, now: datetime) -> bool:
        """Make a job pending again if it has failed or was canceled; whether it was so."""
        if job.place not in {"failed", "canceled"}:
            return False
        job.place, job.seq, job.attempt, job.run_at, job.asked_at = "ready", self.seq(), 0, now, None
        job.tokens.clear()  # attempts are counted anew, and tokens of those before count no more
        return True
