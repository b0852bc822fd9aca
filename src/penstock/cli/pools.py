"""``penstock pools``, ``pause`` and ``resume``: the limits of pools, and the number of their jobs in each state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from penstock.api.pools.workpool import change_pool
from penstock.app import Backend
from penstock.cli.opening import snapshot, with_backend
from penstock.cli.options import Options, listing, pass_options
from penstock.cli.output import plain, print_json, print_table, say
from penstock.observe.readable import capped
from penstock.pools.pool import MOST_PARALLEL
from penstock.pools.rates import RateLimit, capacity, rate_words
from penstock.store.nouns.pools import KeyRow, PoolRow

KEYS_READ, JOBS_COUNTED = 1_000, 1_000  # of a pool, and of a key
_NONE = "-"


# A pool, and the concurrency keys with the most waiting jobs, if they were asked for.
_Seen = tuple[PoolRow, Sequence[KeyRow] | None]


@listing("pools")
@click.option(
    "--keys", type=click.IntRange(1, KEYS_READ), metavar="N", help="Also show the N keys with the most waiting jobs."
)
def command(options: Options, keys: int | None) -> None:
    """Show all pools: their limits, and the number of their jobs in each state.

    Jobs at the gate are ready, and wait for their concurrency key or a rate limit. --keys reads the first 1,000 keys in
    order, and counts up to 1,000 jobs of each.
    """
    pools = with_backend(options, lambda backend: _look(backend, keys))
    if options.json:
        print_json({"pools": [_data(*pool) for pool in pools]})
    elif not pools:
        click.echo("no pools")
    else:
        _show(pools)


@command.command("set")
@click.argument("pool")
@click.option(
    "--max-parallelism",
    type=click.IntRange(0, MOST_PARALLEL),
    required=True,
    help="How many of its jobs may run at once.",
)
@pass_options
def change(options: Options, pool: str, max_parallelism: int) -> None:
    """Change the limit of a pool on all machines, until somebody sets or declares another."""
    row = with_backend(options, lambda backend: _change(backend, pool, max_parallelism=max_parallelism))
    say(f"{pool} runs at most {max_parallelism:,} jobs at once{', once it is resumed' if row.paused else ''}.")


@click.command("pause")
@click.argument("pool")
@pass_options
def pause(options: Options, pool: str) -> None:
    """Pause a pool on all machines: start none of its jobs."""
    with_backend(options, lambda backend: _change(backend, pool, paused=True))
    say(f"{pool} is paused. Running jobs continue; no other ones start.")


@click.command("resume")
@click.argument("pool")
@pass_options
def resume(options: Options, pool: str) -> None:
    """Resume a paused pool."""
    row = with_backend(options, lambda backend: _change(backend, pool, paused=False))
    if row.max_parallelism:
        say(f"{pool} starts jobs again.")
    else:
        say(f"{pool} is resumed, but its limit is 0. Raise it with: penstock pools set {pool} --max-parallelism NUMBER")


async def _change(
    backend: Backend, pool: str, *, max_parallelism: int | None = None, paused: bool | None = None
) -> PoolRow:
    await change_pool(backend.engine, pool, max_parallelism=max_parallelism, paused=paused)
    return next(row for row in await backend.pools() if row.name == pool)


async def _look(backend: Backend, number: int | None) -> list[_Seen]:
    rows, store = await backend.pools(), backend.engine.store
    if number is None:
        return [(row, None) for row in rows]
    async with snapshot(backend) as session:
        waiting = [await store.pools.waiting(session, row.name, KEYS_READ, JOBS_COUNTED) for row in rows]
    most = [sorted(keys, key=lambda one: (-one.waiting, one.key))[:number] for keys in waiting]
    return list(zip(rows, most, strict=True))


def _show(pools: Sequence[_Seen]) -> None:
    headers = ("pool", "limit", "running", "ready", "at its gate", "scheduled", "slots held")
    print_table(headers, [_counts(row) for row, _ in pools], right=headers[1:])
    if limited := [row for row, _ in pools if row.key_parallelism or row.rate_limit or row.key_rate_limit or row.group]:
        click.echo()
        limits = ("pool", "limit of a key", "rate limit", "rate limit of a key", "group")
        print_table(limits, [_limits(pool) for pool in limited], right=limits[1:2])
    if any(keys is not None for _, keys in pools):
        click.echo()
        rows = [
            (row.name, one.key or _NONE, capped(one.waiting, JOBS_COUNTED), capped(one.running, JOBS_COUNTED))
            for row, keys in pools
            for one in keys or ()
        ]
        if rows:
            print_table(("pool", "key", "waiting", "running"), rows, right=("waiting", "running"))
        else:
            say("No jobs wait at any gate.")


def _counts(pool: PoolRow) -> tuple[str, ...]:
    declared = "" if pool.max_parallelism == pool.declared else f" (declared {pool.declared:,})"
    limit = f"{pool.max_parallelism:,}{declared}"
    counts = (pool.running, pool.ready, pool.waiting, pool.scheduled, pool.granted)
    return (pool.name, f"{limit}, paused" if pool.paused else limit, *(f"{count:,}" for count in counts))


def _limits(pool: PoolRow) -> tuple[str, ...]:
    of_key = _NONE if pool.key_parallelism is None else f"{pool.key_parallelism:,}"
    return (pool.name, of_key, rate_words(pool.rate_limit), rate_words(pool.key_rate_limit), pool.group or _NONE)


def _data(row: PoolRow, keys: Sequence[KeyRow] | None) -> dict[str, Any]:
    rates = {word: _rate_data(getattr(row, word)) for word in ("rate_limit", "key_rate_limit")}
    waiting = {} if keys is None else {"keys": [{**plain(one), "key": one.key or None} for one in keys]}
    return {**plain(row), **rates, **waiting}


def _rate_data(policy: RateLimit | None) -> dict[str, Any] | None:
    if policy is None:
        return None
    known = {name: value for name, value in plain(policy).items() if name != "max_reserved"}  # jobs do not reserve
    return {"kind": type(policy).__name__, **known, "capacity": capacity(policy)}
