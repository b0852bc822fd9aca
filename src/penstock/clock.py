"""The only door to time, waiting and chance.

Owns the wall clock, the monotonic clock, sleeping and random numbers, so that a test can move time and repeat
chance. Nothing else in penstock imports `time` or `random`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import secrets
import struct
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

Random = random.Random

_RANDOM_BITS = 74
_VERSION = 7 << 76
_VARIANT = 2 << 62
_LOW_BITS = (1 << 62) - 1
_STEPS_AT_ONCE = 256
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the latter stops on Linux while the machine sleeps


class Clock(Protocol):
    """Time, waiting and chance, as penstock asks for them."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; only differences mean something."""

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event, at most this many seconds; say whether it came."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def seed(self) -> int:
        """A seed for the random numbers of one execution."""

    def uuid7(self) -> int:
        """The 128 bits of a UUIDv7: time-ordered, unguessable, rising within this clock."""


class SystemClock:
    """The machine's clock, until it is set by the database's: all machines on one database agree on the time.

    From then on it counts the seconds that pass, so that nothing is late when the machine's own clock jumps.
    """

    def __init__(self) -> None:
        self._began: datetime | None = None  # the time at which `steady` was 0, if it was set
        self._last_ms = 0
        self._last_random = 0

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        return self.machine_time() if self._began is None else self._began + timedelta(seconds=self.steady())

    def machine_time(self) -> datetime:
        """The time of the machine's own clock, aware, in UTC."""
        return datetime.now(UTC)

    @property
    def offset(self) -> timedelta:
        """How far the machine's own clock is behind."""
        return timedelta(0) if self._began is None else self.now() - self.machine_time()

    def set(self, now: datetime, steady: float, within: float) -> None:
        """Set it by another clock, unless they agree.

        Args:
            now: What the other clock showed, aware, in UTC.
            steady: What `steady` gave then.
            within: How many seconds that may be wrong.
        """
        began = now - timedelta(seconds=steady)
        if self._began is None or abs(began - self._began) > timedelta(seconds=within):
            self._began = began

    def steady(self) -> float:
        """Seconds that pass even while the machine sleeps; only differences mean something."""
        return time.clock_gettime(_STEADY)

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event, at most this many seconds; say whether it came."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def random(self) -> float:
        """A number in [0, 1)."""
        return random.random()  # noqa: S311 - jitter, not a secret

    def seed(self) -> int:
        """A seed for the random numbers of one execution."""
        return random.getrandbits(64)

    def uuid7(self) -> int:
        """The 128 bits of a UUIDv7, rising within this process even inside one millisecond."""
        ms = time.time_ns() // 1_000_000
        # Results stand in local names: another thread may come between any two lines.
        if ms > self._last_ms:
            chance = int.from_bytes(os.urandom(10), "big") >> 6
        else:
            ms, chance = self._last_ms, self._last_random + 1 + _step()
            if chance >> _RANDOM_BITS:
                ms, chance = ms + 1, chance & (1 << _RANDOM_BITS) - 1
        self._last_ms, self._last_random = ms, chance
        return layout_uuid7(ms, chance)


_steps: Iterator[int] = iter(())


def _step() -> int:
    """32 bits that nobody can guess. Asking the system for many at once takes as long as for one."""
    global _steps  # noqa: PLW0603 - a fork forgets its parent's
    while True:
        step = next(_steps, None)  # one call, so that no two threads get the same
        if step is not None:
            return step
        _steps = iter(struct.unpack(f"{_STEPS_AT_ONCE}I", os.urandom(4 * _STEPS_AT_ONCE)))


def _forget_steps() -> None:
    global _steps  # noqa: PLW0603 - see above
    _steps = iter(())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_steps)


def layout_uuid7(ms: int, chance: int) -> int:
    """The bits of a UUIDv7 from 48 bits of milliseconds and 74 bits of chance (RFC 9562, section 5.7)."""
    high, low = chance >> 62, chance & _LOW_BITS
    return ms << 80 | _VERSION | high << 64 | _VARIANT | low


def profile_timer() -> float:
    """Seconds for measuring how long a piece of work took; never moved by tests."""
    return time.perf_counter()


def random_of(seed: int) -> Random:
    """Random numbers that repeat themselves for the same seed."""
    return random.Random(seed)  # noqa: S311 - repeatable, not secret


def secret() -> str:
    """A text that nobody can guess, of letters, digits, ``-`` and ``_``."""
    return secrets.token_urlsafe(32)


def other_doors() -> list[tuple[str, dict[str, Any], str]]:
    """The names by which a program finds time and chance elsewhere: for each its own word, and where it is held.

    All else in `random`, `secrets`, `uuid` and `datetime` comes through one of them.
    """
    of_random: Any = random.random
    doors = [
        ("random.random", vars(random), "random"),
        ("random.getrandbits", vars(random), "getrandbits"),
        ("random.random", vars(of_random.__self__), "random"),
        ("random.getrandbits", vars(of_random.__self__), "getrandbits"),
        ("os.urandom", vars(random), "_urandom"),
        ("os.urandom", vars(os), "urandom"),
        ("time.sleep", vars(time), "sleep"),
    ]
    if "time_machine" not in sys.modules:  # it writes into the C functions that it expects behind these
        of_datetime = gc.get_referents(vars(datetime))[
            0
        ]  # the mapping itself, as a built-in class lets nobody set names
        doors += [("datetime.now", of_datetime, "now"), ("datetime.utcnow", of_datetime, "utcnow")]
        doors += [("time.time", vars(time), "time"), ("time.time_ns", vars(time), "time_ns")]
    return doors
