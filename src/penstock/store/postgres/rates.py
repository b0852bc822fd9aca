"""Rate limits at rest on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.pools.rates import RateState, full_at, open_at
from penstock.store.contract.keys import RateRow
from penstock.store.contract.session import OpenTransaction, Row
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.session import BEGIN_INTERNAL, begin
from penstock.store.rows.pools import state_of
from penstock.store.sql.queries import load_queries


class PostgresRates:
    """See `store.contract.Rates`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._queries = load_queries("penstock.store.postgres", "rates", "$")

    async def hold(self, transaction: OpenTransaction, name: str, key: str, now: datetime) -> RateState | None:
        """What is left of a rate limit, held against others until the transaction ends."""
        ((value, parts, moment),) = await self._fetch(transaction, "hold", name=name, key=key, now=now)
        return state_of(value, parts, moment)

    async def peek(self, transaction: OpenTransaction, name: str, key: str) -> RateState | None:
        """What is left of a rate limit."""
        rows = await self._fetch(transaction, "peek", name=name, key=key)
        return state_of(*rows[0]) if rows else None

    async def keep(self, transaction: OpenTransaction, rates: Sequence[RateRow]) -> None:
        """Keep what is left of rate limits."""
        rates = sorted(rates, key=lambda row: (row.name, row.key))  # all in one order, so that none wait in a circle
        await self._fetch(
            transaction,
            "keep",
            names=[row.name for row in rates],
            keys=[row.key for row in rates],
            numbers=[row.state.value for row in rates],
            parts=[row.state.parts for row in rates],
            moments=[row.state.moment for row in rates],
            open_ats=[open_at(row.policy, row.state) for row in rates],
            full_ats=[full_at(row.policy, row.state) for row in rates],
        )

    async def forget(self, transaction: OpenTransaction, name: str, key: str) -> None:
        """Forget what was taken of a rate limit."""
        await self._fetch(transaction, "forget", name=name, key=key)

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget rate limits that are full again, in one bounded step; how many."""
        query = self._queries["prune"]
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            count = await session.execute(query.statement, query.args({"now": now, "limit": limit}))
            await session.commit()
        finally:
            await session.rollback()
        return count

    async def _fetch(self, transaction: OpenTransaction, query_name: str, **values: Any) -> Sequence[Row]:
        query = self._queries[query_name]
        return await transaction.fetch(query.statement, query.args(values))
