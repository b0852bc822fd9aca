"""``penstock pools``, ``pause`` and ``resume``: the limits of pools, and the number of their jobs in each state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from penstock.cli.opening import with_backend
from penstock.cli.operations import add_commands, command_of, listing_of
from penstock.cli.options import Options
from penstock.cli.output import print_json, print_table, say
from penstock.observe.readable import cap
from penstock.operations import pools
from penstock.operations.pools import JOBS_COUNTED, SeenPool
from penstock.pools.rates import rate_words
from penstock.store.nouns.pools import PoolRow

_NONE = "-"


@listing_of(pools.every)
def command(options: Options, /, **given: Any) -> None:
    found = with_backend(options, lambda backend: pools.every.run(backend, given))
    if options.json:
        print_json(pools.every.answers(found))
    elif not found:
        click.echo("no pools")
    else:
        _show(found)


add_commands(command, pools.limit)
pause, resume = command_of(pools.pause), command_of(pools.resume)


def _show(found: Sequence[SeenPool]) -> None:
    headers = ("pool", "limit", "running", "ready", "at its gate", "scheduled", "slots held")
    print_table(headers, [_counts(row) for row, _ in found], right=headers[1:])
    if limited := [row for row, _ in found if row.key_parallelism or row.rate_limit or row.key_rate_limit or row.group]:
        click.echo()
        limits = ("pool", "limit of a key", "rate limit", "rate limit of a key", "group")
        print_table(limits, [_limits(pool) for pool in limited], right=limits[1:2])
    if any(keys is not None for _, keys in found):
        click.echo()
        rows = [
            (row.name, one.key or _NONE, cap(one.waiting, JOBS_COUNTED), cap(one.running, JOBS_COUNTED))
            for row, keys in found
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
