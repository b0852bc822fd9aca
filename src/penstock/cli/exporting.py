"""``penstock export``: tables as JSON lines, all in one snapshot.

Owns where each table goes. A file appears under its name only once it is whole. Leaves the form of a row to
`documents`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import click

from penstock.app import App, Backend
from penstock.cli.documents import Documents
from penstock.cli.opening import UNHURRIED, complete, open_app, open_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import counted, print_json, say
from penstock.cli.progress import Progress
from penstock.cli.tables import count_rows, find_table, read_rows, statements_of
from penstock.errors import ConfigError
from penstock.store.contract.session import Session
from penstock.store.sql.statements import TableStatements


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
@pass_options
def command(options: Options, tables: Sequence[str], output: str) -> None:
    """Write TABLEs to files as JSON lines, by default all tables.

    All rows come from one snapshot. penstock import reads the files back without loss.
    """
    if output == "-" and len(tables) != 1:
        raise click.UsageError("Only one table goes to stdout; name it.")
    counts = complete(_export(open_app(options), options, tables, output))
    if options.json and output != "-":
        print_json([{"table": table, "rows": rows, "file": str(file)} for table, rows, file in counts])
        return
    for table, rows, file in counts:
        say(f"{table}: {counted(rows, 'row')} → {file}")


async def _export(app: App, options: Options, names: Sequence[str], output: str) -> list[tuple[str, int, str]]:
    async with open_backend(app, options, statement_timeout=UNHURRIED) as backend:
        tables = _chosen(backend, names)
        session = await backend.engine.store.begin_read()
        try:
            done = []
            for statements in tables:
                file = _file_of(statements.definition.name, output, alone=len(names) == 1)
                done.append(
                    (statements.definition.name, await _write(backend, session, statements, file), file or "stdout")
                )
            return [(table, rows, str(file)) for table, rows, file in done]
        finally:
            await session.rollback()


def _chosen(backend: Backend, names: Sequence[str]) -> list[TableStatements]:
    if names:
        return list({name: find_table(backend, name) for name in names}.values())
    return [statements_of(backend, definition) for definition in backend.app.definitions()]


def _file_of(table: str, output: str, *, alone: bool) -> Path | None:
    """Where a table goes; None for stdout."""
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
    with _opened(file) as stream, Progress(statements.definition.name, total) as progress:
        async for rows in read_rows(session, statements):
            stream.writelines(documents.line(row) for row in rows)
            done += len(rows)
            progress.advance(len(rows))
    return done


@contextlib.contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
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
