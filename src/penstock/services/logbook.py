"""Writes the logbook: every few seconds what a process has counted and logged, if there is anything.

Owns the times. Once a minute one process also writes how much work waits, if any does. After some writes a process
deletes what is old or too much, since a program without workers has no pruner.
"""

from __future__ import annotations

from datetime import datetime

from penstock.api.outbox.views import look_at
from penstock.calls.run.engine import Engine
from penstock.observe.logbook import Numbers
from penstock.services.service import Service
from penstock.store.nouns.logbook import minute_of

_EVERY = 5.0
_SWEEP_AFTER, _AT_ONCE = 12, 10_000  # writes, and events
_MOST_COUNTED = 10_000  # jobs of a pool or of all tasks, and messages of an outbox


class LogbookWriter(Service):
    """Writes the logbook of a backend. It runs in each process, and its last act is to write what is left."""

    name = "logbook"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.clock)
        self._engine = engine
        self._writes = 0
        self._sampled = minute_of(engine.clock.now())

    async def tick(self) -> float:
        if await self._engine.write_logbook():
            self._writes += 1
            if self._writes % _SWEEP_AFTER == 1:
                await self._engine.store.logbook.prune(self.clock.now(), _AT_ONCE)
        now = self.clock.now()
        if minute_of(now) > self._sampled:
            self._sampled = minute_of(now)
            await self._sample(now)
        return _EVERY

    async def _sample(self, now: datetime) -> None:
        """Write how much work waits, and for how long, unless another process has done so in this minute."""
        logbook = self._engine.store.logbook
        if not await logbook.is_sampled(now) and (found := await self._waiting(now)):
            await logbook.sample(now, found)

    async def _waiting(self, now: datetime) -> Numbers:
        store = self._engine.store
        pools = {f"pool {one.pool}": (one.ready, one.oldest) for one in await store.pools.backlog(_MOST_COUNTED)}
        tasks = {f"task {one.name}": (one.ready, one.oldest) for one in await store.records.backlog(_MOST_COUNTED)}
        oldest = [since for _, since in pools.values() if since is not None]
        total = {"jobs": (sum(number for number, _ in pools.values()), min(oldest, default=None))}
        found = {
            name: _sample_of(number, 0.0 if since is None else (now - since).total_seconds())
            for name, (number, since) in (pools | tasks | total).items()
            if number
        }
        rows = await store.outboxes.list()
        outboxes = await look_at(store, rows, now, lambda _name: True, _MOST_COUNTED) if rows else []
        found |= {f"outbox {one.name}": _sample_of(one.messages, one.seconds) for one in outboxes if one.messages}
        return found | {"jobs": _sample_of(0, 0.0)} if found and "jobs" not in found else found

    async def finish(self) -> None:
        await self._engine.write_logbook()


def _sample_of(number: int, seconds: float) -> dict[str, float]:
    """Sums, of as many samples, since the numbers of minutes and of processes are added up."""
    return {"samples": 1.0, "ready": float(number), "oldest": max(0.0, seconds)}
