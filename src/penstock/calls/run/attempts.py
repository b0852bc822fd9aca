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

    async def attempt_write(self, once: Once[R], what: str, *, for_ever: bool = False) -> R:
        """Attempt a write that may conflict; see `attempt` and `in_turn`."""
        again = False

        async def in_turn() -> R:
            nonlocal again
            begun_before, again = again, True
            return await self.in_turn(once, what, again=begun_before)

        return await self.attempt(in_turn, what, for_ever=for_ever)

    async def attempt(self, once: Callable[[], Awaitable[R]], what: str = _PENSTOCK, *, for_ever: bool = False) -> R:
        """Attempt a transaction until it neither conflicts nor loses the database.

        Args:
            once: One attempt. After the database was lost it is made again, so making it twice must do no harm.
            what: The function, for errors and queues.
            for_ever: Whether to try without end, as a job does: its fence shows whether an attempt was committed.
        """
        config, machine = self.engine.config, self.engine.machine
        attempt, until, spent = 1, machine.monotonic() + config.database_wait, current_spent()
        while True:
            mark = None if spent is None else spent.mark()
            last = not for_ever and attempt >= config.conflict_attempts
            queues = False
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
                    queues = self._admission.queues(what)  # it waits in the queue instead
            if not queues:
                await self._pause(attempt)
            attempt += 1
            if spent is not None and mark is not None:
                spent.retry_since(mark)

    async def in_turn(self, once: Once[R], what: str, *, again: bool) -> R:
        """Make one attempt once admission lets it; `again` says whether an earlier one conflicted."""
        with spent_on("waits"):
            queue = await self._admission.begin(what, again=again)
        conflict = False
        try:
            return await once(queue)
        except Conflict as error:
            conflict = not error.from_function
            raise
        finally:
            self._admission.end(what, conflict=conflict)

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

    Databases detect conflicts by page, so writers of different rows can conflict too. Each conflict halves the limit of
    its function; each success raises it a little. A function with a low limit queues: its runs go one after another
    across all processes, in the order of the database's lock queue.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._functions: dict[str, _FunctionAdmission] = {}

    async def begin(self, function: str, *, again: bool) -> int | None:
        """Wait for admission; the database queue that the run joins, or None."""
        one = self._functions.get(function)
        if one is None:
            one = self._functions[function] = _FunctionAdmission(self._most)
        await one.begin(again=again)
        if not one.queued:
            return None
        return EVERY_QUEUE if one.limit < _LOST else 1 + crc32(function.encode()) % QUEUES

    def end(self, function: str, *, conflict: bool) -> None:
        self._functions[function].end(conflict=conflict)

    def queues(self, function: str) -> bool:
        one = self._functions.get(function)
        return one is not None and one.queued


class _FunctionAdmission:
    """Admission of one function: first come, first served, but a run that starts again goes first."""

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
                self._end()
            turn.cancel()
            raise
        if not turn.done():  # no run waits long for a slow one that it may run beside
            turn.cancel()
            self._running += 1

    def end(self, *, conflict: bool) -> None:
        if conflict:
            self.limit = max(_LEAST, self.limit * _LESS)
        else:
            self.limit = min(self._most, self.limit + (_MORE_QUEUED if self.queued else _MORE))
        self._end()

    def _end(self) -> None:
        self._running -= 1
        while self._waiting and self._is_free:
            turn = self._waiting.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)
