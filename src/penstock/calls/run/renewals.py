"""Renews the leases of a process in a thread of its own, so that code that blocks the event loop does not lose them.

Owns that thread, its event loop and its connection. `calls/lease` decides what a renewal means. The thread also
notices an event loop that does not answer, and names the function that blocks it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Protocol

from penstock.calls.run.bridge import run_loop
from penstock.clock import Clock, SystemClock
from penstock.config import Config
from penstock.dataclass import dataclass
from penstock.functions.registry import Registry
from penstock.observe.errortext import error_text
from penstock.observe.logs import event as log_event
from penstock.observe.places import place
from penstock.observe.practices import is_own
from penstock.store.open import make_store
from penstock.store.store import Store

_TRY_PART, _AGAIN_PART = 0.25, 0.05  # of the setting `lease`
_BLOCKED_PART, _BLOCKED_AT_LEAST = 0.1, 2.0  # seconds without an answer after which a loop counts as blocked
_END_WITHIN = 1.0
_NOWHERE = "unknown place"


class Renewed(Protocol):
    """A lease, as the thread knows it."""

    @property
    def renew_in(self) -> float:
        """Seconds until it is to be renewed."""

    async def renew(self, store: Store, blocked: Blocked | None) -> bool:
        """Renew it on a store of the calling loop, and note what blocked its loop last; False if it is lost."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Code that blocked the event loop."""

    function: str  # the name of the function, if it is known
    place: str  # file and line
    since: float | None  # by the monotonic clock
    seconds: float

    def __str__(self) -> str:
        return f"{self.function or 'code'} ({self.place}) blocked the event loop for {self.seconds:.0f} s"


class Renewals:
    """Renews the leases of one backend. Its public methods are called on the backend's loop."""

    def __init__(self, config: Config, clock: Clock, registry: Registry) -> None:
        self._config, self._clock, self._registry = config, clock, registry
        self._leases: list[Renewed] = []
        self._store: Store | None = None
        self._home: asyncio.AbstractEventLoop | None = None  # of the thread, while it renews
        self._ended: Future[None]
        self._task: asyncio.Task[None]  # of the thread, which renews
        self._turn: asyncio.Lock  # of the thread, too
        self._loop: asyncio.AbstractEventLoop
        self._loop_thread = 0
        self._asked_at: float | None = None  # since then an answer of the loop is awaited
        self._blocked: Blocked | None = None  # the last that was seen

    def add(self, lease: Renewed) -> None:
        """Renew a lease from now on. On a clock that a test moves, only `renew` does."""
        if not isinstance(self._clock, SystemClock):
            return
        self._leases.append(lease)
        if self._home is None:
            self._home, self._ended, self._turn = asyncio.new_event_loop(), Future(), asyncio.Lock()
            self._loop, self._loop_thread, self._asked_at = asyncio.get_running_loop(), threading.get_ident(), None
            self._task = self._home.create_task(self._run())
            work = partial(_live, self._home, self._task, self._ended)
            threading.Thread(target=work, name="penstock-leases", daemon=True).start()

    async def drop(self, lease: Renewed) -> None:
        """Renew a lease no more; a renewal under way ends first. With the last one goes the connection."""
        if self._leases == [lease]:
            await self.close()
        elif lease in self._leases and self._home is not None:
            self._leases.remove(lease)
            await _within(asyncio.run_coroutine_threadsafe(self._let_end(), self._home))

    async def close(self) -> None:
        self._leases.clear()
        home, self._home = self._home, None
        if home is not None:
            with suppress(RuntimeError):  # it has ended by itself
                home.call_soon_threadsafe(self._task.cancel)
            await _within(self._ended)

    async def renew(self, lease: Renewed, store: Store) -> bool:
        """Have the thread renew a lease now. On a clock that a test moves it happens here, on this store."""
        if self._home is None:
            return await lease.renew(store, None)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._renew(lease), self._home))

    # ----- in the thread

    async def _run(self) -> None:
        try:
            while self._leases:
                due = min(lease.renew_in for lease in self._leases)
                await self._clock.sleep(max(0.0, min(due, self._block_limit / 2)))
                self._look_at_loop()
                for lease in [one for one in self._leases if one.renew_in <= 0]:
                    try:
                        async with asyncio.timeout(self._config.lease * _TRY_PART):
                            await self._renew(lease)
                    except Exception as error:  # noqa: BLE001 - the loop asks too, and is told
                        log_event("engine.lease_not_renewed", logging.WARNING, error=error_text(error))
                        await self._clock.sleep(self._config.lease * _AGAIN_PART)
        finally:
            store, self._store = self._store, None
            if store is not None:
                await store.close()

    async def _renew(self, lease: Renewed) -> bool:
        async with self._turn:
            if self._store is None:
                config = replace(self._config, max_connections=1, read_url="")
                store = make_store(config, self._clock, password=self._registry.password)
                await store.open(for_leases=True)
                self._store = store
            return await lease.renew(self._store, self._blocked)

    async def _let_end(self) -> None:
        async with self._turn:
            pass

    @property
    def _block_limit(self) -> float:
        return max(_BLOCKED_AT_LEAST, self._config.lease * _BLOCKED_PART)

    def _look_at_loop(self) -> None:
        """Ask the loop for an answer. If it has not given the last one for a while, tell which code blocks it."""
        now = self._clock.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it is closed: the program has ended without its leases
                self._leases.clear()
        elif (seconds := now - self._asked_at) >= self._block_limit:
            self._tell(seconds)

    def _answer(self) -> None:
        self._asked_at = None

    def _tell(self, seconds: float) -> None:
        found = _blocking(sys._current_frames().get(self._loop_thread), self._registry)  # noqa: SLF001 - no other name
        is_new = self._blocked is None or self._blocked.since != self._asked_at
        self._blocked = Blocked(*found, self._asked_at, seconds)
        if is_new:
            log_event(
                "engine.loop_blocked", logging.WARNING, function=found[0], place=found[1], seconds=round(seconds, 1)
            )


def _live(home: asyncio.AbstractEventLoop, task: asyncio.Task[None], ended: Future[None]) -> None:
    try:
        with suppress(asyncio.CancelledError):
            run_loop(home, task)
    finally:
        ended.set_result(None)


async def _within(step: Future[None]) -> None:
    """Wait for a step of the thread, but not long: the database may be away."""
    await asyncio.wait([asyncio.wrap_future(step)], timeout=_END_WITHIN)


def _blocking(frame: FrameType | None, registry: Registry) -> tuple[str, str]:
    """The function of the program that a thread runs, as far as it is known, and the line of the program in it."""
    names = {getattr(inspect.unwrap(one.declared), "__code__", None): one.name for one in registry}
    where = _NOWHERE
    while frame is not None:
        if where == _NOWHERE and is_own(frame.f_code.co_filename):
            where = place(frame.f_code.co_filename, frame.f_lineno)
        if (name := names.get(frame.f_code)) is not None:
            return name, where
        frame = frame.f_back
    return "", where
