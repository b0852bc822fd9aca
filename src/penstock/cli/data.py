"""``penstock data``: the tables of the app, or rows of one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
from pydantic import ValidationError
from pydantic_core import to_json

from penstock.app import App, Backend
from penstock.cli.documents import Documents
from penstock.cli.opening import complete, open_app, open_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import counted, print_json, print_rows, print_table, readable_time, say
from penstock.cli.tables import count_rows, find_table, statements_of
from penstock.cli.visible import visible_json
from penstock.errors import ValueInvalid
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition
from penstock.store.contract.session import Row
from penstock.store.sql.statements import Comparison, Condition, TableStatements

_WHERE = re.compile(r"(?P<column>\w+)\s*(?P<comparison><=|>=|=|<|>)\s*(?P<value>.*)", re.DOTALL)
_NUMBERS = {Kind.INTEGER, Kind.REAL, Kind.DECIMAL}


@click.command("data")
@click.argument("table", required=False)
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many rows to show.")
@click.option(
    "--order",
    type=click.Choice(["asc", "desc"]),
    default="desc",
    show_default=True,
    help="Order by key: asc shows the newest last.",
)
@click.option(
    "--where", metavar="COLUMN=VALUE", multiple=True, help="Only matching rows; also <, <=, >, >=, and =null."
)
@click.option("--jsonl", is_flag=True, help="Print JSON lines, like penstock export.")
@json_option()
@pass_options
def command(options: Options, table: str | None, limit: int, order: str, where: Sequence[str], jsonl: bool) -> None:
    """Show all tables with their row counts, or rows of one TABLE."""
    options.json |= jsonl
    if table is None:
        _show_tables(options, complete(_count(open_app(options), options)))
    else:
        complete(_show(open_app(options), options, table, limit, order, where, lines=jsonl))


async def _count(app: App, options: Options) -> list[tuple[TableDefinition, int]]:
    async with open_backend(app, options) as backend:
        session = await backend.engine.store.begin_read()
        try:
            return [
                (definition, await count_rows(session, statements_of(backend, definition)))
                for definition in sorted(backend.app.definitions(), key=lambda definition: definition.name)
            ]
        finally:
            await session.rollback()


def _show_tables(options: Options, counts: list[tuple[TableDefinition, int]]) -> None:
    if options.json:
        print_json(
            [{"table": definition.name, "rows": count, "managed": definition.managed} for definition, count in counts]
        )
    elif counts:
        rows = [
            (definition.name, f"{count:,}", "penstock" if definition.managed else "another program")
            for definition, count in counts
        ]
        print_table(("table", "rows", "owned by"), rows, right=("rows",))
    else:
        say("The app has no tables yet.")


async def _show(
    app: App, options: Options, table: str, limit: int, order: str, where: Sequence[str], *, lines: bool
) -> None:
    async with open_backend(app, options) as backend:
        statements = find_table(backend, table)
        rows = await _read(backend, statements, limit, order, where)
        documents = Documents(statements, backend.engine.clock)
        if lines:
            for row in rows:
                click.echo(visible_json(documents.line(row).decode()), nl=False)
        elif options.json:
            click.echo(visible_json(to_json([documents.document(row) for row in rows]).decode()))
        else:
            _show_rows(statements, [documents.document(row) for row in rows], limit)


async def _read(
    backend: Backend, statements: TableStatements, limit: int, order: str, where: Sequence[str]
) -> Sequence[Row]:
    conditions, values = [], []
    for text in where:
        condition, value = _condition(statements, text)
        conditions.append(condition)
        values += [value] if condition.takes_value else []
    statement = statements.scan(
        tuple(conditions), statements.definition.key, order, limit=limit, indexed=not conditions
    )
    session = await backend.engine.store.begin_read()
    try:
        return await session.fetch(statement, (*values, limit))
    finally:
        await session.rollback()


def _show_rows(statements: TableStatements, documents: list[dict[str, Any]], limit: int) -> None:
    if not documents:
        say(f"{statements.definition.name} has no such rows.")
        return
    headers = list(documents[0])
    numbers = {column.name for column in statements.definition.columns if column.kind in _NUMBERS}
    rows = [[_cell(name, value) for name, value in document.items()] for document in documents]
    print_rows(headers, rows, right=numbers, all_with="--jsonl")
    if len(rows) == limit:
        say(f"{counted(limit, 'row')} shown; see more with --limit.")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "_creationTime":
        return readable_time(datetime.fromtimestamp(value / 1000, UTC))
    if isinstance(value, str):
        return value
    return to_json(value).decode()


# ----- conditions


def _condition(statements: TableStatements, text: str) -> tuple[Condition, Any]:
    """A condition and its value, from such as ``status=paid``.

    Raises:
        ValueInvalid: It cannot be read, names no column, or its value is none of the column's.
    """
    match = _WHERE.fullmatch(text)
    if match is None:
        raise ValueInvalid(f"{text!r} is no condition.", fix="Write column=value; also <, <=, >, >=.")
    name, value = _SYSTEM_NAMES.get(match["column"], match["column"]), match["value"]
    comparison: Comparison = match["comparison"]  # type: ignore[assignment]  # the pattern lets nothing else through
    column = statements.definition.column(name)
    if column.optional and comparison == "=" and value == "null":
        return Condition(name, "is null"), None
    if column.kind is Kind.JSON:
        raise ValueInvalid(f"{name} holds JSON, which cannot be ordered.", fix="Filter the rows of --jsonl instead.")
    for said in (value, json.dumps(value)) if column.kind is not Kind.TEXT else (json.dumps(value),):
        try:
            checked = column.adapter.validate_json(said)
        except ValidationError:
            continue
        return Condition(name, comparison), statements.encode_one(name, column.encode(checked))
    allowed = " or ".join(map(str, column.choices)) or column.kind.value
    raise ValueInvalid(f"{value!r} is not a value of {statements.definition.name}.{name}, which is {allowed}.")


_SYSTEM_NAMES = {"_id": "id", "_creationTime": "creation_time"}
