"""The journal: tells what happens to jobs and calls, in log events, in meters and in spans.

Owns the contents of each. The callers decide when something is logged; `observe` owns the forms. The logbook always
counts. Anything else that nobody wants to see costs a comparison: a pool's level is asked once, and meters are only
moved if they are shown.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, cast
from uuid import UUID

from penstock.changes.change import CapturedChange, read_values
from penstock.clock import profile_timer
from penstock.functions.function import AnyFunction
from penstock.identity.caller import SYSTEM, Caller
from penstock.jobs.job import Job, JobId, NewJob, Options, Outcome, Settlement, job_id, mark_of
from penstock.jobs.states import FAILED_ATTEMPT, FINISHED, JobEvent, JobState
from penstock.observe.following import Following, baggage_of, current_trace, trace_id
from penstock.observe.logbook import Logbook
from penstock.observe.logs import event as log_event
from penstock.observe.logs import is_enabled
from penstock.observe.meters import Meters
from penstock.observe.timing import CallStats, Spent, bucket_of, current_run, run
from penstock.observe.tracing import Tracing, row_of, trace_of_run
from penstock.outbox.message import TOPIC
from penstock.outbox.outbox import Outbox
from penstock.pools.pool import PoolDefinition
from penstock.pools.report import Status, Tally
from penstock.transaction.transaction import Transaction

_UNSEEN: AbstractContextManager[None] = nullcontext()
_OWN = "penstock.dashboard:"  # functions that are no part of the program
_CALL_ENDS = {"success": "success", "error": "failed", "canceled": "canceled"}
_MOST_RUNS = 10_000  # of attempts whose end is not stored yet, or by somebody else


class Journal:
    """The journal of one backend; without meters if nobody scrapes them. In development it `tells_runs`."""

    def __init__(self, book: Logbook, meters: Meters | None = None, *, tells_runs: bool = False) -> None:
        self.book = book
        self.meters = meters
        self.tells_runs = tells_runs
        self.follows = False  # whether jobs begin traces of their own, for the dashboard
        self.tracing: Tracing | None = None  # None if the program has not set up OpenTelemetry
        self.tasks: Mapping[int, str] = {}  # the names of reactive tasks, by their numbers
        self.tables: Mapping[str, str] = {}  # the tables of reactive tasks, by the names of their functions
        self.workflows: frozenset[str] = frozenset()  # the names of workflows
        self.tallies: dict[str, Tally] = {}  # attempts since the last report, for each pool with reports
        self._talkative: frozenset[str] = frozenset()
        self._running: Mapping[str, int] = {}  # jobs of this process, by pool
        self._runs: dict[UUID, CallStats] = {}  # the attempts at jobs whose end is to be logged

    def follow(self, pools: Iterable[PoolDefinition], tracing: Tracing | None) -> None:
        """Begin to tell of pools as their levels say, and to make spans."""
        known = list(pools)
        self.tallies = {pool.name: Tally() for pool in known if pool.reports}
        self._talkative = frozenset(pool.name for pool in known if pool.tells_of_jobs)
        self.tracing = tracing

    # ----- jobs are enqueued

    def sending(self, transaction: Transaction, job: NewJob, ids: Callable[[], Sequence[JobId]] | None = None) -> None:
        """A transaction enqueues a job, or the first of many alike with these ids: logged once it has committed."""
        if self.meters is not None or job.pool in self._talking():
            transaction.committed.append(partial(self.note_enqueue, job, transaction.now, ids))

    def note_enqueue(self, job: NewJob, now: datetime, ids: Callable[[], Sequence[JobId]] | None = None) -> None:
        """The transaction that enqueued a job, or jobs that are alike, has committed; arguments as for `sending`."""
        tells = job.pool in self._talking()
        if self.meters is None and not tells:
            return
        each = [job_id(job.id)] if ids is None else ids()
        if self.meters is not None:
            self.meters.add("penstock_jobs_enqueued", job.pool, number=len(each))
        for one in each if tells else ():
            log_event(
                "workpool.enqueued",
                pool=job.pool,
                workId=one,
                fnName=job.options.name or job.function,
                runAt=_ms(job.run_at),
                enqueuedAt=_ms(now),
            )

    def with_trace(self, options: Options) -> Options:
        """The options of a new job, with the current trace, which it joins."""
        trace = current_trace() if self.tracing is None else self.tracing.current()
        return replace(options, trace=trace) if trace else options

    # ----- jobs start and end

    def note_starts(self, jobs: Iterable[Job]) -> None:
        """A worker starts attempts."""
        talkative, meters = self._talking(), self.meters
        attempts = [job for job in jobs if job.ending is None]
        lags = Counter(
            [
                (job.function, job.pool, job.options.task, bucket_of((job.started_at - job.run_at).total_seconds()))
                for job in attempts
            ]
        )
        for (function, pool, task, bucket), number in lags.items():
            of_task = () if task is None else (f"task {self._task(task)}",)
            for name in (f"function {function}", f"pool {pool}", *of_task):
                self.book.add(name, f"lag {bucket}", number)
        for job in attempts if talkative or meters is not None else ():
            lag = max(0.0, (job.started_at - job.run_at).total_seconds())
            if meters is not None:
                meters.add("penstock_jobs_started", job.pool)
                meters.observe("penstock_start_lag_seconds", lag, job.pool)
            if job.pool in talkative:
                log_event(
                    "workpool.started",
                    pool=job.pool,
                    workId=job_id(job.id),
                    fnName=job.options.name or job.function,
                    enqueuedAt=_ms(job.enqueued_at),
                    startedAt=_ms(job.started_at),
                    startLag=round(lag * 1000),
                    attempt=job.attempt,
                )

    def ran(self, job: Job, seconds: float) -> None:
        """The duration of an attempt."""
        bucket = bucket_of(seconds)
        self.book.add(f"pool {job.pool}", bucket)
        if job.options.task is not None:
            self.book.add(f"task {self._task(job.options.task)}", bucket)
        if self.meters is not None:
            self.meters.observe("penstock_run_seconds", seconds, job.pool)
            if job.options.task is not None:
                self.meters.observe("penstock_task_run_seconds", seconds, self._task(job.options.task))

    def note_ends(self, settled: Iterable[tuple[Job, Settlement]], won: Collection[UUID] | None = None) -> None:
        """The settlements of jobs were written: all of them, or those `won`, which were still this worker's."""
        quiet = self.meters is None and not self._talking()
        succeeded = Counter[str]()  # of most jobs nothing else is told
        for job, settlement in settled:
            if won is not None and settlement.id not in won:
                continue
            if quiet and settlement.state is JobState.SUCCESS and job.options.task is None:
                succeeded[job.pool] += 1
            else:
                self._note_settlement(job, settlement)
        for pool, number in succeeded.items():
            self.book.add(f"pool {pool}", "success", number)
            if (tally := self.tallies.get(pool)) is not None:
                tally.succeeded += number

    def _note_settlement(self, job: Job, settlement: Settlement) -> None:
        if job.ending is None:
            self.note_attempt(job, settlement.event)
        elif job.failed is not None:  # written only now, as its on_complete did not end well
            self.note_attempt(job, JobEvent(job.failed.what))
        if (
            job.ending is not None
            and self.meters is not None
            and (settlement.event in FAILED_ATTEMPT or settlement.on_complete_error)
        ):
            self.meters.add("penstock_on_complete_failed", job.pool)
        if settlement.state in FINISHED:
            self.note_completion(job, cast("Status", settlement.state.value), settlement.finished_at)
        elif settlement.state is JobState.PENDING and settlement.event in FAILED_ATTEMPT:
            self.note_completion(job, "retrying", settlement.finished_at)

    def note_attempt(self, job: Job, event: JobEvent) -> None:
        """An attempt has ended, and its end is stored."""
        if self.meters is not None and event in FAILED_ATTEMPT:
            self.meters.add("penstock_attempts_failed", job.pool)

    def note_failure(self, job: Job, settlement: Settlement) -> None:
        """An attempt has failed, and its end is stored. The last one is an error, with its traceback."""
        task, mark, ending = job.options.task, settlement.mark, settlement.ending
        is_last = settlement.state is not JobState.PENDING
        ended_at, error = (
            (settlement.finished_at, settlement.error) if ending is None else (ending.finished_at, ending.error)
        )
        of_task: dict[str, Any] = {} if task is None or mark is None else {"task": self._task(task), "key": mark.key}
        log_event(
            "job.failed",
            logging.ERROR if is_last else logging.WARNING,
            exc_info=settlement.cause if is_last else None,
            job=job_id(job.id),
            function=job.function,
            **of_task,
            attempt=job.attempt,
            seconds=(ended_at - job.started_at).total_seconds(),
            error=error,
        )

    def note_settled(self, settled: Sequence[tuple[Job, Settlement]]) -> None:
        """Attempts have ended, and their settlements are stored: all of them, with the failures."""
        self.note_ends(settled)
        for job, settlement in settled:
            if settlement.error is not None and settlement.event not in {JobEvent.SNOOZED, JobEvent.SKIPPED}:
                self.note_failure(job, settlement)

    def note_losses(self, lost: Sequence[tuple[Job, Settlement]]) -> None:
        """Jobs were lost with their worker, and their settlements are stored."""
        self.note_ends(lost)
        for job, settlement in lost:
            if job.ending is None:
                if settlement.event in FAILED_ATTEMPT:  # and its handler had not marked it as completed
                    self.note_failure(job, settlement)
            elif settlement.event in FAILED_ATTEMPT or settlement.on_complete_error:
                error = settlement.on_complete_error or settlement.error
                tell_of_failed_on_complete(job, error)

    def note_end(self, job: Job, state: JobState, at: datetime) -> None:
        """A job has ended in the transaction that was its last."""
        self.note_completion(job, cast("Status", state.value), at)

    def note_completion(self, job: Job, status: Status, at: datetime) -> None:
        """A job has ended, or is tried again."""
        tally = self.tallies.get(job.pool)
        if tally is not None:
            tally.add(status)
        self.book.add(f"pool {job.pool}", status)
        if job.options.task is not None:
            self.book.add(f"task {self._task(job.options.task)}", status)
        if self.meters is not None:
            self._count(self.meters, job, status)
        if self._talkative and job.pool in self._talking():
            log_event(
                "workpool.completed",
                pool=job.pool,
                workId=job_id(job.id),
                fnName=job.options.name or job.function,
                completedAt=_ms(at),
                attempts=job.attempt,
                status=status,
            )
        if (ran := self._runs.pop(job.id, None)) is not None:
            self._tell_of_attempt(job, status, ran)

    def _count(self, meters: Meters, job: Job, status: Status) -> None:
        task = job.options.task
        if status != "retrying":
            meters.add("penstock_jobs_completed", job.pool, status)
            if job.function in self.workflows:
                meters.add("penstock_workflow_ended", job.function, status)
            if task is not None:
                meters.add("penstock_task_runs", self._task(task), status)
        elif task is not None:
            meters.add("penstock_task_retries", self._task(task))

    def note_run_start(self, workflow: str) -> None:
        """A run of a workflow begins."""
        if self.meters is not None:
            self.meters.add("penstock_workflow_started", workflow)

    @contextmanager
    def replay(self, workflow: str) -> Iterator[None]:
        """The time in which a run of a workflow repeats its records, for a block."""
        begun = profile_timer()
        yield
        if self.meters is not None:
            self.meters.observe("penstock_workflow_replay_seconds", profile_timer() - begun, workflow)

    def note_step(self, workflow: str, *, failed: bool) -> None:
        """A run of a workflow has learned the outcome of a step."""
        if self.meters is not None:
            self.meters.add("penstock_workflow_steps", workflow, "error" if failed else "success")

    def _task(self, number: int) -> str:
        """The name of a reactive task; its number if this program does not declare it."""
        return self.tasks.get(number, str(number))

    def report(self, pool: str, since: datetime, running: int, backlog: int) -> None:
        """Log the report of a pool, and begin to count from zero."""
        tally, self.tallies[pool] = self.tallies[pool], Tally()
        log_event(
            "workpool.report",
            pool=pool,
            completed=tally.completed,
            succeeded=tally.succeeded,
            failed=tally.failed,
            retries=tally.retries,
            canceled=tally.canceled,
            lastReportTs=_ms(since),
            running=running,
            backlog=backlog,
            failureRate=tally.failure_rate(),
            permanentFailureRate=tally.permanent_failure_rate(),
        )

    def watch(self, running: Mapping[str, int], held: Any) -> None:
        """Have gauges read the jobs and the slots of a worker."""
        self._running = running
        if self.meters is not None:
            self.meters.gauges["penstock_jobs_running"] = lambda: running
            self.meters.gauges["penstock_slots_held"] = held

    def jobs_running(self) -> int:
        """The number of jobs that the worker of this process runs."""
        return sum(self._running.values())

    # ----- calls

    def call(self, function: AnyFunction, caller: Caller = SYSTEM, step: str = "") -> AbstractContextManager[object]:
        """The run of a function, for a block; of a step of a workflow's run with its number."""
        if function.name.startswith(_OWN):
            return _UNSEEN
        is_seen = self.tells_runs or self.meters is not None or self.tracing is not None
        return self._call(function, caller, step) if is_seen else Spent(function.name, self.book, step)

    @contextmanager
    def _call(self, function: AnyFunction, caller: Caller, step: str) -> Iterator[None]:
        begun, outcome, kind, around = profile_timer(), "canceled", function.kind.value, current_run()
        error: Exception | None = None
        tells = self.tells_runs and around is None
        with Spent(function.name, self.book, step), run() if tells else nullcontext(around) as ran:
            try:
                with _UNSEEN if self.tracing is None else self.tracing.call(kind, function.name, step):
                    yield
                outcome = "success"
            except Exception as raised:
                outcome, error = "error", raised
                if ran is not None:
                    ran.error = raised
                raise
            finally:
                if self.meters is not None:
                    self.meters.add("penstock_calls", function.name, outcome)
                    self.meters.observe("penstock_call_seconds", profile_timer() - begun, kind)
                if ran is not None and around is None:
                    self._tell_of_call(function, caller, _CALL_ENDS[outcome], error, ran)

    def _tell_of_call(
        self, function: AnyFunction, caller: Caller, status: str, error: Exception | None, ran: CallStats
    ) -> None:
        trace = current_trace()
        log_event(
            "call.ran",
            logging.INFO if error is None else logging.WARNING,
            exc_info=error,
            kind=function.kind.value,
            function=function.name,
            **({} if caller.identity is None else {"caller": caller.identity.subject}),
            status=status,
            **_cost(ran, error),
            **({} if trace is None else {"trace": trace_id(trace)}),
            **({} if caller.request is None else {"request_id": caller.request.request_id}),
        )

    def count_rows(self, transaction: Transaction) -> None:
        """Count the rows of a transaction whose function has returned; written rows once it has committed."""
        if self.tracing is not None and transaction.writes:
            transaction.committed.append(partial(self.tracing.wrote, self.tracing.span(), transaction.writes))
        if self.tells_runs and (ran := current_run()) is not None:
            rows_read, rows_written = transaction.rows_counted
            ran.read += rows_read
            transaction.committed.append(partial(ran.wrote, rows_written))

    def note_conflict(self, what: str) -> None:
        """A transaction has conflicted with others, and runs again."""
        self.book.add(f"function {what}", "conflict")
        if self.meters is not None:
            self.meters.add("penstock_conflicts", what)

    def follow_jobs(self, *jobs: Job) -> AbstractContextManager[None]:
        """The part of a trace that jobs are, for a block."""
        return _Jobs(self, jobs)

    def attempts(self, *jobs: Job) -> AbstractContextManager[Sequence[Any] | None]:
        """The runs and spans of attempts that are made together, for a block."""
        return self._attempts(jobs) if self.tells_runs or self.tracing is not None else _Jobs(self, jobs)

    def running(self, job: Job, trace: str | None) -> AbstractContextManager[object]:
        """The run of a job, for a block; that of its on_complete in the span of its attempt, if it has ended here."""
        return self.attempts(job) if self.tracing is None or trace is None else self._within(self.tracing, job, trace)

    @contextmanager
    def _within(self, tracing: Tracing, job: Job, trace: str) -> Iterator[None]:
        with self.follow_jobs(job), self._run_of(job), tracing.within(trace):
            yield

    @contextmanager
    def _attempts(self, jobs: Sequence[Job]) -> Iterator[Sequence[Any]]:
        with self.follow_jobs(*jobs), self._run_of(*jobs), ExitStack() as spans:
            if self.tracing is None:
                yield ()
                return
            alike = len({baggage_of(job.options.trace) for job in jobs}) == 1
            yield [spans.enter_context(self._span(self.tracing, job, carries=alike)) for job in jobs]

    def attempt_ended(self, spans: Sequence[Any] | None, outcome: Outcome | None) -> None:
        """Mark the span of an attempt if it has failed."""
        if self.tracing is not None and outcome is not None and outcome.event in FAILED_ATTEMPT:
            for span in spans or ():
                self.tracing.note_failure(span, outcome.error or "")

    def _span(self, tracing: Tracing, job: Job, *, carries: bool = True) -> AbstractContextManager[Any]:
        trace, task, row = job.options.trace, job.options.task, None
        if not carries:  # of a batch whose jobs have different baggage
            trace = " ".join((trace or "").split(" ")[:2]) or None
        if trace is None and job.function in self.workflows:  # plain SQL or a cron has started it
            trace = trace_of_run(job.id)
        if task is not None and job.function in self.tables:
            row = row_of(self.tables[job.function], read_values(mark_of(task, job.args).key))
        return tracing.work(trace, job_id(job.id), job.pool, job.function, job.attempt, row)

    def delivering(self, outbox: Outbox, changes: Iterable[CapturedChange]) -> AbstractContextManager[object]:
        """The span of an attempt to deliver messages, for a block."""
        if self.tracing is None:
            return _UNSEEN
        table = "" if outbox.definition is None else outbox.definition.name
        told = [
            (one.before, None) if one.kind == TOPIC or one.key is None else (None, row_of(table, read_values(one.key)))
            for one in changes
        ]
        return self.tracing.deliver(outbox.name, told)

    @contextmanager
    def _run_of(self, *jobs: Job) -> Iterator[None]:
        if not self.tells_runs:
            yield
            return
        of_on_complete = len(jobs) == 1 and jobs[0].ending is not None  # which costs its job something, too
        with run(self._runs.get(jobs[0].id) if of_on_complete else None) as ran:
            self._runs.update((job.id, ran) for job in jobs)
            while len(self._runs) > _MOST_RUNS:
                del self._runs[next(iter(self._runs))]
            yield

    def _tell_of_attempt(self, job: Job, status: Status, ran: CallStats) -> None:
        task = job.options.task
        of_task = {} if task is None else {"task": self._task(task), "key": mark_of(task, job.args).key}
        failed = status in {"failed", "retrying"}
        log_event(
            "job.ran",
            logging.WARNING if failed else logging.INFO,
            exc_info=ran.error if failed else None,
            kind=job.kind,
            function=job.function,
            **of_task,
            job=job_id(job.id),
            attempt=job.attempt,
            status=status,
            **_cost(ran, ran.error if failed else None),
        )

    def _talking(self) -> frozenset[str]:
        """The pools whose jobs are logged, if anybody reads the log."""
        return self._talkative if self._talkative and is_enabled() else frozenset()


class _Jobs(Following):
    """The part of a trace that jobs are. They begin traces of their own only for a dashboard."""

    __slots__ = ("_jobs", "_journal")

    def __init__(self, journal: Journal, jobs: Sequence[Job]) -> None:
        self._journal, self._jobs = journal, jobs

    @property
    def leads(self) -> bool:
        return bool(self._leading)

    @property
    def jobs(self) -> list[str]:
        return [job_id(job.id) for job in self._jobs]

    @property
    def parts(self) -> Sequence[tuple[int, str | None]]:
        return [(job.id.int, job.options.trace) for job in self._leading or self._jobs]

    @property
    def _leading(self) -> list[Job]:
        journal = self._journal
        if journal.tracing is not None:
            return []
        return [job for job in self._jobs if journal.follows or job.options.trace is not None]


def _cost(ran: CallStats, error: Exception | None) -> dict[str, Any]:
    cost = {"ms": round(ran.seconds * 1000, 1), "read": ran.read, "written": ran.written}
    return cost if error is None else {**cost, "error": error}


def tell_of_retries(jobs: Iterable[UUID], *, on_complete: bool) -> None:
    """Log jobs that run again by request, whole or only their on_complete."""
    for job in jobs:
        if on_complete:
            log_event("job.on_complete_retried", job=job_id(job))
        else:
            log_event("job.retried", job=job_id(job))


def tell_of_failed_on_complete(job: Job, error: Exception | str | None) -> None:
    """Log an on_complete that raised, or was lost."""
    log_event("job.on_complete_failed", logging.WARNING, job=job_id(job.id), function=job.on_complete, error=error)


def tell_of_broken(job: Job, error: Exception) -> None:
    """Log a job that ends because its stored data cannot be read."""
    log_event("job.broken", logging.ERROR, job=job_id(job.id), function=job.function, error=error)


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
