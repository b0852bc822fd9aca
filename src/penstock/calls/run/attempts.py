"""Attempts at a transaction: from scratch after each conflict, and on another connection after one was lost.

Owns how often and how long, and how many runs of one function go on at the same time in this process. `Attempts` also
has the transactions that penstock itself needs, outside of functions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar
from zlib import crc32

from penstock.calls.run.engine import Engine
from penstock.errors import Conflict, DatabaseBusy, DatabaseFull, DatabaseUnavailable, TryAgain
from penstock.identity.caller import SYSTEM, Caller
from penstock.jobs.job import NewJob, Work
from penstock.jobs.retry import Exponential, backoff
from penstock.observe.timing import current_spent, spent_on
from penstock.store.session import EVERY_QUEUE, QUEUES, Session
from penstock.transaction.commit import commit
from penstock.transaction.transaction import Transaction

R = TypeVar("R")

Once = Callable[[int | None], Awaitable[R]]  # one attempt, in a transaction that joins this queue

_CONFLICT = Exponential(initial_backoff=0.005, base=2.0, max_backoff=1.0)
_PENSTOCK = "penstock"  # what is tried, if it is no function

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
        self._admission = Admission(engine.store.writers)

    def now(self) -> datetime:
        return self.engine.clock.now()

    # ----- of penstock itself

    async def write(self, write: Callable[[Transaction], Awaitable[R]]) -> R:
        """Write by penstock itself in a transaction of its own, again if it conflicts; what that gives."""

        async def once(queue: int | None) -> R:
            session = await self.engine.store.begin_write(queue)
            try:
                transaction = self.transaction(session, self.now(), 0)
                result = await write(transaction)
                await commit(transaction)
            finally:
                await session.rollback()
            return result

        return await self.attempt_write(once, _PENSTOCK)

    async def enqueue(self, job: NewJob) -> None:
        """Enqueue a job in a transaction of its own; nobody else's gets in its way."""
        store, now = self.engine.store, self.now()
        await self.attempt(lambda: store.jobs.enqueue_alone(job, now))
        store.signals.notify()
        self.engine.journal.enqueued(job, now)

    # ----- of anybody

    async def attempt_write(self, once: Once[R], what: str, arguments: object = "", *, for_ever: bool = False) -> R:
        """Attempt a write that may conflict, each time once admission lets it; see `attempt`."""
        call = Call(self._admission, what, arguments)

        async def in_turn() -> R:
            with spent_on("waits"):
                queue = await call.begin()
            conflict = False
            try:
                return await once(queue)
            except Conflict as error:
                conflict = not error.from_function
                raise
            finally:
                call.end(conflict=conflict)

        return await self.attempt(in_turn, what, queues=lambda: call.queue is not None, for_ever=for_ever)

    async def attempt(
        self,
        once: Callable[[], Awaitable[R]],
        what: str = _PENSTOCK,
        *,
        queues: Callable[[], bool] = lambda: False,
        for_ever: bool = False,
    ) -> R:
        """Attempt a transaction until it neither conflicts nor loses the database.

        Args:
            once: One attempt. After the database was lost it is made again, so making it twice must do no harm.
            what: The function, for errors.
            queues: Whether it waits in a queue after a conflict, so that it need not pause.
            for_ever: Whether to try without end, as a job does: its fence shows whether an attempt was committed.
        """
        config, machine = self.engine.config, self.engine.machine
        attempt, until, spent = 1, machine.monotonic() + config.database_wait, current_spent()
        while True:
            mark = None if spent is None else spent.mark()
            last = not for_ever and attempt >= config.conflict_attempts
            waits = False
            try:
                return await once()
            except TryAgain as error:
                if isinstance(error, Conflict) and last and not error.from_function:
                    raise Conflict(
                        f"{what}: other transactions changed its rows in each of {attempt} attempts.",
                        fix="Try again. Read less, or spread contended writes over several rows.",
                    ) from error
                if _is_final(error, for_ever=for_ever, late=last or machine.monotonic() > until):
                    raise
                if isinstance(error, Conflict):
                    self.engine.journal.conflicted(what)
                    waits = queues()  # it waits in the queue instead
            if not waits:
                await self._pause(attempt)
            attempt += 1
            if spent is not None and mark is not None:
                spent.retry_since(mark)

    async def begin_write(self, queue: int | None, *, for_ever: bool) -> Session:
        """Begin a transaction; `for_ever` waits while the database is busy or away."""
        attempt = 1
        while True:
            try:
                return await self.engine.store.begin_write(queue)
            except TryAgain:
                if not for_ever:
                    raise
            await self._pause(attempt)
            attempt += 1

    def transaction(
        self, session: Session, now: datetime, seed: int, work: Work | None = None, caller: Caller = SYSTEM
    ) -> Transaction:
        engine = self.engine
        return Transaction(
            session, engine.store, engine.statements, engine.config, engine.clock, now, seed, work, caller
        )

    async def _pause(self, attempt: int) -> None:
        machine = self.engine.machine
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
    """Admits the runs of one process; at most `most` of a function at the same time.

    Each conflict halves the limit of calls with the same arguments; each success raises it a little. Calls with a low
    limit queue: they go one after another across all processes, in the order of the database's lock queue. So calls for
    different rows do not wait for each other. A call that conflicts again and again does so with them: databases detect
    conflicts by page, and calls find one row by different arguments. Then the limit of its function falls, too.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._functions: dict[str, _Limit] = {}
        self._calls: dict[str, _Limit] = {}  # that have conflicted, by function and arguments
        self._conflicted: set[str] = set()  # functions

    def limits(self, function: str, arguments: object) -> dict[str, _Limit]:
        """The limits that hold for a call, by their names: first that of calls like it, if one has conflicted."""
        own = f"{function} {arguments!r}" if function in self._conflicted else ""
        limits = {own: self._calls[own]} if own in self._calls else {}
        return limits | {function: self._functions.setdefault(function, _Limit(self._most))}

    def watch(self, function: str, arguments: object) -> None:
        """Have calls like this one, which has conflicted, get a limit of their own."""
        self._conflicted.add(function)
        if len(self._calls) >= _MOST_CALLS:
            self._calls = {name: limit for name, limit in self._calls.items() if limit.is_used}
        self._calls.setdefault(f"{function} {arguments!r}", _Limit(self._most))


class Call:
    """A call that takes turns."""

    def __init__(self, admission: Admission, function: str, arguments: object = "") -> None:
        self._admission = admission
        self._of = function, arguments
        self._held: list[_Limit] = []
        self.conflicts = 0  # in a row

    async def begin(self) -> int | None:
        """Wait for admission; the database queue that the run joins, or None."""
        try:
            for limit in self._admission.limits(*self._of).values():
                await limit.begin(again=self.conflicts > 0)
                self._held.append(limit)
        except BaseException:
            self._leave()
            raise
        return self.queue

    def end(self, *, conflict: bool) -> None:
        self.conflicts += conflict
        if conflict:
            self._admission.watch(*self._of)
        for name, limit in self._admission.limits(*self._of).items():
            if not conflict or name != self._of[0] or self.conflicts >= _ITS_OWN:
                limit.note(conflict=conflict)
        self._leave()

    @property
    def queue(self) -> int | None:
        limits = self._admission.limits(*self._of)
        if any(limit.limit < _LOST for limit in limits.values()):
            return EVERY_QUEUE
        queued = [name for name, limit in limits.items() if limit.queued]
        return 1 + crc32(queued[-1].encode()) % QUEUES if queued else None

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
    def queued(self) -> bool:
        return self.limit < min(_QUEUED, self._most)

    @property
    def _is_free(self) -> bool:
        return self._running < max(self.limit, min(_QUEUED, self._most))

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
            if self.queued:
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()
            turn.cancel()
            raise
        if not turn.done():  # no run waits long for a slow one that it may run beside
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
            self.limit = min(self._most, self.limit + (_MORE_QUEUED if self.queued else _MORE))

    def leave(self) -> None:
        self._running -= 1
        while self._waiting and self._is_free:
            turn = self._waiting.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)
