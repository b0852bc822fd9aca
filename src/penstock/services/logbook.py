"""Writes the logbook: every few seconds what a process has counted and logged, if there is anything.

Owns the times. What is written stays in the database for a while, and no more than a bound: once a minute, a process that
writes deletes the rest, since not every process is beside a pruner.
"""

from __future__ import annotations

from penstock.calls.run.engine import Engine
from penstock.services.service import Service

_EVERY, _SWEEP_EVERY = 5.0, 60.0
_AT_ONCE = 10_000


class LogbookWriter(Service):
    """Writes the logbook of a backend. It runs in each process, and its last act is to write what is left."""

    name = "logbook"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.clock)
        self._engine = engine
        self._sweep_at = 0.0

    async def tick(self) -> float:
        if await self._engine.write_logbook() and self.clock.monotonic() >= self._sweep_at:
            self._sweep_at = self.clock.monotonic() + _SWEEP_EVERY
            await self._engine.store.logbook.prune(self.clock.now(), _AT_ONCE)
        return _EVERY

    async def finish(self) -> None:
        await self._engine.write_logbook()
