"""``penstock pools``: the limits of pools, and how many of their jobs stand where."""

from __future__ import annotations

from dataclasses import asdict

import click

from penstock.app import App
from penstock.calls.limits import change_pool
from penstock.cli.opening import complete, open_app, open_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import print_json, print_table, say
from penstock.store.pools import PoolRow


@click.group("pools", invoke_without_command=True)
@json_option()
@pass_options
@click.pass_context
def command(context: click.Context, options: Options) -> None:
    """Show the pools that the database knows: their limits, and how many of their jobs stand where."""
    if context.invoked_subcommand is not None:
        return
    pools = complete(_look(open_app(options), options))
    if options.json:
        print_json({"pools": [asdict(pool) for pool in pools]})
    elif not pools:
        click.echo("no pools")
    else:
        headers = ("pool", "limit", "running", "ready", "scheduled", "slots held")
        print_table(headers, [_row(pool) for pool in pools], right=headers[1:])


@command.command("set")
@click.argument("pool")
@click.option("--max-parallelism", type=click.IntRange(0), required=True, help="How many of its jobs run at once.")
@pass_options
def change(options: Options, pool: str, max_parallelism: int) -> None:
    """Change the limit of a pool, on all machines at once, until another one is set or declared."""
    complete(change_in_database(open_app(options), options, pool, max_parallelism=max_parallelism))
    say(f"{pool} runs at most {max_parallelism:,} jobs at once.")


async def change_in_database(
    app: App, options: Options, pool: str, *, max_parallelism: int | None = None, paused: bool | None = None
) -> None:
    """Change a pool; workers of all processes are told."""
    async with open_backend(app, options) as backend:
        await change_pool(backend.engine, pool, max_parallelism=max_parallelism, paused=paused)


async def _look(app: App, options: Options) -> list[PoolRow]:
    async with open_backend(app, options) as backend:
        return await backend.pools()


def _row(pool: PoolRow) -> tuple[str, ...]:
    limit = f"{pool.max_parallelism:,}" if pool.max_parallelism == pool.declared else _changed(pool)
    counts = (pool.running, pool.ready, pool.scheduled, pool.granted)
    return (pool.name, "paused" if pool.paused else limit, *(f"{count:,}" for count in counts))


def _changed(pool: PoolRow) -> str:
    return f"{pool.max_parallelism:,} (declared {pool.declared:,})"
