"""Permits: a claimed job starts only while the limit under which it was claimed stands.

A claim is a permit for a moment. A job that starts later, because it waited for a thread or the claim's answer came
late, has the database asked first. So nothing starts under an old limit once that moment is over.
"""

from __future__ import annotations

import asyncio

from penstock.clock import Clock
from penstock.errors import TryAgain
from penstock.store.contract.session import Session
from penstock.store.contract.store import Store

_HOLDS = 0.3  # seconds after the claim was sent
NONE_HOLDS_AFTER = 0.5  # seconds after a change; what was let start before it has started by then


class Withdrawn(Exception):
    """The limit of a job's pool has changed since the job was claimed, or nobody can tell: it does not start."""


class Permit:
    """Lets jobs of one pool start that one claim gave.

    Args:
        store: Where the limit is.
        machine: The machine's time.
        pool: The pool.
        epoch: The number of the limit under which they were claimed.
        since: When the claim was sent.
    """

    def __init__(self, store: Store, machine: Clock, pool: str, epoch: int, since: float) -> None:
        self._store = store
        self._machine = machine
        self._pool = pool
        self._epoch = epoch
        self._since = since
        self._withdrawn = False
        self._asking = asyncio.Lock()

    async def check(self, session: Session | None = None) -> None:
        """Let a job start now.

        Args:
            session: The transaction that it runs in, if there is one.

        Raises:
            Withdrawn: It must not.
        """
        if session is not None:
            if not self._is_fresh:
                await self._ask(session)
        elif not self._is_fresh:
            async with self._asking:
                if not self._is_fresh:  # nobody has asked meanwhile
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
