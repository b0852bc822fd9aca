"""The operations on pools: their limits are seen and changed, on all machines at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from penstock.api.pools.workpool import change_pool
from penstock.app import Backend
from penstock.errors import DataError
from penstock.operations.operation import Given, Noun, Parameter, Refusal
from penstock.pools.pool import MOST_PARALLEL
from penstock.pools.rates import RateLimit, capacity
from penstock.store.nouns.pools import KeyRow, PoolRow
from penstock.store.session import reading

KEYS_READ, JOBS_COUNTED = 1_000, 1_000  # of a pool, and of a key

noun = Noun("pools")
_POOL = Parameter("pool", "name", needed=True)
_KEYS = "Also show the N keys with the most waiting jobs."
_LIMIT = "How many of its jobs may run at once."
_MOST = Parameter("max_parallelism", "number", _LIMIT, needed=True, least=0, most=MOST_PARALLEL)
_UNKNOWN = {DataError: Refusal(404, "PoolNotFound")}

# A pool, and the concurrency keys with the most waiting jobs, if they were asked for.
SeenPool = tuple[PoolRow, Sequence[KeyRow] | None]


def _describe_row(row: PoolRow, keys: Sequence[KeyRow] | None) -> dict[str, Any]:
    own = {one.name: getattr(row, one.name) for one in fields(row)}
    rates = {word: _describe_rate(getattr(row, word)) for word in ("rate_limit", "key_rate_limit")}
    waiting = {} if keys is None else {"keys": [{**asdict(one), "key": one.key or None} for one in keys]}
    return {**own, **rates, **waiting}


def _describe_rate(policy: RateLimit | None) -> Mapping[str, Any] | None:
    if policy is None:
        return None
    known = {name: value for name, value in asdict(policy).items() if name != "max_reserved"}  # jobs do not reserve
    return {"kind": type(policy).__name__, **known, "capacity": capacity(policy)}


@noun.lists(
    Parameter("keys", "number", _KEYS, metavar="N", least=1, most=KEYS_READ),
    answers=lambda pools: {"pools": [_describe_row(*pool) for pool in pools]},
)
async def every(backend: Backend, given: Given) -> list[SeenPool]:
    """Show all pools: their limits, and the number of their jobs in each state.

    Jobs at the gate are ready, and wait for their concurrency key or a rate limit. --keys reads the first 1,000 keys in
    order, and counts up to 1,000 jobs of each.
    """
    rows, store, number = await backend.pools(), backend.engine.store, given.get("keys")
    if number is None:
        return [(row, None) for row in rows]
    async with reading(store.begin_read) as session:
        waiting = [await store.pools.waiting(session, row.name, KEYS_READ, JOBS_COUNTED) for row in rows]
    most = [sorted(keys, key=lambda one: (-one.waiting, one.key))[:number] for keys in waiting]
    return list(zip(rows, most, strict=True))


async def _change(backend: Backend, given: Given, **change: Any) -> PoolRow:
    await change_pool(backend.engine, given["pool"], **change)
    return next(row for row in await backend.pools() if row.name == given["pool"])


def _describe_pool(row: PoolRow) -> Any:
    return {"pool": row.name, "max_parallelism": row.max_parallelism, "paused": row.paused}


def _tell_of_limit(given: Given, row: PoolRow) -> str:
    later = ", once it is resumed" if row.paused else ""
    return f"{given['pool']} runs at most {given['max_parallelism']:,} jobs at once{later}."


def _tell_of_pause(given: Given, _row: PoolRow) -> str:
    return f"{given['pool']} is paused. Running jobs continue; no other ones start."


def _tell_of_resume(given: Given, row: PoolRow) -> str:
    pool = given["pool"]
    if row.max_parallelism:
        return f"{pool} starts jobs again."
    return f"{pool} is resumed, but its limit is 0. Raise it with: penstock pools set {pool} --max-parallelism NUMBER"


@noun.changes(_POOL, _MOST, verb="set", tells=_tell_of_limit, answers=_describe_pool, refusals=_UNKNOWN)
async def limit(backend: Backend, given: Given) -> PoolRow:
    """Change the limit of a pool on all machines, until somebody sets or declares another."""
    return await _change(backend, given, max_parallelism=given["max_parallelism"])


@noun.changes(_POOL, tells=_tell_of_pause, answers=_describe_pool, refusals=_UNKNOWN)
async def pause(backend: Backend, given: Given) -> PoolRow:
    """Pause a pool on all machines: start none of its jobs."""
    return await _change(backend, given, paused=True)


@noun.changes(_POOL, tells=_tell_of_resume, answers=_describe_pool, refusals=_UNKNOWN)
async def resume(backend: Backend, given: Given) -> PoolRow:
    """Resume a paused pool."""
    return await _change(backend, given, paused=False)
