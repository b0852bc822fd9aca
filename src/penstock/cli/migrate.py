"""``penstock migrate``: makes the database fit the tables of the app, or says what it would do."""

from __future__ import annotations

from typing import Any

import click

from penstock.app import App, Backend
from penstock.cli.opening import complete, open_app, shown_url
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import counted, print_json, say
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.migrate import Plan, push


@click.command("migrate")
@click.option("--plan", "only_plan", is_flag=True, help="Print the SQL that would run, and change nothing.")
@json_option()
@pass_options
def command(options: Options, only_plan: bool) -> None:
    """Make the database fit the tables of the app.

    Adds tables, columns, indexes and checks, and makes pools, crons, reactive tasks and outboxes known: changes are
    captured for these from then on. Whatever would lose or break data is refused before anything is changed.
    """
    app = open_app(options)
    config = app.config(database=options.database)
    plan = complete(_migrate(app, config, apply=not only_plan))
    if options.json:
        print_json(_as_data(plan, applied=not only_plan))
    elif only_plan:
        _print_script(plan)
    else:
        _report(plan, shown_url(config.database))


async def _migrate(app: App, config: Config, *, apply: bool) -> Plan:
    """Push, or only plan: a plan asks without opening the store, which would create a SQLite file."""
    backend = Backend(app, config, SystemClock())
    store = backend.engine.store
    definitions, crons = app.definitions(), app.crons.plans(backend.job_calls)
    try:
        if apply:
            await store.open()
        plan = await push(store, definitions, apply=apply)
        if apply:
            await backend.declare(crons)
        return plan
    finally:
        await store.close()


def _print_script(plan: Plan) -> None:
    """The plan as a script that does the same."""
    for name, sql in plan.migrations:
        click.echo(f"-- penstock's own tables: {name}\n{sql.strip()}\n")
    for statement in plan.sql:
        click.echo(f"{statement.rstrip().rstrip(';')};")
    for remark in _remarks(plan):
        click.echo(f"-- {remark}")
    if plan.empty:
        say("The database fits; there is nothing to do.")


def _report(plan: Plan, url: str) -> None:
    for name, _sql in plan.migrations:
        click.echo(f"applied penstock's own {name}")
    for statement in plan.sql:
        click.echo(" ".join(statement.split()) + ";")
    for remark in _remarks(plan):
        say(f"note: {remark}")
    if plan.empty:
        say(f"{url} fits; there was nothing to do.")
    else:
        done = counted(len(plan.migrations) + len(plan.sql), "change")
        say(f"{url} fits now: {done} made.")


def _remarks(plan: Plan) -> list[str]:
    redundant = [
        f"{table}: index {index.name} is superfluous, as {other.name} begins with the same columns"
        for table, index, other in plan.redundant
    ]
    return [*plan.notes, *redundant]


def _as_data(plan: Plan, *, applied: bool) -> dict[str, Any]:
    return {
        "applied": applied,
        "migrations": [name for name, _sql in plan.migrations],
        "sql": list(plan.sql),
        "notes": list(plan.notes),
        "redundant": [
            {"table": table, "index": index.name, "covered_by": other.name} for table, index, other in plan.redundant
        ],
    }
