"""``penstock data``: the tables of the app, or rows of one of them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError
from pydantic_core import core_schema, from_json, to_json

from penstock.app import Backend
from penstock.cli.opening import snapshot, with_backend
from penstock.cli.options import Options, json_option
from penstock.cli.output import print_json, print_table, readable_time, say
from penstock.cli.visible import visible_json
from penstock.clock import Clock
from penstock.codec import ENCRYPTED
from penstock.errors import ConfigError, InputError, RowInvalid, ValueInvalid
from penstock.observe.readable import amount
from penstock.schema.encoder import MASKED
from penstock.schema.fields import Kind
from penstock.schema.ids import format_id, is_id
from penstock.schema.systemfields import SYSTEM_COLUMNS
from penstock.schema.table import TableDefinition
from penstock.schema.tighten import plain_validator
from penstock.store.session import Row, Session
from penstock.store.sql.statements import Comparison, Condition, TableStatements
from penstock.transaction.segments import Order, Segment
from penstock.values import EPOCH, decode_json
from penstock.wire.schemas import change_schema
from penstock.wire.tags import MAX_PLAIN_INTEGER, is_plain_float, read_tag, tag_bytes, tag_float, tag_integer

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
def command(options: Options, table: str | None, limit: int, order: str, where: Sequence[str], jsonl: bool) -> None:
    """Show all tables with their row counts, or rows of one TABLE."""
    options.json |= jsonl
    if table is None:
        with_backend(options, lambda backend: _show_tables(backend, options))
    else:
        with_backend(options, lambda backend: _show(backend, options, table, limit, order, where, lines=jsonl))


async def _show_tables(backend: Backend, options: Options) -> None:
    definitions = sorted(backend.app.definitions(), key=lambda definition: definition.name)
    async with snapshot(backend) as session:
        counts = [await count_rows(session, statements_of(backend, definition)) for definition in definitions]
    found = list(zip(definitions, counts, strict=True))
    if options.json:
        print_json([{"table": one.name, "rows": count, "managed": one.managed} for one, count in found])
    elif found:
        rows = [(one.name, f"{count:,}", "penstock" if one.managed else "another program") for one, count in found]
        print_table(("table", "rows", "owned by"), rows, right=("rows",))
    else:
        say("The app has no tables yet.")


async def _show(
    backend: Backend, options: Options, table: str, limit: int, order: str, where: Sequence[str], *, lines: bool
) -> None:
    statements = find_table(backend, table)
    rows = await _read(backend, statements, limit, order, where)
    documents = Documents(statements, backend.engine.clock)
    if lines:  # whose secrets an import needs
        for row in rows:
            click.echo(visible_json(documents.line(row).decode()), nl=False)
        return
    hidden = {column.name for column in statements.definition.columns if column.secrets}
    shown = [
        {name: MASKED if name in hidden and value is not None else value for name, value in document.items()}
        for document in map(documents.document, rows)
    ]
    if options.json:
        click.echo(visible_json(to_json(shown).decode()))
    else:
        _show_rows(statements, shown, limit)


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
    async with snapshot(backend) as session:
        return await session.fetch(statement, (*values, limit))


def _show_rows(statements: TableStatements, documents: list[dict[str, Any]], limit: int) -> None:
    if not documents:
        say(f"{statements.definition.name} has no such rows.")
        return
    headers = list(documents[0])
    numbers = {column.name for column in statements.definition.columns if column.kind in _NUMBERS}
    rows = [[_cell(name, value) for name, value in document.items()] for document in documents]
    print_table(headers, rows, right=numbers, all_with="--jsonl")
    if len(rows) == limit:
        say(f"{amount(limit, 'row')} shown; see more with --limit.")


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
    """A condition and its value, from text such as ``status=paid``."""
    match = _WHERE.fullmatch(text)
    if match is None:
        raise ValueInvalid(f"{text!r} is no condition.", fix="Write column=value; also <, <=, >, >=.")
    name, value = _SYSTEM_NAMES.get(match["column"], match["column"]), match["value"]
    comparison: Comparison = match["comparison"]  # type: ignore[assignment]  # the pattern lets nothing else through
    column = statements.definition.column(name)
    if column.optional and comparison == "=" and value == "null":
        return Condition(name, "is null"), None
    if column.order_obstacle:
        fix = "Filter the rows of --jsonl instead."
        raise ValueInvalid(f"{name} {column.order_obstacle}, which cannot be ordered.", fix=fix)
    for said in (value, json.dumps(value)) if column.kind is not Kind.TEXT else (json.dumps(value),):
        try:
            checked = column.adapter.validate_json(said)
        except ValidationError:
            continue
        return Condition(name, comparison), statements.encode_one(name, column.encode(checked))
    allowed = " or ".join(map(str, column.choices)) or column.kind.value
    raise ValueInvalid(f"{value!r} is not a value of {statements.definition.name}.{name}, which is {allowed}.")


_SYSTEM_NAMES = {"_id": "id", "_creationTime": "creation_time"}


_PIECE = 1000


def find_table(backend: Backend, name: str) -> TableStatements:
    names = []
    for definition in backend.app.definitions():
        if name in names_of(definition):
            return statements_of(backend, definition)
        names.append(definition.name)
    near = difflib.get_close_matches(name.lower(), names, 1)
    fix = f"Did you mean {near[0]}?" if near else f"Its tables are {', '.join(names) or 'none'}."
    raise ConfigError(f"The app has no table {name!r}.", fix=fix)


def names_of(definition: TableDefinition) -> set[str]:
    """The names of a table on the command line: its own, and that of its class if it is no component's."""
    is_own = definition.row_type is definition.table
    return {definition.name, definition.table.__name__} if is_own else {definition.name}


def statements_of(backend: Backend, definition: TableDefinition) -> TableStatements:
    return backend.engine.statements.of(definition.table, definition)


async def count_rows(session: Session, statements: TableStatements) -> int:
    rows = await session.fetch(statements.aggregate((), "count", None, ()))
    return int(rows[0][0])


async def read_rows(session: Session, statements: TableStatements) -> AsyncIterator[Sequence[Row]]:
    """All rows of a table in pieces, in the order of its key."""
    definition = statements.definition
    order = Order(definition.key, [column.optional for column in definition.key_columns], "asc")
    pending = [Segment()]
    while pending:
        segment = pending.pop(0)
        conditions, args = segment.conditions(order.columns)
        statement = statements.scan(conditions, order.columns, order.direction, limit=_PIECE, indexed=True)
        rows = await session.fetch(statement, (*args, _PIECE))
        if rows:
            yield rows
        if len(rows) == _PIECE:
            last = statements.place_of(rows[-1], order.columns)
            pending = [*order.after(segment, last), *pending]


_MICROSECOND = timedelta(microseconds=1)
_OF_JSON = {Kind.INTEGER, Kind.REAL, Kind.BOOLEAN, Kind.JSON}  # which stand in CSV as they do in JSON
_TAGGED = {Kind.INTEGER, Kind.REAL, Kind.BYTES}


class Documents:
    def __init__(self, statements: TableStatements, clock: Clock) -> None:
        self._statements = statements
        self._definition = statements.definition
        self._clock = clock
        self._columns = statements.definition.columns
        self._by_name = {column.name: column for column in self._columns}
        self._tagged = {column.name for column in self._columns if column.kind in _TAGGED}
        schema = TypeAdapter(statements.definition.table).core_schema
        self._validator = plain_validator(change_schema(schema, self._read_as_stored))

    # ----- out

    def document(self, row: Row) -> dict[str, Any]:
        found = dict(self._fields_of(row))
        if not self._definition.managed:
            return found
        row_id, created = (found.pop(name) for name in SYSTEM_COLUMNS)
        return {"_id": row_id, "_creationTime": created, **found}

    def line(self, row: Row) -> bytes:
        return to_json(self.document(row)) + b"\n"

    def _fields_of(self, row: Row) -> Iterator[tuple[str, Any]]:
        for column, value, stored in zip(self._columns, self._neutral(row), row, strict=True):
            if value is None:
                yield column.name, None
            elif column.kind is Kind.ENCRYPTED:
                yield column.name, {ENCRYPTED: stored}
            elif column.name == "creation_time" and self._definition.managed:
                yield column.name, creation_milliseconds(value)
            else:
                say = _SAY.get(column.kind)
                yield column.name, value if say is None else say(value)

    def _neutral(self, row: Row) -> list[Any]:
        dialect = self._statements.dialect
        try:
            if self._definition.managed:
                return [
                    value if column.kind is Kind.ENCRYPTED else dialect.decode_value(column.kind, value)
                    for column, value in zip(self._columns, row, strict=True)
                ]
            checked = self._definition.make_rows(self._statements.decode_fields((row,)))[0]
            return list(self._definition.encode_row(checked, "", EPOCH))
        except (ValueError, TypeError) as error:
            key = self._definition.key_at(row)
            raise RowInvalid(
                f"Table {self._definition.name}: the row {key} does not fit its declaration: {error}.",
                fix="Change the declaration, or correct the row.",
            ) from error

    # ----- in

    def row(self, line: bytes) -> list[Any]:
        """The row of a JSON line as the store takes it; an InputError says what is wrong with the line."""
        return self._row(parse_line(line))

    def row_of_texts(self, line: bytes) -> list[Any]:
        """The row of a record of CSV: an object of texts. An empty one is null where the column is optional."""
        return self._row({name: self._of_text(name, text) for name, text in parse_line(line).items()})

    def _of_text(self, name: str, text: str) -> Any:
        column = self._by_name.get(_SYSTEM_NAMES.get(name, name))
        if column is None:
            return text
        if not text and (column.optional or name in _SYSTEM_NAMES):
            return None
        if column.kind not in _OF_JSON and name != "_creationTime":
            return text
        with suppress(ValueError):
            return from_json(text.lower() if column.kind is Kind.BOOLEAN else text, allow_inf_nan=False)
        return text

    def _row(self, given: dict[str, Any]) -> list[Any]:
        identity = self._identity(given)
        found = self._check(given, *identity)
        kept = self.document(found)
        self._identity(kept)
        if kept != given and self._check(kept, *identity) != found:
            raise ValueInvalid("a validator would change the row again each time that it is read from a file.")
        return found

    def _check(self, given: dict[str, Any], row_id: str, created: datetime) -> list[Any]:
        tokens = {name: value[ENCRYPTED] for name, value in given.items() if self._is_ciphertext(name, value)}
        fields = {name: self._read(name, value) for name, value in given.items()}
        for name, token in tokens.items():
            fields[name] = from_json(self._statements.dialect.decode_value(Kind.ENCRYPTED, token))
        text = to_json(fields, bytes_mode="base64", inf_nan_mode="constants")
        try:
            strict = None if self._definition.managed else False
            checked = self._validator.validate_json(text, strict=strict)
        except ValidationError as error:
            raise ValueInvalid(_describe(error)) from None
        neutral = self._definition.encode_row(checked, row_id, created)
        found = self._statements.encode(neutral)
        for name, token in tokens.items():
            found[self._definition.positions[name]] = token
        return found

    def _is_ciphertext(self, name: str, value: Any) -> bool:
        return name in self._definition.ciphertext_columns and isinstance(value, dict) and value.keys() == {ENCRYPTED}

    def _read_as_stored(self, node: dict[str, Any]) -> None:
        """Have the schema of the table read columns of JSON as a row is read: tags of unions stand there."""
        is_own = node.get("type") == "model-fields" and node["fields"].keys() == self._definition.positions.keys()
        for column in [one for one in self._columns if is_own and one.kind in {Kind.JSON, Kind.ENCRYPTED}]:
            field = node["fields"][column.name]
            steps: Any = (to_json, column.decode)
            read = core_schema.chain_schema([*map(core_schema.no_info_plain_validator_function, steps)])
            inner = {**field["schema"], "schema": read, "validate_default": False}
            field["schema"] = inner if inner["type"] == "default" else read

    def _identity(self, given: dict[str, Any]) -> tuple[str, datetime]:
        """Take ``_id`` and ``_creationTime`` out of a document, or make them."""
        row_id, created = given.pop("_id", None), given.pop("_creationTime", None)
        name, prefix = self._definition.name, self._definition.id_prefix
        if not self._definition.managed:
            return "", EPOCH
        if row_id is None:
            row_id = format_id(prefix, self._clock.uuid7())
        elif not isinstance(row_id, str) or not is_id(prefix, row_id):
            raise ValueInvalid(f"_id: {row_id!r} is not an id of table {name}.")
        return row_id, self._clock.now() if created is None else read_creation_time(created)

    def _read(self, name: str, value: Any) -> Any:
        if name in self._tagged and isinstance(value, dict) and len(value) == 1:
            ((tag, content),) = value.items()
            return read_tag(tag, content)
        return value


def creation_milliseconds(created: datetime) -> float:
    """A creation time as exports and clients say it, from which `read_creation_time` gets it back."""
    return (created - EPOCH) // _MICROSECOND / 1000


def read_creation_time(milliseconds: Any) -> datetime:
    try:
        exact = Decimal(str(float(milliseconds)))  # keeps the microsecond that a product of floats would lose
        return EPOCH + timedelta(microseconds=round(exact * 1000))
    except (TypeError, ValueError, OverflowError):
        raise ValueInvalid(f"_creationTime: {milliseconds!r} is no number of milliseconds since 1970.") from None


def parse_line(line: bytes) -> dict[str, Any]:
    try:
        found = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f"this is not valid JSON: {error}.") from None
    if not isinstance(found, dict):
        raise InputError(f"this is no JSON object, but {json.dumps(found)[:40]}.")
    return found


def _describe(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, detail['loc'])) or 'row'}: {detail['msg']}" for detail in details[:5])


_SAY: dict[Kind, Callable[[Any], Any]] = {
    Kind.INTEGER: lambda value: value if abs(value) <= MAX_PLAIN_INTEGER else tag_integer(value),
    Kind.REAL: lambda value: value if is_plain_float(value) else tag_float(value),
    Kind.BYTES: tag_bytes,
    Kind.JSON: decode_json,
}
