"""Locks of a running app: taken in the database, renewed while they are held, and released.

Owns waiting and renewing. `blocks` runs the code under a lock; the store decides who holds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from penstock.calls.run.engine import Engine
from penstock.clock import Clock
from penstock.dataclass import dataclass
from penstock.errors import ContextError, DatabaseUnavailable, LockLost, LockTaken, PenstockError, TryAgain
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.store.nouns.locks import LockRow

T = TypeVar("T")

# Parts of a lease since it was taken or renewed: when to renew it, how soon to try that again, and when a holder gives
# up. Its code under the lock then has time to end.
_RENEW_PART = 1 / 3
_AGAIN_PART = 0.05
_TRUST_PART = 0.8

_FIRST_LOOK, _LAST_LOOK, _LESS_OFTEN = 0.05, 1.0, 1.6  # seconds between looks of a waiter who hears nothing
_FIRST_REST, _LAST_REST = 0.005, 0.1  # seconds of rest after a signal, as most signals are not about locks
_TURN, _COURTESY = 0.1, 0.05  # seconds that a process keeps a lock that others want, and then leaves it to them
_MOST_TURNS = 1_000
_RELEASE_AGAIN = 0.1
_LATE = "it could not be renewed in time"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a lock."""

    key: str
    wait: float  # seconds to wait for it
    lease: timedelta
    attempt: UUID  # its own number, by which the store knows whether it has the lock
    holder: str  # the name of the holder, for people
    owner: object  # the task or the thread that asks


class Holding:
    """A lock that was taken."""

    def __init__(self, ask: Ask, fence: int, trusted_until: float, clock: Clock) -> None:
        self.ask = ask
        self.fence = fence  # the fencing token of this holder
        self.trusted_until = trusted_until  # on the monotonic clock: until then nobody else can have it
        self.over = asyncio.Event()  # set when it is lost, or about to be released
        self.told: Callable[[], None] | None = None  # called when it is lost
        self.keeper: asyncio.Task[None] | None = None  # renews it
        self._clock = clock
        self._reason = ""

    @property
    def is_lost(self) -> bool:
        """Whether it may have another holder by now. A lost lock stays lost."""
        return bool(self._reason) or (not self.over.is_set() and self._clock.monotonic() >= self.trusted_until)

    @property
    def loss(self) -> LockLost:
        """The error to raise when it is lost."""
        return LockLost(
            f"The lock {self.ask.key!r} was lost: {self._reason or _LATE}.",
            fix="Start again under a new lock. Refuse late writes with ctx.check_fence.",
            key=self.ask.key,
            fence=self.fence,
        )

    async def wait_lost(self, seconds: float | None) -> bool:
        """Wait until it is lost or about to be released, at most this many seconds; whether it is lost."""
        if seconds is None:
            await self.over.wait()
        else:
            await self._clock.wait(self.over, seconds)
        return self.is_lost

    def lose(self, reason: str = _LATE) -> None:
        """Note that it is lost."""
        if self._reason:
            return
        self._reason = reason
        self.over.set()
        log_event("lock.lost", logging.WARNING, key=self.ask.key, fence=self.fence, reason=reason)
        if self.told is not None:
            self.told()

    def end(self) -> None:
        """Stop renewing it: it is about to be released."""
        self.told = None
        if self.is_lost:
            self.lose()
        self.over.set()


class Locks:
    """The locks that a running app holds and waits for."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.store
        self.clock = engine.clock
        self.machine = engine.machine
        self._held: set[Holding] = set()
        self._lines: dict[str, deque[asyncio.Event]] = {}
        self._turns: dict[str, float] = {}  # since when this process retakes a lock that others want
        self._taking: dict[UUID, asyncio.Task[LockRow]] = {}  # the statement in flight of each attempt
        self._beside: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()

    # ----- taking

    async def acquire(self, ask: Ask) -> Holding:
        """Take a lock, waiting for it as long as asked; `LockTaken` if another held it all the time."""
        for held in self._held:
            if held.ask.key == ask.key and held.ask.owner == ask.owner and not held.is_lost:
                raise ContextError(
                    f"The lock {ask.key!r} is held here already, and a lock cannot be held twice.",
                    fix="Take it once, outside of both blocks, and pass on the lock.",
                )
        try:
            holding = await self._wait_for(ask)
        except LockTaken:
            raise
        except BaseException:  # perhaps it was taken, and the answer got lost
            self._do_beside(self._withdraw(ask))
            raise
        self._held.add(holding)
        holding.keeper = asyncio.get_running_loop().create_task(self._keep(holding))
        return holding

    async def _wait_for(self, ask: Ask) -> Holding:
        until = self.clock.monotonic() + ask.wait
        if not ask.wait:
            return await self._try_once(ask)
        turn, line = asyncio.Event(), self._lines.setdefault(ask.key, deque())
        line.append(turn)
        try:
            # Only the first waiter of this process asks the database.
            if line[0] is turn or await self.clock.wait(turn, ask.wait):
                return await self._look_until(ask, until)
            return await self._try_once(ask)
        finally:
            line.remove(turn)
            if line:
                line[0].set()
            else:
                del self._lines[ask.key]

    async def _look_until(self, ask: Ask, until: float) -> Holding:
        """Take a lock as soon as it is free."""
        heard, pause, rest = asyncio.Event(), _FIRST_LOOK, _FIRST_REST
        await self._leave_to_others(ask.key)
        self._store.signals.subscribe(heard)
        try:
            while True:
                heard.clear()
                left = until - self.clock.monotonic()
                if left <= 0:
                    return await self._try_once(ask)
                try:
                    found = await self._try(ask)
                    if isinstance(found, Holding):
                        return found
                    if not found.wanted and not await self._store.locks.want(ask.key, found.fence):
                        continue
                except TryAgain:  # the database is away or busy, which may end before the wait does
                    found = None
                if await self.clock.wait(heard, min(left, self._look_after(found, pause))):
                    await self.machine.sleep(rest)
                    rest = min(rest * _LESS_OFTEN, _LAST_REST)
                pause = min(pause * _LESS_OFTEN, _LAST_LOOK)
        finally:
            self._store.signals.unsubscribe(heard)

    def _look_after(self, row: LockRow | None, pause: float) -> float:
        """Seconds until the next look; with jitter, so that waiters do not all look at once."""
        pause *= 0.75 + 0.5 * self.clock.random()
        if row is None:
            return pause
        runs_out = (row.expires_at - self.clock.now()).total_seconds()
        return min(pause, max(runs_out, 0.0) + _FIRST_REST * (1 + self.clock.random()))

    async def _try_once(self, ask: Ask) -> Holding:
        try:
            found = await self._try(ask)
        except DatabaseUnavailable:  # such as an idle connection that was cut
            found = await self._try(ask)
        if isinstance(found, Holding):
            return found
        waited = f"was not free within {ask.wait:g} seconds, and" if ask.wait else "is not free:"
        raise LockTaken(
            f"The lock {ask.key!r} {waited} {found.holder} holds it.",
            fix="Try again later, or wait for longer.",
            key=ask.key,
            holder=found.holder,
            fence=found.fence,
            until=found.expires_at,
        )

    async def _try(self, ask: Ask) -> Holding | LockRow:
        """Take a lock if it is free: the lock, or the row of its holder."""
        before = self.clock.monotonic()
        await self._store.synchronize()  # all machines must agree whether it has expired
        now = self.clock.now()
        take = self._store.locks.take(ask.key, ask.attempt, ask.holder, ask.lease, now)
        taking = self._taking[ask.attempt] = self._do_beside(take)
        row = await asyncio.shield(taking)  # a cancelled statement could still take it, after it was withdrawn
        del self._taking[ask.attempt]
        if row.attempt != ask.attempt:
            return row
        if len(self._turns) > _MOST_TURNS:
            self._turns.clear()
        self._turns.setdefault(ask.key, self.machine.monotonic())
        return Holding(ask, row.fence, before + (row.expires_at - now).total_seconds() * _TRUST_PART, self.clock)

    async def _leave_to_others(self, key: str) -> None:
        """Pause if this process has had a lock for its turn, so that waiters elsewhere hear that it is free."""
        since = self._turns.get(key)
        if since is not None and self.machine.monotonic() - since > _TURN:
            await self.machine.sleep(_COURTESY)
            self._turns.pop(key, None)

    # ----- keeping

    async def _keep(self, holding: Holding) -> None:
        """Renew a lock until it is released or lost."""
        lease = holding.ask.lease.total_seconds()
        due = holding.trusted_until - lease * (_TRUST_PART - _RENEW_PART)
        while not await self.clock.wait(holding.over, max(0.0, due - self.clock.monotonic())):
            renewed = await self._renew(holding)
            due = self.clock.monotonic() + lease * (_RENEW_PART if renewed else _AGAIN_PART)
            if holding.is_lost:
                holding.lose()

    async def _renew(self, holding: Holding) -> bool:
        before, ask = self.clock.monotonic(), holding.ask
        left = holding.trusted_until - before
        if left <= 0:
            return False
        try:
            async with asyncio.timeout(left):
                if points.armed:
                    await points.reach("lock.renew", key=ask.key, fence=holding.fence)
                await self._store.synchronize()
                held = await self._store.locks.renew(ask.key, holding.fence, ask.lease, self.clock.now())
        except (TryAgain, TimeoutError):
            return False
        except PenstockError as error:
            held, reason = False, f"it could not be renewed: {error}"
        else:
            reason = "it has another holder, or was taken away"
        if holding.over.is_set():
            return True  # it is being released, which may be why it was not found
        if not held:
            holding.lose(reason)
        elif not holding.is_lost:  # the answer has come in time
            holding.trusted_until = before + ask.lease.total_seconds() * _TRUST_PART
        return True

    # ----- giving back

    async def release(self, holding: Holding) -> None:
        """Release a lock, also if the caller is cancelled meanwhile; it may turn out to be lost.

        Nobody waits for the release of a lost one: perhaps the database is away.
        """
        holding.end()
        releasing = self._do_beside(self._release(holding))
        if not holding.is_lost:
            await asyncio.shield(releasing)

    async def _release(self, holding: Holding) -> None:
        key, fence = holding.ask.key, holding.fence
        attempts, row = 0, None
        try:
            async with asyncio.timeout(holding.ask.lease.total_seconds()):  # then it has expired by itself
                while True:
                    attempts += 1
                    try:
                        row = await self._store.locks.release(key, fence)
                        break
                    except TryAgain:
                        await self.machine.sleep(_RELEASE_AGAIN)
            if row is None and attempts == 1:  # a later attempt may find that an earlier one has released it
                holding.lose("it had another holder, or was taken away")
        except (PenstockError, TimeoutError) as error:
            log_event("lock.not_released", logging.WARNING, key=key, fence=fence, error=error)
        finally:
            self._held.discard(holding)
            self._free(key, row)

    async def _withdraw(self, ask: Ask) -> None:
        """Release a lock if it was taken after its taker has gone."""
        taking = self._taking.pop(ask.attempt, None)
        if taking is not None:
            await asyncio.gather(taking, return_exceptions=True)
        try:
            self._free(ask.key, await self._store.locks.withdraw(ask.key, ask.attempt))
        except PenstockError as error:
            log_event("lock.not_released", logging.WARNING, key=ask.key, fence=None, error=error)

    def _free(self, key: str, row: LockRow | None) -> None:
        """Tell the waiters, here or elsewhere."""
        if row is not None and row.wanted:
            self._store.signals.notify()
        else:
            self._turns.pop(key, None)
        if not self._held:
            self._idle.set()

    def _do_beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine to its end, even if its caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    # ----- the end

    async def close(self, grace_left: Callable[[], float]) -> None:
        """Let code under locks end within the grace time, and release the locks."""
        for holding in list(self._held):
            holding.lose("the backend is being closed")
        self._idle.clear()
        if self._held:
            await self.machine.wait(self._idle, grace_left())
        if self._beside:
            await asyncio.wait(self._beside, timeout=grace_left())
        await self.abandon()

    async def abandon(self) -> None:
        """Leave all locks as they are, as a crash does."""
        held, self._held = self._held, set()
        keepers = [holding.keeper for holding in held if holding.keeper is not None]
        for task in (*keepers, *self._beside):
            task.cancel()
        await asyncio.gather(*keepers, *self._beside, return_exceptions=True)
