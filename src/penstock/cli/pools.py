"""``penstock pools``: the limits of pools, and how many of their jobs stand where."""

from __future__ import annotations

import click

from penstock.api.pools.admin import change_pool
from penstock.app import App, Backend
from penstock.cli.opening import complete, open_app, open_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import print_json, say
from penstock.cli.poolview import JOBS_COUNTED, KEYS_READ, PoolSeen, as_data, most_waiting, show
from penstock.pools.pool import MOST_PARALLEL
from penstock.store.contract.pools import KeyRow, PoolRow


@click.group("pools", invoke_without_command=True)
@json_option()
@click.option(
    "--keys", type=click.IntRange(1, KEYS_READ), metavar="N", help="Also show the N keys with the most waiting jobs."
)
@pass_options
@click.pass_context
def command(context: click.Context, options: Options, keys: int | None) -> None:
    """Show all pools: their limits, and the number of their jobs in each state.

    Jobs at the gate are ready, and wait for their concurrency key or a rate limit. --keys reads the first 1,000 keys in
    order, and counts up to 1,000 jobs of each.
    """
    if context.invoked_subcommand is not None:
        return
    pools = complete(_look(open_app(options), options, keys))
    if options.json:
        print_json(as_data(pools))
    elif not pools:
        click.echo("no pools")
    else:
        show(pools)


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
    row = complete(change_in_database(open_app(options), options, pool, max_parallelism=max_parallelism))
    say(f"{pool} runs at most {max_parallelism:,} jobs at once{', once it is resumed' if row.paused else ''}.")


async def change_in_database(
    app: App, options: Options, pool: str, *, max_parallelism: int | None = None, paused: bool | None = None
) -> PoolRow:
    """Change a pool, of which workers of all processes are told; the pool as it is then."""
    async with open_backend(app, options) as backend:
        await change_pool(backend.engine, pool, max_parallelism=max_parallelism, paused=paused)
        return next(row for row in await backend.pools() if row.name == pool)


async def _look(app: App, options: Options, keys: int | None) -> list[PoolSeen]:
    async with open_backend(app, options) as backend:
        rows = await backend.pools()
        if keys is None:
            return [PoolSeen(row) for row in rows]
        return [PoolSeen(row, most_waiting(await _waiting(backend, row.name), keys)) for row in rows]


async def _waiting(backend: Backend, pool: str) -> list[KeyRow]:
    store = backend.engine.store
    session = await store.begin_read()
    try:
        return await store.pools.waiting(session, pool, KEYS_READ, JOBS_COUNTED)
    finally:
        await session.rollback()
