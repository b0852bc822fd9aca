"""Runs the jobs of a batch function together, in one call of its handler.

Owns which jobs make a batch, and splits the answer into their outcomes. Each job keeps its own retries, cancels and
on_complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import field
from typing import Any, ClassVar
from uuid import UUID

from penstock.calls.call import Arguments, Call
from penstock.calls.handlers.mark_completed import end_of_marked
from penstock.calls.jobs.job import failure, log_lost, outcome_of_error, outcome_of_result
from penstock.calls.run.jobrun import Cancellation, JobRun, caller_of_job
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.run.timelimit import time_limit
from penstock.dataclass import dataclass
from penstock.errors import LeaseLost
from penstock.functions.batch import Batch
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.jobs.job import Outcome, Settlement, Work
from penstock.jobs.states import JobEvent
from penstock.store.session import Session

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


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class _BatchCall(Call):
    """The call of a batch function for many jobs: it is to stop once all of them are.

    A mutation settles them all in its transaction; each job's result, or error, is its outcome.
    """

    runner: FunctionCalls
    batch: Batch
    runs: Sequence[JobRun]
    cancelled: Cancellation

    for_ever: ClassVar[bool] = True
    takes_token = False

    @property
    def works(self) -> Sequence[Work]:
        return [run.work for run in self.runs]

    @property
    def cancellation(self) -> Cancellation:
        return self.cancelled

    @property
    def lingering(self) -> list[Future[Any]]:
        return self.runs[0].lingering  # which all share

    @property
    def handler(self) -> Callable[..., Any]:
        return self._handle

    async def check(self, *, again: bool = False) -> Arguments:
        """Give the arguments and the item of each job; they are read each time, as a handler may change them."""
        return {"each": [_read(self.function, self.batch, run) for run in self.runs] if again else self.arguments}

    async def begin(self, session: Session | None = None) -> None:
        for run in self.runs:
            run.cancels_itself = False
            await run.begin(session)

    def asks(self, arguments: Arguments) -> Sequence[Arguments]:
        """The arguments of each job. Those of actions were asked about alone just before, as they fail alone."""
        return [own for own, _ in arguments["each"]] if self.function.kind is FunctionKind.MUTATION else ()

    def note_cancels(self, asked: Collection[UUID]) -> None:
        for run in self.runs:
            run.cancels_itself = run.job.id in asked

    def check_result(self, result: Any) -> Sequence[Any]:
        return self.batch.results(self.function.name, result, len(self.runs))

    def finish(self, result: Sequence[Any]) -> list[Settlement]:
        outcomes = [
            Outcome(JobEvent.CANCELED) if run.cancels_itself else self.outcome(run, one)
            for run, one in zip(self.runs, result, strict=True)
        ]
        return self.runner.engine.decide(zip([run.job for run in self.runs], outcomes, strict=True))

    async def seal(self, session: Session, answer: list[Settlement]) -> None:
        jobs = self.runner.engine.store.jobs
        if await jobs.settle_all_within(session, self.runs[0].lease, answer) < len(answer):
            raise LeaseLost("The leases of jobs were lost while they ran; another worker has them.")

    def outcome(self, run: JobRun, result: Any) -> Outcome:
        """Decide the outcome of one job, also if user code raises meanwhile."""
        if not isinstance(result, Exception):
            try:
                checked = result if isinstance(result, Outcome) else self.function.signature.check_result(result)
                return outcome_of_result(self.runner.engine, self.function, checked)
            except Exception as error:  # noqa: BLE001 - it is the job's outcome, and the others have theirs
                result = error
        try:
            return outcome_of_error(self.runner, run, result)
        except Exception as error:  # noqa: BLE001 - as above
            return failure(error)

    def _handle(self, ctx: Any, /, each: Sequence[tuple[Arguments, Any]]) -> Any:
        items = [item for _, item in each]
        return self.batch.handler(ctx, list(zip(items, self.runs, strict=True)) if self.batch.with_attempts else items)


def _read(function: AnyFunction, batch: Batch, run: JobRun) -> tuple[Arguments, Any]:
    arguments = function.signature.check_json(run.job.args)
    return arguments, batch.item(function.name, arguments)


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
        outcomes = await self._outcomes(gathering)
        outcomes.sort(key=lambda one: one[0].doubtful)  # the others need not wait for these
        for run, outcome in outcomes:
            try:
                ended = await end_of_marked(self._runner, run, outcome)
            except LeaseLost:
                log_lost(run)
                ended = None
            except Exception as error:  # noqa: BLE001 - the others of its batch still have to end
                ended = failure(error)
            await self._ended(run, ended)

    async def _outcomes(self, gathering: _Gathering) -> list[tuple[JobRun, Outcome | None]]:
        function, batch = gathering.function, gathering.batch
        ended: list[tuple[JobRun, Outcome | None]] = []
        runs: list[JobRun] = []
        each: list[tuple[Arguments, Any]] = []
        for run in gathering.jobs:
            if run.cancelled.is_set():
                ended.append((run, Outcome(JobEvent.CANCELED)))
                continue
            try:
                read = _read(function, batch, run)
                await self._runner.check_access_alone(Call(function, read[0], caller_of_job(function)), read[0])
            except Exception as error:  # noqa: BLE001 - it fails alone
                ended.append((run, failure(error)))
            else:
                each.append(read)
                runs.append(run)
                run.lingering = runs[0].lingering
        gathering.jobs = runs
        if not runs:
            return ended
        about = (function, each, caller_of_job(function))
        call = _BatchCall(*about, runner=self._runner, batch=batch, runs=runs, cancelled=gathering.cancelled)
        timeouts = [run.job.options.timeout for run in runs if run.job.options.timeout is not None]
        try:
            async with time_limit(function.name, min(timeouts, default=None)):
                with self._runner.engine.journal.attempts(*[run.job for run in runs]):
                    return ended + await self._call(call)
        except Exception as error:  # noqa: BLE001 - what the handler raises is the outcome of all
            if isinstance(error, LeaseLost) and not error.from_function:  # of some: the others run again
                return ended + [(run, Outcome(JobEvent.HANDED_BACK)) for run in runs]
            return ended + [(run, call.outcome(run, error)) for run in runs]
        except BaseException as error:
            if any(run.stopped for run in runs):
                raise
            return ended + [(run, failure(error)) for run in runs]

    async def _call(self, call: _BatchCall) -> list[tuple[JobRun, Outcome | None]]:
        """Call the function; for each job its outcome, or None if its mutation has settled it."""
        if call.function.kind is FunctionKind.ACTION:
            results = await self._runner.action(call)
            return [(run, call.outcome(run, one)) for run, one in zip(call.runs, results, strict=True)]
        journal = self._runner.engine.journal
        settlements = await self._runner.mutation(call)
        journal.note_settled([(run.job, one) for run, one in zip(call.runs, settlements, strict=True)])
        return [(run, None) for run in call.runs]
