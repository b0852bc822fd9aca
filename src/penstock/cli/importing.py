"""``penstock import``: rows from JSON lines into one table.

Owns how lines become transactions. Each piece is one, so that any number of rows takes the same memory; with
``--replace`` all of it is one, so that nobody sees a half. Leaves reading lines to `lines`, and writing rows to
`transaction/load`.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial

import click

from penstock.app import App, Backend
from penstock.cli.asking import confirm
from penstock.cli.documents import Documents
from penstock.cli.lines import LineRefused, Lines, Piece, open_lines
from penstock.cli.opening import UNHURRIED, complete, open_app, open_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import counted, print_json, say
from penstock.cli.progress import Progress
from penstock.cli.tables import count_rows, find_table
from penstock.errors import ConfigError, DataError, InputError, PenstockError
from penstock.store.sql.statements import TableStatements
from penstock.transaction.load import advance_numbers, clear_table, load_rows
from penstock.transaction.transaction import Transaction


@click.command("import")
@click.argument("table")
@click.argument("file", metavar="FILE|-")
@click.option("--append", is_flag=True, help="Keep the existing rows.")
@click.option("--replace", is_flag=True, help="Delete the existing rows first, in the same transaction.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before deleting rows.")
@json_option("Report as JSON.")
@pass_options
def command(options: Options, table: str, file: str, append: bool, replace: bool, yes: bool) -> None:
    """Read rows into TABLE from a FILE of JSON lines, or from stdin.

    Keeps ids and creation times. The table must be empty without --append or --replace.
    """
    if append and replace:
        raise click.UsageError("--append and --replace exclude each other.")
    with nullcontext(sys.stdin.buffer) if file == "-" else open_lines(file) as stream:
        loading = Loading(Lines(file, stream))
        try:
            app = open_app(options)
            complete(_import(app, options, table, loading, append=append, replace=replace, sure=yes))
        except PenstockError as error:
            error.what = f"{error.what} {loading.standing()}"
            error.fix = f"{error.fix} {loading.remedy(error)}".strip()
            error.facts["imported"] = loading.stored
            raise
        except KeyboardInterrupt:
            say(loading.standing())
            raise
    if options.json:
        print_json({"table": table, "rows": loading.stored, "deleted": loading.deleted})
        return
    deleted = f"; {counted(loading.deleted, 'row')} before them deleted" if replace else ""
    say(f"{table}: {counted(loading.stored, 'row')} imported{deleted}.")


class Loading:
    """One run over lines.

    Attributes:
        stored: Rows that are in for good.
        deleted: Rows that were deleted before.
    """

    def __init__(self, lines: Lines) -> None:
        self.stored = 0
        self.deleted = 0
        self._lines = lines
        self._done = 0

    async def append(self, backend: Backend, statements: TableStatements) -> None:
        """Store the rows, each piece in a transaction.

        Raises:
            LineRefused: A line cannot be taken; the pieces before its own are in.
        """
        documents = Documents(statements, backend.engine.clock)
        with self._progress(statements) as progress:
            for piece in self._lines.pieces(documents):

                async def write(transaction: Transaction, piece: Piece = piece) -> None:
                    await _load(transaction, statements, piece)

                await backend.runner.write(write)
                self.stored += len(piece.rows)
                self._done = piece.numbers[-1]
                progress.advance(piece.size)
        await backend.runner.write(partial(advance_numbers, statements=statements))

    async def replace(self, backend: Backend, statements: TableStatements) -> None:
        """Delete all rows and store these, in one transaction.

        Raises:
            LineRefused: A line cannot be taken; nothing has changed.
        """
        documents = Documents(statements, backend.engine.clock)
        stored = deleted = 0

        async def write(transaction: Transaction) -> None:
            nonlocal stored, deleted
            deleted, stored = await clear_table(transaction, statements), 0
            with self._progress(statements) as progress:
                for piece in self._lines.pieces(documents):
                    await _load(transaction, statements, piece)
                    stored += len(piece.rows)
                    progress.advance(piece.size)
            await advance_numbers(transaction, statements)

        await backend.runner.write(write)
        self.stored, self.deleted = stored, deleted

    def standing(self) -> str:
        """What is in."""
        if not self.stored:
            return "Nothing was imported."
        rows = "1 row is" if self.stored == 1 else f"{counted(self.stored, 'row')} are"
        return f"{rows} in, up to line {self._done:,}."

    def remedy(self, error: PenstockError) -> str:
        """How to go on after an error; empty if only the error can say."""
        if not isinstance(error, LineRefused):
            return ""
        if not self.stored:
            return "Correct the line, and import again."
        return f"Correct the line, then go on: tail -n +{self._done + 1} FILE | penstock import TABLE - --append"

    def _progress(self, statements: TableStatements) -> Progress:
        return Progress(statements.definition.name, self._lines.size, size=True)


async def _import(
    app: App, options: Options, table: str, loading: Loading, *, append: bool, replace: bool, sure: bool
) -> None:
    async with open_backend(app, options, fitting=True, statement_timeout=UNHURRIED) as backend:
        statements = find_table(backend, table)
        if append:
            await loading.append(backend, statements)
            return
        rows = await _count(backend, statements)
        if rows and not replace:
            raise ConfigError(
                f"{table} has {counted(rows, 'row')} already.", fix="Add to them with --append, or --replace them."
            )
        if rows:
            which = "the only row" if rows == 1 else f"all {counted(rows, 'row')}"
            confirm(f"Delete {which} of {table}?", sure=sure)
        await (loading.replace if replace else loading.append)(backend, statements)


async def _load(transaction: Transaction, statements: TableStatements, piece: Piece) -> None:
    try:
        await load_rows(transaction, statements, piece.rows)
    except (DataError, InputError) as error:
        raise piece.blame(error) from error


async def _count(backend: Backend, statements: TableStatements) -> int:
    session = await backend.engine.store.begin_read()
    try:
        return await count_rows(session, statements)
    finally:
        await session.rollback()
