"""The relay: hands over the messages of outboxes. Any number of processes run one, and one at a time has an outbox.

Owns its lease, under which it reads, and a line for each outbox of its program, all of which run side by side. What a
line does is `services/relay/delivery`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.lease import LOOK_PART, Lease
from penstock.calls.run.runner import Runner
from penstock.errors import TryAgain
from penstock.observe.logs import event as log_event
from penstock.services.relay.cursor import Holder
from penstock.services.relay.delivery import Line
from penstock.services.rescue import Rescue
from penstock.services.service import Service

_IDLE = 60.0


class Relay(Service):
    """Hands over the messages of the outboxes of a program.

    Args:
        runner: Runs functions.
        name: How this process is called in its lease.
        outboxes: The outboxes.

    Attributes:
        lines: A service for each outbox; they run while the relay does.
    """

    name = "relay"

    def __init__(self, runner: Runner, name: str, outboxes: Iterable[DeclaredOutbox]) -> None:
        super().__init__(runner.engine.clock)
        self._runner = runner
        self._store = runner.engine.store
        self._bound = runner.engine.config.lease
        self._lease = Lease(runner.engine, f"relay {name}", self._lose)
        self._holder = Holder()
        self._rescue = Rescue(runner)
        self.lines = [Line(runner, one, self._holder) for one in outboxes]

    async def tick(self) -> float:
        """Keep the lease; seconds until it is to be renewed."""
        if not self.lines:
            return _IDLE
        taken = self._lease.number is None
        await self._lease.keep()
        self._holder.lease, self._holder.until = self._lease.number, self._lease.stop_at
        if taken:
            self._wake()
        pause = self._lease.due
        if all(line.has_it for line in self.lines):
            return pause
        await self._take_over()
        return min(pause, self._bound * LOOK_PART)

    async def drain(self) -> None:
        """Hand over all that there is now, one outbox after another, as tests do that start no services."""
        await self.tick()
        for line in self.lines:
            while await line.tick() == 0:
                pass

    async def next_at(self) -> datetime | None:
        """When an outbox that waits goes on by itself; None if none does."""
        times = [await line.next_at() for line in self.lines]
        return min((at for at in times if at is not None), default=None)

    def start(self) -> None:
        """Begin to run on the current event loop."""
        super().start()
        for line in self.lines:
            self._store.signals.subscribe(line.wake)
            line.start()

    async def finish(self) -> None:
        """Let what is under way end within the grace time, then give the outboxes back."""
        ended = asyncio.Event()
        await asyncio.gather(self._end_lines(ended), self._hold_until(ended))
        for line in self.lines:
            self._store.signals.unsubscribe(line.wake)
        if (lease := self._lease.number) is not None:
            self._holder.lease = None
            try:
                await self._lease.give_back()
            except TryAgain as error:
                log_event("relay.lease_kept", logging.WARNING, lease=lease, error=error)
            self._store.signals.notify()

    async def kill(self) -> None:
        """End at once and leave everything as it is, as a crash does."""
        await asyncio.gather(super().kill(), *(line.kill() for line in self.lines))

    # ----- steps

    async def _end_lines(self, ended: asyncio.Event) -> None:
        grace = self._runner.engine.grace_left()
        try:
            await asyncio.gather(*(line.end(grace) for line in self.lines))
        finally:
            ended.set()

    async def _hold_until(self, ended: asyncio.Event) -> None:
        """Keep the lease, or another relay would hand over what is still under way."""
        pause = self._lease.due
        while self._holder.lease is not None and not await self.clock.wait(ended, pause):
            pause = await self._guarded_tick()

    async def _take_over(self) -> None:
        """Take away leases that have run out: whoever handed over may be dead, and there may be no worker to notice."""
        if self._rescue.is_due and await self._rescue.look(self._lease.number):
            self._wake()

    async def _lose(self, lease: int, reason: str) -> None:
        """Stop handing over at once: another relay may begin to."""
        log_event("relay.lease_lost", logging.ERROR, lease=lease, reason=reason)
        self._holder.lease = None
        await asyncio.gather(*(line.interrupt() for line in self.lines))

    def _wake(self) -> None:
        for line in self.lines:
            line.wake.set()
