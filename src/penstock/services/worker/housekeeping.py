"""Housekeeping that any worker does for all: ends overdue jobs, carries out cancels, wakes runs of workflows.

The worker that comes first does it; the others find nothing left. Jobs that an external system will complete run on no
worker, so any worker ends overdue or canceled ones.
"""

from __future__ import annotations

import math
from functools import partial

from penstock.calls.enqueue.tokens import settle_held
from penstock.calls.journal import tell_of_broken
from penstock.calls.run.runner import FunctionCalls
from penstock.jobs.job import Job, Settlement
from penstock.jobs.settle import cancel_anyhow
from penstock.services.worker.executor import Executor

_CANCELS_AT_ONCE = 1000
_EXTERNAL_AT_ONCE = 100
_REFUSED_EVERY = 30.0


class Housekeeping:
    """The housekeeping of one worker."""

    def __init__(self, runner: FunctionCalls, executor: Executor) -> None:
        self._runner = runner
        self._store = runner.engine.store
        self._executor = executor
        self._retry_at = -math.inf

    async def end_overdue(self) -> None:
        """End jobs that no external system has completed in time."""
        now, settle = self._runner.now(), partial(settle_held, self._runner, "expired")
        self._tell_of_free_slots(await self._store.tokens.expire(now, _EXTERNAL_AT_ONCE, settle))

    async def cancel(self) -> bool:
        """Carry out requests to cancel, and wake runs; whether a job has ended by that, or a run goes on."""
        engine, now = self._runner.engine, self._runner.now()
        canceled: list[tuple[Job, Settlement]] = []

        def decide(jobs: list[Job]) -> list[Settlement]:
            canceled[:] = [(job, cancel_anyhow(job, now, engine.keep, tell_of_broken)) for job in jobs]
            return [settlement for _, settlement in canceled]

        asked = await self._store.jobs.cancel_pending(now, _CANCELS_AT_ONCE, decide)
        ours, ended = self._executor.cancel(asked), 0
        engine.journal.note_ends(canceled)
        if ours < len(asked):  # others run on other workers, or on none
            settle = partial(settle_held, self._runner, "canceled")
            ended = await self._store.tokens.cancel(self._runner.now(), _EXTERNAL_AT_ONCE, settle)
            self._tell_of_free_slots(ended)
        return bool(canceled) or ended > 0 or await self.wake()

    async def wake(self) -> bool:
        """Let runs of workflows go on for which something new is there; whether any of them slept."""
        if not self._runner.engine.registry.workflows:
            return False
        moved, running = await self._store.workflows.wake(self._runner.now())
        self._executor.wake(running)
        return moved > 0

    async def let_retry(self) -> None:
        """Let runs of workflows go on from time to time that other code than this has refused."""
        registry, second = self._runner.engine.registry, self._runner.engine.clock.monotonic()
        if registry.workflows and second >= self._retry_at:
            self._retry_at = second + _REFUSED_EVERY
            await self._store.workflows.let_retry(registry.workflows, registry.fingerprint, self._runner.now())

    def _tell_of_free_slots(self, ended: int) -> None:
        if ended:
            self._store.signals.notify()
