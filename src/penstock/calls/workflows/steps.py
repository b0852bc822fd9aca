"""Runs the steps of one run of a workflow on the worker's loop, and writes what came of them under the run's lease.

Owns what is known and not yet stored. A mutation commits with its record. Outcomes of other steps that end at the same
time share a transaction; results of queries wait for the next effect, and are written before or with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import Any, ClassVar
from uuid import UUID

from penstock.calls.call import Arguments, Call
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.jobrun import JobRun, caller_of_job
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.run.threads import check_args
from penstock.calls.run.timelimit import time_limit
from penstock.calls.workflows.body import OpenCall
from penstock.dataclass import dataclass
from penstock.errors import CallTimeout, LeaseLost, LimitExceeded, NonRetryableError, Snooze, TryAgain, UniqueViolation
from penstock.functions.function import DEEPEST, AnyFunction, FunctionKind
from penstock.jobs.job import DEFAULT_POOL, NewJob, Options, Settlement, job_id
from penstock.jobs.retry import wait_after
from penstock.observe import points
from penstock.store.nouns.workflows import Write
from penstock.store.session import Session
from penstock.workflows.history import History
from penstock.workflows.outcome import error_outcome, result_outcome
from penstock.workflows.record import Beginning, Record, RecordKind

_LONG = 3600.0


class _Abandoned(Exception):
    """The body waits for a mutation no more: it does not commit."""


class _Recorded(Exception):
    """A mutation has committed before, with this record."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class _Step(Call):
    """A call that a run makes: its arguments are JSON."""

    async def check(self, *, again: bool = False) -> Arguments:  # noqa: ARG002 - each attempt does the same
        return await check_args(self.function, self.arguments)


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class _MutationStep(_Step):
    """A mutation that commits with its record, and with `carried` ones of earlier calls."""

    steps: Steps
    made: OpenCall
    carried: Sequence[Record]
    carries: bool  # whether it is the only step that writes
    stored: Write = field(default_factory=Write)  # by the commit, once that has succeeded

    for_ever: ClassVar[bool] = True

    async def check(self, *, again: bool = False) -> Arguments:
        if again and (known := await self.steps.find(self.made)) is not None:
            raise _Recorded(known)
        self.steps.release(self.made)
        return await _Step.check(self)

    def finish(self, result: Any) -> str:
        return self.steps.outcome_of(self.function, result)

    async def seal(self, session: Session, answer: str) -> None:
        if self.made.is_abandoned:
            raise _Abandoned
        record = self.steps.reserve(self.made, answer)
        self.stored = await self.steps.write_within(session, self.carried, record, publishes=self.carries)


class Steps:
    """The steps of one run."""

    def __init__(self, runner: FunctionCalls, run: JobRun, history: History) -> None:
        self.notice = asyncio.Event()  # something has happened that the run may be interested in
        self.seen = set[int]()  # numbers of calls that need not be begun any more
        self.beginning = Beginning()  # the facts with which the run began
        self.learned = 0  # the place of what the body has learned last, with its changes of the code taken up
        self.waited = False  # whether a wait has passed in which nothing happened
        self._runner, self._run, self._history = runner, run, history
        self._engine, self._store = runner.engine, runner.engine.store.workflows
        self._id: UUID = run.job.id
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._attempts: dict[int, JobRun] = {}
        self._carrier: asyncio.Task[None] | None = None  # the mutation that carries records of others
        self._buffered: list[Record] = []  # what is not stored yet
        self._patches: list[Record] = []  # what of it is, or was until a write that goes on, a change of the code
        self._ready: list[tuple[int, Record]] = []  # what the body learns next
        self._mutations = 0  # that run
        self._reserved: dict[int, Record] = {}  # by number: records of mutations that may be about to commit
        self._unsafe = set[int]()  # places of outcomes that the body must not learn before they are stored
        self._urgent = False
        self._failure: BaseException | None = None
        self._published: str | None = None  # what is not stored yet

    # ----- for the run

    @property
    def running(self) -> bool:
        """Whether steps run."""
        return bool(self._tasks)

    @property
    def mutating(self) -> bool:
        """Whether mutations run."""
        return self._mutations > 0

    @property
    def committing(self) -> bool:
        """Whether mutations are about to commit. Nothing else is learned meanwhile: it would have a later place."""
        return bool(self._reserved)

    def is_committing(self, number: int) -> bool:
        """Whether a mutation is about to commit, or may have."""
        return number in self._reserved

    @property
    def has_ended(self) -> bool:
        """Whether steps have ended, and the body has still to learn it."""
        return bool(self._ready) or self._urgent or self._failure is not None

    async def begin(self, calls: Sequence[OpenCall]) -> None:
        """Begin steps. What the body knows is stored before, or with the only effect."""
        effects = [call for call in calls if call.kind is not RecordKind.QUERY]
        for call in effects:
            if call.options.once:
                call.record = call.make_record(None, self._engine.clock.now(), attempts=1)
                self.buffer(call.record)
        carries = len(effects) == 1 and effects[0].kind is RecordKind.MUTATION and not self.running
        if effects and not carries:
            await self.flush()
        for call in calls:
            self.seen.add(call.number)
            carried: list[Record] | None = None
            if carries and call is effects[0]:
                carried, self._buffered = self._buffered, []
            task = asyncio.get_running_loop().create_task(self._run_step(call, carried))
            self._tasks[call.number] = task
            self._mutations += call.kind is RecordKind.MUTATION
            if carried or (carried is not None and self._published is not None):
                self._carrier = task

    async def enqueue(self, calls: Sequence[OpenCall]) -> None:
        """Enqueue the jobs of steps that run as jobs, with the records that they have begun."""
        jobs, now = list[NewJob](), self._engine.clock.now()
        for call in calls:
            self.seen.add(call.number)
            if self._function(call).kind is FunctionKind.WORKFLOW and self._depth > DEEPEST:
                self.settle(call, error_outcome(_too_deep(call)))
                continue
            jobs.append(job := self._job_of(call, now))
            call.record = call.make_record(None, now, job=job.id)
            self._history.note(call.record)
            self.buffer(call.record)
        await self.flush(jobs=jobs)
        self._engine.store.signals.notify()

    async def abandon(self, calls: Iterable[OpenCall]) -> None:
        """Stop steps that the body waits for no more. A mutation goes on only if it is about to commit."""
        cancels = []
        for call in calls:
            if (task := self._tasks.get(call.number)) is not None and call.kind is not RecordKind.MUTATION:
                self._attempts[call.number].cancelled.set()
                task.cancel()
            if call.record is not None and call.record.job is not None and -call.number not in self.seen:
                self.seen.add(-call.number)
                cancels.append(call.record.job)
        if cancels:
            await self.flush(cancels=cancels)
            self._engine.store.signals.notify()

    def publish(self, state: str) -> None:
        """Keep a state that the body has published until the next records are stored, or before the next step."""
        self._published = self._engine.store.encryption.encrypt(state)

    def buffer(self, record: Record) -> None:
        """Keep a record until the next ones are stored."""
        self._history.note(record)
        self._buffered.append(record)
        if record.kind is RecordKind.PATCH:
            self._patches.append(record)

    @property
    def notes_place(self) -> bool:
        """Whether what is stored tells how far the body has come, or will once the next records are stored."""
        return bool(self._buffered) or self._history.is_passed(self.learned)

    def settle(self, call: OpenCall, outcome: str, *, at: datetime | None = None) -> None:
        """Take the outcome of a call, which the body learns once it is stored."""
        record = self._place(call, self._engine.store.encryption.encrypt(outcome), at)
        self._unsafe.add(record.place or 0)
        self._urgent = True
        self.buffer(record)

    def take(self) -> Record | None:
        """Take what the body learns next, in the order of places; None if nothing is known yet."""
        if not self._ready:
            return None
        place, record = self._ready[0]
        if place in self._unsafe or any((one.place or 0) < place for one in self._reserved.values()):
            return None
        heappop(self._ready)
        self.waited = False
        return record

    async def flush_urgent(self) -> None:
        """Store what the body waits for."""
        if self._urgent:
            await self.flush()

    async def flush_published(self) -> None:
        """Store what the body has published last."""
        if self._published is not None:
            await self.flush()

    async def flush(
        self,
        *,
        received: Sequence[int] = (),
        jobs: Sequence[NewJob] = (),
        cancels: Sequence[UUID] = (),
        cancelled: bool = False,
    ) -> None:
        """Store what is known, with these writes."""
        await self._await_carrier()
        others = {"received": received, "jobs": jobs, "cancels": cancels, "cancelled": cancelled}
        write = self._write(self._take_buffered(), published=self._published, **others)
        if write.records or write.published is not None or any(others.values()):
            await self._store_once(write)
            self._note_stored(write)
            if points.armed:
                await points.reach("workflow.recorded", job=self._run.job, records=write.records)

    async def _store_once(self, write: Write) -> None:
        """Store writes, with the jobs among them once, whatever becomes of the answer of their commit."""
        run, lease, now, tried = self._id, self._run.lease, self._engine.clock.now(), False
        begun = next((one for one in write.records if write.jobs and one.job == write.jobs[0].id), None)

        async def is_stored() -> bool:
            known = None if begun is None else await self._store.find(run, begun.number)
            return begun is not None and known is not None and known.job == begun.job

        async def store() -> None:
            nonlocal tried
            if tried and await is_stored():
                return
            tried = True
            try:
                await self._store.write(run, lease, write, now)
            except UniqueViolation:  # by the commit before, which took its time
                if not await is_stored():
                    raise

        await self._runner.attempt(store, for_ever=True)

    async def suspend(self, settlement: Settlement, begins: tuple[Record, str] | None = None) -> None:
        """Put the run to sleep, with what is known; or without that, to begin again with a record and arguments."""
        await self._await_carrier()
        records, args = (self._take_buffered(), None) if begins is None else ([begins[0]], begins[1])
        write, run, lease = self._write(records, published=self._published, args=args), self._id, self._run.lease
        now = settlement.finished_at
        await self._runner.attempt(lambda: self._store.suspend(run, lease, write, settlement, now), for_ever=True)

    async def wait(self, seconds: float | None) -> None:
        """Wait until something happens, at most so long."""
        came = await self._engine.machine.wait(self.notice, _LONG if seconds is None else max(0.0, seconds))
        self.notice.clear()
        self.waited = not came

    def raise_failure(self) -> None:
        """Raise what ends the work on this run here, such as a lost lease."""
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Stop all steps."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks.values()])

    # ----- for mutations

    def reserve(self, call: OpenCall, outcome: str) -> Record:
        """Make the record of a mutation that is about to commit. Nothing of a later place is learned before that."""
        record = self._reserved[call.number] = call.make_record(
            self._history.next_place(), self._engine.clock.now(), outcome
        )
        return record

    def release(self, call: OpenCall) -> None:
        """Forget such a record: the mutation runs again, or does not commit."""
        if self._reserved.pop(call.number, None) is not None:
            self.notice.set()

    async def find(self, call: OpenCall) -> Record | None:
        """Find the record of a mutation whose commit may have succeeded."""
        found = await self._store.find(self._id, call.number)
        return found if found is not None and found.outcome is not None else None

    async def write_within(
        self, session: Session, carried: Sequence[Record], record: Record, *, publishes: bool
    ) -> Write:
        """Write records in the transaction of a mutation, and what is published if no other may do so now.

        They tell how far the body has come, so the changes of the code that it has taken up by then go with them.
        """
        records = {one.number: one for one in (*self._patches, *carried, record)}
        write = self._write([*records.values()], published=self._published if publishes else None)
        now = self._engine.clock.now()
        await self._store.write_within(session, self._id, self._run.lease, write, now)
        return write

    def outcome_of(self, function: AnyFunction, result: Any) -> str:
        """The outcome of a step that returned, as it is stored."""
        text = function.signature.result_json(result)
        if len(text) > (limit := self._engine.config.max_result_bytes):
            raise LimitExceeded(
                f"{function.name} returned {len(text)} bytes; a step may return {limit}.",
                fix="Store the data in a table, and return its id.",
                limit=limit,
            )
        return self._engine.store.encryption.encrypt(result_outcome(text.decode()))

    # ----- steps

    async def _run_step(self, call: OpenCall, carried: list[Record] | None) -> None:
        task = asyncio.current_task()
        try:
            if call.kind is RecordKind.MUTATION:
                await self._mutate(call, carried or [], carries=carried is not None)
            else:
                await self._act(call)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the run raises it
            self._failure = self._failure or error
        finally:
            self._tasks.pop(call.number, None)
            self._mutations -= call.kind is RecordKind.MUTATION
            self._attempts.pop(call.number, None)
            if self._carrier is task:
                self._carrier = None
            self.notice.set()

    async def _mutate(self, call: OpenCall, carried: list[Record], *, carries: bool) -> None:
        function, job = self._function(call), self._attempt(call)
        about: dict[str, Any] = {"caller": caller_of_job(function), "depth": 1, "job": job}
        about |= {"steps": self, "made": call, "carried": carried, "carries": carries}
        step = _MutationStep(function, call.args, **about)
        try:
            await self._runner.mutation(step)
        except _Recorded as found:
            self._reserved[call.number] = found.record
        except _Abandoned:
            self._buffered[:0] = carried
            return
        except Exception as error:
            self.release(call)
            self._buffered[:0] = carried
            if _is_ours(error):
                raise
            if not (call.is_abandoned or self._try_later(call, error)):
                self.settle(call, error_outcome(error))
            return
        record = self._reserved.pop(call.number)
        self._note_stored(step.stored)
        self._history.note(record)
        self._put(record)
        if points.armed:
            await points.reach("workflow.recorded", job=self._run.job, records=[record])

    async def _act(self, call: OpenCall) -> None:
        """Run an action or a query."""
        function, is_query = self._function(call), call.kind is RecordKind.QUERY
        about: dict[str, Any] = {"caller": caller_of_job(function), "depth": 1, "job": self._attempt(call)}
        run = self._runner.query if is_query else self._runner.action
        try:
            async with nullcontext() if is_query else time_limit(function.name, call.options.timeout):
                result = await run(_Step(function, call.args, **about))
            outcome = self.outcome_of(function, result)
        except Exception as error:
            if _is_ours(error):
                raise
            if not self._try_later(call, error):
                self.settle(call, error_outcome(error))
            return
        if points.armed:
            await points.reach("workflow.step_ran", job=self._run.job, number=call.number)
        record = self._place(call, outcome)
        if not is_query:
            self._unsafe.add(record.place or 0)
            self._urgent = True
        self.buffer(record)

    def _try_later(self, call: OpenCall, error: Exception) -> bool:
        """Have a step begin again, if its policy says so, or it asks for it by `Snooze`; whether it does."""
        policy, now = call.options.retry, self._engine.clock.now()
        attempts = 0 if call.record is None else call.record.attempts
        if isinstance(error, Snooze):
            wait: timedelta | None = error.wait(now)
        elif policy is None or isinstance(error, NonRetryableError):
            return False
        else:
            attempts += 1
            wait = wait_after(policy, attempts, None, now, self._engine.clock.random())
        if wait is None:
            return False
        call.record = call.make_record(None, now, attempts=attempts, due_at=now + wait)
        self.buffer(call.record)
        self._urgent = True
        self.seen.discard(call.number)
        return True

    def _job_of(self, call: OpenCall, now: datetime) -> NewJob:
        options, function = call.options, self._function(call)
        asked = Options(retry=options.retry, timeout=options.timeout, name=options.name, run=job_id(self._id))
        if function.kind is FunctionKind.WORKFLOW:
            asked = replace(asked, depth=self._depth)
        make = JobCalls(self._runner, None).maker(function, now, pool=options.pool or DEFAULT_POOL, options=asked)
        return make(function.signature.check_json(call.args))

    @property
    def _depth(self) -> int:
        """The depth of its children."""
        return (self._run.job.options.depth or 0) + 1

    def _attempt(self, call: OpenCall) -> JobRun:
        run = self._run
        found = self._attempts[call.number] = JobRun(
            run.job, call.function, run.lease, lambda _, progress: run.noticed(run, progress), needs_slot=False
        )
        found.begun, found.step, found.lingering = True, self._step(call), run.lingering
        return found

    def _step(self, call: OpenCall) -> str:
        """The number of a step, which is no other one's after the run has begun again."""
        life = self.beginning.life
        return f"{life}/{call.number}" if life else str(call.number)

    def _place(self, call: OpenCall, outcome: str, at: datetime | None = None) -> Record:
        attempts, job = (0, None) if call.record is None else (call.record.attempts, call.record.job)
        now, place = at or self._engine.clock.now(), self._history.next_place()
        record = call.make_record(place, now, outcome, attempts=attempts, job=job)
        self._put(record)
        return record

    def _put(self, record: Record) -> None:
        heappush(self._ready, (record.place or 0, record))

    def _function(self, call: OpenCall) -> AnyFunction:
        assert call.function is not None  # noqa: S101 - only waits for events have none
        return call.function

    async def _await_carrier(self) -> None:
        """Wait for a mutation that carries records: nothing that follows from them may be stored before."""
        while self._carrier is not None:
            await asyncio.wait([self._carrier])
        self.raise_failure()

    def _take_buffered(self) -> list[Record]:
        taken, self._buffered, self._urgent = self._buffered, [], False
        return [*{record.number: record for record in taken}.values()]  # of one number the last

    def _write(self, records: Sequence[Record], **others: Any) -> Write:
        noted = [replace(record, learned=self.learned) for record in records]
        return Write(noted, **others, restarts=self._run.job.attempt > 1 and bool(records))

    def _note_stored(self, write: Write) -> None:
        self._unsafe -= {record.place for record in write.records if record.place is not None}
        if write.published is self._published:
            self._published = None
        if write.records:
            self._run.job.attempt = 1  # it got on, so crashes are counted from here
            self._history.note_stored(write.records)
            stored = {record.number for record in write.records}
            self._patches = [one for one in self._patches if one.number not in stored]


def _too_deep(call: OpenCall) -> LimitExceeded:
    return LimitExceeded(
        f"{call.name} is the child of a run that has {DEEPEST} runs above it, which is the most.",
        fix="See that it ends. To repeat a run for ever, return ctx.restart(…).",
        limit=DEEPEST,
    )


def _is_ours(error: Exception) -> bool:
    """Whether an error says nothing about the step: the database is away, or the lease is lost."""
    if not isinstance(error, (TryAgain, LeaseLost)) or isinstance(error, CallTimeout):
        return False
    return not error.from_function
