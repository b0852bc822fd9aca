"""``penstock migrate``: makes the database fit the tables of the app, or says what it would do.

Owns how that is told. Leaves what the database learns beside its tables to `declared`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from penstock.app import App, Backend
from penstock.cli.declared import News, check_kinds, news_for
from penstock.cli.opening import complete, open_app, shown_url
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import counted, print_json, say
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.crons.plan import CronPlan
from penstock.errors import DataError
from penstock.schema.table import TableDefinition
from penstock.store.push.migrate import Plan, push


@click.command("migrate")
@click.option("--plan", "only_plan", is_flag=True, help="Print the changes, and make none.")
@json_option()
@pass_options
def command(options: Options, only_plan: bool) -> None:
    """Make the database fit the app.

    Adds tables, columns, indexes and checks, registers pools, crons, reactive tasks and outboxes, and adds the triggers
    that capture changes for them. Refuses changes that would lose data, before it changes anything.

    --plan prints the SQL for tables, and comments for the rest. It omits the SQL of triggers, so do not run its output
    in place of this command.
    """
    app = open_app(options)
    config = app.config(database=options.database)
    plan, news = complete(_migrate(app, config, apply=not only_plan))
    if options.json:
        print_json(_as_data(plan, news, applied=not only_plan))
    elif only_plan:
        _print_script(plan, news)
    else:
        _report(plan, news or (), shown_url(config.database))


async def _migrate(app: App, config: Config, *, apply: bool) -> tuple[Plan, list[News] | None]:
    """Push and declare, or only plan; whatever can be refused before the tables are changed is refused by then.

    A plan does not open a store that is new, which would create a SQLite file. What is new to a database whose own
    tables of penstock are those of an older release cannot always be told: it is None then.
    """
    backend = Backend(app, config, SystemClock())
    store = backend.engine.store
    definitions, crons = app.definitions(), app.crons.plans(backend.job_calls)
    try:
        plan = await push(store, definitions, apply=False)
        await check_kinds(backend)
        if apply:
            return await _apply(backend, plan, definitions, crons)
        known = bool(await store.catalog.applied_migrations())
        if known:
            await store.open(look=True)
        if known and not plan.migrations:
            await backend.check(plan.tables)
        try:
            return plan, await news_for(backend, crons, known=known)
        except DataError:
            if not plan.migrations:
                raise
            return plan, None
    finally:
        await store.close()


async def _apply(
    backend: Backend, plan: Plan, definitions: Sequence[TableDefinition], crons: Sequence[CronPlan]
) -> tuple[Plan, list[News]]:
    """Penstock's own tables come first, since what is declared is tried out with them, and then those of the app."""
    store = backend.engine.store
    await store.open()
    own = (await push(store, [])).migrations if plan.migrations else ()
    await backend.check(plan.tables, tells=False)
    pushed = await push(store, definitions)
    news = await news_for(backend, crons, known=True)
    await backend.declare(crons)
    return replace(pushed, migrations=(*own, *pushed.migrations)), news


def _print_script(plan: Plan, news: Sequence[News] | None) -> None:
    """The plan as a script that does the same, as far as SQL that anybody may run can do it."""
    for name, sql in plan.migrations:
        click.echo(f"-- penstock's own tables: {name}\n{sql.strip()}\n")
    for statement in plan.sql:
        click.echo(f"{statement.rstrip().rstrip(';')};")
    for remark in _remarks(plan):
        click.echo(f"-- {remark}")
    if news is None:
        click.echo("-- Further changes are unknown until penstock's own tables are up to date.")
    elif news:
        click.echo("-- penstock migrate, and the program at its start, also do this:")
    for one in news or ():
        click.echo(f"-- {_told(one)}")
    if plan.empty and not news:
        say("The database fits; there is nothing to do.")


def _report(plan: Plan, news: Sequence[News], url: str) -> None:
    for name, _sql in plan.migrations:
        click.echo(f"applied penstock's own {name}")
    for statement in plan.sql:
        click.echo(" ".join(statement.split()) + ";")
    for one in news:
        click.echo(_told(one))
    for remark in _remarks(plan):
        say(f"note: {remark}")
    if plan.empty and not news:
        say(f"{url} fits; there was nothing to do.")
    else:
        done = counted(len(plan.migrations) + len(plan.sql) + len(news), "change")
        say(f"{url} fits now: {done} made.")


def _told(one: News) -> str:
    """Such as ``new: outbox news``, or ``changed: triggers on table booking, for task:confirm``."""
    thing = f"triggers on table {one.table}, for" if one.noun == "capture" else one.noun
    return f"{one.what}: {thing} {one.name}"


def _as_declared(one: News) -> dict[str, str]:
    return {"noun": one.noun, "name": one.name, "change": one.what}


def _as_captured(one: News) -> dict[str, str | None]:
    return {"table": one.table, "for": one.name, "change": one.what}


def _remarks(plan: Plan) -> list[str]:
    redundant = [
        f"{table}: index {index.name} is superfluous, as {other.name} begins with the same columns"
        for table, index, other in plan.redundant
    ]
    return [*plan.notes, *redundant]


def _as_data(plan: Plan, news: Sequence[News] | None, *, applied: bool) -> dict[str, Any]:
    return {
        "applied": applied,
        "migrations": [name for name, _sql in plan.migrations],
        "sql": list(plan.sql),
        "declared": None if news is None else [_as_declared(one) for one in news if one.noun != "capture"],
        "captured": None if news is None else [_as_captured(one) for one in news if one.noun == "capture"],
        "notes": list(plan.notes),
        "redundant": [
            {"table": table, "index": index.name, "covered_by": other.name} for table, index, other in plan.redundant
        ],
    }
