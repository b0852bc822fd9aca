"""Writes the logbook: every few seconds what a process has counted and logged, if there is anything.

Owns the times. After some writes a process deletes what is old or too much, since a program without workers has no
pruner.
"""

from __future__ import annotations

from penstock.calls.run.engine import Engine
from penstock.services.service import Service

_EVERY = 5.0
_SWEEP_AFTER, _AT_ONCE = 12, 10_000  # writes, and events


class LogbookWriter(Service):
    """Writes the logbook of a backend. It runs in each process, and its last act is to write what is left."""

    name = "logbook"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.clock)
        self._engine = engine
        self._writes = 0

    async def tick(self) -> float:
        if await self._engine.write_logbook():
            self._writes += 1
            if self._writes % _SWEEP_AFTER == 1:
                await self._engine.store.logbook.prune(self.clock.now(), _AT_ONCE)
        return _EVERY

    async def finish(self) -> None:
        await self._engine.write_logbook()
