"""Runs a workflow: replays what is recorded, carries out the calls of its body, and lets it sleep while it waits.

Owns the order in which the body learns things. Each has a place in that order before the body learns it; only results
of queries and times may be recorded later, with the next effect. `steps` runs the steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.jobrun import Cancellation, JobRun
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.run.threads import check_args
from penstock.calls.workflows.awaited import count_awaited
from penstock.calls.workflows.body import Body, OpenCall, Restart
from penstock.calls.workflows.context import WorkflowCtx
from penstock.calls.workflows.steps import Steps
from penstock.clock import secret
from penstock.errors import CallTimeout, ContextError, JobError, PenstockError, Snooze, StepFailed, StepLost, TryAgain
from penstock.functions.function import AnyFunction
from penstock.jobs.job import Outcome, job_id
from penstock.jobs.order import FARTHEST
from penstock.jobs.settle import most_losses, suspend
from penstock.jobs.states import JobEvent
from penstock.observe import points
from penstock.observe.errortext import error_text
from penstock.observe.logs import event as log_event
from penstock.store.nouns.workflows import CANCEL_EVENT, JOB_EVENT, NOW, Arrival, Write
from penstock.values import decode_json, encode_json, storable
from penstock.workflows.history import History, Mismatch
from penstock.workflows.outcome import error_outcome, result_outcome
from penstock.workflows.record import BEGINNING, IS_STEP, Beginning, Record, RecordKind

CLEAN_UP = timedelta(days=1)  # the time that a body has after a cancel
_SHORT = timedelta(seconds=1)  # a wait up to this is made in memory
_AWAY = timedelta(seconds=1)
_NEVER = datetime.max.replace(tzinfo=UTC)
_LONGEST_REASON = 4_000


async def run_workflow(runner: FunctionCalls, run: JobRun, function: AnyFunction) -> Any:
    """Run a workflow until it ends, or waits; its result, its outcome, or None if it sleeps.

    Raises:
        LeaseLost: Another worker has the run.
    """
    history = History(())
    try:
        history = await _read_history(runner, run.job.id)
        if history.beginning is None and run.job.is_late:
            return Outcome(JobEvent.RAISED, error="expired", retryable=False)
        if run.job.attempt >= most_losses(run.job):
            return await _park(runner, run, history, f"{run.job.attempt - 1} workers died in a row as they ran it")
        return await _Run(runner, run, function, history).drive()
    except Mismatch as error:
        return await _park(runner, run, history, f"the code of {run.job.function} does not fit it: {error}")
    except TryAgain as error:
        if error.from_function:
            raise
        return Outcome(JobEvent.SNOOZED, delay=_AWAY, error=storable(f"{type(error).__name__}: {error}"))


async def _read_history(runner: FunctionCalls, run: UUID) -> History:
    try:
        return History(await runner.attempt(lambda: runner.engine.store.workflows.read_history(run), for_ever=True))
    except ValueError as error:
        raise Mismatch(f"a record cannot be read, such as one of a newer release of penstock: {error}") from error


async def _park(runner: FunctionCalls, run: JobRun, history: History, why: str) -> Outcome | None:
    """Put a run aside until there is other code, or end it if somebody asked for that. Nothing of it is lost."""
    engine, job, store = runner.engine, run.job, runner.engine.store.workflows
    if any(map(_is_force, await runner.attempt(lambda: store.read_inbox(job.id), for_ever=True))):
        return await _end_by_force(runner, run, history.open_jobs)
    reason = storable(f"WorkflowParked: {why}")[:_LONGEST_REASON]
    log_event("workflow.parked", logging.ERROR, job=job_id(job.id), function=job.function, reason=reason)
    now, write = engine.clock.now(), Write(refused=(job.function, engine.registry.fingerprint))
    settlement = suspend(job, now + FARTHEST, now, reason)
    settlement.attempt = 0  # other code has all its attempts
    await runner.attempt(lambda: store.suspend(job.id, run.lease, write, settlement, now), for_ever=True)
    run.asleep = True
    return None


def _is_force(arrival: Arrival) -> bool:
    return (arrival.kind, arrival.name) == (CANCEL_EVENT, NOW)


async def _end_by_force(runner: FunctionCalls, run: JobRun, jobs: Sequence[UUID]) -> Outcome:
    """End a run without its code, and cancel its children."""
    if jobs:
        engine, write = runner.engine, Write(cancels=jobs)
        store, now = engine.store.workflows, engine.clock.now()
        await runner.attempt(lambda: store.write(run.job.id, run.lease, write, now), for_ever=True)
        engine.store.signals.notify()
    return Outcome(JobEvent.CANCELED, error="The run was ended by force.")


class _Forced(Exception):
    """The run is to end now."""


class _CleanUpOver(Exception):
    """The time to clean up after a cancel is over."""


class _Run:
    def __init__(self, runner: FunctionCalls, run: JobRun, function: AnyFunction, history: History) -> None:
        self._runner, self._job, self._run = runner, run.job, run
        self._engine, self._store = runner.engine, runner.engine.store.workflows
        self._function, self._history = function, history
        self._woke = self._engine.clock.now()
        self._begun = history.beginning or Record(
            BEGINNING, RecordKind.BEGIN, history.next_place(), self._woke, outcome=self._encrypt(Beginning(0, secret()))
        )
        self._steps = Steps(runner, run, history)
        self._steps.beginning = beginning = Beginning.read(self._decrypt(self._begun.outcome or "{}"))
        if beginning.unread:
            raise Mismatch(f"it was begun by a newer release of penstock, with {', '.join(beginning.unread)}")
        self._body = Body(
            function,
            history,
            run.job.id.int,
            beginning,
            self._decrypt,
            self._engine.config.max_result_bytes,
        )
        self._body.is_committing = self._steps.is_committing
        self._inbox: list[Arrival] = []
        self._looked_at = datetime.min.replace(tzinfo=UTC)
        self._is_long = False  # whether that was told
        self._looks = False  # whether there may be something new in the inbox
        run.look = self._steps.notice.set

    async def drive(self) -> Any:
        """Run it; see `run_workflow`."""
        await self._run.begin()
        arguments = await check_args(self._function, self._job.args)
        ctx = WorkflowCtx(self._body, self._engine.registry, job_id(self._job.id))
        try:
            if self._history.beginning is not None:
                with self._engine.journal.replay(self._function.name):
                    await self._replay(ctx, arguments)
            else:
                self._engine.journal.note_run_start(self._function.name)
                self._steps.buffer(self._begun)
                self._body.begin(self._begun.at, ctx, arguments)
            while not self._body.has_ended:
                await self._carry_out()
                record = await self._next()
                if record is None:
                    return None
                self._body.deliver(record)
                self._note(record)
                while self._body.is_held:
                    await self._steps.wait(None)
                    self._steps.raise_failure()
                    self._body.go_on()
            self._take_up()
            await self._steps.abandon(self._body.open.values())  # such as children, which nobody waits for any more
            await self._steps.flush_published()
            return await self._end()
        except _Forced:
            return await _end_by_force(self._runner, self._run, self._history.open_jobs)
        except _CleanUpOver:
            await self._steps.abandon(self._body.open.values())
            return self._end_as_canceled(f"the body had not ended {CLEAN_UP} after its cancel.")
        finally:
            self._run.look = None
            self._body.drop()
            await self._steps.stop()

    def _note(self, record: Record) -> None:
        if record.kind in IS_STEP and record.outcome is not None:
            failed = self._decrypt(record.outcome).startswith('{"error":')
            self._engine.journal.note_step(self._function.name, failed=failed)

    # ----- replay

    async def _replay(self, ctx: WorkflowCtx, arguments: dict[str, Any]) -> None:
        """Let the body learn again what it has learned.

        Raises:
            Mismatch: The code does not fit.
        """
        began, *others = self._history.deliveries
        await self._look()  # first, as somebody may have had enough of a body that kills its workers
        self._body.begin(began.at, ctx, arguments)
        for number, record in enumerate(others):
            self._body.deliver(record)
            if number % 1000 == 999:  # noqa: PLR2004 - then others have their turn
                await self._engine.machine.sleep(0)
        self._body.check_replayed()
        self._is_long = self._body.is_long
        self._take_up()

    async def _end(self) -> Any:
        try:
            result = self._body.result()
        except asyncio.CancelledError as error:
            if self._history.cancel is not None:
                return self._end_as_canceled()
            raise JobError(f"{self._function.name} cancelled itself.") from error
        except Snooze as error:
            raise ContextError(f"{self._function.name} raised Snooze.", fix="Write await ctx.sleep(…).") from error
        except Exception as error:
            if isinstance(error, PenstockError):
                error.from_function = True  # it says nothing about this worker's lease or database
            self._run.cancelled = Cancellation()  # the error counts, not the cancel that came before it
            raise
        if isinstance(result, Restart):
            await self._restart(result.args)
            return None
        return result

    def _end_as_canceled(self, note: str = "") -> Outcome:
        """Give the outcome of a body that was canceled, or raise the error if it took too long."""
        cancel, name = self._history.cancel, self._function.name
        if cancel is None or not cancel.function:
            return Outcome(JobEvent.CANCELED, error=f"{name} was ended by force: {note}" if note else None)
        limits = {"timeout": self._job.options.timeout, "deadline": self._job.options.deadline}
        error = CallTimeout(
            f"{name} took longer than the {cancel.function} of {limits[cancel.function]:g} seconds. {note}".strip(),
            fix="Raise it, or do less in one run.",
        )
        error.from_function = True
        self._run.cancelled = Cancellation()
        raise error

    async def _restart(self, args: str) -> None:
        """Have the run begin again."""
        now, beginning = self._engine.clock.now(), self._steps.beginning
        outcome = self._encrypt(Beginning(beginning.life + 1, beginning.secret, tokens=self._body.tokens))
        begun = Record(BEGINNING, RecordKind.BEGIN, 0, now, outcome=outcome)
        args = JobCalls(self._runner, None).fitting(args, f"The arguments of {self._function.name}")
        self._steps.learned = -1  # nothing, not even that it has begun
        await self._steps.suspend(suspend(self._job, now, now, "Begins again"), (begun, args))
        self._run.asleep = True

    # ----- the calls of the body

    async def _carry_out(self) -> None:
        """Begin the calls that the body has made, and stop what it waits for no more."""
        self._take_up()
        jobs, fresh, abandoned = list[OpenCall](), list[OpenCall](), list[OpenCall]()
        now = self._engine.clock.now()
        for call in self._body.open.values():
            if call.is_abandoned:
                abandoned.append(call)
            elif call.kind is RecordKind.EVENT:
                self._looks = self._looks or call.number not in self._steps.seen
                self._steps.seen.add(call.number)
            elif call.record is not None and call.record.job is not None:
                self._steps.seen.add(call.number)
            elif call.record is not None and call.record.due_at is None:
                if call.number not in self._steps.seen:
                    self._lose(call)
            elif call.kind is RecordKind.JOB:
                jobs.append(call)
            elif call.number not in self._steps.seen and _is_due(call, now):
                fresh.append(call)
        await self._steps.abandon(abandoned)
        over = self._history.cancel is None and self._limit()[0] <= now
        if not (over or self._is_to_learn_of_cancel):  # a cancel comes first, and the body may not want them any more
            await self._begin(jobs, fresh)

    async def _begin(self, jobs: list[OpenCall], others: list[OpenCall]) -> None:
        if jobs:
            await self._steps.enqueue(jobs)
            self._looks = True
        await self._steps.begin(others)

    def _take_up(self) -> None:
        if not self._is_long and self._body.is_long:
            self._is_long = True
            log_event("workflow.long", logging.WARNING, job=job_id(self._job.id), function=self._function.name)
        if self._body.published is not None:
            self._steps.publish(self._body.published)
            self._body.published = None
        for patch in self._body.patches:
            self._steps.buffer(patch)
        self._body.patches.clear()
        self._steps.learned = self._body.place

    def _lose(self, call: OpenCall) -> None:
        """End a step that began under a worker that died, and must not begin again."""
        self._steps.seen.add(call.number)
        error = StepLost(
            f"The worker died while {call.name} ran, which must not run twice. Nobody knows how far it came.",
            fix="Catch StepLost, and look; or let it be retried.",
        )
        self._steps.settle(call, error_outcome(error))

    # ----- what comes next

    async def _next(self) -> Record | None:
        """Give the record that the body learns next; None if the run has been put to sleep until there is something."""
        while True:
            self._steps.raise_failure()
            await self._steps.flush_urgent()
            if (record := self._steps.take()) is not None:
                return record
            now = self._engine.clock.now()
            if self._is_to_learn_of_cancel:
                if (record := await self._learn_of_cancel()) is not None:
                    return record
            elif await self._take_arrivals() or (self._steps.has_ended and not self._steps.running):
                continue  # a step may have ended meanwhile
            elif min(self._body.next_timer or _NEVER, self._limit()[0]) <= now:
                if (record := await self._learn_of_time()) is not None:
                    return record
            elif not await self._wait(now):
                return None

    async def _wait(self, now: datetime) -> bool:
        """Wait until there may be something, or put the run to sleep; whether it goes on."""
        if self._body.is_stuck and not self._steps.running:
            raise self._body.tell_stuck()
        times = (self._body.next_timer, self._next_attempt(), self._limit()[0])
        due = min((at for at in times if at is not None and at < _NEVER), default=None)
        if due is not None and due <= now:
            await self._carry_out()
        elif self._steps.running or (due is not None and due - now <= _SHORT and not self._steps.waited):
            await self._steps.wait(None if due is None else (due - now).total_seconds())
        else:
            await self._sleep(due)
            return False
        return True

    async def _learn_of_time(self) -> Record | None:
        """Have the body learn that a time has come, or that its own is over, unless something comes before that.

        Raises:
            _CleanUpOver: It has learned of a cancel long ago.
        """
        (limit, why), timer = self._limit(), self._body.next_timer
        if timer is None or limit < timer:
            if self._history.cancel is not None:
                raise _CleanUpOver
            return await self._learn_of_cancel(why)
        if self._steps.committing:
            await self._steps.wait(None)
        elif self._looked_at < timer and self._waits_for_events:
            self._looks = True  # an event that was sent in time wins
        else:
            return self._learn(RecordKind.TIMER, timer)
        return None

    def _learn(self, kind: RecordKind, at: datetime, why: str = "") -> Record:
        place = self._history.next_place()
        record = Record(-place, kind, place, at, why)
        self._steps.buffer(record)
        return record

    async def _learn_of_cancel(self, why: str = "") -> Record | None:
        """Have the body learn that it is canceled, once no mutation runs: it may want to undo what these did."""
        if self._steps.mutating:
            await self._steps.wait(None)
            return None
        record = self._learn(RecordKind.CANCEL, self._engine.clock.now(), why)
        cancels = [] if why else [one for one in self._inbox if one.kind == CANCEL_EVENT]
        self._drop(cancels)
        await self._steps.flush(received=[one.id for one in cancels], cancelled=not why)
        return record

    @property
    def _is_to_learn_of_cancel(self) -> bool:
        return self._run.cancelled.is_set() and self._history.cancel is None

    @property
    def _waits_for_events(self) -> bool:
        return any(call.kind is RecordKind.EVENT and not call.is_abandoned for call in self._body.open.values())

    def _limit(self) -> tuple[datetime, str]:
        """The time at which the body is canceled, and why; or, if it was, when it has to have ended."""
        if (cancel := self._history.cancel) is not None:
            return cancel.at + CLEAN_UP, ""
        options, limits = self._job.options, [(_NEVER, "")]
        if options.timeout is not None:
            left = timedelta(seconds=options.timeout - self._steps.beginning.active)
            limits.append((self._woke + left, "timeout"))
        if options.deadline is not None:
            since = max(self._begun.at, datetime.fromtimestamp(self._steps.beginning.since, UTC))
            limits.append((since + timedelta(seconds=options.deadline), "deadline"))
        return min(limits)

    def _next_attempt(self) -> datetime | None:
        """The time at which a step that does not run is tried again."""
        waiting = (one for number, one in self._body.open.items() if number not in self._steps.seen)
        records = (call.record for call in waiting if not call.is_abandoned)
        return min((one.due_at for one in records if one is not None and one.due_at is not None), default=None)

    # ----- the inbox

    async def _look(self) -> None:
        """Read the inbox. What comes from now on wakes the run again."""
        self._looks, self._run.woken, self._looked_at = False, False, self._engine.clock.now()
        self._inbox = await self._runner.attempt(lambda: self._store.read_inbox(self._job.id), for_ever=True)
        if any(map(_is_force, self._inbox)):
            raise _Forced
        if any(one.kind == CANCEL_EVENT for one in self._inbox):
            self._run.cancelled.set()

    async def _take_arrivals(self) -> bool:
        """Take what the body waits for from the inbox; whether there was something, or a cancel."""
        if self._looks or self._run.woken:
            await self._look()
        return self._is_to_learn_of_cancel or await self._receive()

    async def _receive(self) -> bool:
        timer = self._body.next_timer
        ends = [one for one in self._inbox if one.kind == JOB_EVENT]
        if ends:
            self._drop(ends)
            by_job = {
                str(call.record.job): call for call in self._body.open.values() if call.record and call.record.job
            }
            for end in ends:
                if (call := by_job.get(end.name)) is not None:
                    self._steps.settle(call, self._outcome_of_job(call, end))
            await self._steps.flush(received=[one.id for one in ends])
            return True
        for arrival in self._inbox:
            call = self._waiting_for(arrival.name)
            if call is not None and (timer is None or arrival.sent_at <= timer):
                self._drop([arrival])
                if (outcome := self._read_event(call, arrival)) is not None:
                    self._steps.settle(call, outcome, at=arrival.sent_at)
                await self._steps.flush(received=[arrival.id])
                return True
        return False

    def _read_event(self, call: OpenCall, arrival: Arrival) -> str | None:
        """The outcome of a wait for an event; None if its payload does not fit, as plain SQL may have sent it."""
        text = self._decrypt(arrival.payload)
        try:
            call.events[arrival.name].decode(text)
        except (ValidationError, PenstockError, ValueError) as error:
            run = job_id(self._job.id)
            log_event("workflow.event_refused", logging.WARNING, job=run, name=arrival.name, error=error_text(error))
            return None
        form = {"name": arrival.name, "payload": decode_json(text), "id": arrival.id}
        return result_outcome(encode_json(form, "A payload"))

    def _waiting_for(self, event: str) -> OpenCall | None:
        calls = (call for call in self._body.open.values() if event in call.events and not call.is_abandoned)
        return next(calls, None)

    def _drop(self, arrivals: list[Arrival]) -> None:
        ids = {one.id for one in arrivals}
        self._inbox = [one for one in self._inbox if one.id not in ids]

    def _outcome_of_job(self, call: OpenCall, end: Arrival) -> str:
        form: dict[str, Any] = decode_json(end.payload)
        if form["state"] == "success":
            return result_outcome(self._decrypt(form["result"] or "null"))
        if form["form"] is not None:
            return str(form["form"])
        said = form["error"] or f"it was {form['state']}"
        return error_outcome(StepFailed(f"The job of {call.name} has failed: {said}", type=form["state"], text=said))

    def _encrypt(self, beginning: Beginning) -> str:
        return self._engine.store.encryption.encrypt(beginning.write())

    def _decrypt(self, text: str) -> str:
        return self._engine.store.encryption.decrypt(text)

    # ----- sleep

    async def _sleep(self, due: datetime | None) -> None:
        """Let go of the run's slot and worker until a time, or until something comes."""
        now = self._engine.clock.now()
        waits = [call.name for call in self._body.open.values() if not call.is_abandoned]
        until = "" if due is None else f" until {due.isoformat(timespec='seconds')}"
        reason = f"Waits{until}{' for ' + ', '.join(waits[:5]) if waits else ''}"
        settlement = suspend(self._job, now if due is None else due, now, reason)
        if due is None:
            settlement.run_at = now + FARTHEST
        self._note_sleep(now)
        if points.armed:
            await points.reach("workflow.sleeps", job=self._job)
        await self._steps.suspend(settlement)
        self._run.asleep = True

    def _note_sleep(self, now: datetime) -> None:
        """Note how far the body came, how many ends wake the run, and if it has a timeout the time since it woke."""
        awaited = count_awaited(self._body.open.values())
        ends = 0 if awaited == 1 else awaited  # as a run has at first
        noted, beginning = replace(self._begun, attempts=ends), self._steps.beginning
        if self._job.options.timeout is not None:
            active = beginning.active + (now - self._woke).total_seconds()
            noted = replace(noted, outcome=self._encrypt(replace(beginning, active=active)))
        if noted != self._begun or not self._steps.notes_place:
            self._steps.buffer(noted)


def _is_due(call: OpenCall, now: datetime) -> bool:
    """Whether the next attempt at a step may begin."""
    return call.record is None or call.record.due_at is None or call.record.due_at <= now
