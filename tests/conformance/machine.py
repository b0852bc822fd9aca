"""Any order of moves: a small model of jobs and leases in plain Python, and the store, do the same things.

Leaves the model to `model`. hypothesis invents the orders, and finds a short one when the two differ.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conformance.bench import NOW, TTL, Bench, Suite, ended, lose, new_job, rooms
from conformance.model import Model, ModelJob
from penstock.jobs.job import Job, Kind, NewJob, Settlement, job_id
from penstock.jobs.retry import Retry
from penstock.jobs.states import JobEvent
from penstock.jobs.token import Token, Told, token_of, token_text
from penstock.store.nouns.leases import OUTSIDE
from penstock.store.session import Session

_YEAR = timedelta(days=366)
_MINUTE = timedelta(minutes=1)
_RETRY = Retry(max_attempts=2, initial_backoff=10.0)
_EVENTS = (
    JobEvent.RETURNED,
    JobEvent.RAISED,
    JobEvent.SNOOZED,
    JobEvent.HANDED_BACK,
    JobEvent.CANCELED,
)
_TOLD = (JobEvent.RETURNED, JobEvent.RAISED)
_WAIT = timedelta(seconds=20)
_ALL = 1000
INDEX = st.integers(0, 1000)
WHILE_SHRINKING = pytest.mark.timeout(600)  # for a short order in which the two differ hypothesis looks for minutes


class JobMachine(RuleBasedStateMachine):
    """Does each step to the model and to the store, and compares."""

    bench: Bench
    runner: asyncio.Runner
    model: Model
    examples = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.now = NOW + self.examples * _YEAR  # all that was left before has expired
        self.model = self._new_model()
        self.handles: list[tuple[int, Job]] = []

    # ----- steps

    @initialize()
    def begin(self) -> None:
        self._take_lease()
        self._take_lease()
        self._enqueue([new_job(priority=priority, now=self.now) for priority in (0, 1, 0)])

    @rule(
        kind=st.sampled_from(["mutation", "action"]),
        delay=st.sampled_from([0, 0, 5, 60]),
        priority=st.integers(-1, 1),
        retried=st.booleans(),
        count=st.integers(1, 3),
    )
    def enqueue(self, kind: Kind, delay: int, priority: int, *, retried: bool, count: int) -> None:
        retry = _RETRY if retried else None
        self._enqueue([new_job(kind, delay=delay, priority=priority, retry=retry, now=self.now) for _ in range(count)])

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

    @rule(which=INDEX, limit=st.integers(1, 4))
    def claim(self, which: int, limit: int) -> None:
        lease, model = self._some_lease(which), self.model
        claim = self.runner.run(self.bench.store.jobs.claim(lease, limit, rooms(limit), self.now))
        ready = [job.id for job in model.line("ready") if job.asked_at is None]
        promoted = {job.id for job in model.promote(self.now)}
        came = [job.id for job in model.line("ready") if job.id in promoted and job.asked_at is None]
        claimed = [job.id for job in claim.jobs]
        places = limit if lease in model.leases else 0
        assert len(claimed) == min(places, len(ready) + len(came))
        for line in (ready, came):
            taken = [job for job in line if job in claimed]
            assert taken == line[: len(taken)], "nobody is passed over"
        assert set(claimed) <= {*ready, *came}
        for job in claim.jobs:
            known = model.jobs[job.id]
            known.place, known.lease, known.attempt = "running", lease, known.attempt + 1
            assert job.attempt == known.attempt
            self._note(lease, job)
        later = [job for job in model.line("scheduled") if job.asked_at is None]
        assert claim.next_run_at == (later[0].run_at if later else None)

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, event=st.sampled_from(_EVENTS), other=st.booleans())
    def settle(self, which: int, event: JobEvent, *, other: bool) -> None:
        lease, job = self._some_handle(which)
        if other:
            lease = self._some_lease(which)
            job = next((one for of, one in self.handles if (of, one.id) == (lease, job.id)), job)
        settlement = self._settlement(job, event)
        won = self.runner.run(self.bench.settle(lease, settlement))
        assert won == ({job.id} if self.model.settle(lease, settlement) else set())

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, event=st.sampled_from(_EVENTS), kept=st.booleans())
    def settle_within(self, which: int, event: JobEvent, *, kept: bool) -> None:
        lease, job = self._some_handle(which)
        settlement = self._settlement(job, event)

        async def write(session: Session) -> bool:
            return await self.bench.store.jobs.settle_within(session, lease, settlement)

        async def undone() -> bool:
            session = await self.bench.store.begin_write()
            try:
                return await write(session)
            finally:
                await session.rollback()

        won = self.runner.run(self.bench.writing(write) if kept else undone())
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
    @rule(which=INDEX)
    def ask_to_cancel(self, which: int) -> None:
        job = list(self.model.jobs.values())[which % len(self.model.jobs)]
        self.runner.run(self.bench.request_cancel(job.id, now=self.now))
        job.asked_at = job.asked_at or self.now

    @rule()
    def carry_out_cancels(self) -> None:
        running = self.runner.run(self.bench.cancel_pending(self.now, _ALL))
        asked = [job for job in self.model.jobs.values() if job.asked_at is not None]
        assert sorted(running) == sorted(job.id for job in asked if job.state == "running")
        for job in asked:
            if job.state == "pending":
                self.model.cancel(job)
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
        listed = {status.id: status for status in self.runner.run(self.bench.list(limit=_ALL, now=self.now))}
        expected = {job_id(job.id): job for job in self.model.jobs.values()}
        assert listed.keys() == expected.keys()
        for key, job in expected.items():
            status = listed[key]
            assert (status.state.value, status.attempt) == (job.state, job.attempt)
            assert status.run_at == job.run_at
            assert tuple((one.number, one.what) for one in status.attempts) == job.failures

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        places: dict[str, int] = {}
        for job in self.model.jobs.values():
            place = "ready" if job.place == "waiting" else job.place
            places[place] = places.get(place, 0) + 1
        assert self.runner.run(self.bench.count(self.now)) == places

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

    def _new_model(self) -> Model:
        return Model()

    def _take_lease(self) -> None:
        self.model.leases[self.runner.run(self.bench.lease(self.now))] = self.now + TTL

    def _enqueue(self, jobs: list[NewJob]) -> None:
        self.runner.run(self.bench.enqueue(*jobs, now=self.now))
        for job in jobs:
            place, seq = ("ready", self.model.seq()) if job.run_at <= self.now else ("scheduled", 0)
            self.model.jobs[job.id] = ModelJob(job.id, job.priority, job.run_at, place, seq)

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

    def _under(self, lease: int) -> list[ModelJob]:
        return [job for job in self.model.jobs.values() if job.lease == lease]

    def _token(self, job: Job, secret: str) -> Token:
        return token_of(token_text(job.id, job.attempt, secret))

    def _settlement(self, job: Job, event: JobEvent) -> Settlement:
        return ended(job, event, now=self.now, error="E", delay=timedelta(seconds=7))


class AnyOrder(Suite):
    """The moves of jobs and leases in any order."""

    machine_examples = 40
    machine_steps = 40

    @WHILE_SHRINKING
    def test_any_order_of_moves_does_as_the_model_says(self) -> None:
        self.run_machine(JobMachine, self.machine_examples)

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
