"""Any order of moves: a small model of jobs and leases in plain Python, and the store, do the same things.

Leaves how jobs are enqueued and claimed to `callmachine` and `gatemachine`. hypothesis invents the orders, and finds a
short one when the two differ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from conformance.bench import NOW, TTL, Bench, Suite, T, cancel, ended, lose, new_job
from penstock.jobs.job import Attempt, Job, NewJob, Settlement, job_id, job_uuid
from penstock.jobs.settle import ATTEMPTS_KEPT
from penstock.jobs.states import FINISHED, JobEvent, JobState
from penstock.jobs.token import Token, Told, token_of, token_text
from penstock.store.nouns.leases import OUTSIDE
from penstock.store.session import Session

_YEAR = timedelta(days=366)
_MINUTE = timedelta(minutes=1)
EVENTS = (JobEvent.RETURNED, JobEvent.RAISED, JobEvent.SNOOZED, JobEvent.HANDED_BACK, JobEvent.CANCELED)
_TOLD = (JobEvent.RETURNED, JobEvent.RAISED)
_WAIT = timedelta(seconds=20)
_ALL = 1000
INDEX = st.integers(0, 1000)
WHILE_SHRINKING = pytest.mark.timeout(600)  # for a short order in which the two differ hypothesis looks for minutes


class JobMachine(RuleBasedStateMachine):
    bench: Bench
    runner: asyncio.Runner
    model: Model
    examples = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.now = NOW + self.examples * _YEAR  # all that was left before has expired
        self.model = self.new_model()
        self.handles: list[tuple[int, Job]] = []

    def new_model(self) -> Model:
        raise NotImplementedError

    # ----- steps

    @rule(seconds=st.sampled_from([1, 4, 11, 31]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(which=INDEX)
    def renew(self, which: int) -> None:
        lease = self._some_lease(which)
        held = self.runner.run(self.bench.store.leases.renew(lease, TTL, self.now))
        assert held is (lease in self.model.leases)
        if held:
            self.model.leases[lease] = self.now + TTL

    @precondition(lambda self: len(self.model.leases) > 1)
    @rule(which=INDEX)
    def give_back(self, which: int) -> None:
        lease = self._some_lease(which)
        self.runner.run(self.bench.store.leases.give_back(lease))
        if not self._under(lease):
            self.model.leases.pop(lease, None)

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, event=st.sampled_from(EVENTS), other=st.booleans())
    def settle(self, which: int, event: JobEvent, *, other: bool) -> None:
        lease, job = self._some_handle(which)
        self._settle(self._some_lease(which) if other else lease, [(job, event)])

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, events=st.lists(st.sampled_from(EVENTS), min_size=2, max_size=5))
    def settle_many(self, which: int, events: list[JobEvent]) -> None:
        lease, _ = self._some_handle(which)
        self._settle(lease, [(self._some_handle(which + number)[1], event) for number, event in enumerate(events)])

    def _settle(self, lease: int, ends: list[tuple[Job, JobEvent]]) -> None:
        """Settle jobs under a lease, some of which may have been claimed under another one."""
        known = {job.id: job for of, job in self.handles if of == lease}
        said = {job.id: self._settlement(known.get(job.id, job), event) for job, event in ends}
        won = self.runner.run(self.bench.settle(lease, *said.values()))
        assert won == {one for one, settlement in said.items() if self.model.settle(lease, settlement)}

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, event=st.sampled_from(EVENTS), kept=st.booleans())
    def settle_within(self, which: int, event: JobEvent, *, kept: bool) -> None:
        lease, job = self._some_handle(which)
        settlement = self._settlement(job, event)

        won = self._write(lambda session: self.bench.store.jobs.settle_within(session, lease, settlement), kept=kept)
        assert won is (self.model.jobs[job.id].lease == lease)
        if kept:
            self.model.settle(lease, settlement)

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, secret=st.sampled_from(["one", "two"]), held=st.booleans())
    def issue(self, which: int, secret: str, *, held: bool) -> None:
        lease, job = self._some_handle(which)
        token, known = self._token(job, secret), self.model.jobs[job.id]
        issued = self.runner.run(self.bench.store.tokens.issue(lease, token, self.now + _WAIT))
        assert issued is (known.lease == lease and known.attempt == job.attempt)
        if issued:
            known.tokens[job.attempt] = secret, self.now + _WAIT
        if held:
            self._hold(lease, job)

    @precondition(lambda self: self.handles)
    @rule(which=INDEX)
    def hold(self, which: int) -> None:
        self._hold(*self._some_handle(which))

    def _hold(self, lease: int, job: Job) -> None:
        known = self.model.jobs[job.id]
        moved = self.runner.run(self.bench.store.tokens.hold(lease, [(job.id, job.attempt)]))
        may = known.lease == lease and known.attempt == job.attempt and job.attempt in known.tokens
        assert moved == ({job.id} if may else set())
        if may:
            known.lease = OUTSIDE

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, secret=st.sampled_from(["one", "two"]), event=st.sampled_from(_TOLD))
    def redeem(self, which: int, secret: str, event: JobEvent) -> None:
        _, job = self._some_handle(which)
        known, settled = self.model.jobs[job.id], list[Settlement]()
        told: Told = "success" if event is JobEvent.RETURNED else "failed"
        token = self._token(job, secret)

        def decide(jobs: list[Job]) -> list[Settlement]:
            assert jobs == [job]
            settled.extend(self._settlement(job, event) for job in jobs)
            return settled

        answer = self.runner.run(self.bench.store.tokens.redeem(token, told, self.now, decide))
        kept, deadline = known.tokens.get(job.attempt, ("", self.now))
        runs = known.lease is not None and known.attempt == job.attempt
        may = runs and kept == secret and self.now < deadline
        assert (answer is not None and answer.accepted) is may
        if may and known.lease is not None:
            del known.tokens[job.attempt]
            self.model.settle(known.lease, settled[0])

    @rule()
    def expire(self) -> None:
        outside = [job for job in self.model.jobs.values() if job.lease == OUTSIDE]
        late = [job for job in outside if job.tokens[job.attempt][1] <= self.now]
        self._end_outside(late, JobEvent.RAISED, self.bench.store.tokens.expire)

    @rule()
    def cancel_outside(self) -> None:
        asked = [job for job in self.model.jobs.values() if job.lease == OUTSIDE and job.asked_at is not None]
        self._end_outside(asked, JobEvent.CANCELED, self.bench.store.tokens.cancel)

    def _end_outside(self, expected: list[ModelJob], event: JobEvent, end: Any) -> None:
        settled: list[Settlement] = []

        def decide(jobs: list[Job]) -> list[Settlement]:
            settled.extend(self._settlement(job, event) for job in jobs)
            return settled[-len(jobs) :]

        assert self.runner.run(end(self.now, _ALL, decide)) == len(expected)
        assert sorted(one.id for one in settled) == sorted(job.id for job in expected)
        for settlement in settled:
            assert self.model.settle(OUTSIDE, settlement)

    @precondition(lambda self: self.model.jobs)
    @rule(which=INDEX, kept=st.sampled_from([True, True, True, False]))
    def ask_to_cancel(self, which: int, *, kept: bool) -> None:
        job = list(self.model.jobs.values())[which % len(self.model.jobs)]
        asked = [job.id, new_job().id, job.id]
        self._write(lambda session: self.bench.store.jobs.request_cancel(session, asked, self.now), kept=kept)
        job.asked_at = job.asked_at or (self.now if kept else None)

    @rule()
    def carry_out_cancels(self) -> None:
        said: dict[UUID, Settlement] = {}

        def decide(jobs: list[Job]) -> list[Settlement]:
            found = cancel(self.now)(jobs)
            said.update({one.id: one for one in found})
            return found

        running = self.runner.run(self.bench.store.jobs.cancel_pending(self.now, _ALL, decide))
        asked = [job for job in self.model.jobs.values() if job.asked_at is not None]
        runs = [one for one in running if self.model.jobs[one].state != "completing"]
        assert sorted(runs) == sorted(job.id for job in asked if job.state == "running")
        assert said.keys() == {job.id for job in asked if job.state == "pending"}
        for job in asked:
            if job.state == "pending":
                self.model.cancel(job, said[job.id])
            if job.state != "running":
                job.asked_at = None

    @precondition(lambda self: self.model.jobs)
    @rule(which=INDEX, count=st.integers(1, 3))
    def retry(self, which: int, count: int) -> None:
        known = list(self.model.jobs.values())
        if which % 4 < 3:
            known = [job for job in known if job.state in {"failed", "canceled"}] or known
        asked = [known[(which + number) % len(known)] for number in range(count)]
        expected = [job.id for job in asked if self.model.retry(job, self.now)]
        assert self.runner.run(self.bench.retry(*(job.id for job in asked), now=self.now)) == expected

    @rule(which=INDEX)
    def rescue(self, which: int) -> None:
        self._rescue(self._some_lease(which))

    def _rescue(self, lease: int) -> None:
        model, leases = self.model, self.bench.store.leases
        expired = sorted(self.runner.run(leases.find_expired(self.now)))
        assert expired == sorted(lease for lease, until in model.leases.items() if until <= self.now)
        lost: list[Settlement] = []

        def decide(jobs: list[Job]) -> list[Settlement]:
            assert all(job in self._held(lease) for job in jobs)
            lost.extend(lose(self.now)(jobs))
            return list(lost)

        count = self.runner.run(leases.rescue(lease, self.now, decide))
        if lease in model.leases and lease not in expired:
            assert count == 0
            return
        assert count == len(lost) == len(self._under(lease))
        model.leases.pop(lease, None)
        for settlement in lost:
            assert model.settle(lease, settlement)

    # ----- comparison

    @invariant()
    def the_store_knows_what_the_model_knows(self) -> None:
        listed = self.runner.run(self.bench.list(limit=_ALL, now=self.now))
        assert [status.id for status in listed] == [job_id(one) for one in sorted(self.model.jobs, reverse=True)]
        for status in listed:
            job = self.model.jobs[job_uuid(status.id)]
            assert (status.state.value, status.attempt) == (job.state, job.attempt)
            assert (status.run_at, status.enqueued_at) == (job.run_at, job.enqueued_at)
            assert status.attempts == job.failures
            told = status.started_at, status.finished_at, status.result, status.error, status.traceback
            assert job.state == "completing" or told == job.history, status

    @rule(which=INDEX, state=st.sampled_from(["pending", "running", "success", "failed", "canceled"]))
    def look(self, which: int, state: str) -> None:
        jobs, lease, asked = self.bench.store.jobs, self._some_lease(which), [new_job().id, *self.model.jobs]
        listed = self.runner.run(self.bench.list(limit=_ALL, now=self.now))
        found = self.runner.run(self.bench.reading(lambda session: jobs.find_many(session, asked, self.now)))
        assert found == {job_uuid(status.id): status for status in listed}
        in_state = self.runner.run(self.bench.list(state, limit=_ALL, now=self.now))
        assert in_state == [status for status in listed if status.state.value == state]
        under = self.runner.run(self.bench.store.leases.jobs(lease))
        assert sorted(under, key=lambda job: job.id) == sorted(self._held(lease), key=lambda job: job.id)

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        places: dict[str, int] = {}
        for job in self.model.jobs.values():
            place = "ready" if job.place == "waiting" else job.place
            places[place] = places.get(place, 0) + 1
        counted = self.runner.run(self.bench.count(self.now))
        retrying = counted.pop("retrying", 0)
        assert counted | ({"scheduled": counted.get("scheduled", 0) + retrying} if retrying else {}) == places

    def teardown(self) -> None:
        """Leave nothing that the next example could claim."""
        self.runner.run(self._clear())

    async def _clear(self) -> None:
        end = self.now + timedelta(days=1)
        for lease in await self.bench.store.leases.find_expired(end):
            await self.bench.store.leases.rescue(
                lease, end, lambda jobs: [ended(job, JobEvent.RETURNED, now=end) for job in jobs]
            )
        await self.bench.store.tokens.expire(
            end, _ALL, lambda jobs: [ended(job, JobEvent.RETURNED, now=end) for job in jobs]
        )
        for job in self.model.jobs.values():
            if job.state == "pending":
                await self.bench.request_cancel(job.id, now=end)
        await self.bench.cancel_pending(end, _ALL)
        await self.bench.cancel_pending(end + 2 * _MINUTE, _ALL)

    # ----- words

    def _take_lease(self) -> None:
        self.model.leases[self.runner.run(self.bench.lease(self.now))] = self.now + TTL

    def _write(self, write: Callable[[Session], Awaitable[T]], *, kept: bool = True) -> T:
        async def run() -> T:
            session = await self.bench.store.begin_write()
            try:
                result = await write(session)
                if kept:
                    await session.commit()
            finally:
                await session.rollback()
            return result

        return self.runner.run(run())

    def _claimed(self, known: ModelJob) -> Job:
        """A job as whoever claims it gets it."""
        new = known.new
        return Job(
            id=new.id,
            function=new.function,
            kind=new.kind,
            args=new.args,
            run_at=known.run_at,
            pool=new.pool,
            priority=new.priority,
            options=new.options,
            on_complete=new.on_complete,
            ending=None,
            attempt=known.attempt,
            enqueued_at=known.enqueued_at,
            started_at=self.now,
            failing_since=known.failing_since,
        )

    def _some_lease(self, which: int) -> int:
        """A lease that is held, or now and then one that is lost; there are always two of the former."""
        while len(self.model.leases) < 2:
            self._take_lease()
        lost = sorted({lease for lease, _ in self.handles} - self.model.leases.keys())
        known = lost if lost and which % 5 == 4 else list(self.model.leases)
        return known[which % len(known)]

    def _note(self, lease: int, job: Job) -> None:
        """A job was claimed; who has claimed it before under the same lease says nothing of that any more."""
        self.handles = [(of, one) for of, one in self.handles if (of, one.id) != (lease, job.id)]
        self.handles.append((lease, job))

    def _some_handle(self, which: int) -> tuple[int, Job]:
        """A job that was claimed, and under which lease: mostly one that still runs there."""
        jobs = self.model.jobs
        current = [(lease, job) for lease, job in self.handles if jobs[job.id].lease in {lease, OUTSIDE}]
        handles = current if current and which % 4 < 3 else self.handles
        return handles[which % len(handles)]

    def _held(self, lease: int) -> list[Job]:
        """The jobs that run under a lease, as they were claimed."""
        return [job for of, job in self.handles if of == lease == self.model.jobs[job.id].lease]

    def _under(self, lease: int) -> list[ModelJob]:
        return [job for job in self.model.jobs.values() if job.lease == lease]

    def _token(self, job: Job, secret: str) -> Token:
        return token_of(token_text(job.id, job.attempt, secret))

    def _settlement(self, job: Job, event: JobEvent) -> Settlement:
        facts: dict[str, Any] = {"error": None if event is JobEvent.RETURNED else f"E {len(self.handles)} é\"'"}
        if event is JobEvent.RAISED:
            facts["traceback"] = f"line {len(self.handles)}"
        if event is JobEvent.RETURNED:
            facts["result"] = f'{{"n":[{len(self.handles)}, "\\u2028"]}}' if len(self.handles) % 3 else None
        return ended(job, event, now=self.now, delay=timedelta(seconds=7), **facts)


class AnyOrder(Suite):
    machine_examples = 40
    machine_steps = 40

    def run_machine(self, machine: type[JobMachine], examples: int) -> None:
        """Let a machine do its steps in many orders, on a store of its own."""
        bench = Bench(self.make_database())
        with asyncio.Runner() as runner:
            runner.run(bench.start())
            try:
                run_state_machine_as_test(
                    type("Machine", (machine,), {"bench": bench, "runner": runner}),
                    settings=settings(
                        max_examples=examples,
                        stateful_step_count=self.machine_steps,
                        deadline=None,
                        derandomize=True,
                        suppress_health_check=list(HealthCheck),
                    ),
                )
            finally:
                runner.run(bench.stop())


_FAILURES = {JobEvent.RAISED, JobEvent.EXHAUSTED, JobEvent.LOST, JobEvent.ABANDONED}


@dataclass
class ModelJob:
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
        return self.new.id

    @property
    def priority(self) -> int:
        return self.new.priority

    @property
    def state(self) -> str:
        return "pending" if self.place in {"ready", "scheduled", "waiting"} else self.place

    @property
    def history(self) -> tuple[Any, ...]:
        return self.started_at, self.finished_at, self.result, self.error, self.traceback

    def starts(self, lease: int, now: datetime) -> None:
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
    def __init__(self) -> None:
        self.jobs: dict[UUID, ModelJob] = {}
        self.leases: dict[int, datetime] = {}
        self._seq = 0

    def seq(self) -> int:
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
