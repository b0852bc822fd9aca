"""The gates of pools: jobs with a concurrency key, or of a pool with a rate limit, start through them.

One worker at a time opens a gate; what passes is decided by `pools.gate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.jobs.job import Job
from penstock.pools.gate import Gate, Passage, WaitingKey, passage, recount
from penstock.store.nouns.jobs import Room
from penstock.store.nouns.noun import Access, Noun
from penstock.store.nouns.rates import RateRow, Rates, rate_of
from penstock.store.session import Session

_KEYS_COMPARED = 32  # of the keys that wait at a gate at least so many are compared by how many jobs they run


class Gates(Noun, ABC, queries=("gates",)):
    """Lets jobs through gates; part of claiming."""

    def __init__(self, access: Access, rates: Rates) -> None:
        super().__init__(access)
        self._rates = rates

    async def open(self, session: Session, lease: int, room: Room, now: datetime) -> tuple[list[Job], timedelta | None]:
        """Start jobs that wait at a pool's gate; and the wait until more may start, if a rate limit is in the way."""
        # The lock comes first: the snapshot of the next statement begins after it.
        if not await self._fetch(session, "lock", pool=room.pool):
            return [], None
        gate, turns = await self._turns(session, room, now)
        if gate.rate_limit is not None and await self._fetch(session, "close", pool=room.pool):
            gate, turns = await self._turns(session, room, now)
        found = passage(gate, turns, room.room, now)
        if not found.counts:
            return [], found.again
        jobs, keys = await self._start(session, lease, room, found, now)
        found = recount(gate, turns, found, Counter(keys), now)
        await self._rates.keep(session, _rates_of(room.pool, gate, found))
        return jobs, found.again

    async def _turns(self, session: Session, room: Room, now: datetime) -> tuple[Gate, list[WaitingKey]]:
        """How a gate stands, and whose turn it is."""
        values = {"room": room.room, "keys": max(room.room, _KEYS_COMPARED), "now": now, **self._access.left}
        rows = await self._fetch(session, "turns", pool=room.pool, **values)
        gates = self._read(
            Gate,
            rows[:1],
            rate_limit=lambda row: rate_of(row["rate_limit"]),
            key_rate_limit=lambda row: rate_of(row["key_rate_limit"]),
            rate=self._rates.state,
        )
        waiting = [row for row in rows if row["key"] is not None]
        keys = self._read(WaitingKey, waiting, rate=lambda row: self._rates.state(row, "key_"))
        return gates[0], keys

    # ----- different on each store

    @abstractmethod
    async def _start(
        self, session: Session, lease: int, room: Room, found: Passage, now: datetime
    ) -> tuple[list[Job], Sequence[str]]:
        """Start as many jobs of each key as may; the jobs, and the key of each."""


def _rates_of(pool: str, gate: Gate, passed: Passage) -> list[RateRow]:
    """The rows of a pool's rate limits to store after jobs have passed its gate."""
    policies = {key: gate.key_rate_limit if key else gate.rate_limit for key in passed.rates}
    return [
        RateRow(f"pool:{pool}", key, policy, passed.rates[key])
        for key, policy in policies.items()
        if policy is not None
    ]
