"""Rate limits at rest on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.pools.rates import RateState, full_at, open_at
from penstock.store.contract.keys import RateRow
from penstock.store.contract.session import OpenTransaction, Row
from penstock.store.rows.pools import state_of
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.session import Begin, reading, writing


class SqliteRates:
    """See `store.contract.Rates`."""

    def __init__(self, begin_read: Begin, begin_write: Begin) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._queries = load_queries("penstock.store.sqlite", "rates", "?")

    async def hold(self, transaction: OpenTransaction, name: str, key: str, now: datetime) -> RateState | None:
        """What is left of a rate limit, held against others until the transaction ends."""
        rows = await self._fetch(transaction, "hold", name=name, key=key, now=encode_datetime(now))
        return _state(rows)

    async def peek(self, transaction: OpenTransaction, name: str, key: str) -> RateState | None:
        """What is left of a rate limit."""
        return _state(await self._fetch(transaction, "peek", name=name, key=key))

    async def keep(self, transaction: OpenTransaction, rates: Sequence[RateRow]) -> None:
        """Keep what is left of rate limits."""
        query = self._queries["keep"]
        for row in rates:
            values = {
                "name": row.name,
                "key": row.key,
                "value": row.state.value,
                "parts": row.state.parts,
                "moment": encode_datetime(row.state.moment),
                "open_at": encode_datetime(open_at(row.policy, row.state)),
                "full_at": encode_datetime(full_at(row.policy, row.state)),
            }
            await transaction.execute(query.statement, query.args(values))

    async def forget(self, transaction: OpenTransaction, name: str, key: str) -> None:
        """Forget what was taken of a rate limit."""
        await self._fetch(transaction, "forget", name=name, key=key)

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget rate limits that are full again, in one bounded step; how many."""
        query = self._queries["prune"]
        async with reading(self._begin_read) as session:
            if not await self._fetch(session, "any_full", now=encode_datetime(now)):
                return 0
        async with writing(self._begin_write) as session:
            return await session.execute(query.statement, query.args({"now": encode_datetime(now), "limit": limit}))

    async def _fetch(self, transaction: OpenTransaction, query_name: str, **values: Any) -> Sequence[Row]:
        query = self._queries[query_name]
        return await transaction.fetch(query.statement, query.args(values))


def _state(rows: Sequence[Row]) -> RateState | None:
    if not rows:
        return None
    value, parts, moment = rows[0]
    return state_of(value, parts, datetime.fromisoformat(moment))
