"""A clock that a test moves. Nothing waits for real: a sleep ends when the clock is moved past its time."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.clock import SystemClock, layout_uuid7, random_of

_START = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _Time:
    now: datetime
    monotonic: float = 0.0
    count: int = 0
    sleepers: list[tuple[float, int, asyncio.Event]] = field(default_factory=list)


class TestClock:
    """Time and chance under a test's control.

    Args:
        start: The time at first; 2030-01-01 in UTC by default.
        seed: Of its random numbers; the same seed gives the same ones.
    """

    __test__ = False

    def __init__(self, start: datetime = _START, seed: int = 0) -> None:
        self._time = _Time(start)
        self._random = self._id_random = random_of(seed)
        self._ids = 0

    def now(self) -> datetime:
        """The time to which the clock was moved."""
        return self._time.now

    def monotonic(self) -> float:
        """Seconds by which the clock was moved."""
        return self._time.monotonic

    def advance(self, by: timedelta) -> None:
        """Move the clock forwards; wakes all whose time has come.

        Raises:
            ValueError: `by` is negative.
        """
        if by < timedelta(0):
            raise ValueError("a clock moves forwards only")
        time = self._time
        time.now += by
        time.monotonic += by.total_seconds()
        while time.sleepers and time.sleepers[0][0] <= time.monotonic:
            heapq.heappop(time.sleepers)[2].set()

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
        ms = int(self.now().timestamp() * 1000)
        return layout_uuid7(ms, self._ids << 32 | self._id_random.getrandbits(32))

    def make_new_ids(self) -> None:
        """Make ids that no clock has made, nor will; greater ones than a clock that was told so before.

        A clock that has made ids goes on from there.
        """
        if not self._ids:
            real = SystemClock().uuid7()
            self._ids, self._id_random = real >> 80, random_of(real)  # milliseconds, of which 42 bits have room

    def follow(self, other: TestClock) -> None:
        """Show the time of another clock from here on: either moves both."""
        self._time = other._time

    def _alarm(self, seconds: float) -> asyncio.Event:
        alarm = asyncio.Event()
        time = self._time
        time.count += 1
        heapq.heappush(time.sleepers, (time.monotonic + seconds, time.count, alarm))
        return alarm
