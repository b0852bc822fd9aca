"""The worker: claims jobs under a lease, runs them, and settles them in batches. Any number may run on one database.

Owns the jobs that run under its lease. `jobs/settle` decides the end of a job; `calls/jobs/job` runs one. A worker that
cannot renew its lease stops its jobs before the lease ends; any worker takes over the jobs of an expired lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import cast
from uuid import UUID

from penstock.calls.run.jobrun import JobRun, Permit
from penstock.calls.run.runner import FunctionCalls
from penstock.errors import TryAgain
from penstock.jobs.job import DEFAULT_POOL, Job, Outcome, job_id
from penstock.jobs.states import JobEvent
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.services.service import LeasedService
from penstock.services.worker.executor import Executor
from penstock.services.worker.housekeeping import Housekeeping
from penstock.services.worker.reports import ProgressBuffer, Reports
from penstock.services.worker.slots import Slots
from penstock.store.nouns.jobs import Room

_STOP_PART, _AGAIN_PART = 0.1, 0.1  # of the setting `lease`: to stop jobs; between ticks after one that failed
_AFTER_TASKS = 0.02
_PROGRAMS_EVERY = 30.0  # seconds; a job of a new function asks at once


class Worker(LeasedService):
    """Runs up to so many `jobs` at once; `pools` are those with a limit that its program declares."""

    name = "worker"

    def __init__(self, runner: FunctionCalls, name: str, jobs: int, pools: Sequence[str] = ()) -> None:
        super().__init__(runner, name)
        self.next_run_at: datetime | None = None  # of a scheduled or rate-limited job, as of the last look
        self._engine = engine = runner.engine
        self._poll = engine.config.poll
        self._draining = False  # whether the last claim found all that it asked for
        self._claim_unknown = False  # whether a claim may have put jobs under the lease that this worker never heard of
        self._learned_at = -math.inf
        self._permits: dict[str, Permit] = {}
        self._slots = Slots(self._store, self.clock, pools)
        self._progress = ProgressBuffer(self._store, self.clock)
        self._executor = Executor(runner, jobs, self._progress, self.wake.set)
        self._housekeeping = Housekeeping(runner, self._executor)
        self._journal = engine.journal
        self._journal.watch(self._executor.busy, self._slots.numbers)
        self._reports = Reports(engine)
        self.on_claimed: Callable[[Sequence[Job]], None] = self._journal.note_starts  # called before they run

    @property
    def open_outcomes(self) -> int:
        return len(self._executor.outcomes) + len(self._executor.held)

    @property
    def running(self) -> Mapping[UUID, JobRun]:
        return self._executor.running

    async def wait_for_jobs(self) -> None:
        """Wait until all present jobs have ended; the next tick settles them."""
        await self._executor.wait()

    async def tick(self) -> float:
        await self._keep_lease()
        async with self._limit_tick("find work"):
            if self._rescue.is_due:
                await self._rescue.look(self.lease)
                await self._housekeeping.end_overdue()
            await self._reports.tell(self._executor.busy)
            await self._progress.write(self.lease)
            await self._engine.pauses.write(self._store)
            await self._engine.pauses.look_again(self._store, self.clock.now())
            await self._housekeeping.let_retry()
            try:
                pause = await self._settle_and_claim()  # last, so that a caller of tick() sees the jobs it started
            finally:
                self._executor.start()
        return min(pause, self._lease.due, self._progress.due)

    async def finish(self) -> None:
        """Let running jobs end within the grace time, hand back the others, and give the lease back."""
        if grace := self._engine.grace_left():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._let_jobs_end()
        stopped = await self._executor.stop(self._bound * _STOP_PART)
        ended, lease = Counter[JobEvent](), self.lease
        try:
            stopped = await self._with_known_end(stopped)
            for one in stopped:
                self._executor.record(one.job, one.outcome)
            won = await self._settle_outcomes()
            ended.update(one.outcome.event for one in stopped if one.outcome is not None and one.job.id in won)
            await self._lease.give_back()
        except TryAgain as error:
            log_event("worker.not_settled", logging.WARNING, lease=lease, error=error)
        if stopped:
            self._store.signals.notify()
        handed_back, lost = ended[JobEvent.HANDED_BACK], ended[JobEvent.LOST]
        log_event("worker.stopped", lease=lease, handed_back=handed_back, lost=lost)
        await self._lease.leave()
        self._slots.forget()

    async def kill(self) -> None:
        await asyncio.gather(super().kill(), self._stop_jobs())

    async def _safe_tick(self) -> float:
        """A tick; after a failed one the worker is back in time to renew its lease."""
        pause = await super()._safe_tick()
        if self.lease is None:
            return pause
        return min(pause, max(self._lease.due, self._bound * _AGAIN_PART))

    # ----- the lease

    async def _keep_lease(self) -> None:
        if self.lease is None:
            await self._lease.keep()
            self._claim_unknown = False
            log_event("worker.started", lease=self.lease, worker=self._label)
        elif await self._lease.keep(busy=bool(self.running)):
            self._claim_unknown = True
            await self._engine.learn_order()  # each merged write checks it, too

    async def _lose_lease(self, lease: int, reason: str) -> None:
        log_event("worker.lease_lost", logging.ERROR, lease=lease, reason=reason, jobs=len(self.running))
        await self._stop_jobs()
        self._slots.forget()

    # ----- the end of jobs

    async def _let_jobs_end(self) -> None:
        while self.running:
            await self._executor.wait_for_one(self._lease.due)
            try:
                await self._keep_lease()
                await self._progress.write(self.lease)
                await self._settle_outcomes()
            except TryAgain as error:
                log_event("worker.not_settled", logging.WARNING, lease=self.lease, error=error)

    async def _stop_jobs(self) -> None:
        self._executor.outcomes.clear()
        self._executor.held.clear()
        await self._executor.stop(self._bound * _STOP_PART)

    async def _with_known_end(self, stopped: list[JobRun]) -> list[JobRun]:
        """The stopped jobs whose end is known.

        The others were marked as completed in a transaction that is still open; the next worker settles them.
        """
        doubtful = [one.job.id for one in stopped if one.doubtful]
        if not doubtful or self.lease is None:
            return stopped
        marked = await self._store.tasks.read_marks(self.lease, doubtful)
        for one in stopped:
            one.job.marked |= bool(marked.get(one.job.id))
        return [one for one in stopped if marked.get(one.job.id, False) is not None]

    # ----- settle

    async def _settle_outcomes(self) -> set[UUID]:
        """Let go of held jobs and settle the ended ones; the jobs that ended and were still this worker's."""
        await self._release_held()
        return await self._settle_ended()

    async def _release_held(self) -> None:
        """Let jobs that an external system will complete go from this worker, and their slots with them."""
        held = list(self._executor.held)
        if not held or self.lease is None:
            return
        await self._progress.write(self.lease, at_once=True)
        moved = await self._store.tokens.hold(self.lease, [(job.id, job.attempt) for job in held])
        for job in held:
            if job.id in moved:  # and was not ended meanwhile
                log_event("job.held", job=job_id(job.id), function=job.function, attempt=job.attempt)
        del self._executor.held[: len(held)]
        self._executor.busy.subtract(job.pool for job in held)
        self._slots.recount()

    async def _settle_ended(self) -> set[UUID]:
        outcomes = list(self._executor.outcomes)
        if self.lease is None:
            self._executor.outcomes.clear()
            return set()
        if not outcomes:
            return set()
        settlements = self._engine.decide(outcomes)
        won = await self._store.jobs.settle(self.lease, settlements)
        del self._executor.outcomes[: len(outcomes)]
        lost = len(won) < len(settlements)  # rare, so the ids are looked up only then
        self._journal.note_ends(zip((job for job, _ in outcomes), settlements, strict=True), won if lost else None)
        for (job, _), settlement in zip(outcomes, settlements, strict=True):
            if lost and settlement.id not in won:
                log_event("job.lost", logging.WARNING, job=job_id(job.id), function=job.function, lease=self.lease)
            elif job.ending is not None:  # a failed on_complete was told when it raised
                if job.failed is not None:
                    self._journal.note_failure(job, settlement)
            elif settlement.event is JobEvent.HANDED_BACK:
                self._store.signals.notify()  # another process may run it
            elif settlement.error is not None and settlement.event not in {JobEvent.SNOOZED, JobEvent.SKIPPED}:
                self._journal.note_failure(job, settlement)
        return won

    # ----- claim and run

    async def _settle_and_claim(self) -> float:
        """Settle the ended jobs and claim more, at the same time if neither depends on the other."""
        outcomes, held = self._executor.outcomes, self._executor.held
        if not outcomes and not held:
            return await self._claim()
        if self._claim_unknown or held or not all(_has_plainly_ended(job, outcome) for job, outcome in outcomes):
            await self._settle_outcomes()
            return await self._claim()
        of_tasks = any(job.options.task is not None for job, _ in outcomes)
        settling, claiming = await asyncio.gather(self._settle_ended(), self._claim(), return_exceptions=True)
        for answer in (settling, claiming):
            if isinstance(answer, BaseException):
                raise answer
        pause = cast("float", claiming)
        return min(pause, _AFTER_TASKS) if of_tasks else pause  # rows that changed meanwhile run again

    async def _claim(self) -> float:
        lease, free, executor = self.lease, self._executor.free, self._executor
        if lease is None or self._stopping:
            return self._poll
        known, now = self._engine.known, self.clock.monotonic()
        if now - self._learned_at >= _PROGRAMS_EVERY:
            known.learn(await self._store.programs.list())
            self._learned_at = now
        self._store.jobs.leave(known.exclusions(now, self._engine.functions_held_here()))
        if free > 0 and not executor.running and self._slots.may_wait:
            return await self._claim_first(lease, free)
        again = await self._slots.balance(lease, max(0, free), executor.busy, draining=self._draining)
        if free <= 0:
            await self._housekeeping.cancel()
            return min(self._poll, again)
        return await self._claim_into(lease, free, again)

    async def _claim_first(self, lease: int, free: int) -> float:
        """Claim with the present slots and balance them afterwards, so that an idle worker starts jobs sooner."""
        had = self._slots.numbers()
        pause = await self._claim_into(lease, free, math.inf)
        self._executor.start()
        left = max(0, self._executor.free)
        again = await self._slots.balance(lease, left, self._executor.busy, draining=self._draining)
        return min(pause, again) if self._slots.numbers() == had else 0.0

    async def _claim_into(self, lease: int, free: int, again: float) -> float:
        executor = self._executor
        if self._claim_unknown:
            await self._adopt(lease)
        self._claim_unknown = True  # until the answer has come
        asked = min(free, executor.piece)
        rooms = self._slots.rooms(free, executor.busy)
        if self._engine.scope.runs_pool(DEFAULT_POOL):
            rooms.insert(0, Room(DEFAULT_POOL, free, running=executor.busy[DEFAULT_POOL]))
        rooms.sort(key=executor.last_turn)
        machine = self._engine.machine
        since = machine.monotonic()
        self._permits = {
            room.pool: Permit(self._store, machine, room.pool, room.epoch, since, partial(self._holds, lease))
            for room in rooms
            if room.epoch is not None
        }
        claim = await self._store.jobs.claim(lease, asked, rooms, self.clock.now())
        self._draining = len(claim.jobs) == asked
        limited = None if claim.again is None else self.clock.now() + claim.again  # by a rate limit
        self.next_run_at = min((at for at in (claim.next_run_at, limited) if at is not None), default=None)
        if points.armed and claim.jobs:
            await points.reach("worker.claimed", jobs=claim.jobs)
        kinds = {(job.function, job.options.program, job.options.task is not None) for job in claim.jobs}
        if any(self._engine.known.is_new(function, program) for function, program, _ in kinds):
            self._engine.known.learn(await self._store.programs.list())
        if any(of_task for _, _, of_task in kinds):
            self._engine.pauses.learn(await self._store.tasks.list_held(self.clock.now()))
        self._add(claim.jobs, lease)
        self._claim_unknown = False
        again = min(again, self._engine.pauses.seconds_here(self.clock.now()))
        if claim.cancels and await self._housekeeping.cancel():
            return 0.0
        if claim.promoted and len(claim.jobs) < asked:
            return 0.0  # pools may want more slots for the promoted jobs
        if len(claim.jobs) == asked:  # once all places are taken, the first job to end wakes this worker
            return 0.0 if asked < free else min(self._poll, again)
        if self.next_run_at is not None:
            again = min(again, max(0.0, (self.next_run_at - self.clock.now()).total_seconds()))
        return min(self._poll, again)

    def _holds(self, lease: int) -> bool:
        """Whether this lease cannot have been taken over yet."""
        return self._lease.number == lease and self.clock.monotonic() < self._lease.stop_at

    async def _adopt(self, lease: int) -> None:
        """Start jobs of a claim whose answer was lost."""
        ended = [job for job, _ in self._executor.outcomes]
        known = {*self.running, *(job.id for job in (*ended, *self._executor.held))}
        for job in await self._store.leases.jobs(lease):
            if job.id not in known:
                log_event("job.adopted", logging.WARNING, job=job_id(job.id), function=job.function, lease=lease)
                self._add([job], lease)

    def _add(self, jobs: Sequence[Job], lease: int) -> None:
        self._executor.add(jobs, lease, self._permits)
        self.on_claimed(jobs)


def _has_plainly_ended(job: Job, outcome: Outcome) -> bool:
    """Whether its settlement makes no job ready and lets none pass a gate."""
    plain = job.on_complete is None and job.options.concurrency_key is None
    return plain and outcome.event is JobEvent.RETURNED
