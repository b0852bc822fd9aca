"""The worker: claims jobs under a lease, runs them, and settles them in batches. Any number may run on one database.

Owns its lease and the jobs that run under it. `jobs/settle` decides about a job's end; `calls/jobs/job` runs one. A
worker that cannot renew its lease stops its jobs before the lease ends; any worker takes over an expired lease's jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from penstock.calls.jobs.permit import Permit
from penstock.calls.journal import tell_of_broken
from penstock.calls.run.runner import Runner
from penstock.calls.run.running import Running
from penstock.errors import DatabaseUnavailable, TryAgain
from penstock.jobs.job import DEFAULT_POOL, Job, Outcome, job_id
from penstock.jobs.settle import settle_anyhow
from penstock.jobs.states import JobEvent
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.services.service import Service
from penstock.services.worker.executor import UnderWay
from penstock.services.worker.external import Outside
from penstock.services.worker.housekeeping import Others
from penstock.services.worker.progress import Heard
from penstock.services.worker.reports import Reports
from penstock.services.worker.slots import Slots
from penstock.store.contract.jobs import Claim, Room

# Parts of the setting `lease`, which bounds the time from a worker's death to the take-over of its jobs.
_HOLDS_PART = 0.75
_RENEW_PART = 0.25
_STOP_PART = 0.6
_TICK_PART = 0.25
_END_PART = 0.1
_AGAIN_PART = 0.1
_AFTER_TASKS = 0.02
_AT_ONCE = 2  # statements: it settles what has ended while it claims


class Worker(Service):
    """Runs jobs.

    Args:
        runner: Runs functions.
        name: How this worker is called in its lease.
        jobs: How many jobs it runs at once.
        pools: Names of the pools with a limit that its program declares.

    Attributes:
        lease: The number of its lease, while it has one.
        next_run_at: When more jobs were to start, at its last look: scheduled ones, or those that a rate limit keeps.
        on_claimed: Is told of the jobs that it is about to run.
        prepared: How many connections it makes ready to claim before it begins.
    """

    name = "worker"

    def __init__(self, runner: Runner, name: str, jobs: int, pools: Sequence[str] = ()) -> None:
        super().__init__(runner.engine.clock)
        self.lease: int | None = None
        self.next_run_at: datetime | None = None
        self._runner = runner
        self._store = runner.engine.store
        self._label = name
        self._bound = runner.engine.config.lease
        self._ttl = timedelta(seconds=self._bound * _HOLDS_PART)
        self._poll = runner.engine.config.poll
        self._renewed_at = 0.0
        self._astray = False
        self._few_from = 0.0
        self._permits: dict[str, Permit] = {}
        self._slots = Slots(self._store, self.clock, pools)
        self._heard = Heard(self._store, self.clock)
        self._under_way = UnderWay(runner, jobs, self._heard, self.wake.set)
        self._journal = runner.engine.journal
        self.prepared = _AT_ONCE
        self.on_claimed: Callable[[Sequence[Job]], None] = self._journal.started
        self._journal.watch(self._under_way.busy, self._slots.held)
        self._reports = Reports(self._journal, self._store, self.clock)
        self._outside = Outside(runner)
        self._others = Others(runner, self._outside)

    async def tick(self) -> float:
        """Keep the lease, settle what has ended, claim and start what may run."""
        await self._keep_lease()
        try:
            async with asyncio.timeout(self._bound * _TICK_PART):  # by then the lease is to be renewed again
                await self._others.look_after(self.lease)
                await self._reports.tell(self._under_way.busy)
                await self._heard.write(self.lease)
                await self._runner.engine.holds.write(self._store)
                await self._runner.engine.holds.look_again(self._store, self.clock.now())
                try:
                    pause = await self._settle_and_claim()  # comes last: who ticks sees what was started by it
                finally:
                    self._under_way.start()
        except TimeoutError as error:
            raise DatabaseUnavailable("The database did not answer in time to find work.") from error
        return min(pause, self._until_renewal(), self._heard.due())

    async def finish(self) -> None:
        """Let running jobs end within the grace time, hand back the others, and give the lease back."""
        if grace := self._runner.engine.grace_left():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._let_jobs_end()
        stopped = await self._under_way.stop(self._bound * _END_PART)
        ended: Counter[JobEvent] = Counter()
        try:
            stopped = await self._known(stopped)
            self._under_way.outcomes += [(one.job, one.outcome) for one in stopped if one.outcome is not None]
            won = await self._settle_outcomes()
            ended.update(one.outcome.event for one in stopped if one.outcome is not None and one.job.id in won)
            if self.lease is not None:
                await self._store.leases.give_back(self.lease)
        except TryAgain as error:
            log_event("worker.not_settled", logging.WARNING, lease=self.lease, error=error)
        if stopped:
            self._store.signals.notify()
        handed_back, lost = ended[JobEvent.HANDED_BACK], ended[JobEvent.LOST]
        log_event("worker.stopped", lease=self.lease, handed_back=handed_back, lost=lost)
        self.lease = None
        self._slots.forget()

    async def _guarded_tick(self) -> float:
        """A tick; after one that failed the worker is back in time to renew its lease."""
        pause = await super()._guarded_tick()
        if self.lease is None:
            return pause
        return min(pause, max(self._until_renewal(), self._bound * _AGAIN_PART))

    async def kill(self) -> None:
        """End at once and leave everything as it is, as a crash does."""
        await asyncio.gather(super().kill(), self._stop_jobs())

    @property
    def unsettled(self) -> int:
        """How many jobs have ended and are not settled yet."""
        return len(self._under_way.outcomes)

    @property
    def running(self) -> Mapping[UUID, Running]:
        """The jobs it runs, by id."""
        return self._under_way.running

    async def wait_for_jobs(self) -> None:
        """Wait until all jobs have ended that run now; they are settled by the next tick."""
        await self._under_way.wait()

    # ----- the lease

    async def _keep_lease(self) -> None:
        now = self.clock.monotonic()
        if self.lease is None:
            take = self._store.leases.take(self._label, self._ttl, self.clock.now())
            self.lease, _ = await asyncio.gather(take, self._store.jobs.prepare(self.prepared))
            self._renewed_at, self._astray = now, False
            log_event("worker.started", lease=self.lease, worker=self._label)
            return
        if now - self._renewed_at < self._bound * _RENEW_PART:
            return
        try:
            left = self._renewed_at + self._bound * _STOP_PART - now
            # Who is late (the process was suspended, or busy) still tries: perhaps nobody has taken over.
            held = await self._renew(self.lease, max(left, self._bound * _END_PART) if self.running else self._bound)
        except TryAgain:
            if self.clock.monotonic() - self._renewed_at >= self._bound * _STOP_PART:
                await self._lose_lease("it could not be renewed in time")
            raise
        if held:
            self._renewed_at, self._astray = now, True
        else:
            await self._lose_lease("another worker took it over")

    async def _renew(self, lease: int, seconds: float) -> bool:
        """Renew the lease, while there is time to stop the jobs before it ends; False if it was lost."""
        try:
            async with asyncio.timeout(seconds):
                if points.armed:
                    await points.reach("lease.renew", lease=lease)
                await self._store.synchronize()
                await self._runner.engine.learn_order()
                return await self._store.leases.renew(lease, self._ttl, self.clock.now())
        except TimeoutError as error:
            raise DatabaseUnavailable("The database did not answer in time to renew a lease.") from error

    def _until_renewal(self) -> float:
        return max(0.01, self._renewed_at + self._bound * _RENEW_PART - self.clock.monotonic())

    async def _lose_lease(self, reason: str) -> None:
        log_event("worker.lease_lost", logging.ERROR, lease=self.lease, reason=reason, jobs=len(self.running))
        await self._stop_jobs()
        self.lease = None
        self._slots.forget()

    # ----- the end of jobs

    async def _let_jobs_end(self) -> None:
        """Wait until no job runs, settling those that end; the lease is kept meanwhile."""
        while self.running:
            await self._under_way.wait_for_one(self._until_renewal())
            try:
                await self._keep_lease()
                await self._heard.write(self.lease)
                await self._settle_outcomes()
            except TryAgain as error:
                log_event("worker.not_settled", logging.WARNING, lease=self.lease, error=error)

    async def _stop_jobs(self) -> None:
        # What becomes of them is nothing to this worker any more.
        self._under_way.outcomes.clear()
        await self._under_way.stop(self._bound * _END_PART)

    async def _known(self, stopped: list[Running]) -> list[Running]:
        """Of jobs that were stopped those of which it is known whether they are done, though their handlers said so.

        Of the others a transaction has not ended yet. They are left to whoever takes over.
        """
        doubtful = [one.job.id for one in stopped if one.doubtful]
        if not doubtful or self.lease is None:
            return stopped
        marked = await self._store.tasks.marked(self.lease, doubtful)
        for one in stopped:
            one.job.marked |= bool(marked.get(one.job.id))
        return [one for one in stopped if marked.get(one.job.id, False) is not None]

    # ----- settle

    async def _settle_outcomes(self) -> set[UUID]:
        """Settle the jobs that have ended or go on without a worker; those that ended and were still this worker's."""
        await self._hold_outcomes()
        return await self._settle_ended()

    async def _hold_outcomes(self) -> None:
        """Let jobs that an outside system will complete go from this worker, and their slots with them."""
        outcomes = self._under_way.outcomes
        held = {job.id: job for job, outcome in outcomes if outcome.event is JobEvent.HELD}
        if not held or self.lease is None:
            return
        await self._heard.write(self.lease, at_once=True)
        await self._outside.hold(self.lease, list(held.values()))
        outcomes = self._under_way.outcomes
        self._under_way.outcomes = [(job, outcome) for job, outcome in outcomes if job is not held.get(job.id)]
        self._under_way.busy.subtract(job.pool for job in held.values())
        self._slots.recount()

    async def _settle_ended(self) -> set[UUID]:
        outcomes = [pair for pair in self._under_way.outcomes if pair[1].event is not JobEvent.HELD]
        if not outcomes or self.lease is None:
            self._under_way.outcomes = [pair for pair in self._under_way.outcomes if pair[1].event is JobEvent.HELD]
            return set()
        now, chance, kept = self.clock.now(), self.clock.random, self._runner.engine.keep
        settlements = [settle_anyhow(job, outcome, now, chance(), kept, tell_of_broken) for job, outcome in outcomes]
        won = await self._store.jobs.settle(self.lease, settlements)
        done = set(map(id, outcomes))
        self._under_way.outcomes = [pair for pair in self._under_way.outcomes if id(pair) not in done]
        lost = len(won) < len(settlements)  # rare; ids of all others need not be looked up
        self._journal.settled(zip((job for job, _ in outcomes), settlements, strict=True), won if lost else None)
        for (job, _), settlement in zip(outcomes, settlements, strict=True):
            if lost and settlement.id not in won:
                log_event("job.lost", logging.WARNING, job=job_id(job.id), function=job.function, lease=self.lease)
            elif job.ending is not None:  # of its on_complete was told when it raised
                if job.failed is not None:
                    self._journal.failed(job, settlement)
            elif settlement.error is not None and settlement.event not in {JobEvent.SNOOZED, JobEvent.SKIPPED}:
                self._journal.failed(job, settlement)
        return won

    # ----- claim and run

    async def _settle_and_claim(self) -> float:
        """Settle what has ended, and claim more; beside each other where neither depends on the other."""
        if not self._under_way.outcomes:
            return await self._claim()
        if self._astray or not all(_has_plainly_ended(job, outcome) for job, outcome in self._under_way.outcomes):
            await self._settle_outcomes()
            return await self._claim()
        of_tasks = any(job.options.task is not None for job, _ in self._under_way.outcomes)
        settling, claiming = await asyncio.gather(self._settle_ended(), self._claim(), return_exceptions=True)
        for answer in (settling, claiming):
            if isinstance(answer, BaseException):
                raise answer
        pause = cast("float", claiming)
        return min(pause, _AFTER_TASKS) if of_tasks else pause  # rows that have changed meanwhile are to be run again

    async def _claim(self) -> float:
        """Claim jobs that may start; seconds until the next look."""
        lease, free = self.lease, self._under_way.free
        if lease is None or self._stopping:
            return self._poll
        if free > 0 and not self._under_way.running and self._slots.may_wait:
            return await self._claim_first(lease, free)
        again = await self._slots.balance(lease, max(0, free), self._under_way.busy)
        if free <= 0:
            await self._others.cancel(self.running, self._under_way.batches)
            return min(self._poll, again)
        early = self._few_from - self.clock.monotonic()
        if early > 0 and self._under_way.is_nearly_full:
            return min(self._poll, again, early)
        return await self._claim_into(lease, free, again)

    async def _claim_first(self, lease: int, free: int) -> float:
        """Claim with the slots it has, as who was idle does so that jobs start sooner, and then see to the slots."""
        had = self._slots.held()
        pause = await self._claim_into(lease, free, math.inf)
        self._under_way.start()
        again = await self._slots.balance(lease, max(0, self._under_way.free), self._under_way.busy)
        return min(pause, again) if self._slots.held() == had else 0.0

    async def _claim_into(self, lease: int, free: int, again: float) -> float:
        """Claim jobs for the places that are free; seconds until the next look."""
        if self._astray:
            await self._adopt(lease)
        self._astray, began = True, self.clock.monotonic()  # until its answer has come
        asked = min(free, self._under_way.piece)
        busy = self._under_way.busy
        rooms = [Room(DEFAULT_POOL, free, running=busy[DEFAULT_POOL]), *self._slots.rooms(free, busy)]
        rooms.sort(key=self._under_way.last_turn)
        machine = self._runner.engine.machine
        since = machine.monotonic()
        self._permits = {
            room.pool: Permit(self._store, machine, room.pool, room.epoch, since)
            for room in rooms
            if room.epoch is not None
        }
        claim = await self._store.jobs.claim(lease, asked, rooms, self.clock.now())
        self.next_run_at = self._next_of(claim)
        if points.armed and claim.jobs:
            await points.reach("worker.claimed", jobs=claim.jobs)
        if any(job.options.task is not None for job in claim.jobs):
            self._runner.engine.holds.learn(await self._store.tasks.held(self.clock.now()))
        self._under_way.add(claim.jobs, lease, self._permits)
        self.on_claimed(claim.jobs)
        self._astray, now = False, self.clock.monotonic()
        self._few_from = now + (now - began)  # a claim for few costs as much as one for many, so it may wait as long
        if claim.cancels and await self._others.cancel(self.running, self._under_way.batches):
            return 0.0
        if claim.promoted and len(claim.jobs) < asked:
            return 0.0  # of what is ready now, pools may want more slots
        if len(claim.jobs) == asked:  # once all places are taken, the first job to end wakes this worker
            return 0.0 if asked < free else min(self._poll, again)
        if self.next_run_at is not None:
            again = min(again, max(0.0, (self.next_run_at - self.clock.now()).total_seconds()))
        return min(self._poll, again)

    def _next_of(self, claim: Claim) -> datetime | None:
        """When more jobs may start: the next that is scheduled, or one that a rate limit keeps."""
        if claim.again is None:
            return claim.next_run_at
        again = self.clock.now() + claim.again
        return again if claim.next_run_at is None else min(again, claim.next_run_at)

    async def _adopt(self, lease: int) -> None:
        """Start jobs that a claim has put under the lease although this worker never had its answer."""
        known = {*self.running, *(job.id for job, _ in self._under_way.outcomes)}
        for job in await self._store.leases.jobs(lease):
            if job.id not in known:
                log_event("job.adopted", logging.WARNING, job=job_id(job.id), function=job.function, lease=lease)
                self._under_way.add([job], lease, self._permits)
                self.on_claimed([job])


def _has_plainly_ended(job: Job, outcome: Outcome) -> bool:
    """Whether settling a job makes no other one ready, nor itself again, nor lets another one pass a gate."""
    plain = job.on_complete is None and job.options.concurrency_key is None
    return plain and outcome.event is JobEvent.RETURNED
