"""Any order of moves of jobs, some of which tell of their end: each on_complete takes effect once for each end."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from conformance.bench import KEEP, new_job, rooms
from conformance.machine import EVENTS, INDEX, WHILE_SHRINKING, AnyOrder, JobMachine, Model, ModelJob
from penstock.jobs.job import Attempt, Ending, Job, Kind, NewJob, Settlement, job_id
from penstock.jobs.retry import Retry
from penstock.jobs.settle import complete
from penstock.jobs.states import JobEvent, JobState
from penstock.store.session import Statement

_ALL = 1000
_RETRY = Retry(max_attempts=2, initial_backoff=10.0)
_ENDS = st.sampled_from(EVENTS)
_SECRETS = st.sampled_from(["one", "two"])


class CallMachine(JobMachine):
    """Does each step to the model and to the store, and compares; most jobs have an on_complete."""

    model: CallModel

    def new_model(self) -> CallModel:
        return CallModel()

    # ----- steps

    @initialize()
    def begin(self) -> None:
        self._take_lease()
        self._take_lease()
        for priority, retry in enumerate((None, _RETRY)):
            self.enqueue("action", 0, priority, retry, on_complete=True, count=2, kept=True)
            self.enqueue("action", 0, priority, retry, on_complete=False, count=1, kept=True)

    @rule(which=INDEX, ends=st.lists(_ENDS, min_size=2, max_size=6), seconds=st.sampled_from([0, 4, 11]))
    def work(self, which: int, ends: list[JobEvent], seconds: int) -> None:
        """Jobs and calls start and end, each with what it does."""
        for number, event in enumerate(ends):
            self.claim(which + number, 2)
            if self.handles:
                self.settle_within(which + number, event, kept=True)
        self.time_passes(seconds)

    @rule(which=INDEX, ends=st.lists(_ENDS, min_size=1, max_size=2), asked=st.booleans())
    def crash(self, which: int, ends: list[JobEvent], *, asked: bool) -> None:
        """A worker is not heard of, whatever of it was under way, and what it still says is in vain."""
        self.claim(which, 4)
        if asked:
            self.ask_to_cancel(which, kept=True)
            self.carry_out_cancels()
        self.time_passes(31)
        for lease in self.runner.run(self.bench.store.leases.find_expired(self.now)):
            self._rescue(lease)
        for number, event in enumerate(ends if self.handles else []):
            self.settle_within(which + number, event, kept=True)
        self.work(which, ends, 0)

    @rule(
        kind=st.sampled_from(["mutation", "action"]),
        delay=st.sampled_from([0, 0, 5.000001, 60]),
        priority=st.integers(-1, 1),
        retry=st.sampled_from([None, _RETRY, Retry.fixed(10, max_duration=60)]),
        on_complete=st.booleans(),
        count=st.integers(1, 3),
        kept=st.sampled_from([True, True, True, False]),
    )
    def enqueue(
        self, kind: Kind, delay: float, priority: int, retry: Retry | None, *, on_complete: bool, count: int, kept: bool
    ) -> None:
        told = "conformance:told" if on_complete else None
        asked: dict[str, Any] = {"delay": delay, "priority": priority, "retry": retry, "on_complete": told}
        made = [new_job(kind, args=f'{{"n": {number}}}', now=self.now, **asked) for number in range(count)]
        jobs = [replace(job, options=replace(job.options, on_complete_retry=_RETRY)) for job in made]
        self._enqueue(jobs[::-1], kept=kept)  # machines that enqueue have clocks that differ

    @rule(which=INDEX, limit=st.integers(1, 4))
    def claim(self, which: int, limit: int) -> None:
        lease, model = self._some_lease(which), self.model
        claim = self.runner.run(self.bench.store.jobs.claim(lease, limit, rooms(limit), self.now))
        calls = [job.id for job in model.calls()]
        ready = [job.id for job in model.line("ready") if job.asked_at is None]
        promoted = {job.id for job in model.promote(self.now)}
        calls_came = [job.id for job in model.calls() if job.id in promoted]
        came = [job.id for job in model.line("ready") if job.id in promoted and job.asked_at is None]
        claimed = [job.id for job in claim.jobs]
        lines = (calls, calls_came, ready, came)
        assert len(claimed) == min(limit if lease in model.leases else 0, sum(map(len, lines)))
        for line in (ready, came):  # calls of jobs that ended at one moment are in no order
            taken = [job for job in line if job in claimed]
            assert taken == line[: len(taken)], "nobody is passed over"
        assert set(claimed) <= {one for line in lines for one in line}
        assert set(calls) <= set(claimed) or set(claimed) <= set(calls), "who waits for a call comes first"
        for job in claim.jobs:
            known = model.jobs[job.id]
            if known.ending is None:
                known.starts(lease, self.now)
            known.place, known.lease = "running", lease
            assert _read_result(job) == _read_result(replace(self._claimed(known), ending=known.ending))
            self._note(lease, job)
        assert claim.next_run_at == model.next_run_at()

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, event=_ENDS, kept=st.booleans())
    def settle_within(self, which: int, event: JobEvent, *, kept: bool) -> None:
        """End a job, or the call of its on_complete, in the transaction of what it does."""
        lease, job = self._some_handle(which)
        known, settlement = self.model.jobs[job.id], self._settlement(job, event)
        if job.ending is not None and event in {JobEvent.RETURNED, JobEvent.CANCELED}:
            settlement = complete(job, job.ending, self.now, KEEP)

        async def write() -> bool:
            session = await self.bench.store.begin_write()
            try:
                if settlement.event is JobEvent.COMPLETED and settlement.on_complete_error is None:
                    await self.bench.insert(session, f"{job.id} {known.told + 1}")
                won = await self.bench.store.jobs.settle_within(session, lease, settlement)
                if won and kept:
                    await session.commit()
                return won
            finally:
                await session.rollback()

        assert self.runner.run(write()) is (known.lease == lease)
        if kept:
            self.model.settle(lease, settlement)

    @precondition(lambda self: self.model.jobs)
    @rule(which=INDEX, count=st.integers(1, 3))
    def recall(self, which: int, count: int) -> None:
        known = list(self.model.jobs.values())
        if which % 4 < 3:
            known = [job for job in known if job.gave_up] or known
        asked = [known[(which + number) % len(known)] for number in range(count)]
        expected = [job.id for job in asked if self.model.recall(job, self.now)]
        assert self.runner.run(self.bench.recall(*(job.id for job in asked), now=self.now)) == expected

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, secret=_SECRETS, held=st.booleans())
    def issue(self, which: int, secret: str, *, held: bool) -> None:
        if not self._is_call(which):
            super().issue(which, secret, held=held)

    @precondition(lambda self: self.handles)
    @rule(which=INDEX)
    def hold(self, which: int) -> None:
        if not self._is_call(which):
            super().hold(which)

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, secret=_SECRETS, event=st.sampled_from([JobEvent.RETURNED, JobEvent.RAISED]))
    def redeem(self, which: int, secret: str, event: JobEvent) -> None:
        if not self._is_call(which):
            super().redeem(which, secret, event)

    def _is_call(self, which: int) -> bool:
        """Whether only the on_complete of a job is left; no token is given for that, and none counts any more."""
        lease, job = self._some_handle(which)
        if not job.attempt:  # of a job that was canceled before it started there can be none
            return True
        if self.model.jobs[job.id].ending is None:
            return False
        token, tokens = self._token(job, "one"), self.bench.store.tokens
        assert not self.runner.run(tokens.issue(lease, token, self.now + timedelta(seconds=20)))
        assert not self.runner.run(tokens.hold(lease, [(job.id, job.attempt)]))
        answer = self.runner.run(tokens.redeem(token, "success", self.now, lambda _: []))
        assert answer is None or not answer.accepted
        return True

    # ----- comparison

    @invariant()
    def each_end_is_told_of_once(self) -> None:
        written = self.runner.run(self.bench.kept())
        for job in self.model.jobs.values():
            assert [one for one in written if one.startswith(str(job.id))] == [
                f"{job.id} {number + 1}" for number in range(job.told)
            ]
            assert job.told == job.ends - (job.ending is not None) - (job.gave_up is not None)

    @invariant()
    def calls_that_failed_are_kept(self) -> None:
        listed = {status.id: status for status in self.runner.run(self.bench.list(limit=_ALL, now=self.now))}
        for job in self.model.jobs.values():
            status = listed[job_id(job.id)]
            assert status.on_complete_attempts == job.failed_calls
            assert status.on_complete_error == job.gave_up

    async def _clear(self) -> None:
        await super()._clear()
        end = self.now + timedelta(days=2)
        lease = await self.bench.lease(end)
        while claimed := (await self.bench.store.jobs.claim(lease, _ALL, rooms(_ALL), end)).jobs:
            for job in claimed:
                assert job.ending is not None
                await self.bench.settle(lease, complete(job, job.ending, end, KEEP))
        await self.bench.store.leases.give_back(lease)
        forget = Statement(f"delete from {self.bench.notes.table}")
        await self.bench.writing(lambda session: session.execute(forget))

    # ----- words

    def _enqueue(self, jobs: list[NewJob], *, kept: bool = True) -> None:
        self._write(lambda session: self.bench.store.jobs.enqueue(session, jobs, self.now), kept=kept)
        for job in jobs if kept else []:
            place, seq = ("ready", self.model.seq()) if job.run_at <= self.now else ("scheduled", 0)
            tells = job.on_complete is not None
            self.model.jobs[job.id] = CalledJob(job, job.run_at, place, seq, self.now, tells=tells)

    def _settlement(self, job: Job, event: JobEvent) -> Settlement:
        """What is written of an attempt, or of a call that was not made, or was for nothing."""
        if job.ending is not None and event in {JobEvent.RETURNED, JobEvent.CANCELED}:
            event = JobEvent.HANDED_BACK
        return super()._settlement(job, event)


def _read_result(job: Job) -> Job:
    """The job with the result of its ending as a value: the model does not know how it is spelled.

    Since when its attempts failed means nothing for a call; the ending says since when calls fail.
    """
    if job.ending is None:
        return job
    result = None if job.ending.result is None else json.loads(job.ending.result)
    return replace(job, ending=replace(job.ending, result=result), failing_since=None)


class CallsInAnyOrder(AnyOrder):
    @WHILE_SHRINKING
    def test_any_order_of_moves_of_jobs_does_as_the_model_says(self) -> None:
        self.run_machine(CallMachine, self.machine_examples * 5 // 4)


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
        return super().state if self.ending is None else "completing"


class CallModel(Model):
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
