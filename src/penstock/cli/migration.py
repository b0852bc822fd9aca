"""``penstock migration``: writes migration files, runs them, and shows how far each was run.

Owns the questions. Leaves files and their steps to `penstock.migrations`, which loads Alembic.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.opening import open_app, open_store, with_backend
from penstock.cli.options import Listing, Options, json_option, pass_options
from penstock.cli.output import print_json, say
from penstock.clock import SystemClock
from penstock.errors import ConfigError, SchemaMismatch, UsageError, of_extra
from penstock.observe.readable import amount
from penstock.schema.diff import Difference
from penstock.schema.table import TableDefinition
from penstock.store.nouns.interests import Interests
from penstock.store.nouns.migration_files import FileProgress, Step
from penstock.store.push.locks import lock_of
from penstock.store.push.migrate import differences, push
from penstock.store.sql.dialect import Dialect
from penstock.store.store import Store

if TYPE_CHECKING:
    from penstock.migrations.files import MigrationFile
    from penstock.migrations.running import Migrator

T = TypeVar("T")
Renames = dict[tuple[str, str], Sequence[str]]

_STEPS: tuple[Step, ...] = ("expand", "backfill", "contract")
_TABLE = 'A table is not renamed, as its ids begin with its name: a class of another name keeps it by name="…".'
_COLUMN = re.compile(r"(.+)\.([^.=]+)")
FOLDER = click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), default=Path("migrations"), show_default=True,
    help="Where the files lie.",
)  # fmt: skip


@click.group("migration", cls=Listing)
def command() -> None:
    """Rename, split, retype, require and drop columns, by files that you review."""


@command.command("new")
@click.argument("name")
@click.option("--rename", "renames", multiple=True, metavar="TABLE.OLD=NEW", help="A renamed column; NEW,NEW to split.")
@click.option("--drop", "drops", multiple=True, metavar="TABLE.OLD", help="A column that is not renamed.")
@FOLDER
@pass_options
def new(options: Options, name: str, renames: Sequence[str], drops: Sequence[str], folder: Path) -> None:
    """Write a file for what `penstock migrate` refuses or leaves alone.

    Asks whether a column that is gone is one that is new; without a terminal --rename and --drop have to say it.
    """
    if not re.fullmatch(r"\w+", name):
        raise ConfigError(f"{name!r} cannot be the name of a file.", fix="Use letters, digits and underlines.")
    given: Renames = {}
    for one in renames:
        old, _equals, names = one.partition("=")
        given[_column(old)] = tuple(filter(None, names.split(",")))
    given |= {_column(one): () for one in drops}

    async def work(store: Store, definitions: Sequence[TableDefinition], files: list[MigrationFile]) -> tuple[str, str]:
        known = await files_with_progress(store, files)
        if left := [file.name for file, progress in known if progress is None or progress.step != "done"]:
            raise UsageError(
                f"{', '.join(left)} is not complete on this database.",
                fix="Run penstock migration run --contract on a database for development first.",
            )
        found = await differences(store, definitions)
        changes = [one for one in found if one.needs_file or any(table == one.table for table, _ in given)]
        if not changes:
            raise UsageError("There is nothing that needs a migration file.", fix="Run penstock migrate.")
        text: str = lazy("writing").write_file(changes, _ask_renames(changes, given), store.dialect)
        last = max((int(file.name[:4]) for file in files), default=0)
        return f"{last + 1:04}_{name}.py", text

    file, text = _with_store(options, folder, work)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text, "utf-8")
    say(f"{folder / file}: review it, then run penstock migration run.")


@command.command("run")
@click.option("--contract", is_flag=True, help="Run contract() too: no process of the old release runs any more.")
@click.option("--stamp", is_flag=True, help="Note all files as done, and run none.")
@click.option("--plan", "only_plan", is_flag=True, help="Print the statements that are left with their locks, only.")
@FOLDER
@pass_options
def run(options: Options, folder: Path, *, contract: bool, stamp: bool, only_plan: bool) -> None:
    """Run the files that are not complete, in order: expand() and backfills, each from where it was left.

    On a database without tables of the app all files are noted as done, as new tables have their last form.
    """

    async def work(store: Store, definitions: Sequence[TableDefinition], files: list[MigrationFile]) -> None:
        if only_plan:
            _print_left(await files_with_progress(store, files), store.dialect)
        if not files:
            say(f"There are no files in {folder}.")
        if only_plan or not files:
            return
        await store.open()
        await push(store, [])
        await stamp_files(store, definitions, folder, anyway=stamp)
        runner = runner_of(store)
        for file in files:
            before = (await store.migration_files.list()).get(file.name)
            after = await runner.run(file, contract=contract)
            if after != before:
                click.echo(f"{file.name}: {after.summary()}")

    _with_store(options, folder, work)


@command.command("down")
@click.argument("name")
@FOLDER
@pass_options
def down(options: Options, name: str, folder: Path) -> None:
    """Undo what a file has expanded. Values that only new columns hold are lost."""

    async def work(store: Store, _definitions: Sequence[TableDefinition], files: list[MigrationFile]) -> None:
        found = [file for file in files if file.name == name]
        if not found:
            raise ConfigError(f"There is no file {folder / name}.py.")
        await store.open()
        await runner_of(store).down(found[0])

    _with_store(options, folder, work)
    say(f"{name} is undone.")


@command.command("status")
@FOLDER
@json_option()
def status(options: Options, folder: Path) -> None:
    """Show each file, and how far it was run on this database."""
    found = _with_store(options, folder, lambda store, _definitions, files: files_with_progress(store, files))
    if options.json:
        print_json({"files": [_as_data(file, progress) for file, progress in found]})
    for file, progress in found if not options.json else ():
        click.echo(f"{file.name}: {'pending' if progress is None else progress.summary()} ({file.title})")


@click.command("hold")
@click.argument("table")
@pass_options
def hold(options: Options, table: str) -> None:
    """Take the triggers of a table away, so that its columns can be dropped and retyped.

    A statement that writes the table before `penstock release` tells its readers that a change was lost: tasks scan all
    rows then, and outboxes halt.
    """
    names = _with_interests(options, lambda interests: interests.hold(table))
    said = f"{table} is held for {', '.join(names)}" if names else f"No changes of {table} are captured"
    say(f"{said}.")


@click.command("release")
@click.argument("table")
@pass_options
def release(options: Options, table: str) -> None:
    """Capture the changes of a held table again. Exit status 1 if that of some interests cannot be."""
    names = _with_interests(options, lambda interests: interests.release(table))
    if names:
        raise SchemaMismatch(
            f"{', '.join(names)} cannot be captured any more: a column of {table} is gone, or has another type.",
            fix="Start a program that declares them in a form that fits. They were told that changes are lost.",
        )
    say(f"{table} is released.")


@click.command("forget")
@click.argument("program")
@pass_options
def forget(options: Options, program: str) -> None:
    """Forget what a program has declared that was renamed or is gone, so that others may declare it."""
    count = with_backend(options, lambda backend: backend.engine.store.programs.forget(program))
    say(f"{amount(count, 'declaration')} of {program} are forgotten.")


async def files_with_progress(
    store: Store, files: Sequence[MigrationFile]
) -> list[tuple[MigrationFile, FileProgress | None]]:
    """List files with their progress; None if a file was not begun. It needs no table of penstock's own."""
    known: Mapping[str, FileProgress] = {}
    if await store.catalog.list_migrations():
        await store.open(look=True)
        known = await store.migration_files.list()
    return [(file, known.get(file.name)) for file in files]


async def stamp_files(store: Store, tables: Sequence[TableDefinition], folder: Path, *, anyway: bool = False) -> None:
    """Note files as done, without Alembic, where no declared table exists yet: new tables have their last form."""
    managed, kept, done = [one.name for one in tables if one.managed], store.migration_files, FileProgress("done")
    if anyway or (managed and not await store.catalog.read_tables(managed)):
        for name in [path.stem for path in folder.glob("[0-9][0-9][0-9][0-9]_*.py")]:  # noqa: ASYNC240 - all is idle
            await kept.begin(name, done)
            async with kept.transaction() as session:
                await kept.advance(session, name, (await kept.list())[name], done)


# ----- steps


def _with_interests(options: Options, use: Callable[[Interests[Any]], Awaitable[list[str]]]) -> list[str]:
    """The names that a step gives; none where penstock has no tables yet, as when a history runs from the beginning."""

    async def work(store: Store, _definitions: Sequence[TableDefinition], _files: list[MigrationFile]) -> list[str]:
        if not await store.catalog.list_migrations():
            return []
        await store.open()
        return await use(store.interests)

    return _with_store(options, None, work)


def _with_store(
    options: Options,
    folder: Path | None,
    use: Callable[[Store, Sequence[TableDefinition], list[MigrationFile]], Awaitable[T]],
) -> T:
    app = open_app(options)
    files = [] if folder is None else load(folder)

    async def work() -> T:
        async with open_store(app, app.config(**options.place)) as store:
            return await use(store, app.definitions(), files)

    return asyncio.run(work())


def load(folder: Path) -> list[MigrationFile]:
    """The files of a folder, in order. Without files it needs no Alembic."""
    return lazy("files").load_files(folder) if any(folder.glob("*.py")) else []


def lazy(name: str) -> Any:
    """A module of `penstock.migrations`, if Alembic is installed."""
    with of_extra("migrations", "A migration file", {"alembic", "sqlalchemy"}):
        return importlib.import_module(f"penstock.migrations.{name}")


def runner_of(store: Store) -> Migrator:
    runner: Migrator = lazy("running").Migrator(store, SystemClock(), click.echo)
    return runner


def _column(text: str) -> tuple[str, str]:
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} names no column.", fix=f"Write it as TABLE.COLUMN. {_TABLE}")
    return match[1], match[2]


def _ask_renames(changes: Sequence[Difference], given: Renames) -> Renames:
    """The new names of each column that is gone; asked for where there are new columns, and never guessed."""
    answers = dict(given)
    for (table, old), names in given.items():
        change = next((one for one in changes if one.table == table), None)
        if change is None or old not in change.gone or any(name not in change.definition.positions for name in names):
            raise ConfigError(
                f"{table}.{old} cannot be renamed to {', '.join(names) or 'nothing'}.",
                fix="Name a column that is stored and not declared any more, and fields that are declared.",
            )
    for change in changes:
        said = {name for (table, _old), names in answers.items() if table == change.table for name in names}
        left = [name for name in change.new if name not in said]
        for old in change.gone:
            if (change.table, old) in answers or not left:
                continue
            new = f"{', '.join(left)} {'is' if len(left) == 1 else 'are'} new"
            question = f"{change.table}.{old} is not declared any more, and {new}."
            if not sys.stdin.isatty():
                raise ConfigError(
                    f"{question} Was it renamed?",
                    fix=f"Say --rename {change.table}.{old}={left[0]}, or --drop {change.table}.{old}.",
                )
            say(question)
            name = click.prompt("Its new name (none if it is dropped)", type=click.Choice([*left, "none"]), err=True)
            answers[change.table, old] = () if name == "none" else (name,)
            left = [one for one in left if one != name]
    return answers


def _print_left(files: Sequence[tuple[MigrationFile, FileProgress | None]], dialect: Dialect) -> None:
    for file, progress in files:
        now = progress or FileProgress()
        for step in _STEPS[_STEPS.index(now.step) :] if now.step in _STEPS else ():
            done = now.done if step == now.step else 0
            for piece in () if step == "backfill" else file.pieces(step, dialect)[done:]:
                sql = f"{piece};" if isinstance(piece, str) else piece.remark
                lock = lock_of(sql) if dialect.schemas else ""
                click.echo(f"-- {file.name}, {step}(){lock and f', lock: {lock}'}\n{sql}")
            for backfill in file.backfills[done:] if step == "backfill" else ():
                click.echo(f"-- {file.name}, backfill in batches of {backfill.batch} rows\n{backfill.sql(dialect)}")


def _as_data(file: MigrationFile, progress: FileProgress | None) -> dict[str, Any]:
    now = progress or FileProgress()
    step = "pending" if progress is None else now.step
    facts = {"rows": now.rows, "total": now.total, "seconds": now.seconds, "at": now.at or None}
    return {"name": file.name, "title": file.title, "step": step} | facts
