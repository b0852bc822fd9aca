"""The worker: claims jobs under a lease, runs them, and settles them in batches. Any number may run on one database.

Owns its lease and the jobs that run under it. Leaves what a job's end means to `jobs/settle`, and running one to
`calls/job`. A worker that cannot renew its lease stops its jobs before the lease ends; any worker takes over the jobs
of leases that have run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from penstock.calls.batch import Batches
from penstock.calls.group import Groups
from penstock.calls.job import Running, failure, interrupted, run_job
from penstock.calls.run import Runner
from penstock.errors import DatabaseUnavailable, TryAgain
from penstock.functions.function import FunctionKind
from penstock.jobs.job import DEFAULT_POOL, Job, Outcome, job_id
from penstock.jobs.progress import Progress
from penstock.jobs.settle import settle
from penstock.jobs.states import JobEvent
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.services.others import Others
from penstock.services.outside import Outside
from penstock.services.progress import Heard
from penstock.services.reports import Reports
from penstock.services.service import Service
from penstock.services.slots import Slots
from penstock.store.contract import Claim, Room

# Parts of the setting `lease`, which bounds the time from a worker's death to the take-over of its jobs.
_HOLDS_PART = 0.75
_RENEW_PART = 0.25
_STOP_PART = 0.6
_TICK_PART = 0.25
_END_PART = 0.1
_AGAIN_PART = 0.1


class Worker(Service):
    """Runs jobs.

    Args:
        runner: Runs functions.
        name: How this worker is called in its lease.
        jobs: How many jobs it runs at once.
        pools: Names of the pools with a limit that its program declares.

    Attributes:
        lease: The number of its lease, while it has one.
        running: The jobs it runs.
        next_run_at: When more jobs were to start, at its last look: scheduled ones, or those that a rate limit keeps.
    """

    name = "worker"

    def __init__(self, runner: Runner, name: str, jobs: int, pools: Sequence[str] = ()) -> None:
        super().__init__(runner.engine.clock)
        self.lease: int | None = None
        self.running: dict[UUID, Running] = {}
        self.next_run_at: datetime | None = None
        self._runner = runner
        self._store = runner.engine.store
        self._label = name
        self._jobs = jobs
        self._bound = runner.engine.config.lease
        self._ttl = timedelta(seconds=self._bound * _HOLDS_PART)
        self._poll = runner.engine.config.poll
        self._renewed_at = 0.0
        self._outcomes: list[tuple[Job, Outcome]] = []
        self._astray = False
        self._slots = Slots(self._store, self.clock, pools)
        self._busy: Counter[str] = Counter()
        self._journal = runner.engine.journal
        self._journal.watch(self._busy, self._slots.held)
        self._reports = Reports(self._journal, self._store, self.clock)
        # Attempts that go on though their jobs were ended from outside, and begun anew.
        self._overtaken: list[Running] = []
        self._heard = Heard(self._store, self.clock)
        self._outside = Outside(runner)
        self._others = Others(runner, self._outside)
        self._batches = Batches(runner, self._end_job)
        self._groups = Groups(runner, self._end_job, self._start_alone)

    async def tick(self) -> float:
        """Keep the lease, settle what has ended, claim and start what may run."""
        await self._keep_lease()
        try:
            async with asyncio.timeout(self._bound * _TICK_PART):  # by then the lease is to be renewed again
                await self._others.look_after(self.lease)
                await self._reports.tell(self._busy)
                await self._heard.write(self.lease)
                pause = await self._settle_and_claim()  # comes last: who ticks sees what was started by it
        except TimeoutError as error:
            raise DatabaseUnavailable("The database did not answer in time to find work.") from error
        return min(pause, self._until_renewal(), self._heard.due())

    async def finish(self) -> None:
        """Let running jobs end within the grace time, hand back the others, and give the lease back."""
        if grace := self._runner.engine.grace_left():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._wait_for_jobs()
        stopped = await self._end_jobs()
        self._outcomes += [(running.job, running.outcome) for running in stopped if running.outcome is not None]
        ended: Counter[JobEvent] = Counter()
        try:
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
        await super().kill()
        await self._stop_jobs()

    @property
    def unsettled(self) -> int:
        """How many jobs have ended and are not settled yet."""
        return len(self._outcomes)

    # ----- the lease

    async def _keep_lease(self) -> None:
        now = self.clock.monotonic()
        if self.lease is None:
            self.lease = await self._store.leases.take(self._label, self._ttl, self.clock.now())
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

    async def _wait_for_jobs(self) -> None:
        """Wait until no job runs, settling those that end; the lease is kept meanwhile."""
        while self.running:
            tasks = [running.task for running in self.running.values()]
            await asyncio.wait(tasks, timeout=self._until_renewal(), return_when=asyncio.FIRST_COMPLETED)
            try:
                await self._keep_lease()
                await self._heard.write(self.lease)
                await self._settle_outcomes()
            except TryAgain as error:
                log_event("worker.not_settled", logging.WARNING, lease=self.lease, error=error)

    async def _stop_jobs(self) -> None:
        # What becomes of them is nothing to this worker any more.
        self._outcomes.clear()
        await self._end_jobs()

    async def _end_jobs(self) -> list[Running]:
        """Stop all jobs; these. Nobody waits for long for one that does not let itself be stopped."""
        ours, self.running = list(self.running.values()), {}
        stopped, self._overtaken = ours + self._overtaken, []
        self._groups.clear()
        self._busy.clear()
        self._heard.clear()
        for running in stopped:
            running.stopped, running.outcome = True, interrupted(running)
            running.task.cancel()
        if stopped:
            _, deaf = await asyncio.wait([running.task for running in stopped], timeout=self._bound * _END_PART)
            if deaf:
                log_event("worker.jobs_do_not_stop", logging.WARNING, lease=self.lease, jobs=len(deaf))
        return ours

    # ----- settle

    async def _settle_outcomes(self) -> set[UUID]:
        """Settle the jobs that have ended or go on without a worker; those that ended and were still this worker's."""
        await self._hold_outcomes()
        return await self._settle_ended()

    async def _hold_outcomes(self) -> None:
        """Let jobs that an outside system will complete go from this worker, and their slots with them."""
        held = {job.id: job for job, outcome in self._outcomes if outcome.event is JobEvent.HELD}
        if not held or self.lease is None:
            return
        await self._heard.write(self.lease, at_once=True)
        await self._outside.hold(self.lease, list(held.values()))
        self._outcomes = [(job, outcome) for job, outcome in self._outcomes if job is not held.get(job.id)]
        self._busy.subtract(job.pool for job in held.values())
        self._slots.recount()

    async def _settle_ended(self) -> set[UUID]:
        outcomes = [pair for pair in self._outcomes if pair[1].event is not JobEvent.HELD]
        self._outcomes = [pair for pair in self._outcomes if pair[1].event is JobEvent.HELD]
        if not outcomes or self.lease is None:
            return set()
        now, chance, kept = self.clock.now(), self.clock.random, self._runner.engine.keep
        settlements = [settle(job, outcome, now, chance(), kept) for job, outcome in outcomes]
        try:
            won = await self._store.jobs.settle(self.lease, settlements)
        except BaseException:
            self._outcomes = outcomes + self._outcomes
            raise
        self._journal.settled(zip((job for job, _ in outcomes), settlements, strict=True), won)
        for settlement in settlements:
            if settlement.id not in won:
                log_event("job.lost", logging.WARNING, job=job_id(settlement.id), lease=self.lease)
            elif settlement.error is not None and settlement.event is not JobEvent.SNOOZED:
                log_event("job.failed", logging.WARNING, job=job_id(settlement.id), error=settlement.error)
        return won

    # ----- claim and run

    async def _settle_and_claim(self) -> float:
        """Settle what has ended, and claim more; beside each other where neither depends on the other."""
        if not self._outcomes:
            return await self._claim()
        if self._astray or not all(_has_plainly_ended(job, outcome) for job, outcome in self._outcomes):
            await self._settle_outcomes()
            return await self._claim()
        settling, claiming = await asyncio.gather(self._settle_ended(), self._claim(), return_exceptions=True)
        for answer in (settling, claiming):
            if isinstance(answer, BaseException):
                raise answer
        return cast("float", claiming)

    async def _claim(self) -> float:
        """Claim as many jobs as may start, and start them; seconds until the next look."""
        lease, free = self.lease, self._jobs - len(self.running) - len(self._overtaken)
        if lease is None or self._stopping:
            return self._poll
        again = await self._slots.balance(lease, max(0, free), self._busy)
        if free <= 0:
            await self._others.cancel(self.running, self._batches)
            return min(self._poll, again)
        if self._astray:
            await self._adopt(lease)
        self._astray = True  # until its answer has come
        rooms = [Room(DEFAULT_POOL, free), *self._slots.rooms(free, self._busy)]
        claim = await self._store.jobs.claim(lease, free, rooms, self.clock.now())
        self.next_run_at = self._next_of(claim)
        if points.armed and claim.jobs:
            await points.reach("worker.claimed", jobs=claim.jobs)
        self._start_jobs(claim.jobs, lease)
        self._astray = False
        if claim.cancels and await self._others.cancel(self.running, self._batches):
            return 0.0
        if claim.promoted and len(claim.jobs) < free:
            return 0.0  # of what is ready now, pools may want more slots
        if len(claim.jobs) == free:
            return min(self._poll, again)  # all places are taken: the first job to end wakes this worker
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
        known = {*self.running, *(job.id for job, _ in self._outcomes)}
        for job in await self._store.leases.jobs(lease):
            if job.id not in known:
                log_event("job.adopted", logging.WARNING, job=job_id(job.id), function=job.function, lease=lease)
                self._start_jobs([job], lease)

    def _start_jobs(self, jobs: Sequence[Job], lease: int) -> None:
        """Start jobs: several mutations in shared transactions, calls of batch functions together."""
        self._journal.started(jobs)
        sharing: list[Job] = []
        find = self._runner.engine.registry.find
        for job in jobs:
            function = None if job.ending is not None else find(job.function)
            if function is None:
                self._start_job(job, lease)
            elif function.kind is FunctionKind.MUTATION and self._groups.takes(job, function):
                sharing.append(job)
            elif function.batch is not None:
                self._batches.add(function, function.batch, self._note_running(job, lease))
            else:
                self._start_job(job, lease)
        if len(sharing) == 1:
            self._start_job(sharing[0], lease)
        elif sharing:
            self._groups.add([self._note_running(job, lease) for job in sharing])
        if len(self.running) >= self._jobs:
            self._batches.hurry()

    def _start_job(self, job: Job, lease: int) -> None:
        self._start_alone(self._note_running(job, lease))

    def _start_alone(self, running: Running) -> None:
        running.task = asyncio.get_running_loop().create_task(self._run_job(running))

    def _note_running(self, job: Job, lease: int) -> Running:
        running = Running(job, lease, lambda progress: self._note(running, progress))
        if (older := self.running.get(job.id)) is not None:
            self._overtaken.append(older)
        self._heard.forget(job.id)
        self.running[job.id] = running
        self._busy[job.pool] += running.needs_slot
        return running

    def _note(self, running: Running, progress: Progress) -> None:
        """A job says how far it has come."""
        if self.running.get(running.job.id) is running and self._heard.note(running.job.id, progress):
            self.wake.set()

    async def _run_job(self, running: Running) -> None:
        running.begun, begun = True, self.clock.monotonic()
        outcome: Outcome | None
        try:
            outcome = await run_job(self._runner, running)
        except BaseException as error:
            if running.stopped and isinstance(error, asyncio.CancelledError):
                raise
            outcome = failure(error)
        if running.needs_slot:
            self._journal.ran(running.job, self.clock.monotonic() - begun)
        await self._end_job(running, outcome)

    async def _end_job(self, running: Running, outcome: Outcome | None) -> None:
        job = running.job
        if points.armed:
            await points.reach("worker.outcome", job=job, outcome=outcome)
        if running.stopped:
            running.outcome = outcome
            return
        if self.running.get(job.id) is running:
            del self.running[job.id]
            if outcome is None or outcome.event is not JobEvent.HELD:
                self._heard.forget(job.id)
        else:
            self._overtaken, outcome = [one for one in self._overtaken if one is not running], None
        if outcome is not None:
            self._outcomes.append((job, outcome))
        if outcome is None or outcome.event is not JobEvent.HELD:  # which is busy until its slot has gone with it
            self._busy[job.pool] -= running.needs_slot
        self.wake.set()


def _has_plainly_ended(job: Job, outcome: Outcome) -> bool:
    """Whether settling a job makes no other one ready, nor itself again, nor lets another one pass a gate."""
    plain = job.on_complete is None and job.options.concurrency_key is None
    return plain and outcome.event is JobEvent.RETURNED
