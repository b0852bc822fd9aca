"""``penstock export`` and ``import``: rows of tables in files.

An export is one snapshot; a file appears under its name only once it is whole. An import stores pieces of moderate
size, each in a transaction; with ``--replace`` all of it is one transaction, so that nobody sees a half.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO

import click

from penstock.app import Backend
from penstock.cli.confirm import confirm
from penstock.cli.data import Documents, count_rows, find_table, read_rows, statements_of
from penstock.cli.lines import LineRefused, Lines, Read, load_piece, open_file, show_progress
from penstock.cli.opening import UNHURRIED, snapshot, with_backend
from penstock.cli.options import Options, json_option
from penstock.cli.output import print_json, say
from penstock.cli.snapshots.archive import FILES, SnapshotWriter
from penstock.cli.snapshots.files import export_files
from penstock.cli.snapshots.importing import Mode, import_snapshot
from penstock.errors import ConfigError, DataError, PenstockError
from penstock.observe.readable import amount
from penstock.store.session import Session
from penstock.store.sql.statements import TableStatements
from penstock.transaction.rows import advance_numbers
from penstock.transaction.transaction import Transaction


@click.command("export")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="FILE|DIR|ZIP|-",
    help="A file for one table, a folder for several, a .zip for several and for files, - for stdout.",
)
@json_option("Report as JSON.")
def export_tables(options: Options, tables: Sequence[str], output: str) -> None:
    """Write TABLEs to files as JSON lines, by default all tables; to a .zip also the files of the program.

    All rows come from one snapshot. penstock import reads them back without loss.
    """
    if output == "-" and len(tables) != 1:
        raise click.UsageError("Only one table goes to stdout; name it.")
    counts = with_backend(options, lambda backend: _export(backend, tables, output), statement_timeout=UNHURRIED)
    if options.json and output != "-":
        print_json([{"table": table, "rows": rows, "file": str(file)} for table, rows, file in counts])
        return
    for table, rows, file in counts:
        say(f"{table}: {amount(rows, 'file' if table == FILES else 'row')} → {file}")


async def _export(backend: Backend, names: Sequence[str], output: str) -> list[tuple[str, int, str]]:
    tables = {name: find_table(backend, name) for name in names}.values() or [
        statements_of(backend, definition) for definition in backend.app.definitions()
    ]
    if output.endswith(".zip"):
        return await _export_zip(backend, tables, output, with_files=not names)
    async with snapshot(backend) as session:
        done = []
        for statements in tables:
            table = statements.definition.name
            file = _file_of(table, output, alone=len(names) == 1)
            with _open_output(file) as stream:
                done.append((table, await _write(backend, session, statements, stream), str(file or "stdout")))
        return done


async def _export_zip(
    backend: Backend, tables: Iterable[TableStatements], output: str, *, with_files: bool
) -> list[tuple[str, int, str]]:
    done, damaged = [], list[str]()
    with _open_output(Path(output)) as stream, SnapshotWriter(stream) as archive:
        async with snapshot(backend) as session:
            for statements in tables:
                with archive.add_table(statements.definition.name) as entry:
                    rows = await _write(backend, session, statements, entry)
                done.append((statements.definition.name, rows, output))
        if (
            with_files
        ):  # after the snapshot, as large files take long, and old snapshots keep PostgreSQL from cleaning up
            files, damaged = await export_files(backend, archive)
            done += [(FILES, files, output)] if files else []
    if damaged:
        raise DataError(
            f"The bytes of {amount(len(damaged), 'file')} are not there as they were stored, such as of {damaged[0]}.",
            fix=f"{output} has all others. Look whether the setting files is right; delete what is lost.",
            files=damaged,
        )
    return done


def _file_of(table: str, output: str, *, alone: bool) -> Path | None:
    if output == "-":
        return None
    path = Path(output)
    if alone and not path.is_dir() and not output.endswith(("/", os.sep)):
        return path
    path.mkdir(parents=True, exist_ok=True)
    return path / f"{table}.jsonl"


async def _write(backend: Backend, session: Session, statements: TableStatements, stream: IO[bytes]) -> int:
    documents, done = Documents(statements, backend.engine.clock), 0
    total = await count_rows(session, statements)
    with show_progress(statements.definition.name, total) as advance:
        async for rows in read_rows(session, statements):
            stream.writelines(documents.line(row) for row in rows)
            done += len(rows)
            advance(len(rows))
    return done


@contextlib.contextmanager
def _open_output(file: Path | None) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is whole, or stdout."""
    if file is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("wb") as stream:
            yield stream
        part.replace(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@click.command("import")
@click.argument("table", metavar="[TABLE|convex]")
@click.argument("file", metavar="FILE|-", required=False)
@click.option("--append", is_flag=True, help="Keep the existing rows; of a .zip, pass over the rows that are there.")
@click.option("--replace", is_flag=True, help="Delete the existing rows first, in the same transaction.")
@click.option("--csv", "is_csv", is_flag=True, help="FILE is CSV with a header, as a name that ends in .csv says too.")
@click.option(
    "--table", "only", metavar="NAME[=TABLE]", multiple=True, help="Of a .zip, only this table; = names yours for it."
)
@click.option("--skip-refused", is_flag=True, help="Of a .zip, import the rows that fit, and report the others.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before deleting rows.")
@json_option("Report as JSON.")
def import_rows(
    options: Options,
    table: str,
    file: str | None,
    append: bool,
    replace: bool,
    is_csv: bool,
    only: Sequence[str],
    skip_refused: bool,
    yes: bool,
) -> None:
    """Read rows into TABLE from a FILE, or all tables and files from a FILE.zip.

    A FILE holds JSON lines, a JSON array or CSV; - is stdin. A FILE.zip is from penstock export, or a snapshot that
    Convex exported, as in: penstock import convex FILE.zip. Keeps ids, creation times and files; ids of Convex become
    penstock's, wherever they stand. Tables must be empty without --append or --replace.
    """
    if append and replace:
        raise click.UsageError("--append and --replace exclude each other.")
    of_convex = table == "convex" and file is not None and file.endswith(".zip")
    if file is None and not table.endswith(".zip"):
        raise click.UsageError("Name the FILE, after its TABLE.")
    mode = Mode(append=append, replace=replace, skip_refused=skip_refused, sure=yes)
    if of_convex or file is None:
        if is_csv:
            raise click.UsageError("--csv is for the FILE of one TABLE.")
        import_snapshot(options, Path(file or table), only, mode, of_convex=of_convex)
        return
    if only or skip_refused:
        raise click.UsageError("--table and --skip-refused are for a FILE.zip.")
    _import_file(options, table, file, mode, is_csv=is_csv or file.lower().endswith(".csv"))


def _import_file(options: Options, table: str, file: str, mode: Mode, *, is_csv: bool) -> None:
    with nullcontext(sys.stdin.buffer) if file == "-" else open_file(file) as stream:
        size = Path(file).stat().st_size if file != "-" and stream.seekable() else None
        loading = Loading(Lines(stream, size, is_csv=is_csv))
        try:
            with_backend(
                options,
                lambda backend: _import(backend, table, loading, mode),
                fitting=True,
                statement_timeout=UNHURRIED,
            )
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
    deleted = f"; {amount(loading.deleted, 'row')} before them deleted" if mode.replace else ""
    say(f"{table}: {amount(loading.stored, 'row')} imported{deleted}.")


class Loading:
    def __init__(self, lines: Lines) -> None:
        self.stored = 0  # rows that are committed
        self.deleted = 0
        self._lines = lines
        self._done = 0

    async def append(self, backend: Backend, statements: TableStatements) -> None:
        with self._progress(statements) as advance:
            for piece in self._lines.pieces(self._reader(backend, statements)):
                await backend.runner.write(partial(load_piece, statements=statements, piece=piece))
                self.stored += len(piece.rows)
                self._done = piece.numbers[-1]
                advance(piece.size)
        await backend.runner.write(partial(advance_numbers, statements=statements))

    async def replace(self, backend: Backend, statements: TableStatements) -> None:
        async def write(transaction: Transaction) -> tuple[int, int]:
            deleted, stored = await transaction.execute(statements.clear(), ()), 0
            with self._progress(statements) as advance:
                for piece in self._lines.pieces(self._reader(backend, statements)):
                    await load_piece(transaction, statements, piece)
                    stored += len(piece.rows)
                    advance(piece.size)
            await advance_numbers(transaction, statements)
            return stored, deleted

        self.stored, self.deleted = await backend.runner.write(write)

    def standing(self) -> str:
        if not self.stored:
            return "Nothing was imported."
        rows = "1 row is" if self.stored == 1 else f"{amount(self.stored, 'row')} are"
        return f"{rows} in, up to line {self._done:,}."

    def remedy(self, error: PenstockError) -> str:
        if not isinstance(error, LineRefused):
            return ""
        if not self.stored:
            return "Correct the line, and import again."
        if self._lines.is_csv:
            return "Correct the line, take out those before it, and go on with --append."
        return f"Correct the line, then go on: tail -n +{self._done + 1} FILE | penstock import TABLE - --append"

    def _reader(self, backend: Backend, statements: TableStatements) -> Read:
        documents = Documents(statements, backend.engine.clock)
        return documents.row_of_texts if self._lines.is_csv else documents.row

    def _progress(self, statements: TableStatements) -> AbstractContextManager[Callable[[int], None]]:
        return show_progress(statements.definition.name, self._lines.size, size=True)


async def _import(backend: Backend, table: str, loading: Loading, mode: Mode) -> None:
    statements = find_table(backend, table)
    if mode.append:
        await loading.append(backend, statements)
        return
    async with snapshot(backend) as session:
        rows = await count_rows(session, statements)
    if rows and not mode.replace:
        raise ConfigError(
            f"{table} has {amount(rows, 'row')} already.", fix="Add to them with --append, or --replace them."
        )
    if rows:
        which = "the only row" if rows == 1 else f"all {amount(rows, 'row')}"
        confirm(f"Delete {which} of {table}?", sure=mode.sure)
    await (loading.replace if mode.replace else loading.append)(backend, statements)
