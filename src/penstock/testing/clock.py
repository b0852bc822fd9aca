"""A clock that a test moves. Nothing waits for real: a sleep ends when the clock is moved past its time."""

from __future__ import annotations

import asyncio
import heapq
from datetime import UTC, datetime, timedelta

from penstock.clock import SystemClock, layout_uuid7, random_of

_START = datetime(2030, 1, 1, tzinfo=UTC)


class TestClock:
    """Time and chance under a test's control.

    Args:
        start: The time at first; 2030-01-01 in UTC by default.
        seed: Of its random numbers; the same seed gives the same ones.
    """

    __test__ = False

    def __init__(self, start: datetime = _START, seed: int = 0) -> None:
        self._now = start
        self._monotonic = 0.0
        self._random = self._id_random = random_of(seed)
        self._ids = 0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._count = 0

    def now(self) -> datetime:
        """The time to which the clock was moved."""
        return self._now

    def monotonic(self) -> float:
        """Seconds by which the clock was moved."""
        return self._monotonic

    def advance(self, by: timedelta) -> None:
        """Move the clock forwards; wakes all whose time has come.

        Raises:
            ValueError: `by` is negative.
        """
        if by < timedelta(0):
            raise ValueError("a clock moves forwards only")
        self._now += by
        self._monotonic += by.total_seconds()
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            heapq.heappop(self._sleepers)[2].set()

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock is moved by this many seconds."""
        if seconds > 0:
            await self._alarm(seconds).wait()

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event, or until the clock is moved by this many seconds; say whether the event came."""
        if event.is_set() or seconds <= 0:
            return event.is_set()
        alarm = self._alarm(seconds)
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(alarm.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set()

    def random(self) -> float:
        """The next number in [0, 1)."""
        return self._random.random()

    def seed(self) -> int:
        """The next seed."""
        return self._random.getrandbits(64)

    def uuid7(self) -> int:
        """The next UUIDv7, of the clock's time."""
        self._ids += 1
        ms = int(self._now.timestamp() * 1000)
        return layout_uuid7(ms, self._ids << 32 | self._id_random.getrandbits(32))

    def make_new_ids(self) -> None:
        """Make ids that no clock has made, greater than those of a clock that was told so before.

        A clock that has made ids already goes on with these.
        """
        if not self._ids:
            real = SystemClock().uuid7()
            self._ids, self._id_random = real >> 80, random_of(real)  # milliseconds; 42 bits of them have room

    def _alarm(self, seconds: float) -> asyncio.Event:
        alarm = asyncio.Event()
        self._count += 1
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._count, alarm))
        return alarm
