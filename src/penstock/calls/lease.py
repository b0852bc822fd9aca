"""Keeps the lease of a worker, planner, relay or rebuild: takes it, renews it, gives it back, or loses it.

Owns all times of leases; the thread of `calls/run/renewals` renews them. It stands below `services/` since `api/outbox`
keeps one too, while it rebuilds an outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from penstock.calls.run.engine import Engine
from penstock.errors import DatabaseUnavailable, TryAgain
from penstock.observe import points
from penstock.store.store import Store

# Parts of the setting `lease`, which bounds the time from a process's death to the take-over of its work.
_HOLDS_PART = 0.75
_RENEW_PART = 0.25
_THREAD_PART = 0.2  # the thread renews sooner than `keep` asks, which it need not do then
_HUNG_PARTS = 10  # without a call of `keep`
_STOP_PART = 0.6
_LEAST_PART = 0.1
_TICK_PART, _AFTER_PART = 0.25, 0.5  # how long a tick may take, and how long after the last renewal
LOOK_PART = 0.1  # a process that waits for the work of another looks this often

_TAKEN = "another process took it over"

Lost = Callable[[int, str], Awaitable[None]]


class Lease:
    """The lease of one process, whose name in it is `label`. A thread renews it, and calls `wake` if it is lost.

    `keep` then calls `on_lost` with its number and the reason. If it is `fenced`, each write names it. Otherwise it
    counts as lost before its end, so that work stops. A loop that never calls `keep` is hung, and loses it too.
    """

    def __init__(
        self,
        engine: Engine,
        label: str,
        on_lost: Lost,
        *,
        fenced: bool = False,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.number: int | None = None  # while it is held
        self.renewed_at = self._kept_at = self._seen_at = -1e9  # by the monotonic clock
        self._gone: int | None = None  # the number of the last one that another process took over
        self._store, self._clock, self._bound = engine.store, engine.clock, engine.config.lease
        self._ttl = timedelta(seconds=self._bound * _HOLDS_PART)
        self._scope = engine.scope
        self._label, self._on_lost, self._fenced, self._wake = label, on_lost, fenced, wake
        self._renewals = engine.renewals
        self._loop: asyncio.AbstractEventLoop

    @property
    def stop_at(self) -> float:
        """The time on the monotonic clock at which work under it stops unless it is renewed: before any take-over."""
        return self.renewed_at + self._bound * _STOP_PART

    @property
    def due(self) -> float:
        """Seconds until it is to be renewed."""
        return max(0.01, self.renewed_at + self._bound * _RENEW_PART - self._clock.monotonic())

    @property
    def renew_in(self) -> float:
        """Seconds until the thread is to renew it; it does not for a loop that is hung."""
        now = self._clock.monotonic()
        is_held = self.number not in {None, self._gone} and now < self._kept_at + self._bound * _HUNG_PARTS
        return self.renewed_at + self._bound * _THREAD_PART - now if is_held else self._bound

    @asynccontextmanager
    async def limit_tick(self) -> AsyncIterator[None]:
        """Raise TimeoutError in a tick that does not end, as the database is away: it has not renewed the lease either.

        While the lease is renewed, a slow machine has all the time that it needs.
        """
        loop, begun = asyncio.get_running_loop(), self._clock.monotonic()
        handle: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal handle
            until = max(begun + self._bound * _TICK_PART, self.renewed_at + self._bound * _AFTER_PART)
            if (left := until - self._clock.monotonic()) > 0:
                handle = loop.call_later(left, look)
            else:
                timer.reschedule(loop.time())

        async with asyncio.timeout(None) as timer:
            look()
            try:
                yield
            finally:
                if handle is not None:
                    handle.cancel()

    async def keep(self, *, busy: bool = True) -> bool:
        """Take it, or see that it was renewed; whether either happened. If it is lost, the next call takes another.

        Args:
            busy: Whether work runs under it, so that a renewal must leave time to stop that.
        """
        self._kept_at = now = self._clock.monotonic()
        if self.number is None:
            self._loop = asyncio.get_running_loop()
            self.number = await self._store.leases.take(self._label, self._ttl, self._clock.now(), self._scope)
            self.renewed_at = now
            self._renewals.add(self)
        elif self._gone == self.number:
            await self._lose(self.number, _TAKEN)
        elif now - self.renewed_at >= self._bound * _RENEW_PART:
            await self._ask(self.number, busy=busy)
        if self.renewed_at == self._seen_at:
            return False
        self._seen_at = self.renewed_at
        return True

    async def give_back(self) -> None:
        """End it, so that another process goes on at once."""
        if self.number is not None:
            number = await self.leave()
            await self._store.leases.give_back(number)

    async def leave(self) -> int:
        """Renew it no more, as after a crash; its number."""
        number, self.number = self.number or 0, None
        await self._renewals.drop(self)
        return number

    async def renew(self, store: Store, blocked: object) -> bool:
        """Renew it on a store of the calling loop; False if it was lost. An expired one that nobody took is renewed."""
        number, now = self.number or 0, self._clock.monotonic()
        if points.armed:
            await points.reach("lease.renew", lease=number)
        await store.synchronize()
        holder = f"{self._label}\n{blocked}" if blocked else self._label
        held = await store.leases.renew(number, self._ttl, self._clock.now(), holder)
        if held and number == self.number:
            self.renewed_at = now
        elif number == self.number:
            self._gone = number
            self._loop.call_soon_threadsafe(self._wake)
        return held

    async def _ask(self, number: int, *, busy: bool) -> None:
        # A late process (it was suspended, or busy) still tries: perhaps nobody has taken over.
        left = max(self.stop_at - self._clock.monotonic(), self._bound * _LEAST_PART) if busy else self._bound
        try:
            async with asyncio.timeout(left):
                held = await self._renewals.renew(self, self._store)
        except (TryAgain, TimeoutError) as error:
            if not self._fenced and self._clock.monotonic() >= self.stop_at:
                await self._lose(number, "it could not be renewed in time")
            if isinstance(error, TimeoutError):
                raise DatabaseUnavailable("The database did not answer in time to renew a lease.") from error
            raise
        if not held:
            await self._lose(number, _TAKEN)

    async def _lose(self, number: int, reason: str) -> None:
        self._seen_at = self.renewed_at
        await self.leave()
        await self._on_lost(number, reason)
