"""A service runs by itself, one bounded tick at a time. The loop around ticks is written once, here.

Owns the pause between ticks, the pause after an error, and waking and stopping a service.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

from penstock.calls.lease import Lease
from penstock.calls.run.runner import FunctionCalls
from penstock.clock import Clock
from penstock.errors import ConfigError, DatabaseUnavailable, TryAgain
from penstock.jobs.retry import Exponential, backoff
from penstock.observe.errortext import error_text
from penstock.observe.logs import event as log_event
from penstock.services.rescue import Rescue
from penstock.store.store import Signals

ServiceName = Literal["worker", "scheduler", "planner", "relay", "indexer", "pruner"]
Services = Sequence[ServiceName] | Literal["all"]
SERVICES: tuple[ServiceName, ...] = ("worker", "scheduler", "planner", "relay", "indexer", "pruner")
_AFTER_ERROR = Exponential(initial_backoff=0.1, base=2.0, max_backoff=5.0)
_CUT_OFF_WITHIN = 0.1
_END_WITHIN = 0.5
# A claim makes tens of thousands of objects. Collecting garbage after every 700 costs a fifth of a worker's speed.
_COLLECT_AFTER = 30_000


class Service:
    """Runs ticks until it is stopped."""

    name = "service"  # in log events
    tells_once = False  # whether it logs only the first of several ticks that fail because the database is away

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.wake = asyncio.Event()  # set it to have the next tick at once
        self._stopping = self._killed = False
        self._task: asyncio.Task[None] | None = None
        self._errors = 0

    async def tick(self) -> float:
        """Do one bounded piece of work; seconds until the next look."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Clean up after the last tick."""

    def start(self) -> None:
        self._killed = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"penstock-{self.name}")

    async def stop(self, seconds: float = math.inf) -> None:
        """End the current tick, then `finish`. Cut both off after this time, as the database may be away."""
        self._stopping = True
        self.wake.set()
        if self._task is not None:
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.shield(self._task)
            except TimeoutError:
                log_event("services.cut_off", logging.WARNING, service=self.name)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CUT_OFF_WITHIN):
                        await self.kill()
            self._task = None

    async def kill(self) -> None:
        """End at once and leave everything as it is, as a crash does."""
        self._killed = True
        if self._task is not None:
            await end(self._task)
            self._task = None

    async def _run(self) -> None:
        while not self._stopping:
            self.wake.clear()
            pause = await self._safe_tick()
            if self._killed:  # but the tick swallowed the cancellation
                return
            if pause > 0 and not self._stopping:
                await self.clock.wait(self.wake, pause)
        await self.finish()

    async def _safe_tick(self) -> float:
        try:
            pause = await self.tick()
        except BaseException as error:
            if _ends_the_task(error):
                raise
            self._errors += 1  # a service outlives every error
            pause = backoff(_AFTER_ERROR, self._errors, self.clock.random())
            known = isinstance(error, TryAgain)
            if not (known and self.tells_once and self._errors > 1):
                log_event(
                    f"{self.name}.tick_failed",
                    logging.WARNING if known else logging.ERROR,
                    exc_info=None if known else error,
                    error=error_text(error),
                    again_in=round(pause, 3),
                )
        else:
            self._errors = 0
        return pause


def _ends_the_task(error: BaseException) -> bool:
    """Whether the task or the process is asked to end. Anything else is an error like others."""
    task = asyncio.current_task()
    cancelled = isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)
    return cancelled or isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))


class LeasedService(Service):
    """A service that works under a lease; it also takes away leases that have run out, whose process may be dead."""

    def __init__(self, runner: FunctionCalls, label: str, *, fenced: bool = False) -> None:
        super().__init__(runner.engine.clock)
        self._label = label
        self._runner = runner
        self._store = runner.engine.store
        self._bound = runner.engine.config.lease
        self._lease = Lease(runner.engine, label, self._lose_lease, fenced=fenced, wake=self.wake.set)
        self._rescue = Rescue(runner)

    @property
    def lease(self) -> int | None:
        return self._lease.number

    async def finish(self) -> None:
        """Give the lease back, so that another process goes on at once."""
        if (lease := self.lease) is not None:
            try:
                await self._lease.give_back()
            except TryAgain as error:
                log_event(f"{self.name}.lease_kept", logging.WARNING, lease=lease, error=error)
            self._store.signals.notify()

    async def kill(self) -> None:
        await super().kill()
        await self._lease.leave()

    async def _lose_lease(self, lease: int, reason: str) -> None:
        """Stop what runs under the lease, as another process has it."""
        raise NotImplementedError

    @asynccontextmanager
    async def _limit_tick(self, purpose: str) -> AsyncIterator[None]:
        """Raise DatabaseUnavailable in a tick that does not end while the lease is not renewed either."""
        try:
            async with self._lease.limit_tick():
                yield
        except TimeoutError as error:
            raise DatabaseUnavailable(f"The database did not answer in time to {purpose}.") from error

    async def _take_over(self) -> bool:
        """Take away leases that have run out, if it is time to look; whether there were any."""
        if not self._rescue.is_due or not await self._rescue.look(self.lease):
            return False
        self._store.signals.notify()
        return True


def name_services(services: Services) -> tuple[ServiceName, ...]:
    """List the services that a program asks for."""
    if services == "all":
        return SERVICES
    if isinstance(services, str) or not {*services} <= {*SERVICES}:
        raise ConfigError(f"services is {services!r}.", fix=f'Give "all", or a list of: {", ".join(SERVICES)}.')
    return tuple(services)


class Group:
    """The services of one process."""

    def __init__(self, services: list[Service], signals: Signals) -> None:
        self.services = services
        self._signals = signals

    def start(self) -> None:
        """Start all and subscribe them to signals. The process collects garbage less often from now on."""
        young, *older = gc.get_threshold()
        if self.services and 0 < young < _COLLECT_AFTER:
            gc.set_threshold(_COLLECT_AFTER, *older)
        for service in self.services:
            self._signals.subscribe(service.wake)
            service.start()

    async def stop(self, seconds: float = math.inf) -> None:
        """Stop all; each finishes its work within this time."""
        await self._end([service.stop(seconds) for service in reversed(self.services)])

    async def kill(self) -> None:
        await self._end([service.kill() for service in reversed(self.services)])

    async def _end(self, endings: list[Coroutine[Any, Any, None]]) -> None:
        for service in self.services:
            self._signals.unsubscribe(service.wake)
        await asyncio.gather(*endings)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for them, but only for a moment: the user's code in them may swallow that."""
    for task in tasks:
        task.cancel()
    if tasks:
        ended, deaf = await asyncio.wait(tasks, timeout=_END_WITHIN)
        for task in ended:
            _ = task.cancelled() or task.exception()  # which is known
        if deaf:
            log_event("services.do_not_stop", logging.WARNING, tasks=",".join(sorted(task.get_name() for task in deaf)))
