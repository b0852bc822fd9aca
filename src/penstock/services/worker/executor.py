"""Executes a worker's jobs, from the claim until the outcome of each is known.

Owns the grouping of jobs: mutations and on_completes in shared transactions, calls of batch functions, all others
alone. Leaves the lease and settling to the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from uuid import UUID

from penstock.calls.jobs.batch import Batches
from penstock.calls.jobs.group import Groups
from penstock.calls.jobs.job import (
    complete_job,
    decrypt_job,
    failure,
    keep_ending,
    outcome_of_interrupt,
    run_job,
)
from penstock.calls.run.jobrun import JobRun, Permit
from penstock.calls.run.runner import FunctionCalls
from penstock.jobs.job import Job, Outcome
from penstock.jobs.progress import Progress
from penstock.jobs.states import JobEvent
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.services.worker.reports import ProgressBuffer
from penstock.store.nouns.jobs import Room

_LEAST_PIECE = 50
_IN_TURN = 250


class Executor:
    """The jobs of one worker, up to a number at once; `wake` has it settle an outcome or write progress."""

    def __init__(self, runner: FunctionCalls, places: int, progress: ProgressBuffer, wake: Callable[[], None]) -> None:
        self.running: dict[UUID, JobRun] = {}  # the jobs that run, or will in a moment
        self.busy: Counter[str] = Counter()  # jobs that hold a slot, by pool; ended ones too that go on in a thread
        self.outcomes: list[tuple[Job, Outcome]] = []  # the jobs that have ended and are not settled yet
        self.held: list[Job] = []  # the jobs that an external system will complete, until the worker lets go of them
        self._runner = runner
        self._places = places
        self._progress = progress
        self._wake = wake
        self._batches = Batches(runner, self._end_attempt)
        self._groups = Groups(runner, self._end_job, self._start_alone)
        self._overtaken: list[JobRun] = []  # attempts that go on though an outside call ended their jobs, begun again
        self._lingering: set[JobRun] = set()  # attempts that have ended but go on in a thread
        self._added: list[JobRun] = []
        self._waiting: deque[JobRun] = deque()
        self._lane: object = None
        self._single: JobRun | None = None  # a mutation that runs alone; jobs that come meanwhile share a transaction
        self._has_batches = any(function.batch is not None for function in runner.engine.registry)
        self._claims_whole = self._has_batches
        self._turns: dict[str, int] = {}

    @property
    def free(self) -> int:
        return self._places - len(self.running) - len(self._overtaken) - len(self._lingering)

    @property
    def piece(self) -> int:
        """The number of jobs to claim at once: half of many places, so that some run while others are claimed.

        Jobs of batch functions are claimed at once, since they run as one.
        """
        return self._places if self._claims_whole else max(min(self._places, _LEAST_PIECE), self._places // 2)

    def last_turn(self, room: Room) -> int:
        """When a pool had its last turn. Among pools that run as many jobs, the longest waiting one is next."""
        return self._turns.get(room.pool, 0)

    def _take_turns(self, given: Counter[str]) -> None:
        """Order pools by the places each got: the one with the most had the last turn."""
        for pool in sorted(given, key=lambda pool: (given[pool], self._turns.get(pool, 0))):
            self._turns[pool] = max(self._turns.values(), default=0) + 1

    def add(self, jobs: Sequence[Job], lease: int, permits: Mapping[str, Permit]) -> None:
        """Add claimed jobs, with the permits of their pools. They take their places now."""
        find, batched = self._runner.engine.known.find, False
        self._take_turns(Counter(job.pool for job in jobs))
        for job in jobs:
            decrypt_job(self._runner.engine.store.encryption, job)
            readable = job.options.unread is None and job.options.broken is None
            function = find(job.function, job.options.program) if readable else None
            permit = permits.get(job.pool) if job.ending is None else None
            running = JobRun(job, function, lease, self._note, needs_slot=job.ending is None, permit=permit)
            if function is not None:
                job.version = function.version
                batched = batched or function.batch is not None
            if (older := self.running.get(job.id)) is not None:
                self._overtaken.append(older)
                self._progress.forget(job.id)
            self.running[job.id] = running
            self._added.append(running)
            self.busy[job.pool] += running.needs_slot
        self._claims_whole = batched or (self._has_batches and not jobs)

    def start(self) -> None:
        """Start the added jobs once the worker has sent its next statements."""
        if self._added:
            asyncio.get_running_loop().call_soon(self.start_now)

    def start_now(self) -> None:
        added, self._added = self._added, []
        sharing: list[JobRun] = []
        for running in added:
            job, function = running.job, running.function
            if job.is_late:
                self._start_alone(running)
            elif self._groups.takes(running):
                sharing.append(running)
            elif function is not None and function.batch is not None and job.ending is None:
                self._batches.add(function, function.batch, running)
            else:
                self._start_alone(running)
        if len(sharing) == 1 and self._single is None and not self._groups.busy:
            self._single = sharing[0]
            self._start_alone(sharing[0])
        elif sharing:
            self._groups.add(sharing)
        if self.free <= 0:
            self._batches.hurry()

    def cancel(self, jobs: Collection[UUID]) -> int:
        """Ask those of these jobs that run here to stop; the number of them."""
        ours = [self.running[job] for job in jobs if job in self.running]
        for running in ours:
            running.cancelled.set()
            running.wake()
        self._batches.note_cancel()
        return len(ours)

    def wake(self, runs: Collection[UUID]) -> None:
        """Have those of these runs of workflows look that are under way here."""
        for run in runs:
            if (running := self.running.get(run)) is not None:
                running.woken = True
                running.wake()

    async def wait_for_one(self, seconds: float) -> None:
        await asyncio.wait(self._tasks(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def wait(self) -> None:
        if self.running:
            await asyncio.wait(self._tasks())

    async def stop(self, seconds: float) -> list[JobRun]:
        """Stop all jobs and return them; jobs that do not stop within this time are left alone."""
        ours, self.running = list(self.running.values()), {}
        stopped, self._overtaken, self._single = ours + self._overtaken, [], None
        unstarted = {*self._added, *self._waiting}
        self._added = []
        self._waiting.clear()
        self._groups.clear()
        self.busy.clear()
        for running in self._lingering:
            running.stopped = True
        self._lingering.clear()
        self._progress.clear()
        tasks = set()
        for running in stopped:
            running.stopped, running.outcome = True, outcome_of_interrupt(running)
            if running not in unstarted:
                running.task.cancel()
                tasks.add(running.task)
        if tasks:
            _, deaf = await asyncio.wait(tasks, timeout=seconds)
            if deaf:
                log_event("worker.jobs_do_not_stop", logging.WARNING, lease=stopped[0].lease, jobs=len(deaf))
        return ours

    def _tasks(self) -> list[asyncio.Task[None]]:
        self.start_now()
        while self._waiting:  # a caller that waits needs a task of each
            running = self._waiting.popleft()
            running.task = asyncio.get_running_loop().create_task(self._run_job(running))
        return [running.task for running in self.running.values()]

    # ----- jobs that run by themselves

    def _start_alone(self, running: JobRun) -> None:
        self._waiting.append(running)
        if self._lane is None:
            self._open_lane()

    def _open_lane(self) -> None:
        """Run jobs in turn in one task. The first job that has to wait keeps the task; the others get another.

        A task for each would double the cost of a job that does not wait.
        """
        loop, self._lane = asyncio.get_running_loop(), object()
        lane = loop.create_task(self._run_in_turn(self._lane))
        # Runs when the task first waits or ends; nothing else may know of the task before.
        loop.call_soon(self._leave_lane, lane)

    def _leave_lane(self, _lane: asyncio.Task[None]) -> None:
        self._lane = None
        if self._waiting:
            self._open_lane()

    async def _run_in_turn(self, lane: object) -> None:
        task, context = asyncio.current_task(), contextvars.copy_context()
        assert task is not None  # noqa: S101 - it runs in one
        for _ in range(_IN_TURN):  # then the event loop gets its turn
            if not self._waiting:
                return
            running = self._waiting.popleft()
            running.task = task
            await self._run_job(running)
            if self._lane is not lane or task.cancelling() or contextvars.copy_context() != context:
                return  # a job must not leak its context into the next

    # ----- one job

    def _note(self, running: JobRun, progress: Progress) -> None:
        if self.running.get(running.job.id) is running and self._progress.note(running.job.id, progress):
            self._wake()

    async def _run_job(self, running: JobRun) -> None:
        clock, journal, is_attempt = self._runner.engine.clock, self._runner.engine.journal, running.job.ending is None
        begun = clock.monotonic()
        outcome: Outcome | None
        try:
            outcome = await (run_job if is_attempt else complete_job)(self._runner, running)
        except BaseException as error:
            if running.stopped and isinstance(error, asyncio.CancelledError):
                raise
            outcome = failure(error)
        if is_attempt:
            journal.ran(running.job, clock.monotonic() - begun)
        await self._end_attempt(running, outcome)

    async def _end_attempt(self, running: JobRun, outcome: Outcome | None) -> None:
        """End a job whose attempt has ended, or call its on_complete first."""
        if running.job.on_complete is None or outcome is None or not self._comes_next(running, outcome):
            if points.armed:
                await points.reach("worker.outcome", job=running.job, outcome=outcome)
            self._end_job(running, outcome)
        elif self._groups.takes(running):
            self._groups.add((running,))
        else:
            self._start_alone(running)

    def _comes_next(self, running: JobRun, outcome: Outcome) -> bool:
        """Whether the on_complete of a job is to be called now; its ending is kept then."""
        ours = not running.stopped and self.running.get(running.job.id) is running
        return ours and keep_ending(self._runner.engine, running, outcome)

    def _end_job(self, running: JobRun, outcome: Outcome | None) -> None:
        job, engine = running.job, self._runner.engine
        if self._single is running:
            self._single = None
        if job.options.task is not None and engine.pauses.concerns(job.options.task):
            engine.pauses.note_end(job.options.task, job, outcome, engine.clock.now())
        if running.stopped:
            running.outcome = outcome
            return
        if self.running.get(job.id) is not running:
            self._overtaken = [one for one in self._overtaken if one is not running]
        else:
            del self.running[job.id]
            self.record(job, outcome)
            if outcome is not None and outcome.event is JobEvent.HELD:  # it stays busy until the worker lets go of it
                self._wake()
                return
            self._progress.forget(job.id)
        self._leave(running)

    def record(self, job: Job, outcome: Outcome | None) -> None:
        """Keep an outcome until the worker settles it; a mutation that has settled itself has none."""
        if outcome is not None and outcome.event is JobEvent.HELD:
            self.held.append(job)
        elif outcome is not None:
            self.outcomes.append((job, outcome))

    def _leave(self, running: JobRun) -> None:
        """Free the place and the slot of a job that has ended, once no thread runs for it."""
        if not running.lingering or not self._lingers(running):
            self.busy[running.job.pool] -= running.needs_slot
        self._wake()

    def _lingers(self, running: JobRun) -> bool:
        """Whether a job that has ended goes on in a thread, after which it leaves, or its worker has stopped it."""
        self._lingering.discard(running)
        if running.stopped:
            return True
        thread = next((thread for thread in running.lingering if not thread.done()), None)
        if thread is None:
            return False
        self._lingering.add(running)
        loop = asyncio.get_running_loop()

        def on_end(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._leave, running)

        thread.add_done_callback(on_end)
        return True
