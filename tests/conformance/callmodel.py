"""What a store should remember of jobs that tell of their end, in plain Python. `callmachine` compares."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from conformance.model import Model, ModelJob
from penstock.jobs.job import Attempt, Ending, Settlement
from penstock.jobs.states import JobState


@dataclass
class CalledJob(ModelJob):
    """A job that may have an on_complete.

    Attributes:
        tells: Whether it has.
        ending: How it ends, while that is still to be told.
        began_at: When its last attempt might have run, for then.
        failed_calls: The calls that failed, as they are kept.
        gave_up: The error of the last call, if it has failed for good.
        ends: How often the job has come to its end.
        told: How often that was told.
    """

    tells: bool = False
    ending: Ending | None = None
    began_at: datetime | None = None
    failed_calls: tuple[Attempt, ...] = ()
    gave_up: str | None = None
    ends: int = 0
    told: int = 0

    @property
    def state(self) -> str:
        """Its state as seen from outside."""
        return super().state if self.ending is None else "completing"


class CallModel(Model):
    """What a store should remember."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[UUID, CalledJob] = {}  # type: ignore[assignment] # all of them are

    def line(self, place: str, now: datetime | None = None) -> list[ModelJob]:
        """The jobs in a place of which more is left than a call."""
        return [job for job in super().line(place, now) if self.jobs[job.id].ending is None]

    def calls(self) -> list[CalledJob]:
        """The jobs of which only the call is left, and due, in their order."""
        found = [job for job in self.jobs.values() if job.ending is not None and job.place == "ready"]
        return sorted(found, key=lambda job: job.seq)

    def next_run_at(self) -> datetime | None:
        """When the next that is scheduled may run; those that are to be canceled do not, but calls are made."""
        found = [job for job in self.jobs.values() if job.place == "scheduled"]
        return min((job.run_at for job in found if job.asked_at is None or job.ending is not None), default=None)

    def promote(self, now: datetime) -> list[ModelJob]:
        """Move due jobs and calls to ready; these."""
        scheduled = [job for job in self.jobs.values() if job.place == "scheduled" and job.run_at <= now]
        due = [job for job in scheduled if job.asked_at is None or job.ending is not None]
        for job in sorted(due, key=lambda job: (job.run_at, job.id)):
            job.place, job.seq = "ready", self.seq()
        return list(due)

    def settle(self, lease: int, settlement: Settlement) -> bool:
        """Settle a job, or its call, if it runs under a lease; whether it did."""
        job, now = self.jobs[settlement.id], settlement.finished_at
        if job.lease != lease:
            return False
        if job.ending is None:
            job.began_at, started_at = job.run_at, job.started_at
            super().settle(lease, settlement)
            if settlement.ending is None:
                return True
            self._end(job, replace(settlement.ending, started_at=started_at))
        else:
            self._settle_call(job, settlement)
        if settlement.state is JobState.COMPLETING:
            job.lease, job.run_at = None, settlement.run_at
            job.place, job.seq = ("ready", self.seq()) if job.run_at <= now else ("scheduled", 0)
        return True

    def _settle_call(self, job: CalledJob, settlement: Settlement) -> None:
        if settlement.ending is not None:
            job.ending, job.failed_calls = settlement.ending, settlement.ending.attempts
            return
        assert job.ending is not None
        assert job.began_at is not None
        job.started_at, job.failed_calls = job.ending.started_at, settlement.on_complete_attempts
        job.writes(settlement)
        job.place, job.ending, job.lease, job.run_at = job.ending.state.value, None, None, job.began_at
        job.gave_up = settlement.on_complete_error
        job.told += job.gave_up is None

    def cancel(self, job: ModelJob, settlement: Settlement) -> None:
        """End a pending job that is to be canceled; that is to be told first."""
        known = self.jobs[job.id]
        super().cancel(job, settlement)
        if settlement.ending is not None:
            known.place, known.seq, known.began_at = "ready", self.seq(), known.run_at
            self._end(known, settlement.ending)

    def retry(self, job: ModelJob, now: datetime) -> bool:
        """Make a job pending again if it has failed or was canceled; whether it was so."""
        known = self.jobs[job.id]
        if known.ending is not None or not super().retry(job, now):
            return False
        known.ends -= known.gave_up is not None  # of the end that was not told nobody will hear any more
        known.gave_up, known.failed_calls = None, ()
        return True

    def recall(self, job: CalledJob, now: datetime) -> bool:
        """Let the call of a job be made again that has failed for good; whether it was so."""
        if job.gave_up is None or job.finished_at is None:
            return False
        result = None if job.result is None else json.dumps(job.result)
        job.ending = Ending(
            JobState(job.place), job.finished_at, result, job.error, job.traceback, job.started_at, job.run_at,
            attempts=job.failed_calls,
        )  # fmt: skip
        job.began_at, job.place, job.seq, job.run_at = job.run_at, "ready", self.seq(), now
        job.gave_up = None
        return True

    def _end(self, job: CalledJob, ending: Ending) -> None:
        job.ending, job.failed_calls = ending, ()
        job.ends += 1
