"""What a store should remember of jobs and leases, in plain Python. `machine` compares."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.job import Attempt, NewJob, Settlement
from penstock.jobs.settle import ATTEMPTS_KEPT
from penstock.jobs.states import FINISHED, JobEvent, JobState

_FAILURES = {JobEvent.RAISED, JobEvent.EXHAUSTED, JobEvent.LOST, JobEvent.ABANDONED}


@dataclass
class ModelJob:
    """A job as the model knows it."""

    new: NewJob
    run_at: datetime
    place: str
    seq: int
    enqueued_at: datetime
    attempt: int = 0
    lease: int | None = None
    asked_at: datetime | None = None
    started_at: datetime | None = None
    failing_since: datetime | None = None
    finished_at: datetime | None = None
    result: Any = None
    error: str | None = None
    traceback: str | None = None
    failures: tuple[Attempt, ...] = ()
    tokens: dict[int, tuple[str, datetime]] = field(default_factory=dict)  # by attempt

    @property
    def id(self) -> UUID:
        """Its id."""
        return self.new.id

    @property
    def priority(self) -> int:
        """Its priority."""
        return self.new.priority

    @property
    def state(self) -> str:
        """Its state as seen from outside."""
        return "pending" if self.place in {"ready", "scheduled", "waiting"} else self.place

    @property
    def history(self) -> tuple[Any, ...]:
        """What a store tells of how it went."""
        return self.started_at, self.finished_at, self.result, self.error, self.traceback

    def starts(self, lease: int, now: datetime) -> None:
        """It is claimed."""
        self.place, self.lease, self.started_at, self.attempt = "running", lease, now, self.attempt + 1

    def writes(self, said: Settlement) -> None:
        """Keep what is written about its end, or about why it waits."""
        self.finished_at = said.finished_at if said.state in FINISHED else None
        if said.state is JobState.PENDING:
            self.started_at, self.error = None, said.error or self.error
            return
        self.result = None if said.result is None else json.loads(said.result)
        self.error, self.traceback = said.error, said.traceback


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
        job.writes(settlement)
        if settlement.event in _FAILURES:
            assert settlement.failed is not None
            job.failures = (*job.failures, settlement.failed)[-ATTEMPTS_KEPT:]
            job.failing_since = job.failing_since or settlement.failed.failing_since
        return True

    def cancel(self, job: ModelJob, settlement: Settlement) -> None:
        """End a pending job that is to be canceled."""
        job.place = "canceled"
        job.writes(settlement)

    def retry(self, job: ModelJob, now: datetime) -> bool:
        """Make a job pending again if it has failed or was canceled; whether it was so."""
        if job.place not in {"failed", "canceled"}:
            return False
        job.place, job.seq, job.attempt, job.run_at, job.asked_at = "ready", self.seq(), 0, now, None
        job.started_at = job.failing_since = job.finished_at = job.result = job.traceback = None
        job.tokens.clear()  # attempts are counted anew, and tokens of those before count no more
        return True
