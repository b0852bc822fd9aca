"""Rate limits at rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from penstock.dataclass import dataclass
from penstock.pools.rates import FixedWindow, RateLimit, RateState, TokenBucket, full_at, open_at
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction, Row

TICK = timedelta.resolution


@dataclass(frozen=True, slots=True)
class RateRow:
    """The token count of a rate limit."""

    name: str
    key: str
    policy: RateLimit
    state: RateState


class Rates(Noun, queries=("rates",)):
    """Rate limits at rest."""

    async def hold(self, transaction: OpenTransaction, name: str, key: str, now: datetime) -> RateState | None:
        """The token count of a rate limit, locked until the transaction ends; None if nothing was taken."""
        rows = await self._fetch(transaction, "hold", name=name, key=key, now=now)
        return self.state(rows[0]) if rows else None

    async def peek(self, transaction: OpenTransaction, name: str, key: str) -> RateState | None:
        """The token count of a rate limit; None if nothing was taken."""
        rows = await self._fetch(transaction, "peek", name=name, key=key)
        return self.state(rows[0]) if rows else None

    async def keep(self, transaction: OpenTransaction, rates: Sequence[RateRow]) -> None:
        """Store the token counts of rate limits."""
        rows = [
            {
                "name": row.name,
                "key": row.key,
                "value": row.state.value,
                "parts": row.state.parts,
                "moment": row.state.moment,
                "open_at": open_at(row.policy, row.state),
                "full_at": full_at(row.policy, row.state),
            }
            for row in sorted(rates, key=lambda row: (row.name, row.key))  # in one order, so that none wait in a circle
        ]
        await self._fetch_each(transaction, "keep", rows)

    async def forget(self, transaction: OpenTransaction, name: str, key: str) -> None:
        """Forget the tokens taken from a rate limit."""
        await self._fetch(transaction, "forget", name=name, key=key)

    def state(self, row: Row, prefix: str = "") -> RateState | None:
        """The token count in a row, whose columns begin with a prefix; one of no parts was only held."""
        value, parts, moment = (row[f"{prefix}{name}"] for name in ("value", "parts", "moment"))
        return RateState(value, parts, self._access.time(moment)) if parts and value is not None and moment else None


def rate_text(policy: RateLimit | None) -> str | None:
    """A rate limit's policy as stored."""
    if policy is None:
        return None
    given: dict[str, Any] = {
        "kind": type(policy).__name__,
        "rate": policy.rate,
        "period": policy.period // TICK,
        "capacity": policy.capacity,
        "max_reserved": policy.max_reserved,
    }
    if isinstance(policy, FixedWindow):
        given["start"] = policy.start.isoformat()
    return json.dumps(given)


@lru_cache(256)
def rate_of(text: str | None) -> RateLimit | None:
    """A rate limit's stored policy."""
    if text is None:
        return None
    given = json.loads(text)
    kind, period = given.pop("kind"), given.pop("period") * TICK
    if kind == TokenBucket.__name__:
        return TokenBucket(period=period, **given)
    return FixedWindow(period=period, **{**given, "start": datetime.fromisoformat(given["start"])})
