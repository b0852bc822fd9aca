"""``penstock migrate``: makes the database fit the tables of the app, prints the plan, or says for CI what is left.

Owns the output and the exit status. Leaves declarations other than tables to `declared`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.api.searches import drop_searches, fill_searches
from penstock.app import App, Backend
from penstock.changes.interest import Interest
from penstock.changes.searches import searches_of
from penstock.cli.migration import FOLDER, files_with_progress, load, stamp_files
from penstock.cli.opening import open_app, open_store, safe_url, snapshot
from penstock.cli.options import Options, json_option
from penstock.cli.output import print_json, say
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.crons.plan import CronPlan
from penstock.dataclass import dataclass
from penstock.errors import DataError, DeclarationError, SchemaMismatch
from penstock.functions.programs import Declaration
from penstock.observe.readable import amount
from penstock.outbox.backfill import BackfillProgress
from penstock.pools.pool import PoolDefinition
from penstock.schema.table import TableDefinition
from penstock.store.nouns.captures import IN_ORDER
from penstock.store.nouns.interests import InterestRow
from penstock.store.nouns.outboxes import OutboxRow
from penstock.store.nouns.pools import PoolRow
from penstock.store.nouns.tasks import TaskRow, newly
from penstock.store.open import scheme_of
from penstock.store.push.locks import hazards, lock_of
from penstock.store.push.migrate import Plan, push

if TYPE_CHECKING:
    from penstock.migrations.files import MigrationFile

_PENDING, _DRIFT, _UNSAFE = 3, 4, 5  # exit statuses
_STOPPED_FOR = timedelta(minutes=1)  # an indexer that has; processes of the older release may still search


@click.command("migrate")
@click.option("--plan", "only_plan", is_flag=True, help="Print the changes, and make none.")
@click.option("--all", "with_own", is_flag=True, help="With --plan: print the SQL of penstock's own tables, too.")
@click.option("--check", "only_check", is_flag=True, help="Make no changes; the exit status says what is to be done.")
@FOLDER
@json_option()
def command(options: Options, only_plan: bool, with_own: bool, only_check: bool, folder: Path) -> None:
    """Make the database fit the app.

    Adds tables, columns, indexes and checks, registers pools, crons, reactive tasks and outboxes, and adds the triggers
    that capture changes for them. Fills new search indexes, and drops the ones that no program declares. Refuses
    changes that would lose data, before it changes anything.

    --plan prints the SQL for tables, and comments for the rest. It omits the SQL of triggers, so do not run its output
    in place of this command. On PostgreSQL it tells the lock of each statement.

    --check is for CI: exit status 3 if changes or files are pending, 4 if stored tables differ from declared ones, 5 if
    a file is unsafe under load; 0 if there is nothing.
    """
    app = open_app(options)
    config = app.config(**options.place)
    if only_check:
        found = asyncio.run(_check(app, config, load(folder)))
        print_json(asdict(found)) if options.json else found.show()
        sys.exit(found.status)
    plan, news = asyncio.run(migrate(app, config, None if only_plan else folder))
    if options.json:
        print_json(_as_data(plan, news, applied=not only_plan))
    elif only_plan:
        _print_script(plan, news, with_own=with_own, locks=scheme_of(config.database) == "postgresql")
    else:
        _report(plan, news or (), safe_url(config.database))


async def migrate(app: App, config: Config, folder: Path | None = None) -> tuple[Plan, list[News] | None]:
    """Push and declare, or plan if no folder is given. Errors known early are raised before the tables change.

    A plan does not open a store that is new, which would create a SQLite file. If the database's own
    tables of penstock are those of an older release, the news cannot always be known: it is None then.
    """
    backend = Backend(app, config, SystemClock())
    store = backend.engine.store
    definitions, crons = app.definitions(), app.crons.plans(backend.job_calls)
    try:
        plan = await push(store, definitions, apply=False)
        await check_kinds(backend)
        if folder is not None:
            await store.open()  # penstock's own tables come first, since declarations are tried out with them
            plan = replace(plan, migrations=(await push(store, [])).migrations)
            await stamp_files(store, definitions, folder)
            return await _apply(backend, plan, definitions, crons)
        known = bool(await store.catalog.list_migrations())
        if known:
            await store.open(look=True)
            plan = replace(plan, left=await _find_left(backend))
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


async def _find_left(backend: Backend) -> tuple[str, ...]:
    """The tables of components that no program uses any more."""
    store, programs = backend.engine.store, list[Declaration]()
    with suppress(DataError):  # penstock's own tables are those of an older release
        programs += await store.programs.list()
    return tuple(name for name in await store.catalog.tables_in_use() if backend.app.is_left(name, programs))


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings of a check, each a sentence."""

    pending: Sequence[str]
    drift: Sequence[str]
    unsafe: Sequence[str]

    @property
    def status(self) -> int:
        """The exit status: that of the gravest kind of finding."""
        return _UNSAFE if self.unsafe else _DRIFT if self.drift else _PENDING if self.pending else 0

    def show(self) -> None:
        """Print the findings."""
        for kind, found in asdict(self).items():
            for one in found:
                click.echo(f"{kind}: {one}")


async def _check_files(app: App, config: Config, files: Sequence[MigrationFile]) -> tuple[list[str], list[str], bool]:
    """Find pending migration files, unsafe statements of unfinished ones, and whether a file is unfinished."""
    async with open_store(app, config) as store:
        found = await files_with_progress(store, files)
    left = [(file, now) for file, now in found if now is None or now.step != "done"]
    pending = [f"migration file {file.name}" for file, now in left if now is None or now.step != "contract"]
    unsafe = [
        f"{file.name}, {step}(): {' '.join(sql.split())}: {why}"
        for file, _now in left
        for step in ("expand", "contract")
        if store.dialect.schemas
        for sql, why in hazards([str(piece) for piece in file.pieces(step, store.dialect)], step)
    ]
    return pending, unsafe, bool(left)


async def _check(app: App, config: Config, given: Sequence[MigrationFile]) -> Checked:
    pending, unsafe, under_way = await _check_files(app, config, given)
    try:
        plan, news = await migrate(app, config)
    except SchemaMismatch as refused:
        problems: list[dict[str, Any]] = refused.facts["problems"]
        return Checked(pending, [f"{one['what']} {one['fix']}" for one in problems], unsafe)
    pending += [f"penstock's own {name}" for name, _ in plan.migrations]
    pending += [" ".join(sql.split()) for sql in plan.sql]
    pending += [_news_line(one) for one in news or ()]
    # A column that is not declared any more is no drift while a migration file is under way that may need it.
    return Checked(pending, () if under_way else plan.drift, unsafe)


async def _apply(
    backend: Backend, plan: Plan, definitions: Sequence[TableDefinition], crons: Sequence[CronPlan]
) -> tuple[Plan, list[News]]:
    store = backend.engine.store
    await backend.check(plan.tables, tells=False)
    pushed = await push(store, definitions)
    news = await news_for(backend, crons, known=True)
    searches, tables = searches_of(definitions), {one.name for one in definitions}
    programs = await store.programs.list()
    kept = {(one.name, one.spec) for one in programs if one.noun == "search" and one.program != backend.app.name}
    before = backend.engine.clock.now() - _STOPPED_FOR
    dropped = await drop_searches(store, searches, tables, kept, before)
    news += [News("search", name, None, "dropped") for name in dropped]
    await backend.declare(crons)
    await fill_searches(store, searches)
    return replace(pushed, migrations=(*plan.migrations, *pushed.migrations), left=await _find_left(backend)), news


def _print_script(plan: Plan, news: Sequence[News] | None, *, with_own: bool, locks: bool) -> None:
    """The plan as a script that does the same, as far as SQL that anybody may run can do it."""
    for name, sql in plan.migrations:
        click.echo(f"-- penstock's own tables: {name}")
        if with_own:
            click.echo(f"{sql.strip()}\n")
    if plan.migrations and not with_own:
        click.echo("-- penstock migrate --plan --all prints the SQL of these.\n")
    for statement in plan.sql:
        lock = lock_of(statement) if locks else ""
        click.echo(f"{lock and f'-- lock: {lock}'}\n{statement.rstrip().rstrip(';')};".lstrip())
    for remark in _remarks(plan):
        click.echo(f"-- {remark}")
    if news is None:
        click.echo("-- Further changes are unknown until penstock's own tables are up to date.")
    elif news:
        click.echo("-- penstock migrate, and the program at its start, also do this:")
    for one in news or ():
        click.echo(f"-- {_news_line(one)}")
    if plan.empty and not news:
        say("The database fits; there is nothing to do.")


def _report(plan: Plan, news: Sequence[News], url: str) -> None:
    for name, _sql in plan.migrations:
        click.echo(f"applied penstock's own {name}")
    for statement in plan.sql:
        click.echo(" ".join(statement.split()) + ";")
    for one in news:
        click.echo(_news_line(one))
    for remark in _remarks(plan):
        say(f"note: {remark}")
    if plan.empty and not news:
        say(f"{url} fits; there was nothing to do.")
    else:
        done = amount(len(plan.migrations) + len(plan.sql) + len(news), "change")
        say(f"{url} fits now: {done} made.")


def _news_line(one: News) -> str:
    """A line, such as ``new: outbox news``, or ``changed: triggers on table booking, for task:confirm``."""
    thing = f"triggers on table {one.table}, for" if one.noun == "capture" else one.noun
    return f"{one.what}: {thing} {one.name}"


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
        "declared": None
        if news is None
        else [{"noun": one.noun, "name": one.name, "change": one.what} for one in news if one.noun != "capture"],
        "captured": None
        if news is None
        else [{"table": one.table, "for": one.name, "change": one.what} for one in news if one.noun == "capture"],
        "notes": list(plan.notes),
        "redundant": [
            {"table": table, "index": index.name, "covered_by": other.name} for table, index, other in plan.redundant
        ],
    }


Noun = Literal["pool", "cron", "task", "outbox", "search", "capture"]
What = Literal["new", "changed", "mended", "dropped"]


@dataclass(frozen=True, slots=True)
class News:
    noun: Noun  # "capture" for triggers on a table
    name: str  # of triggers the task or the outbox for which they capture, such as "outbox:news"
    table: str | None
    what: What  # "mended" for triggers that are not as they were made


async def check_kinds(backend: Backend) -> None:
    """Refuse to capture changes of views and the like, before penstock's tables exist."""
    dialect, store = backend.engine.store.dialect, backend.engine.store
    outboxes: list[DeclaredOutbox] = [one for one in backend.app.outboxes if one.outbox.definition is not None]
    interests = [one.interest(dialect) for one in (*backend.app.tasks, *outboxes)]
    stored = await store.catalog.read_tables(sorted({one.table for one in interests})) if interests else {}
    for one in interests:
        found = stored.get(one.table)
        if found is not None and found.kind != "table":
            raise DeclarationError(
                f"Interest {one.name}: {one.table} is a {found.kind}, whose changes cannot be captured.",
                fix="Name the tables it is made of.",
            )


async def news_for(backend: Backend, crons: Sequence[CronPlan], *, known: bool) -> list[News]:
    """The declarations of an app that are new to the database, except functions; all of them if not `known`."""
    seen = await _look(backend) if known else _Known()
    pools = [_of_pool(pool, seen.pools.get(pool.name)) for pool in backend.app.pool_definitions()]
    plans = [
        _news("cron", cron.name, seen.crons.get(cron.name), same=seen.crons.get(cron.name) == cron) for cron in crons
    ]
    searches = [
        _news("search", one.name, None, same=(one.name, one.digest) in seen.searches)
        for one in searches_of(backend.app.definitions())
    ]
    found = [*pools, *plans, *_of_tasks(backend, seen), *_of_outboxes(backend, seen), *searches]
    return [one for one in found if one is not None]


# ----- steps


@dataclass(frozen=True, slots=True)
class _Known:
    pools: Mapping[str, PoolRow] = field(default_factory=dict)
    crons: Mapping[str, CronPlan] = field(default_factory=dict)
    tasks: Mapping[str, TaskRow] = field(default_factory=dict)
    outboxes: Mapping[str, OutboxRow] = field(default_factory=dict)
    interests: Sequence[InterestRow] = ()
    searches: frozenset[tuple[str, str]] = frozenset()  # names and digests


async def _look(backend: Backend) -> _Known:
    store = backend.engine.store
    async with snapshot(backend) as session:
        pools = await store.pools.list(session)
        crons = await store.crons.list(session, backend.engine.clock.now())
    return _Known(
        {row.name: row for row in pools},
        {kept.plan.name: kept.plan for kept, _ in crons},
        {row.plan.name: row for row in await store.tasks.list()},
        {row.plan.name: row for row in await store.outboxes.list()},
        await store.interests.list(),
        frozenset((row.name, row.digest) for row in await store.searches.list()),
    )


def _news(noun: Noun, name: str, known: object, *, same: bool) -> News | None:
    return None if same else News(noun, name, None, "new" if known is None else "changed")


def _of_pool(pool: PoolDefinition, known: PoolRow | None) -> News | None:
    names = ("name", "key_parallelism", "rate_limit", "key_rate_limit", "group", "ageing")
    same = (
        known is not None
        and known.declared == pool.max_parallelism
        and all(getattr(known, name) == getattr(pool, name) for name in names)
    )
    return _news("pool", pool.name, known, same=same)


def _of_tasks(backend: Backend, seen: _Known) -> Iterator[News | None]:
    dialect = backend.engine.store.dialect
    for one in backend.app.tasks:
        plan, known = one.plan(dialect), seen.tasks.get(one.task.name)
        yield _news("task", plan.name, known, same=not newly(plan, known)[0])
        if known is None or known.plan.version <= plan.version:
            yield _capture_news(one.interest(dialect), seen)


def _of_outboxes(backend: Backend, seen: _Known) -> Iterator[News | None]:
    dialect = backend.engine.store.dialect
    declared: list[DeclaredOutbox] = list(backend.app.outboxes)
    for one in declared:
        plan, known = one.plan(), seen.outboxes.get(one.outbox.name)
        if known is not None and known.plan.version > plan.version:
            continue  # it stays as another release has declared it
        yield _news("outbox", plan.name, known, same=known is not None and known.plan == plan)
        if one.outbox.definition is not None:
            backfill = None if known is None else known.backfill
            order = one.outbox.order_by if backfill is None else BackfillProgress.parse(backfill).order
            yield _capture_news(one.interest(dialect, order), seen)


def _capture_news(interest: Interest, seen: _Known) -> News | None:
    known = [row for row in seen.interests if row.interest.name == interest.name]
    same = [row for row in known if row.interest.digest == interest.digest]
    what: What = "mended" if same else "changed" if known else "new"
    return None if same and same[0].state in IN_ORDER else News("capture", interest.name, interest.table, what)
