"""Pools and rate limits as rows: the conversion that both stores share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from penstock.pools.gate import Gate, Passage, WaitingKey
from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import FixedWindow, RateLimit, RateState, TokenBucket
from penstock.pools.shares import Member, lent
from penstock.store.contract.keys import RateRow
from penstock.store.contract.pools import PoolRow, PoolView

KEYS_COMPARED = 32  # of the keys that wait at a gate at least so many are compared by how many jobs they run
_TICK = timedelta.resolution
_DECLARED = ("pool", "limit", "key_parallelism", "rate_limit", "key_rate_limit", "pool_group", "ageing")


def declared_of(pool: PoolDefinition) -> tuple[str, int, int | None, str | None, str | None, str | None, int | None]:
    """The stored values of a declared pool, in the order of the query `declared`."""
    return (
        pool.name,
        pool.max_parallelism,
        pool.key_parallelism,
        rate_text(pool.rate_limit),
        rate_text(pool.key_rate_limit),
        pool.group,
        None if pool.ageing is None else pool.ageing // _TICK,
    )


def declared_values(pool: PoolDefinition) -> dict[str, Any]:
    """The same, by the names of the parameters of the query `declare`."""
    return dict(zip(_DECLARED, declared_of(pool), strict=True))


def views_of(rows: Sequence[Sequence[Any]], members: Mapping[str, Sequence[Member]]) -> list[PoolView]:
    """The pools as a worker sees them, from rows of the query `look`; those of a group with slots lent by others."""
    views = []
    for *row, group in rows:
        view = PoolView(*row)
        if group is not None:
            limit = lent(members[group], view.pool)
            own = view.max_parallelism  # it wants these even while others have them, and so gets them back
            others = [member for member in members[group] if member.name != view.pool]
            lacking = sum(member.wanted for member in others if member.limit)  # one that is paused borrows nothing
            free = max(0, limit - view.granted)
            view = replace(view, max_parallelism=max(own, limit), free=free, lacking=lacking)
        else:
            view = replace(view, free=max(0, view.max_parallelism - view.granted))
        views.append(view)
    return views


def pool_row_of(row: Sequence[Any]) -> PoolRow:
    """A pool as seen from outside, from a row of the query `list`."""
    name, declared, limit, paused, granted, ready, scheduled, running, waiting, *rest = row
    of_key, rate, key_rate, group, ageing = rest
    return PoolRow(
        name=name,
        declared=declared,
        max_parallelism=limit,
        paused=bool(paused),
        granted=granted,
        ready=ready,
        scheduled=scheduled,
        running=running,
        waiting=waiting,
        key_parallelism=of_key,
        rate_limit=rate_of(rate),
        key_rate_limit=rate_of(key_rate),
        group=group,
        ageing=None if ageing is None else ageing * _TICK,
    )


def rate_text(policy: RateLimit | None) -> str | None:
    """A rate limit's policy as stored."""
    if policy is None:
        return None
    given: dict[str, Any] = {
        "kind": type(policy).__name__,
        "rate": policy.rate,
        "period": policy.period // _TICK,
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
    kind, period = given.pop("kind"), given.pop("period") * _TICK
    if kind == TokenBucket.__name__:
        return TokenBucket(period=period, **given)
    return FixedWindow(period=period, **{**given, "start": datetime.fromisoformat(given["start"])})


def state_of(value: int | None, parts: int | None, moment: datetime | None) -> RateState | None:
    """The token count of a rate limit, as stored; a row of no parts was only held."""
    if value is None or not parts or moment is None:
        return None
    return RateState(value, parts, moment)


def turns_of(rows: Sequence[Sequence[Any]]) -> tuple[Gate, list[WaitingKey]]:
    """The state of a gate, and the key whose turn it is, from the rows of the query `turns`."""
    number, rate_limit, key_rate_limit, *rate = rows[0][:6]
    gate = Gate(number, rate_of(rate_limit), rate_of(key_rate_limit), state_of(*rate), rows[0][6])
    return gate, [WaitingKey(row[7], row[8], row[9], state_of(*row[10:13])) for row in rows if row[7] is not None]


def rates_of(pool: str, gate: Gate, passed: Passage) -> list[RateRow]:
    """The rows of a pool's rate limits to store after jobs have passed its gate."""
    policies = {key: gate.key_rate_limit if key else gate.rate_limit for key in passed.rates}
    return [
        RateRow(f"pool:{pool}", key, policy, passed.rates[key])
        for key, policy in policies.items()
        if policy is not None
    ]
