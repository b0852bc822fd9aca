"""Any order of changes of rows, and of moves of the jobs made of them: a small model and the store do the same things.

Leaves the moves that all jobs make to `machine`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conformance.bench import KEEP, NOW, TTL, Bench
from conformance.machine import INDEX, WHILE_SHRINKING, AnyOrder
from conformance.taskbench import HISTORY, row, task_plan
from penstock.jobs.job import Job, JobStatus, Outcome, Settlement, job_id, job_uuid
from penstock.jobs.settle import settle, settle_cancel
from penstock.jobs.states import FINISHED, JobEvent
from penstock.pools.pool import PoolDefinition
from penstock.reactive.planning import RowPlan
from penstock.store.nouns.jobs import Room
from penstock.store.nouns.tasks import RecordRow
from penstock.store.session import Session

_YEAR = timedelta(days=366)
_ALL = 1000
_KEPT = 20  # attempts of one job, until the next run begins
_POOLS = ("default", "keyed")
_ENDS = (JobEvent.RETURNED, JobEvent.RAISED, JobEvent.SNOOZED, JobEvent.SKIPPED, JobEvent.CANCELED)
_KEYS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)
_ENDED = {"success", "failed", "canceled", "skipped"}


class TaskMachine(RuleBasedStateMachine):
    bench: Bench
    runner: Any
    examples = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.now: datetime = NOW + self.examples * _YEAR
        self.leases: list[int] = []
        self.handles: list[tuple[int, Job]] = []
        self.rows: dict[tuple[int, str], ModelRow] = {}

    @initialize(resets=st.booleans())
    def begin(self, *, resets: bool) -> None:
        keyed = f"keyed-{self.examples}"
        self.run(self.bench.store.pools.declare([PoolDefinition(keyed, 9, key_parallelism=1)]))
        plans = [
            task_plan(f"{pool} {self.examples}", pool=keyed if pool == "keyed" else pool, resets=resets)
            for pool in _POOLS
        ]
        self.pool, self.resets = keyed, resets
        declared = self.run(self.bench.store.tasks.declare(plans, self.now))
        self.tasks = [one.id for one in declared]
        self.gated = {one.id: one.plan.pool == keyed for one in declared}
        self._take_lease()

    # ----- changes

    @rule(
        which=st.integers(0, 1),
        keys=_KEYS,
        delay=st.sampled_from([0, 0, 5]),
        latest=st.sampled_from([None, 8]),
        partition=st.sampled_from("pq"),
    )
    def change(self, which: int, keys: list[str], delay: int, latest: int | None, partition: str) -> None:
        task = self.tasks[which]
        plans = [
            row(
                task,
                key,
                "change" if (task, key) in self.rows else "enter",
                due=delay,
                latest=latest,
                partition=partition if self.gated[task] else None,
                after=json.dumps(self._row(task, key).generation + 1),
                now=self.now,
            )
            for key in keys
        ]
        self._plan(plans)

    @rule(which=st.integers(0, 1), keys=_KEYS, deleted=st.booleans())
    def leave(self, which: int, keys: list[str], *, deleted: bool) -> None:
        kind = "delete" if deleted else "leave"
        gone = "deleted" if deleted else "left"
        task = self.tasks[which]
        self._plan(
            [row(task, key, kind, runs=False, drops=True, gone=gone, now=self.now) for key in keys]  # type: ignore[arg-type]
        )

    @rule(keys=_KEYS, others=_KEYS)
    def change_in_one_and_leave_the_other(self, keys: list[str], others: list[str]) -> None:
        one, other = self.tasks
        self._plan(
            [
                *(row(one, key, after=json.dumps(self._row(one, key).generation + 1), now=self.now) for key in keys),
                *(row(other, key, "leave", runs=False, drops=True, gone="left", now=self.now) for key in others),
            ]
        )

    def _plan(self, plans: list[RowPlan]) -> None:
        before = self._statuses(self._listed())
        launched = self.run(self.bench.store.tasks.plan(plans, None, self.now))
        expected = 0
        for plan in plans:
            known = self._row(plan.task, plan.key)
            status = before.get((plan.task, plan.key))
            if plan.runs:
                self.rows[plan.task, plan.key] = known
                known.gone = None
                expected += known.changes(plan.change, pending=status is not None and status.state.value == "pending")
            elif (plan.task, plan.key) in self.rows:
                known.leaves(str(plan.gone), pending=status is not None and status.state.value == "pending")
        assert launched == expected

    # ----- jobs

    @rule(which=INDEX, limit=st.integers(1, 4))
    def claim(self, which: int, limit: int) -> None:
        lease = self.leases[which % len(self.leases)]
        rooms = [Room("default", limit), Room(self.pool, limit, 1)]
        for job in self.run(self.bench.store.jobs.claim(lease, limit, rooms, self.now)).jobs:
            known = self._of(job)
            assert known is not None
            assert known.live and not known.running, "one run of a row at a time"  # noqa: PT018
            args = json.loads(job.args)
            known.claims(lease, args["generation"])
            assert args["generation"] == known.generation, "nobody held the job while it learned of the last change"
            assert (args["change"], args["before"]) == (known.change, "1")
            assert args["change"] == "manual" or args["after"] == json.dumps(args["generation"])
            assert (job.attempt, job.function, job.kind) == (known.attempt, "conformance:task", "mutation")
            self.handles.append((lease, job))

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, event=st.sampled_from(_ENDS), within=st.booleans())
    def settle(self, which: int, event: JobEvent, *, within: bool) -> None:
        lease, job = self.handles.pop(which % len(self.handles))
        settlement = self._settlement(job, event)

        async def write(session: Session) -> set[Any]:
            return {job.id} if await self.bench.store.jobs.settle_within(session, lease, settlement) else set()

        won = self.run(self.bench.writing(write) if within else self.bench.settle(lease, settlement))
        known = self._of(job)
        generation = json.loads(job.args)["generation"]
        holds = known is not None and (known.job, known.running, known.claimed) == (job.id, lease, generation)
        assert bool(won) is holds
        if known is not None and won:
            known.ends(settlement)

    @precondition(lambda self: self.handles)
    @rule(which=INDEX, event=st.sampled_from([JobEvent.RETURNED, JobEvent.RETURNED, JobEvent.RAISED]))
    def settle_all(self, which: int, event: JobEvent) -> None:
        lease, _ = self.handles[which % len(self.handles)]
        said = {job.id: self._settlement(job, event) for of, job in self.handles if of == lease}
        known = {job.id: self._of(job) for _, job in self.handles}
        running = {one for one in said if (row := known[one]) is not None and (row.job, row.running) == (one, lease)}
        self.handles = [(of, job) for of, job in self.handles if of != lease]
        assert self.run(self.bench.settle(lease, *said.values())) == running
        for one in running:
            row = known[one]
            assert row is not None
            row.ends(said[one])

    @precondition(lambda self: self.rows)
    @rule(which=INDEX, at_once=st.booleans())
    def cancel(self, which: int, *, at_once: bool) -> None:
        known = list(self.rows.values())[which % len(self.rows)]
        if known.job is not None:
            self.run(self.bench.request_cancel(known.job, now=self.now))
            known.asked = True
        if at_once:
            self.carry_out_cancels()

    @rule()
    def carry_out_cancels(self) -> None:
        before = self._statuses(self._listed())
        self.run(
            self.bench.store.jobs.cancel_pending(
                self.now, _ALL, lambda jobs: [settle_cancel(job, self.now, KEEP) for job in jobs]
            )
        )
        for place, known in self.rows.items():
            status = before[place]
            if known.asked and status is not None and status.state.value == "pending":
                known.canceled()

    @precondition(lambda self: self.rows)
    @rule(which=INDEX)
    def retry(self, which: int) -> None:
        known = list(self.rows.values())[which % len(self.rows)]
        status = self._status(known)
        if known.job is None or status is None:
            return
        retried = self.run(self.bench.retry(known.job, now=self.now))
        assert bool(retried) is (status.state.value in {"failed", "canceled"})
        if retried:
            known.revived()

    # ----- what people ask for

    @rule(which=st.integers(0, 1), keys=_KEYS, states=st.sampled_from([None, ("failed", "canceled"), ("pending",)]))
    def rerun(self, which: int, keys: list[str], states: tuple[str, ...] | None) -> None:
        places = [(self.tasks[which], key) for key in keys]
        before, records = self._statuses(self._listed()), self.bench.store.records
        again = self.run(records.rerun(places, self.now, *([] if states is None else [states])))
        states_of = {place: status.state.value for place, status in before.items() if status is not None}
        known = [place for place in places if place in self.rows]
        assert sorted(again) == sorted(place for place in known if states is None or states_of[place] in states)
        for place in again:
            self.rows[place].changes(
                "manual", pending=states_of[place] == "pending", anew=states_of[place] == "pending"
            )

    @rule(which=st.integers(0, 1), keys=_KEYS, forgotten=st.booleans())
    def skip_or_delete(self, which: int, keys: list[str], *, forgotten: bool) -> None:
        places = [(self.tasks[which], key) for key in keys]
        before, records = self._statuses(self._listed()), self.bench.store.records
        known = {place: before[place] for place in places if place in self.rows}
        states = {place: status.state.value for place, status in known.items() if status is not None}
        if not forgotten:
            pending = [place for place, state in states.items() if state == "pending"]
            assert sorted(self.run(records.skip(places, self.now))) == sorted(pending)
            for place in pending:
                self.rows[place].canceled()
            return
        gone = [place for place, state in states.items() if state != "running"]
        assert sorted(self.run(records.delete(places, self.now))) == sorted(gone)
        for place, status in known.items():
            if place not in gone:
                self.rows[place].asked = True
                continue
            del self.rows[place]
            assert status is not None
            assert self.run(self.bench.find(job_uuid(status.id), self.now)) is None, "its job is forgotten as well"
            assert self.run(self.bench.reading(partial(self._record, place))) is None

    # ----- workers that are lost

    @rule(which=INDEX)
    def lose(self, which: int) -> None:
        lease = self.leases.pop(which % len(self.leases))
        self.now += TTL + timedelta(seconds=1)
        lost: list[Settlement] = []

        def decide(jobs: list[Job]) -> list[Settlement]:
            lost.extend(self._settlement(job, JobEvent.LOST) for job in jobs)
            return lost[-len(jobs) :]

        self.run(self.bench.store.leases.rescue(lease, self.now, decide))
        for settlement in lost:
            next(known for known in self.rows.values() if known.job == settlement.id).ends(settlement)
        for other in self.leases:
            self.run(self.bench.store.leases.renew(other, TTL, self.now))
        self._take_lease()

    @rule(seconds=st.sampled_from([1, 6, 30]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        for lease in self.leases:
            self.run(self.bench.store.leases.renew(lease, _YEAR, self.now))

    # ----- comparison

    @invariant()
    def each_row_has_one_job_at_most_and_a_live_one_if_it_is_to_run(self) -> None:
        listed = self._listed()
        ids = [status.id for status in listed]
        assert len(ids) == len(set(ids)), "one job of each row, wherever it stands"
        records = self.run(self.bench.reading(self._records))
        for place, known in self.rows.items():
            record = records[place]
            assert record is not None
            known.job = record.job
            assert (record.generation, record.live, record.gone) == (known.generation, known.live, known.gone)
            assert record.change == known.change
        statuses = self._statuses(listed)
        for place, known in self.rows.items():
            status = statuses[place]
            assert status is not None
            assert (status.state.value not in _ENDED) is known.live, status
            assert len(status.attempts) <= _KEPT + HISTORY
            assert (status.state.value == "running") is (known.running is not None)
            if status.state.value == "pending":
                assert status.args["generation"] == known.generation, "the job is for the last change"
                assert status.attempt <= 3
            if known.done < known.generation and not known.let_go:
                assert known.live, "what was not done has a job"

    def teardown(self) -> None:
        """Leave nothing that the next example could claim."""
        self.now += _YEAR / 2
        for lease in self.leases:
            self.run(
                self.bench.store.leases.rescue(
                    lease, self.now + 2 * _YEAR, lambda jobs: [self._settlement(job, JobEvent.RETURNED) for job in jobs]
                )
            )
        for known in self.rows.values():
            if known.job is not None:
                self.run(self.bench.request_cancel(known.job, now=self.now))
        self.run(
            self.bench.store.jobs.cancel_pending(
                self.now, _ALL, lambda jobs: [settle_cancel(job, self.now, KEEP) for job in jobs]
            )
        )

    # ----- words

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def _take_lease(self) -> None:
        self.leases.append(self.run(self.bench.store.leases.take("conformance", TTL, self.now)))

    def _row(self, task: int, key: str) -> ModelRow:
        return self.rows.get((task, key)) or ModelRow(self.resets)

    def _of(self, job: Job) -> ModelRow | None:
        return self.rows.get((job.options.task or 0, json.loads(job.args)["key"]))

    def _listed(self) -> list[JobStatus]:
        listed: list[JobStatus] = self.run(self.bench.list(limit=_ALL, now=self.now))
        return listed

    def _statuses(self, listed: list[JobStatus]) -> dict[tuple[int, str], JobStatus | None]:
        """How the job of each row stands, of all that are listed."""
        found = {status.id: status for status in listed}
        return {place: found.get(job_id(known.job)) if known.job else None for place, known in self.rows.items()}

    async def _records(self, session: Session) -> dict[tuple[int, str], RecordRow | None]:
        return {place: await self.bench.store.tasks.find(session, *place) for place in self.rows}

    async def _record(self, place: tuple[int, str], session: Session) -> RecordRow | None:
        return await self.bench.store.tasks.find(session, *place)

    def _status(self, known: ModelRow) -> JobStatus | None:
        return None if known.job is None else self.run(self.bench.find(known.job, self.now))

    def _settlement(self, job: Job, event: JobEvent) -> Settlement:
        return settle(job, Outcome(event, error="E", delay=timedelta(seconds=7)), self.now, 0.5, KEEP)


class TasksInAnyOrder(AnyOrder):
    task_examples = 20

    @WHILE_SHRINKING
    def test_any_order_of_changes_does_as_the_model_of_tasks_says(self) -> None:
        self.run_machine(TaskMachine, self.task_examples)  # type: ignore[arg-type]


@dataclass
class ModelRow:
    """A row as the model knows it.

    Attributes:
        resets: Whether its attempts are counted from one again once it has changed.
        generation: How many changes of it were to be run.
        done: The last of these that a run was for that has ended.
        let_go: Whether the last one needs no run, as the row is gone or its run was canceled.
        live: Whether there is a job that has not ended.
        running: The lease under which it runs.
        claimed: For which change it runs.
        asked: Whether someone has asked for its job to be canceled since the last change.
        attempt: Attempts of its run that have begun.
        change: What was the last change that was to be run.
        gone: How it has gone, if it has.
        job: The id of its job, once it is known.
    """

    resets: bool = True
    generation: int = 0
    done: int = 0
    let_go: bool = False
    live: bool = False
    running: int | None = None
    claimed: int = 0
    asked: bool = False
    attempt: int = 0
    change: str = "enter"
    gone: str | None = None
    job: UUID | None = None

    def changes(self, change: str, *, pending: bool, anew: bool = False) -> bool:
        """It has changed; whether there is a job more."""
        launched, entered = not self.live, self.live and self.running is None and self.change == "enter"
        self.change = "enter" if entered and change == "change" else change  # nobody has heard of it yet
        self.generation, self.live, self.let_go = self.generation + 1, True, False
        if launched or pending:
            self.asked = False
        if launched or anew or (pending and self.resets):
            self.attempt = 0
        return launched

    def leaves(self, gone: str, *, pending: bool) -> None:
        self.gone = gone
        if pending:
            self.live, self.let_go, self.asked = False, True, False

    def canceled(self) -> None:
        self.live, self.let_go, self.asked = False, True, False

    def revived(self) -> None:
        self.generation += 1
        self.live, self.let_go, self.asked, self.attempt, self.change = True, False, False, 0, "manual"

    def claims(self, lease: int, generation: int) -> None:
        self.running, self.claimed, self.attempt = lease, generation, self.attempt + 1

    def ends(self, settlement: Settlement) -> None:
        """Its run has ended, or is to go on later."""
        self.running = None
        changed = self.generation > self.claimed
        if settlement.state not in FINISHED:
            self.asked = self.asked and not changed
            self.attempt = 0 if changed and self.resets else settlement.attempt
            return
        self.done, self.asked, self.attempt = self.claimed, False, 0
        self.live = changed
        if settlement.event is JobEvent.CANCELED and not changed:
            self.let_go = True
