"""Attempts at a transaction: from scratch after each conflict, and on another connection after one was lost.

Owns how often and how long, and how many runs of one function go on at the same time in this process. `Attempts` also
has the transactions that penstock itself needs, outside of functions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import TypeVar
from zlib import crc32

from penstock.calls.run.engine import Engine
from penstock.clock import Clock
from penstock.errors import Conflict, DatabaseBusy, DatabaseFull, DatabaseUnavailable, TryAgain
from penstock.jobs.job import NewJob
from penstock.jobs.retry import Exponential, backoff
from penstock.observe.logs import event as log_event
from penstock.observe.timing import Mark, current_spent, time_step
from penstock.store.session import EVERY_QUEUE, QUEUES, Session
from penstock.transaction.commit import commit
from penstock.transaction.transaction import Transaction

R = TypeVar("R")

_CONFLICT = Exponential(initial_backoff=0.005, base=2.0, max_backoff=1.0)
_PENSTOCK = "penstock"  # what is tried, if it is no function
_TOLD = 4  # lost attempts from which on each doubling is logged

_LESS = 0.5
_MORE, _MORE_QUEUED = 0.05, 0.01
_QUEUED = 2.0  # below this limit the function queues; two runs of a process do, so that one waits while one runs
_LOST = 0.5  # below this limit it conflicts with other functions too, and waits for all queues
_LEAST = 0.25
_ITS_OWN = 3  # conflicts of a call in a row; before, only calls with the same arguments are limited
_MOST_CALLS = 1000  # with a limit of their own; then the idle ones are forgotten
_LONGEST_WAIT = 0.25


class Attempts:
    """Tries transactions of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.admission = Admission(engine.store.writers)

    def now(self) -> datetime:
        return self.engine.clock.now()

    async def write(self, write: Callable[[Transaction], Awaitable[R]]) -> R:
        """Write by penstock itself in a transaction of its own, again if it conflicts; what that gives."""
        tries = Tries(self.engine, turn=Turn(self.admission, _PENSTOCK))
        while True:
            async with tries:
                session = await self.engine.store.begin_write(tries.queue)
                try:
                    transaction = Transaction(session, self.engine, self.now())
                    result = await write(transaction)
                    await commit(transaction)
                finally:
                    await session.rollback()
                return result

    async def enqueue(self, job: NewJob) -> None:
        """Enqueue a job in a transaction of its own; nobody else's gets in its way."""
        store, now = self.engine.store, self.now()
        await self.attempt(lambda: store.jobs.enqueue_alone(job, now))
        store.signals.notify()
        self.engine.journal.note_enqueue(job, now)

    async def attempt(self, once: Callable[[], Awaitable[R]], what: str = _PENSTOCK, *, for_ever: bool = False) -> R:
        """Run a transaction until it neither conflicts nor loses the database; for the arguments see `Tries`."""
        tries = Tries(self.engine, what, for_ever=for_ever)
        while True:
            async with tries:
                return await once()

    async def begin_write(self, queue: int | None, *, for_ever: bool) -> Session:
        """Begin a transaction; `for_ever` waits while the database is busy or away."""
        attempt = 1
        while True:
            try:
                return await self.engine.store.begin_write(queue)
            except TryAgain:
                if not for_ever:
                    raise
            await pause(self.engine.machine, attempt)
            attempt += 1


class Tries:
    """The attempts at one transaction, each in an ``async with`` of a loop.

    The block ends without an error if it is to run again: after a conflict, or once the database was lost. Running it
    twice must do no harm.

    Args:
        engine: The engine.
        what: The function, for errors.
        turn: Its turn among other calls, for writes.
        for_ever: Whether to try without end, as a job does: its fence shows whether an attempt was committed.
    """

    __slots__ = ("_engine", "_for_ever", "_mark", "_spent", "_turn", "_until", "_what", "number", "queue")

    def __init__(
        self, engine: Engine, what: str = _PENSTOCK, *, turn: Turn | None = None, for_ever: bool = False
    ) -> None:
        self._engine, self._what, self._turn, self._for_ever = engine, what, turn, for_ever
        self._until = engine.machine.monotonic() + engine.config.database_wait
        self._spent = current_spent()
        self._mark: Mark | None = None
        self.number = 0  # the number of the attempt, from 1
        self.queue: int | None = None  # the database queue that the attempt joins, or None

    async def __aenter__(self) -> None:
        self.number += 1
        self._mark = None if self._spent is None else self._spent.mark()
        if self._turn is not None:
            with time_step("waits"):
                self.queue = await self._turn.begin()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        conflicts = error is not None and isinstance(error, Conflict) and not error.from_function
        if self._turn is not None:
            self._turn.end(conflict=conflicts)
        if error is None or not isinstance(error, TryAgain):
            return False
        late = not self._for_ever and self.number >= self._engine.config.conflict_attempts
        if conflicts and late:
            raise Conflict(
                f"{self._what}: other transactions changed its rows in each of {self.number} attempts.",
                fix="Try again. Read less, or spread contended writes over several rows.",
            ) from error
        if _is_final(error, for_ever=self._for_ever, late=late or self._engine.machine.monotonic() > self._until):
            return False
        if conflicts:
            self._engine.journal.note_conflict(self._what)
        elif isinstance(error, DatabaseUnavailable) and self.number >= _TOLD and self.number.bit_count() == 1:
            log_event("call.lost", logging.WARNING, function=self._what, attempts=self.number, error=error)
        if not (conflicts and self._turn is not None and self._turn.queue is not None):  # there it waits instead
            await pause(self._engine.machine, self.number)
        if self._spent is not None and self._mark is not None:
            self._spent.retry_since(self._mark)
        return True


async def pause(machine: Clock, attempt: int) -> None:
    """Pause after a conflict, longer each time."""
    await machine.sleep(backoff(_CONFLICT, attempt, machine.random()))


def _is_final(error: TryAgain, *, for_ever: bool, late: bool) -> bool:
    """Whether there is no further attempt after an error. One that a function has raised by itself is its outcome."""
    if error.from_function:
        return True
    if isinstance(error, DatabaseUnavailable):
        return not for_ever and (late or error.facts.get("uncertain", False))
    if isinstance(error, (DatabaseBusy, DatabaseFull)):
        return not for_ever or error.facts.get("slow", False)
    return not isinstance(error, Conflict)


class Admission:
    """Admits the runs of one process: all of them, or fewer at the same time once they have conflicted.

    Each conflict halves the limit of calls with the same arguments; each success raises it a little. Calls with a low
    limit queue: they go one after another across all processes, in the order of the database's lock queue. So calls for
    different rows do not wait for each other. A call that conflicts again and again does so with them: databases detect
    conflicts by page, and calls find one row by different arguments. Then the limit of its function falls, too.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self.conflicted: dict[str, _Limit] = {}  # functions that have; all others have no limits
        self._calls: dict[str, _Limit] = {}  # that have conflicted, by function and arguments

    def limits(self, function: str, own: str) -> Mapping[str, _Limit]:
        """The limits of a function, by their names: first that of calls like this one, if one has conflicted."""
        limits = {own: self._calls[own]} if own in self._calls else {}
        return limits | {function: self.conflicted[function]}

    def watch(self, function: str, own: str) -> None:
        """Have a function that has conflicted, and calls like this one, get limits."""
        self.conflicted.setdefault(function, _Limit(self._most))
        if len(self._calls) >= _MOST_CALLS:
            self._calls = {name: limit for name, limit in self._calls.items() if limit.is_used}
        self._calls.setdefault(own, _Limit(self._most))


class Turn:
    """The turns of one call, one for each attempt."""

    def __init__(self, admission: Admission, function: str, arguments: object = "") -> None:
        self._admission = admission
        self._function, self._arguments = function, arguments
        self._held: list[_Limit] = []
        self.conflicts = 0  # in a row

    async def begin(self) -> int | None:
        """Wait for admission; the database queue that the run joins, or None."""
        try:
            for limit in self._limits().values():
                await limit.begin(again=self.conflicts > 0)
                self._held.append(limit)
        except BaseException:
            self._leave()
            raise
        return self.queue

    def end(self, *, conflict: bool) -> None:
        self.conflicts += conflict
        if conflict:
            self._admission.watch(self._function, self._own)
        for name, limit in self._limits().items():
            if not conflict or name != self._function or self.conflicts >= _ITS_OWN:
                limit.note(conflict=conflict)
        self._leave()

    @property
    def queue(self) -> int | None:
        limits = self._limits()
        if any(limit.limit < _LOST for limit in limits.values()):
            return EVERY_QUEUE
        queued = [name for name, limit in limits.items() if limit.queue_size]
        return 1 + crc32(queued[-1].encode()) % QUEUES if queued else None

    def _limits(self) -> Mapping[str, _Limit]:
        if self._function not in self._admission.conflicted:
            return {}
        return self._admission.limits(self._function, self._own)

    @cached_property
    def _own(self) -> str:
        return f"{self._function} {self._arguments!r}"

    def _leave(self) -> None:
        while self._held:
            self._held.pop().leave()


class _Limit:
    """How many runs of one kind go on at once: first come, first served, but a run that starts again goes first."""

    def __init__(self, most: float) -> None:
        self._most = self.limit = most
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def queue_size(self) -> bool:
        return self.limit < min(_QUEUED, self._most)

    @property
    def _is_free(self) -> bool:
        # Without conflicts there is no limit: then the calls wait for connections, which costs less.
        return self.limit >= self._most or self._running < max(self.limit, min(_QUEUED, self._most))

    async def begin(self, *, again: bool) -> None:
        if self._is_free and (again or not self._waiting):
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if again:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        try:
            await asyncio.wait([turn], timeout=_LONGEST_WAIT)
            if self.queue_size:
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()
            turn.cancel()
            raise
        if not turn.done():  # no run waits long for a slow one that it may run next to
            turn.cancel()
            self._running += 1

    @property
    def is_used(self) -> bool:
        return bool(self._running or self._waiting)

    def note(self, *, conflict: bool) -> None:
        """Note how a run ended."""
        if conflict:
            self.limit = max(_LEAST, self.limit * _LESS)
        else:
            self.limit = min(self._most, self.limit + (_MORE_QUEUED if self.queue_size else _MORE))

    def leave(self) -> None:
        self._running -= 1
        while self._waiting and self._is_free:
            turn = self._waiting.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)
