"""Attempts at a transaction: from scratch after each conflict, and on another connection after one was lost.

Owns how often and how long, and how many attempts run at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.calls.run.admission import Admission
from penstock.calls.run.engine import Engine
from penstock.errors import Conflict, DatabaseBusy, DatabaseFull, DatabaseUnavailable, TryAgain
from penstock.jobs.retry import Exponential, backoff
from penstock.store.contract.session import Session

R = TypeVar("R")

Once = Callable[[int | None], Awaitable[R]]  # one attempt, in a transaction that joins this queue

_CONFLICT = Exponential(initial_backoff=0.005, base=2.0, max_backoff=1.0)


class Attempts:
    """Tries transactions of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._admission = Admission(engine.store.writers)

    async def write(self, once: Once[R], what: str, *, for_ever: bool = False) -> R:
        """Attempt a write that may conflict; see `run` and `in_turn`."""
        again = False

        async def in_turn() -> R:
            nonlocal again
            begun_before, again = again, True
            return await self.in_turn(once, what, again=begun_before)

        return await self.run(in_turn, what, for_ever=for_ever)

    async def run(self, once: Callable[[], Awaitable[R]], what: str, *, for_ever: bool = False) -> R:
        """Attempt a transaction until it neither conflicts nor loses the database.

        Args:
            once: One attempt.
            what: The function, for errors and queues.
            for_ever: Whether to try without end, as a job does: its fence shows whether an attempt was committed.
        """
        config, machine = self._engine.config, self._engine.machine
        attempt, until = 1, machine.monotonic() + config.database_wait
        while True:
            last = not for_ever and attempt >= config.conflict_attempts
            queues = False
            try:
                return await once()
            except Conflict as error:
                if last:
                    raise Conflict(
                        f"{what}: other transactions changed its rows in each of {attempt} attempts.",
                        fix="Try again. Read less, or spread contended writes over several rows.",
                    ) from error
                self._engine.journal.conflicted(what)
                queues = self._admission.queues(what)  # it waits in the queue instead
            except DatabaseUnavailable as error:
                uncertain = error.facts.get("uncertain", False)
                if not for_ever and (last or uncertain or machine.monotonic() > until):
                    raise
            except (DatabaseBusy, DatabaseFull) as error:
                if not for_ever or error.facts.get("slow", False):
                    raise
            if not queues:
                await self._pause(attempt)
            attempt += 1

    async def begin_write(self, queue: int | None, *, for_ever: bool) -> Session:
        """Begin a transaction; `for_ever` waits while the database is busy or away."""
        attempt = 1
        while True:
            try:
                return await self._engine.store.begin_write(queue)
            except TryAgain:
                if not for_ever:
                    raise
            await self._pause(attempt)
            attempt += 1

    async def in_turn(self, once: Once[R], what: str, *, again: bool) -> R:
        """Make one attempt once admission lets it; `again` says whether an earlier one conflicted."""
        queue = await self._admission.begin(what, again=again)
        conflict = False
        try:
            return await once(queue)
        except Conflict:
            conflict = True
            raise
        finally:
            self._admission.end(what, conflict=conflict)

    async def _pause(self, attempt: int) -> None:
        machine = self._engine.machine
        await machine.sleep(backoff(_CONFLICT, attempt, machine.random()))
