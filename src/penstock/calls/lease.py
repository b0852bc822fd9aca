"""Keeps the lease of a worker, planner, relay or rebuild: takes it, renews it, gives it back, or loses it.

Owns all times of leases. It stands below `services/` since `api/outbox` keeps one too, while it rebuilds an outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from penstock.calls.run.engine import Engine
from penstock.errors import DatabaseUnavailable, TryAgain
from penstock.observe import points

# Parts of the setting `lease`, which bounds the time from a process's death to the take-over of its work.
_HOLDS_PART = 0.75
_RENEW_PART = 0.25
_STOP_PART = 0.6
_LEAST_PART = 0.1
TICK_PART = 0.25  # a tick that takes longer fails, as by then the lease is to be renewed again
LOOK_PART = 0.1  # a process that waits for the work of another looks this often

Lost = Callable[[int, str], Awaitable[None]]


class Lease:
    """The lease of one process, whose name in it is `label`.

    `on_lost` is called with its number and the reason once it is lost, and `before` is awaited before each renewal. If
    it is `fenced`, each write names it. Otherwise it counts as lost before its end, so that work stops.
    """

    def __init__(
        self,
        engine: Engine,
        label: str,
        on_lost: Lost,
        *,
        fenced: bool = False,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.number: int | None = None  # while it is held
        self.renewed_at = -1e9  # by the monotonic clock
        self._store, self._clock, self._bound = engine.store, engine.clock, engine.config.lease
        self._ttl = timedelta(seconds=self._bound * _HOLDS_PART)
        self._label, self._on_lost, self._fenced, self._before = label, on_lost, fenced, before

    @property
    def stop_at(self) -> float:
        """The time on the monotonic clock at which work under it stops unless it is renewed: before any take-over."""
        return self.renewed_at + self._bound * _STOP_PART

    @property
    def due(self) -> float:
        """Seconds until it is to be renewed."""
        return max(0.01, self.renewed_at + self._bound * _RENEW_PART - self._clock.monotonic())

    async def keep(self, *, busy: bool = True) -> bool:
        """Take it, or renew it if that is due; whether it did either. If it is lost, the next call takes another.

        Args:
            busy: Whether work runs under it, so that a renewal must leave time to stop that.
        """
        now = self._clock.monotonic()
        if self.number is None:
            self.number = await self._store.leases.take(self._label, self._ttl, self._clock.now())
        elif now - self.renewed_at < self._bound * _RENEW_PART or not await self._renew(self.number, busy=busy):
            return False
        self.renewed_at = now
        return True

    async def give_back(self) -> None:
        """End it, so that another process goes on at once."""
        if self.number is not None:
            number, self.number = self.number, None
            await self._store.leases.give_back(number)

    async def _renew(self, number: int, *, busy: bool) -> bool:
        # A late process (it was suspended, or busy) still tries: perhaps nobody has taken over.
        left = max(self.stop_at - self._clock.monotonic(), self._bound * _LEAST_PART) if busy else self._bound
        try:
            async with asyncio.timeout(left):
                if points.armed:
                    await points.reach("lease.renew", lease=number)
                await self._store.synchronize()
                if self._before is not None:
                    await self._before()
                held = await self._store.leases.renew(number, self._ttl, self._clock.now())
        except (TryAgain, TimeoutError) as error:
            if not self._fenced and self._clock.monotonic() >= self.stop_at:
                await self._lose(number, "it could not be renewed in time")
            if isinstance(error, TimeoutError):
                raise DatabaseUnavailable("The database did not answer in time to renew a lease.") from error
            raise
        if not held:
            await self._lose(number, "another process took it over")
        return held

    async def _lose(self, number: int, reason: str) -> None:
        self.number = None
        await self._on_lost(number, reason)
