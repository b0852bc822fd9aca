"""The scheduler: enqueues a job for each cron that is due. Any number of processes run one.

`crons/cron` decides which planned time runs, while the store locks the cron. The decision and the job are written in
one transaction, so each time is decided once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from penstock.calls.run.runner import FunctionCalls
from penstock.crons.cron import Decision, decide
from penstock.crons.plan import KeptCron
from penstock.dataclass import dataclass
from penstock.errors import PenstockError
from penstock.jobs.job import job_id
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.services.service import Service
from penstock.store.nouns.crons import CronMove, CronScope, run_of

_AT_ONCE = 100
_SOON = 0.05
_LEAST = 0.25  # between looks that only a signal asks for: signals come with every job
_SYNCHRONIZE_EVERY = 30.0
_LATER = timedelta(minutes=1)  # until the next look at an unreadable cron


@dataclass(frozen=True, slots=True)
class _Decision:
    """The decision about a cron, which is logged once it is committed."""

    name: str
    move: CronMove | None = None
    turn: Decision | None = None
    error: Exception | None = None

    def tell(self) -> None:
        if self.error is not None:
            log_event("cron.unreadable", logging.ERROR, cron=self.name, error=self.error)
        for skip in self.turn.skips if self.turn is not None else ():
            first, last, reason = skip.first, skip.last, skip.reason
            log_event("cron.skipped", logging.WARNING, cron=self.name, first=first, last=last, reason=reason)
        if self.move is not None and self.move.job is not None:
            job, planned_at = job_id(self.move.job.id), self.move.kept.planned_at
            log_event("cron.enqueued", cron=self.name, job=job, planned_at=planned_at)


class CronScheduler(Service):
    """Enqueues the jobs of crons; `scope` are those of its program."""

    name = "scheduler"

    def __init__(self, runner: FunctionCalls, scope: CronScope) -> None:
        super().__init__(runner.engine.clock)
        self.next_at: datetime | None = None  # the next planned time at the last look
        self._store = runner.engine.store
        self._poll = runner.engine.config.poll
        self._scope = scope
        self._synchronized_at = self._looked_at = -1e9
        self._vain = 0

    async def tick(self) -> float:
        self._looked_at = self.clock.monotonic()
        await self._synchronize(_SYNCHRONIZE_EVERY)
        look = await self._store.crons.look(self._scope, self.clock.now())
        self.next_at = look.next_at
        if look.due and await self._decide_on_due():
            self._vain = 0
            return 0.0
        if look.due or look.waiting:  # another scheduler holds it, or its last run goes on
            self._vain += 1
            return min(self._poll, _SOON * 2.0 ** min(self._vain, 10), self._until_next())
        self._vain = 0
        return min(self._poll, self._until_next())

    async def _safe_tick(self) -> float:
        """A tick, unless a signal asks for one a moment after the last look."""
        early = self._looked_at + _LEAST - self.clock.monotonic()
        if early > 0 and not self._vain and self._until_next() > 0:
            return min(early, self._until_next())
        return await super()._safe_tick()

    def _until_next(self) -> float:
        if self.next_at is None:
            return self._poll
        return max(0.0, (self.next_at - self.clock.now()).total_seconds())

    async def _synchronize(self, every: float) -> None:
        """Set the clock by the database's, since one that is fast would begin runs too early."""
        if self.clock.monotonic() - self._synchronized_at >= every:
            await self._store.synchronize()
            self._synchronized_at = self.clock.monotonic()

    # ----- decide

    async def _decide_on_due(self) -> int:
        await self._synchronize(0.0)
        now = self.clock.now()
        decided: list[_Decision] = []

        async def decide(crons: list[tuple[KeptCron, bool]]) -> list[CronMove]:
            decided[:] = [self._decide(kept, now, under_way=under_way) for kept, under_way in crons]
            moves = [decision.move for decision in decided if decision.move is not None]
            if points.armed:
                await points.reach("scheduler.decided", moves=moves)
            return moves

        count = await self._store.crons.decide(self._scope, now, _AT_ONCE, decide)
        if any(decision.move is not None and decision.move.job is not None for decision in decided):
            self._store.signals.notify()
        for decision in decided:
            decision.tell()
        return count

    def _decide(self, kept: KeptCron, now: datetime, *, under_way: bool) -> _Decision:
        """Decide on one cron. An unreadable cron delays no other."""
        name = kept.plan.name
        try:
            cron = kept.plan.cron()
            turn = decide(cron, kept.last_at, now, under_way=under_way)
            if turn is None:
                return _Decision(name)
            return _Decision(name, self._move(kept, turn, None if turn.run is None else cron.begin(turn.run)), turn)
        except (PenstockError, ValueError, LookupError, TypeError) as error:
            return _Decision(name, CronMove(replace(kept, next_at=now + _LATER)), error=error)

    def _move(self, kept: KeptCron, turn: Decision, begin: datetime | None) -> CronMove:
        moved = replace(kept, last_at=turn.last, next_at=turn.next)
        if turn.run is None or begin is None:
            return CronMove(moved)
        job = run_of(kept.plan, turn.run, begin, UUID(int=self.clock.uuid7()))
        return CronMove(replace(moved, job_id=job.id, planned_at=turn.run), job)
