"""Runs the jobs of a batch function together, in one call of its handler.

Owns which jobs make a batch, and splits the answer into their outcomes. Each job keeps its own retries, cancels and
on_complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.calls.call import Call
from penstock.calls.handlers.mark_completed import end_of_marked
from penstock.calls.jobs.job import failure, log_lost, outcome_of_error, outcome_of_result, time_limit
from penstock.calls.run.jobrun import Cancellation, JobRun, caller_of_job
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.run.threads import lingering
from penstock.errors import LeaseLost
from penstock.functions.batch import Batch
from penstock.functions.function import AnyFunction
from penstock.jobs.job import Outcome
from penstock.jobs.states import JobEvent

Ended = Callable[[JobRun, Outcome | None], Awaitable[None]]


@dataclass(slots=True)
class _Gathering:
    """Jobs of one function and pool that will run together."""

    function: AnyFunction
    batch: Batch
    jobs: list[JobRun] = field(default_factory=list)
    task: asyncio.Task[None] = field(init=False)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: Cancellation = field(default_factory=Cancellation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchCall(Call):
    """The call of a batch function for many jobs: it is to stop once all of them are."""

    cancelled: Cancellation

    @property
    def cancellation(self) -> Cancellation:
        return self.cancelled


class Batches:
    """Gathers and runs the jobs of one worker's batch functions; `ended` gets each job and its outcome."""

    def __init__(self, runner: FunctionCalls, ended: Ended) -> None:
        self._runner = runner
        self._ended = ended
        self._gathering: dict[tuple[str, str], _Gathering] = {}
        self._running: dict[asyncio.Task[None], _Gathering] = {}

    def add(self, function: AnyFunction, batch: Batch, run: JobRun) -> None:
        """Run a job together with others that come at the same time or shortly after."""
        key = (function.name, run.job.pool)
        gathering = self._gathering.get(key)
        if gathering is None:
            gathering = self._gathering[key] = _Gathering(function, batch)
            gathering.task = asyncio.get_running_loop().create_task(self._run(key, gathering))
            self._running[gathering.task] = gathering
            gathering.task.add_done_callback(self._running.pop)
        gathering.jobs.append(run)
        run.task = gathering.task
        if len(gathering.jobs) >= batch.size:
            gathering.full.set()
            del self._gathering[key]

    def note_cancel(self) -> None:
        for gathering in self._running.values():
            if all(run.cancelled.is_set() for run in gathering.jobs):
                gathering.cancelled.set()

    def hurry(self) -> None:
        """Run the batches that wait for more jobs, as none can come."""
        for gathering in self._gathering.values():
            gathering.full.set()

    # ----- steps

    async def _run(self, key: tuple[str, str], gathering: _Gathering) -> None:
        linger = gathering.batch.linger.total_seconds()
        try:
            if linger and not gathering.full.is_set():
                await self._runner.engine.machine.wait(gathering.full, linger)
        finally:
            if self._gathering.get(key) is gathering:
                del self._gathering[key]
        with lingering() as threads:
            outcomes = await self._outcomes(gathering)
        outcomes.sort(key=lambda one: one[0].doubtful)  # the others need not wait for these
        for run, outcome in outcomes:
            run.lingering = threads
            try:
                ended = await end_of_marked(self._runner, run, outcome)
            except LeaseLost:
                log_lost(run)
                ended = None
            except Exception as error:  # noqa: BLE001 - the others of its batch still have to end
                ended = failure(error)
            await self._ended(run, ended)

    async def _outcomes(self, gathering: _Gathering) -> list[tuple[JobRun, Outcome]]:
        function, batch = gathering.function, gathering.batch
        ended: list[tuple[JobRun, Outcome]] = []
        jobs: list[JobRun] = []
        items: list[Any] = []
        for run in gathering.jobs:
            if run.cancelled.is_set():
                ended.append((run, Outcome(JobEvent.CANCELED)))
                continue
            try:
                arguments = function.signature.check_json(run.job.args)
                await self._runner.check_access_alone(Call(function, arguments, caller_of_job(function)), arguments)
                item = batch.item(function.name, arguments)
                items.append((item, run) if batch.with_attempts else item)
            except Exception as error:  # noqa: BLE001 - it fails alone
                ended.append((run, failure(error)))
            else:
                jobs.append(run)
        gathering.jobs = jobs
        if not jobs:
            return ended
        journal = self._runner.engine.journal
        timeouts = [run.job.options.timeout for run in jobs if run.job.options.timeout is not None]
        try:
            async with time_limit(function.name, min(timeouts, default=None)):
                with journal.attempts([run.job for run in jobs]), journal.call(function):
                    answer = await self._call(function, batch, items, gathering)
            results: Sequence[Any] = batch.results(function.name, answer, len(jobs))
        except Exception as error:  # noqa: BLE001 - what the handler raises is the outcome of all
            results = [error] * len(jobs)
        except BaseException as error:
            if any(one.stopped for one in jobs):
                raise
            return ended + [(one, failure(error)) for one in jobs]
        return ended + [(one, self._outcome_of(function, one, given)) for one, given in zip(jobs, results, strict=True)]

    async def _call(self, function: AnyFunction, batch: Batch, items: list[Any], gathering: _Gathering) -> Any:
        call = _BatchCall(function, {}, caller_of_job(function), cancelled=gathering.cancelled)
        async with self._runner.engine.thread(function, 0) as thread:
            for run in gathering.jobs:
                await run.begin()
            return await self._runner.run_handler(call, {}, thread, handler=lambda ctx: batch.handler(ctx, items))

    def _outcome_of(self, function: AnyFunction, run: JobRun, result: Any) -> Outcome:
        """Decide the outcome of one job, also if user code raises meanwhile."""
        if not isinstance(result, Exception):
            try:
                checked = result if isinstance(result, Outcome) else function.signature.check_result(result)
                return outcome_of_result(self._runner.engine, function, checked)
            except Exception as error:  # noqa: BLE001 - it is the job's outcome, and the others have theirs
                result = error
        try:
            return outcome_of_error(self._runner, run, result)
        except Exception as error:  # noqa: BLE001 - as above
            return failure(error)
