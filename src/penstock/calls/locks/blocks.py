"""``with_lock``: code that runs while a lock is held, in a task or in a thread.

Owns the checks of its arguments, and the end of the block when its lock is lost.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal
from uuid import UUID

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.locks.locks import Ask, Holding, Locks
from penstock.calls.run.bridge import Wait
from penstock.errors import ContextError, LockLost, ValueInvalid
from penstock.transaction.tracking import Calls

OnLost = Literal["cancel", "signal"]

WAIT, LEASE = timedelta(seconds=3), timedelta(seconds=15)
_LONGEST_KEY = 200
_LONGEST_WAIT = timedelta(days=366)
_LEASES = timedelta(seconds=1), timedelta(days=1)


class Lock:
    """A lock that is held for the time of a block, made by ``with_lock``.

    Attributes:
        key: The key of the lock.
        fence: The number of this holder. It is greater than those of all holders before, and no other one gets it.
    """

    __slots__ = ("_holding", "fence", "key")

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self.key = holding.ask.key
        self.fence = holding.fence

    def __repr__(self) -> str:
        return f"<lock {self.key!r} {self.fence}{', lost' if self.lost else ''}>"

    @property
    def lost(self) -> bool:
        """Whether it may have another holder by now. A lost lock stays lost."""
        return self._holding.is_lost

    def check(self) -> None:
        """Go on only if the lock is still held. It asks nobody, and costs nothing.

        Raises:
            LockLost: It is lost.
        """
        if self.lost:
            raise self._holding.loss

    async def wait_lost(self, seconds: float | None = None) -> bool:
        """Wait until the lock is lost or the block ends, at most this many seconds; whether it is lost."""
        return await self._holding.wait_lost(seconds)


class SyncLock(Lock):
    """A lock that is held in a thread; see `Lock`."""

    __slots__ = ("_wait",)

    def __init__(self, holding: Holding, wait: Wait) -> None:
        super().__init__(holding)
        self._wait = wait

    def wait_lost(self, seconds: float) -> bool:  # type: ignore[override]  # it waits
        """See `Lock.wait_lost`; not without an end, as nothing else ends the wait of a thread."""
        return self._wait(self._holding.wait_lost(seconds))


class LockBlock:
    """A block under a lock; use it in ``async with``. Made with ``with_lock``."""

    def __init__(
        self,
        locks: Locks,
        key: object,
        wait: object,
        lease: object,
        on_lost: object = "cancel",
        calls: Calls | None = None,
    ) -> None:
        self._locks = locks
        self._key = check_key(key)
        self._wait = _check_time(
            "wait is a timedelta from 0 to a year", wait, timedelta(0), _LONGEST_WAIT, "timedelta(seconds=3)"
        ).total_seconds()
        self._lease = _check_time(
            "lease is a timedelta from a second to a day", lease, *_LEASES, "timedelta(seconds=15)"
        )
        if on_lost not in ("cancel", "signal"):
            raise ValueInvalid(f"with_lock: on_lost is 'cancel' or 'signal', not {on_lost!r}.")
        self._cancels = on_lost == "cancel"
        self._calls = calls
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._interrupted = False
        self.holding: Holding | None = None

    async def __aenter__(self) -> Lock:
        self._task = asyncio.current_task()
        holding = await self.take(self._task)
        if self._cancels and self._task is not None:
            self._cancelling = self._task.cancelling()
            holding.told = self._interrupt
        return Lock(holding)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        holding = self.holding
        assert holding is not None  # noqa: S101 - it was entered
        holding.told = None
        ended, pending, others = isinstance(error, asyncio.CancelledError), False, False
        if self._interrupted and self._task is not None:
            pending = not ended and await self._is_cancelled_yet()
            others = self._task.uncancel() > self._cancelling
        try:
            await self.give_back()
        finally:
            self.holding = None
        if pending and others:
            raise asyncio.CancelledError
        if (self._interrupted and ended and not others) or (self._cancels and error is None and holding.is_lost):
            raise holding.loss from error

    # ----- for both kinds of blocks

    async def take(self, owner: object) -> Holding:
        """Take the lock."""
        if self.holding is not None:
            raise ContextError("This block was entered twice.", fix="Call with_lock for each block.")
        name = "" if self._calls is None else f" {self._calls.function}"
        holder = f"{socket.gethostname()}:{os.getpid()}{name}"
        attempt = UUID(int=self._locks.clock.uuid7())
        taking = self._locks.acquire(Ask(self._key, self._wait, self._lease, attempt, holder, owner))
        self.holding = await (taking if self._calls is None else self._calls.track(taking))
        return self.holding

    async def give_back(self) -> None:
        """Give the lock back."""
        if self.holding is not None:
            await self._locks.release(self.holding)

    # ----- steps

    def _interrupt(self) -> None:
        if self._task is not None:
            self._interrupted = True
            self._task.cancel()

    async def _is_cancelled_yet(self) -> bool:
        """Wait for a cancellation that was asked for and has not come, so that it does not come after the block."""
        try:
            await self._locks.machine.sleep(0)
        except asyncio.CancelledError:
            return True
        return False


class SyncLockBlock:
    """A block under a lock, in a thread; use it in ``with``. Made with ``with_lock``.

    Nothing ends a thread from outside. So if the lock is lost the block goes on, and raises `LockLost` at its end.
    """

    def __init__(self, block: LockBlock, wait: Wait) -> None:
        self._block = block
        self._wait = wait

    def __enter__(self) -> SyncLock:
        try:
            holding = self._wait(self._block.take(threading.get_ident()))
        except BaseException:
            if self._block.holding is not None:  # it was taken while this thread was interrupted
                self._wait(self._block.give_back())
            raise
        return SyncLock(holding, self._wait)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        holding = self._block.holding
        assert holding is not None  # noqa: S101 - it was entered
        try:
            self._wait(self._block.give_back())
        finally:
            self._block.holding = None
        if error is None and holding.is_lost:
            raise holding.loss


async def check_fence(calls: JobCalls, key: object, fence: object) -> None:
    """Make sure in a transaction that a lock has this holder, and keep it from others until the transaction ends."""
    name = check_key(key)
    if type(fence) is not int or not 0 < fence < 2**63:
        raise ValueInvalid(f"A fence is a lock's fencing token, not {fence!r}.", fix="Pass lock.fence.")
    held = await calls.write(lambda transaction: transaction.store.locks.check(transaction, name, fence))
    if not held:
        raise LockLost(
            f"The lock {name!r} does not have the holder {fence} any more.",
            fix="Start again under a new lock.",
            key=name,
            fence=fence,
        )


def check_key(key: object) -> str:
    """A valid key, or `ValueInvalid`."""
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY or not key.isprintable():
        raise ValueInvalid(
            f"The key of a lock is a text of 1 to {_LONGEST_KEY} printable characters, not {key!r:.300}.",
            fix="Write what is locked, such as f'account:{account_id}'.",
        )
    return key


def _check_time(word: str, given: object, least: timedelta, most: timedelta, fix: str) -> timedelta:
    if not isinstance(given, timedelta) or not least <= given <= most:
        raise ValueInvalid(f"with_lock: {word}, not {given!r}.", fix=f"Write {fix}.")
    return given
