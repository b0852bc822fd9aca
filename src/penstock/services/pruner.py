"""The pruner: deletes expired rows in bounded steps, truncates the change feed and watches it.

Owns the schedule of the parts. A part that fails delays no other.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from penstock.calls.run.runner import FunctionCalls
from penstock.changes.rotation import LATEST, pause_after
from penstock.clock import Clock
from penstock.observe.logs import event as log_event
from penstock.services.feed_watch import FeedWatch
from penstock.services.filesweep import FileSweep
from penstock.services.service import Service
from penstock.store.nouns.changes import Changes

_AT_ONCE = 1000
_TRUNCATED_AT_ONCE = 2000
_SOON = 0.1
_LATER = 600.0
_AFTER_FAILURE = 5.0  # however many signals come meanwhile


class Pruner(Service):
    """Deletes expired rows."""

    name = "pruner"

    def __init__(self, runner: FunctionCalls) -> None:
        super().__init__(runner.engine.clock)
        self._store = runner.engine.store
        watch = FeedWatch(self._store, self.clock)
        meters = runner.engine.journal.meters
        if meters is not None:
            meters.gauges["penstock_interests_broken"] = lambda: watch.broken
        self._files = files = FileSweep(runner)
        parts = (
            self._prune,
            FeedTruncation(self._store.changes, self.clock).look,
            watch.look,
            files.delete_owed,
            files.delete_unclaimed,
            files.delete_left_over,
        )
        self._due: dict[Callable[[], Awaitable[float]], float] = dict.fromkeys(parts, self.clock.monotonic())

    async def tick(self) -> float:
        failed: Exception | None = None
        if self._files.is_owed:
            self._due[self._files.delete_owed] = -math.inf
        for look, due in self._due.items():
            if due <= self.clock.monotonic():
                self._due[look] = self.clock.monotonic() + _AFTER_FAILURE
                try:
                    self._due[look] = self.clock.monotonic() + await look()
                except Exception as error:  # noqa: BLE001 - it is raised once the others have looked
                    failed = failed or error
        if failed is not None:
            raise failed
        return self._pause()

    async def _safe_tick(self) -> float:
        """A tick if a part is due; signals, which come with every job, cause none without deleted files."""
        early = 0.0 if self._files.is_owed else self._pause()
        return early if early > 0 else await super()._safe_tick()

    def _pause(self) -> float:
        return max(0.0, min(self._due.values()) - self.clock.monotonic())

    async def _prune(self) -> float:
        now = self.clock.now()
        jobs = await self._store.jobs.prune(now, _AT_ONCE)
        rates = await self._store.rates.prune(now, _AT_ONCE)
        tokens = await self._store.tokens.prune(now, _AT_ONCE)
        locks = await self._store.locks.prune(now, _AT_ONCE)
        requests = await self._store.requests.prune(now, _AT_ONCE)
        acts = await self._store.audit.prune(now, _AT_ONCE)
        sessions = await self._store.dashboard_sessions.prune(now, _AT_ONCE)
        logged = await self._store.logbook.prune(now, _AT_ONCE)
        runs = await self._store.workflows.prune(now, _AT_ONCE)
        uploads = await self._store.files.prune(now, _AT_ONCE)
        if most := max(jobs, rates, tokens, locks, requests, acts, sessions, logged, runs, uploads):
            log_event(
                "pruner.pruned", jobs=jobs, rate_limits=rates, tokens=tokens, locks=locks, requests=requests, acts=acts
            )
        return _SOON if most >= _AT_ONCE else _LATER


class FeedTruncation:
    """Truncates the change feed behind all readers; the store decides what may be dropped, and waits for nobody."""

    def __init__(self, changes: Changes, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._pause = LATEST
        self._emptied = 0

    async def look(self) -> float:
        done = await self._changes.rotate(self._clock.now(), _TRUNCATED_AT_ONCE)
        more = done.moved or done.emptied >= _TRUNCATED_AT_ONCE
        self._emptied += done.emptied
        if done.moved or (self._emptied and not more):
            log_event("changes.rotated", emptied=self._emptied, kept=done.kept, moved=done.moved)
            self._emptied = 0
        self._pause = pause_after(self._pause, more=more)
        return self._pause
