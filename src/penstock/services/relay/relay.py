"""The relay delivers the messages of outboxes. Any number of processes run one; one at a time has an outbox.

Owns the lease under which the outboxes are held. Leaves each outbox to a service of its own, see `delivery`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.lease import LOOK_PART
from penstock.calls.run.runner import FunctionCalls
from penstock.observe.logs import event as log_event
from penstock.services.relay.delivery import OutboxDelivery
from penstock.services.service import LeasedService

_IDLE = 60.0


class Relay(LeasedService):
    """Delivers the messages of the outboxes of a program: `outboxes` has a service for each."""

    name = "relay"

    def __init__(self, runner: FunctionCalls, name: str, outboxes: Iterable[DeclaredOutbox]) -> None:
        super().__init__(runner, f"relay {name}")
        self.outboxes = [OutboxDelivery(runner, one, self._lease) for one in outboxes]

    async def tick(self) -> float:
        if not self.outboxes:
            return _IDLE
        taken = self._lease.number is None
        await self._lease.keep()
        for outbox in self.outboxes if taken else ():
            outbox.wake.set()
        pause = self._lease.due
        if all(outbox.has_it for outbox in self.outboxes):
            return pause
        await self._take_over()
        return min(pause, self._bound * LOOK_PART)

    async def drain(self) -> None:
        """Deliver all that there is now, one outbox after another, as tests do that start no services."""
        await self.tick()
        for outbox in self.outboxes:
            while await outbox.tick() == 0:
                pass

    async def next_at(self) -> datetime | None:
        """The time at which a waiting outbox goes on by itself; None if none does."""
        times = [await outbox.next_at() for outbox in self.outboxes]
        return min((at for at in times if at is not None), default=None)

    def start(self) -> None:
        super().start()
        for outbox in self.outboxes:
            self._store.signals.subscribe(outbox.wake)
            outbox.start()

    async def finish(self) -> None:
        """Let deliveries under way end within the grace time, then give the outboxes back."""
        ended = asyncio.Event()
        await asyncio.gather(self._end_outboxes(ended), self._hold_until(ended))
        for outbox in self.outboxes:
            self._store.signals.unsubscribe(outbox.wake)
        await super().finish()

    async def kill(self) -> None:
        await asyncio.gather(super().kill(), *(outbox.kill() for outbox in self.outboxes))

    # ----- steps

    async def _end_outboxes(self, ended: asyncio.Event) -> None:
        grace = self._runner.engine.grace_left()
        try:
            await asyncio.gather(*(outbox.end(grace) for outbox in self.outboxes))
        finally:
            ended.set()

    async def _hold_until(self, ended: asyncio.Event) -> None:
        """Keep the lease, or another relay would deliver messages that are still under way."""
        pause = self._lease.due
        while self._lease.number is not None and not await self.clock.wait(ended, pause):
            pause = await self._safe_tick()

    async def _lose_lease(self, lease: int, reason: str) -> None:
        """Stop delivering at once: another relay may begin to."""
        log_event("relay.lease_lost", logging.ERROR, lease=lease, reason=reason)
        await asyncio.gather(*(outbox.interrupt() for outbox in self.outboxes))
