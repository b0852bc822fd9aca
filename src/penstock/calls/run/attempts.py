"""Attempts at a transaction: from scratch after each conflict, and on another connection after one was lost.

Owns how often and how long, and how many runs of one function go on at the same time in this process. `Attempts` also
has the transactions that penstock itself needs, outside of functions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from zlib import crc32

from penstock.calls.run.engine import Engine
from penstock.errors import Conflict, DatabaseBusy, DatabaseFull, DatabaseUnavailable, TryAgain
from penstock.identity.caller import SYSTEM, Caller
from penstock.jobs.job import NewJob, Work
from penstock.jobs.retry import Exponential, backoff
from penstock.observe.timing import current_spent, spent_on
from penstock.store.contract.session import EVERY_QUEUE, QUEUES, Session
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
        call = Call(what, arguments)

        async def in_turn() -> R:
            with spent_on("waits"):
                turn = await self._admission.begin(call)
            try:
                result = await once(turn.queue)
            except Conflict:
                call.conflicts += 1
                turn.end(conflict=True)
                raise
            except BaseException:
                turn.end(conflict=False)
                raise
            turn.end(conflict=False)
            return result

        return await self.attempt(in_turn, what, queues=lambda: self._admission.queues(call), for_ever=for_ever)

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
            except Conflict as error:
                if last:
                    raise Conflict(
                        f"{what}: other transactions changed its rows in each of {attempt} attempts.",
                        fix="Try again. Read less, or spread contended writes over several rows.",
                    ) from error
                self.engine.journal.conflicted(what)
                waits = queues()
            except DatabaseUnavailable as error:
                uncertain = error.facts.get("uncertain", False)
                if not for_ever and (last or uncertain or machine.monotonic() > until):
                    raise
            except (DatabaseBusy, DatabaseFull) as error:
                if not for_ever or error.facts.get("slow", False):
                    raise
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


@dataclass(slots=True)
class Call:
    """A call as admission knows it."""

    function: str
    arguments: object
    conflicts: int = 0  # in a row

    @property
    def own(self) -> str:
        """What tells it from calls of its function for other rows."""
        if not isinstance(self.arguments, str):
            self.arguments = repr(self.arguments)
        return self.arguments


class Admission:
    """Admits the runs of one process; at most `most` of a function at the same time.

    Each conflict halves the limit of calls with the same arguments; each success raises it a little. Calls with a low
    limit queue: they go one after another across all processes, in the order of the database's lock queue. So calls for
    different rows do not wait for each other. A call that conflicts again and again does so with them: databases detect
    conflicts by page, and rows may be chosen otherwise. Then the limit of its function falls, too.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._functions: dict[str, _Limit] = {}
        self._calls: dict[str, dict[str, _Limit]] = {}  # of functions that have conflicted, by arguments

    async def begin(self, call: Call) -> Turn:
        """Wait for admission."""
        function, again = self._functions.setdefault(call.function, _Limit(self._most)), call.conflicts > 0
        calls = self._calls.get(call.function)
        own = None if calls is None else calls.get(call.own)
        if own is not None:
            await own.begin(again=again)
        try:
            await function.begin(again=again)
        except BaseException:
            if own is not None:
                own.leave()
            raise
        return Turn(self, call, function, own)

    def queues(self, call: Call) -> bool:
        own = self._calls.get(call.function, {}).get(call.own)
        function = self._functions.get(call.function)
        return any(limit is not None and limit.queued for limit in (own, function))

    def ended(self, call: Call, function: _Limit, own: _Limit | None, *, conflict: bool) -> None:
        """See `Turn.end`."""
        calls = self._calls.get(call.function, {})
        if conflict and own is None:
            own = calls.setdefault(call.own, _Limit(self._most))
            self._calls[call.function] = calls
            own.note(conflict=True)
        elif own is not None:
            own.note(conflict=conflict)
            own.leave()
            if own.is_idle:
                calls.pop(call.own, None)
                if not calls:
                    self._calls.pop(call.function, None)
        if not conflict or call.conflicts >= _ITS_OWN:
            function.note(conflict=conflict)
        function.leave()


@dataclass(slots=True)
class Turn:
    """A run that was admitted."""

    admission: Admission
    call: Call
    function: _Limit
    own: _Limit | None

    @property
    def queue(self) -> int | None:
        """The database queue that it joins, or None."""
        if self.function.queued:
            return EVERY_QUEUE if self.function.limit < _LOST else _queue(self.call.function)
        if self.own is None or not self.own.queued:
            return None
        return EVERY_QUEUE if self.own.limit < _LOST else _queue(self.call.function + self.call.own)

    def end(self, *, conflict: bool) -> None:
        self.admission.ended(self.call, self.function, self.own, conflict=conflict)


def _queue(name: str) -> int:
    return 1 + crc32(name.encode()) % QUEUES


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
    def is_idle(self) -> bool:
        """Whether it limits nothing, and nobody runs or waits."""
        return self.limit >= self._most and not self._running and not self._waiting

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
