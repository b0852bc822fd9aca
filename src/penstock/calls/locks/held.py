"""One lock while it is held: until when its holder may trust it, and whether it is lost.

Leaves taking, renewing and giving it back to `calls/locks/locks`, and what is done under it to `calls/locks/blocks`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from penstock.clock import Clock
from penstock.errors import LockLost
from penstock.observe.logs import event as log_event

_LATE = "it could not be renewed in time"


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody wants: a lock for so long at a time.

    Attributes:
        wait: For how many seconds to wait for it.
        attempt: A number of its own, by which it knows whether it has the lock.
        holder: What the holder is called, for people.
        owner: The task or the thread that asks.
    """

    key: str
    wait: float
    lease: timedelta
    attempt: UUID
    holder: str
    owner: object


class Holding:
    """A lock that was taken.

    Attributes:
        ask: What was asked for.
        fence: The number of this holder.
        trusted_until: Until when nobody else can have it, by the monotonic clock.
        over: Set when it is lost, or about to be given back.
        told: Is told when it is lost.
        keeper: Renews it.
    """

    def __init__(self, ask: Ask, fence: int, trusted_until: float, clock: Clock) -> None:
        self.ask = ask
        self.fence = fence
        self.trusted_until = trusted_until
        self.over = asyncio.Event()
        self.told: Callable[[], None] | None = None
        self.keeper: asyncio.Task[None] | None = None
        self._clock = clock
        self._reason = ""

    @property
    def lost(self) -> bool:
        """Whether it may have another holder by now. What is lost stays lost."""
        return bool(self._reason) or (not self.over.is_set() and self._clock.monotonic() >= self.trusted_until)

    @property
    def loss(self) -> LockLost:
        """What is raised when it is lost."""
        return LockLost(
            f"The lock {self.ask.key!r} was lost: {self._reason or _LATE}.",
            fix="Start again under a new lock. Refuse late writes with ctx.check_fence.",
            key=self.ask.key,
            fence=self.fence,
        )

    async def wait_lost(self, seconds: float | None) -> bool:
        """Wait until it is lost or about to be given back, at most this many seconds; whether it is lost."""
        if seconds is None:
            await self.over.wait()
        else:
            await self._clock.wait(self.over, seconds)
        return self.lost

    def lose(self, reason: str = _LATE) -> None:
        """Be lost."""
        if self._reason:
            return
        self._reason = reason
        self.over.set()
        log_event("lock.lost", logging.WARNING, key=self.ask.key, fence=self.fence, reason=reason)
        if self.told is not None:
            self.told()

    def end(self) -> None:
        """Be about to be given back: renewed no more."""
        self.told = None
        if self.lost:
            self.lose()
        self.over.set()
