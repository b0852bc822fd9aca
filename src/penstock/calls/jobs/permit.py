"""Permits: a claimed job starts only while the limit of its claim stands.

A claim permits a start for a moment. A job that starts later asks the database first, so nothing starts under an old
limit once that moment is over.
"""

from __future__ import annotations

import asyncio

from penstock.clock import Clock
from penstock.errors import TryAgain
from penstock.store.contract.session import Session
from penstock.store.contract.store import Store

_HOLDS = 0.3  # seconds after the claim was sent
NONE_HOLDS_AFTER = 0.5  # seconds after a change, by which jobs with an old permit have started


class Withdrawn(Exception):
    """A job does not start: its pool's limit has changed since the claim, or the database does not answer."""


class Permit:
    """Lets the jobs of one pool and one claim start; `epoch` numbers the limit, `since` is when the claim was sent."""

    def __init__(self, store: Store, machine: Clock, pool: str, epoch: int, since: float) -> None:
        self._store, self._machine = store, machine
        self._pool, self._epoch, self._since = pool, epoch, since
        self._withdrawn = False
        self._asking = asyncio.Lock()

    async def check(self, session: Session | None = None) -> None:
        """Raise Withdrawn if a job must not start now. It asks in the job's transaction, if that has one."""
        if session is not None:
            if not self._is_fresh:
                await self._ask(session)
        elif not self._is_fresh:
            async with self._asking:
                if not self._is_fresh:  # no other job has asked meanwhile
                    await self._ask_alone()
        if self._withdrawn:
            raise Withdrawn

    @property
    def _is_fresh(self) -> bool:
        return self._withdrawn or self._machine.monotonic() - self._since < _HOLDS

    async def _ask_alone(self) -> None:
        try:
            session = await self._store.begin_read()
            try:
                await self._ask(session)
            finally:
                await session.rollback()
        except TryAgain as error:
            raise Withdrawn from error

    async def _ask(self, session: Session) -> None:
        since = self._machine.monotonic()
        self._withdrawn = await self._store.pools.epoch(session, self._pool) != self._epoch
        self._since = since
