"""Attempts at a transaction: from scratch after each conflict, and on another connection after one was lost.

Owns how often, how long and beside how many others something is tried. Leaves what is tried to `run`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.calls.engine import Engine
from penstock.calls.turns import Turns
from penstock.errors import Conflict, DatabaseBusy, DatabaseFull, DatabaseUnavailable, TryAgain
from penstock.jobs.waits import Exponential, backoff
from penstock.store.contract import Session

R = TypeVar("R")

_CONFLICT = Exponential(initial_backoff=0.005, base=2.0, max_backoff=1.0)


class Attempts:
    """Tries transactions of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turns = Turns(engine.store.writers)

    async def run(
        self, once: Callable[[], Awaitable[R]], what: str, *, writes: bool = True, for_ever: bool = False
    ) -> R:
        """Do something in a transaction, from scratch each time it conflicts or the database was lost.

        Args:
            once: Does it, in a transaction of its own.
            what: Who does it.
            writes: Whether others may conflict with it.
            for_ever: For a job, which waits for as long as it takes; its fence tells the next attempt whether this
                one was committed.
        """
        config, machine = self._engine.config, self._engine.machine
        attempt, until = 1, machine.monotonic() + config.database_wait
        while True:
            last = not for_ever and attempt >= config.conflict_attempts
            try:
                return await (self.in_turn(once, again=attempt > 1) if writes else once())
            except Conflict as error:
                if last:
                    raise Conflict(
                        f"{what}: what it read or wrote was changed by others in each of {attempt} attempts.",
                        fix="Try again; and read less, or spread what all callers write over several rows.",
                    ) from error
                self._engine.journal.conflicted(what)
            except DatabaseUnavailable as error:
                uncertain = error.facts.get("uncertain", False)
                if not for_ever and (last or uncertain or machine.monotonic() > until):
                    raise
            except (DatabaseBusy, DatabaseFull) as error:
                if not for_ever or error.facts.get("slow", False):
                    raise
            await self._pause(attempt)
            attempt += 1

    async def begin_write(self, *, for_ever: bool) -> Session:
        """Begin a transaction; for a job, wait for as long as the database is busy or away."""
        attempt = 1
        while True:
            try:
                return await self._engine.store.begin_write()
            except TryAgain:
                if not for_ever:
                    raise
            await self._pause(attempt)
            attempt += 1

    async def in_turn(self, once: Callable[[], Awaitable[R]], *, again: bool) -> R:
        """Do something that may conflict with others, beside as many of them as seems good."""
        await self._turns.begin(again=again)
        conflict = False
        try:
            return await once()
        except Conflict:
            conflict = True
            raise
        finally:
            self._turns.end(conflict=conflict)

    async def _pause(self, attempt: int) -> None:
        machine = self._engine.machine
        await machine.sleep(backoff(_CONFLICT, attempt, machine.random()))
