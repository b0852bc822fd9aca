"""The gates of pools on SQLite: jobs with a concurrency key, or of a pool with a rate limit, start through them.

Part of claiming, in its transaction: there is one writer, so one worker at a time decides. The decision is made in
`pools.gate`.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from penstock.pools.gate import Gate, WaitingKey, passage, passed
from penstock.store.contract.jobs import Room
from penstock.store.contract.keys import Rates
from penstock.store.contract.session import Row, Session
from penstock.store.nouns.noun import Access, Noun
from penstock.store.rows.pools import KEYS_COMPARED, rates_of, turns_of

_KEY = -1  # the place of the concurrency key in a row of `start`


class SqliteGates(Noun):
    """Lets jobs through gates."""

    def __init__(self, access: Access, rates: Rates) -> None:
        super().__init__(access, "gates")
        self._rates = rates

    async def open(self, session: Session, lease: int, room: Room, now: datetime) -> tuple[list[Row], timedelta | None]:
        """Take the rows of jobs that may start; and the wait until more may, if a rate limit is in the way."""
        if not await self._fetch(session, "lock", pool=room.pool):
            return [], None
        gate, turns = await self._turns(session, room, now)
        if gate.rate_limit is not None:
            await self._fetch(session, "close", pool=room.pool)
            await self._fetch(session, "closed", pool=room.pool)
            gate, turns = await self._turns(session, room, now)
        found = passage(gate, turns, room.room, now)
        rows: list[Row] = []
        for key, count in found.counts.items():
            values = {"pool": room.pool, "key": key, "count": count, "lease": lease, "epoch": room.epoch}
            rows += await self._fetch(session, "start", **values, now=now)
        for row in rows:
            await self._fetch(session, "free_started", id=row[0])
        if found.counts:
            await self._fetch(session, "turned", pool=room.pool, last=found.last)
            found = passed(gate, turns, found, Counter(row[_KEY] for row in rows), now)
            await self._rates.keep(session, rates_of(room.pool, gate, found))
        return rows, found.again

    async def _turns(self, session: Session, room: Room, now: datetime) -> tuple[Gate, list[WaitingKey]]:
        values = {"room": room.room, "keys": max(room.room, KEYS_COMPARED), "now": now}
        rows = await self._fetch(session, "turns", pool=room.pool, **values)
        return turns_of(
            [
                (*row[:5], self._access.time(row[5]), self._access.time(row[6]), *row[7:12], self._access.time(row[12]))
                for row in rows
            ]
        )
