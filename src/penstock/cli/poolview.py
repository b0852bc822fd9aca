"""What ``penstock pools`` shows of each pool: how many of its jobs stand where, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click

from penstock.cli.output import plain, print_table, say
from penstock.pools.rates import RateLimit, TokenBucket, capacity
from penstock.store.contract.pools import KeyRow, PoolRow

KEYS_READ, JOBS_COUNTED = 1_000, 1_000  # of a pool, and of a key
_NONE = "-"
_UNITS = {
    "day": timedelta(days=1),
    "h": timedelta(hours=1),
    "min": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """A pool, and the concurrency keys that wait at its gate, the most jobs first, if they were asked for."""

    row: PoolRow
    keys: Sequence[KeyRow] | None = None

    @property
    def has_limits(self) -> bool:
        """Whether it has any limit beside the number of jobs that run at once."""
        row = self.row
        return (row.key_parallelism, row.rate_limit, row.key_rate_limit, row.group) != (None,) * 4


def most_waiting(keys: Sequence[KeyRow], number: int) -> list[KeyRow]:
    """The keys of which the most jobs wait."""
    return sorted(keys, key=lambda one: (-one.waiting, one.key))[:number]


def as_data(pools: Sequence[PoolSeen]) -> dict[str, Any]:
    """Pools, for programs."""
    return {"pools": [_data(pool) for pool in pools]}


def show(pools: Sequence[PoolSeen]) -> None:
    """Pools, for people."""
    headers = ("pool", "limit", "running", "ready", "at its gate", "scheduled", "slots held")
    print_table(headers, [_counts(pool.row) for pool in pools], right=headers[1:])
    if limited := [pool.row for pool in pools if pool.has_limits]:
        click.echo()
        limits = ("pool", "limit of a key", "rate limit", "rate limit of a key", "group")
        print_table(limits, [_limits(pool) for pool in limited], right=limits[1:2])
    if any(pool.keys is not None for pool in pools):
        click.echo()
        _show_keys(pools)


def _show_keys(pools: Sequence[PoolSeen]) -> None:
    rows = [
        (pool.row.name, one.key or _NONE, _counted(one.waiting), _counted(one.running))
        for pool in pools
        for one in pool.keys or ()
    ]
    if not rows:
        say("No jobs wait at any gate.")
        return
    headers = ("pool", "key", "waiting", "running")
    print_table(headers, rows, right=headers[2:])


def _counts(pool: PoolRow) -> tuple[str, ...]:
    limit = f"{pool.max_parallelism:,}" if pool.max_parallelism == pool.declared else _changed(pool)
    counts = (pool.running, pool.ready, pool.waiting, pool.scheduled, pool.granted)
    return (pool.name, f"{limit}, paused" if pool.paused else limit, *(f"{count:,}" for count in counts))


def _changed(pool: PoolRow) -> str:
    return f"{pool.max_parallelism:,} (declared {pool.declared:,})"


def _limits(pool: PoolRow) -> tuple[str, ...]:
    of_key = _NONE if pool.key_parallelism is None else f"{pool.key_parallelism:,}"
    return (pool.name, of_key, rate_words(pool.rate_limit), rate_words(pool.key_rate_limit), pool.group or _NONE)


def rate_words(policy: RateLimit | None) -> str:
    """A rate limit in few words: ``600 per min, burst 20``, or ``1,000 in each day``."""
    if policy is None:
        return _NONE
    if isinstance(policy, TokenBucket):
        return f"{policy.rate:,} per {_period(policy.period)}, burst {capacity(policy):,}"
    kept = "" if capacity(policy) == policy.rate else f", up to {capacity(policy):,}"
    return f"{policy.rate:,} in each {_period(policy.period)}{kept}"


def _period(period: timedelta) -> str:
    """A length of time in the largest unit of which it is a whole number."""
    for word, unit in _UNITS.items():
        if not period % unit:
            number = period // unit
            return word if number == 1 else f"{number:,} {word}{'s' * (word == 'day')}"
    return f"{period.total_seconds():g} s"


def _counted(number: int) -> str:
    return f"{number:,}+" if number >= JOBS_COUNTED else f"{number:,}"


def _data(pool: PoolSeen) -> dict[str, Any]:
    row, keys = pool.row, pool.keys
    rates = {word: _rate_data(getattr(row, word)) for word in ("rate_limit", "key_rate_limit")}
    waiting = {} if keys is None else {"keys": [{**plain(one), "key": one.key or None} for one in keys]}
    return {**plain(row), **rates, **waiting}


def _rate_data(policy: RateLimit | None) -> dict[str, Any] | None:
    if policy is None:
        return None
    hidden = {"max_reserved"}  # it is of those who reserve, which jobs do not
    known = {name: value for name, value in plain(policy).items() if name not in hidden}
    return {"kind": type(policy).__name__, **known, "capacity": capacity(policy)}
