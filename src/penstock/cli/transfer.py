"""``penstock export`` and ``import``: tables as JSON lines.

An export is one snapshot; a file appears under its name only once it is whole. An import stores pieces of moderate
size, each in a transaction; with ``--replace`` all of it is one transaction, so that nobody sees a half.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich import progress

from penstock.app import Backend
from penstock.cli.confirm import confirm
from penstock.cli.data import Documents, count_rows, find_table, read_rows, statements_of
from penstock.cli.opening import UNHURRIED, snapshot, with_backend
from penstock.cli.options import Options, json_option
from penstock.cli.output import make_console, print_json, say
from penstock.dataclass import dataclass
from penstock.errors import ConfigError, DataError, InputError, PenstockError, ValueInvalid
from penstock.observe.readable import amount
from penstock.store.session import Session
from penstock.store.sql.statements import TableStatements
from penstock.transaction.rows import advance_numbers, load_rows
from penstock.transaction.transaction import Transaction


@click.command("export")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="FILE|DIR|-",
    help="A file for one table, a folder for several, - for stdout.",
)
@json_option("Report as JSON.")
def export_tables(options: Options, tables: Sequence[str], output: str) -> None:
    """Write TABLEs to files as JSON lines, by default all tables.

    All rows come from one snapshot. penstock import reads the files back without loss.
    """
    if output == "-" and len(tables) != 1:
        raise click.UsageError("Only one table goes to stdout; name it.")
    counts = with_backend(options, lambda backend: _export(backend, tables, output), statement_timeout=UNHURRIED)
    if options.json and output != "-":
        print_json([{"table": table, "rows": rows, "file": str(file)} for table, rows, file in counts])
        return
    for table, rows, file in counts:
        say(f"{table}: {amount(rows, 'row')} → {file}")


async def _export(backend: Backend, names: Sequence[str], output: str) -> list[tuple[str, int, str]]:
    tables = {name: find_table(backend, name) for name in names}.values() or [
        statements_of(backend, definition) for definition in backend.app.definitions()
    ]
    async with snapshot(backend) as session:
        done = []
        for statements in tables:
            table = statements.definition.name
            file = _file_of(table, output, alone=len(names) == 1)
            done.append((table, await _write(backend, session, statements, file), str(file or "stdout")))
        return done


def _file_of(table: str, output: str, *, alone: bool) -> Path | None:
    if output == "-":
        return None
    path = Path(output)
    if alone and not path.is_dir() and not output.endswith(("/", os.sep)):
        return path
    path.mkdir(parents=True, exist_ok=True)
    return path / f"{table}.jsonl"


async def _write(backend: Backend, session: Session, statements: TableStatements, file: Path | None) -> int:
    documents, done = Documents(statements, backend.engine.clock), 0
    total = await count_rows(session, statements)
    with _open_output(file) as stream, _progress(statements.definition.name, total) as advance:
        async for rows in read_rows(session, statements):
            stream.writelines(documents.line(row) for row in rows)
            done += len(rows)
            advance(len(rows))
    return done


@contextlib.contextmanager
def _open_output(file: Path | None) -> Iterator[BinaryIO]:
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
@click.argument("table")
@click.argument("file", metavar="FILE|-")
@click.option("--append", is_flag=True, help="Keep the existing rows.")
@click.option("--replace", is_flag=True, help="Delete the existing rows first, in the same transaction.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before deleting rows.")
@json_option("Report as JSON.")
def import_rows(options: Options, table: str, file: str, append: bool, replace: bool, yes: bool) -> None:
    """Read rows into TABLE from a FILE of JSON lines, or from stdin.

    Keeps ids and creation times. The table must be empty without --append or --replace.
    """
    if append and replace:
        raise click.UsageError("--append and --replace exclude each other.")
    with nullcontext(sys.stdin.buffer) if file == "-" else open_lines(file) as stream:
        loading = Loading(Lines(file, stream))
        try:
            with_backend(
                options,
                lambda backend: _import(backend, table, loading, append=append, replace=replace, sure=yes),
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
    deleted = f"; {amount(loading.deleted, 'row')} before them deleted" if replace else ""
    say(f"{table}: {amount(loading.stored, 'row')} imported{deleted}.")


class Loading:
    def __init__(self, lines: Lines) -> None:
        self.stored = 0  # rows that are committed
        self.deleted = 0
        self._lines = lines
        self._done = 0

    async def append(self, backend: Backend, statements: TableStatements) -> None:
        with self._progress(statements) as advance:
            for piece in self._lines.pieces(Documents(statements, backend.engine.clock)):
                await backend.runner.write(partial(_load_piece, statements=statements, piece=piece))
                self.stored += len(piece.rows)
                self._done = piece.numbers[-1]
                advance(piece.size)
        await backend.runner.write(partial(advance_numbers, statements=statements))

    async def replace(self, backend: Backend, statements: TableStatements) -> None:
        async def write(transaction: Transaction) -> tuple[int, int]:
            deleted, stored = await transaction.execute(statements.clear(), ()), 0
            with self._progress(statements) as advance:
                for piece in self._lines.pieces(Documents(statements, backend.engine.clock)):
                    await _load_piece(transaction, statements, piece)
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
        return f"Correct the line, then go on: tail -n +{self._done + 1} FILE | penstock import TABLE - --append"

    def _progress(self, statements: TableStatements) -> AbstractContextManager[Callable[[int], None]]:
        return _progress(statements.definition.name, self._lines.size, size=True)


async def _import(backend: Backend, table: str, loading: Loading, *, append: bool, replace: bool, sure: bool) -> None:
    statements = find_table(backend, table)
    if append:
        await loading.append(backend, statements)
        return
    async with snapshot(backend) as session:
        rows = await count_rows(session, statements)
    if rows and not replace:
        raise ConfigError(
            f"{table} has {amount(rows, 'row')} already.", fix="Add to them with --append, or --replace them."
        )
    if rows:
        which = "the only row" if rows == 1 else f"all {amount(rows, 'row')}"
        confirm(f"Delete {which} of {table}?", sure=sure)
    await (loading.replace if replace else loading.append)(backend, statements)


async def _load_piece(transaction: Transaction, statements: TableStatements, piece: Piece) -> None:
    try:
        await load_rows(transaction, statements, piece.rows)
    except (DataError, InputError) as error:
        if (place := error.facts.get("row")) is None:
            raise
        raise LineRefused(piece.numbers[place], error.what) from error


PIECE_ROWS = 1000
_PIECE_BYTES = 1024 * 1024
_LONGEST_LINE = 64 * 1024 * 1024
_MARK = b"\xef\xbb\xbf"  # with which some programs begin a text in UTF-8


@dataclass
class Piece:
    rows: list[list[Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0


class LineRefused(ValueInvalid):
    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number:,}: {why}", line=number)


class Lines:
    """The lines of a file or of stdin, whose name is ``-``."""

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._stream = stream
        self._begun = False
        self.size = Path(name).stat().st_size if name != "-" and stream.seekable() else None

    def pieces(self, documents: Documents) -> Iterator[Piece]:
        """Read all rows in pieces of moderate size; each call starts at the beginning."""
        self._rewind()
        piece = Piece()
        for number, line in self._number_lines():
            try:
                piece.rows.append(documents.row(line))
            except InputError as error:
                raise LineRefused(number, error.what) from error
            piece.numbers.append(number)
            piece.size += len(line)
            if len(piece.rows) == PIECE_ROWS or piece.size > _PIECE_BYTES:
                yield piece
                piece = Piece()
        if piece.rows:
            yield piece

    def _number_lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        while line := self._stream.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise LineRefused(number, f"it is longer than {_LONGEST_LINE:,} bytes.")
            if number == 1:
                line = line.removeprefix(_MARK)
            if line.strip():
                yield number, line

    def _rewind(self) -> None:
        if self._begun:
            if not self._stream.seekable():
                raise ConfigError(
                    "Another process changed the table meanwhile, and stdin cannot be read again.",
                    fix="Import from a file.",
                )
            self._stream.seek(0)
        self._begun = True


def open_lines(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from None


@contextlib.contextmanager
def _progress(what: str, total: int | None, *, size: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, where a person looks on; nothing elsewhere. It is moved by what is yielded."""
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.DownloadColumn() if size else progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=make_console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        yield partial(bar.advance, bar.add_task(what, total=total))
