"""Values as a store's driver gives them, or as the change feed has captured them, as `reactive.evaluate` reads them.

Owns values that no declaration promises: in a table of another program, a value may be of another type than its field.
A value that cannot be read as its field's type counts as NULL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import from_json

from penstock.changes.change import read_values
from penstock.errors import RowInvalid
from penstock.reactive.evaluate import normal_value, parse_json, same
from penstock.schema.fields import PLAIN, Column, Kind
from penstock.schema.table import TableDefinition
from penstock.store.sql.dialect import UNFIT, Dialect

_BETWEEN = re.compile(r"[,\s]*")
_DECODER = json.JSONDecoder()
_CONFIG = ConfigDict(val_json_bytes="base64")  # as tables have it
_NO_NUMBERS = ("Infinity", "-Infinity", "NaN")
_ENDS: dict[Kind, dict[str, Any]] = {
    Kind.DATETIME: {"-infinity": datetime(1, 1, 1, tzinfo=UTC), "infinity": datetime.max.replace(tzinfo=UTC)},
    Kind.DATE: {"-infinity": date.min, "infinity": date.max},
}
_SPELLED = frozenset({Kind.BOOLEAN, Kind.DATETIME, Kind.DATE, Kind.UUID})
_AS_STORED = frozenset({Kind.INTEGER, Kind.BYTES})
_AS_CAPTURED = frozenset({Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN})
_INTERVAL = re.compile(
    r"(?:(?P<years>[+-]?\d+) years? ?)?(?:(?P<months>[+-]?\d+) mons? ?)?(?:(?P<days>[+-]?\d+) days? ?)?"
    r"(?:(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+(?:\.\d+)?))?"
)
_TYPES = {kind: annotation for annotation, kind in PLAIN.items()}


def decode_stored_values(
    dialect: Dialect, definition: TableDefinition, stored: Mapping[str, Any], columns: Iterable[str]
) -> dict[str, Any]:
    """The values of some columns of a row as a store's driver gave them."""
    return {name: decode_stored(dialect, definition.column(name).kind, stored.get(name)) for name in columns}


def decode_stored(dialect: Dialect, kind: Kind, value: Any) -> Any:
    """One value as a store's driver gave it; None if it is none of its kind."""
    if value is None:
        return None
    try:
        neutral = value if kind is Kind.INTERVAL and isinstance(value, int) else dialect.decode_value(kind, value)
        found = normal_value(kind, neutral)
        return normal_value(kind, _read(kind, neutral)) if found is None else found
    except Exception:  # noqa: BLE001 - whatever it is, it is not a value of this kind
        return value if kind is Kind.ENCRYPTED else None  # ciphertext without a key changes with the value, too


def decode_ordered(dialect: Dialect, kind: Kind, value: Any) -> Any:
    """One value as a store's driver gave it; None if the database orders it otherwise than a value of its kind.

    SQLite orders a text by its spelling, and a number that stands in a text as a text.
    """
    found, spelled = decode_stored(dialect, kind, value), value
    if found is not None and kind in _SPELLED:
        spelled = dialect.encode_value(kind, dialect.decode_value(kind, value)) if kind in dialect.encode else value
    elif kind in _AS_STORED or (kind is Kind.INTERVAL and kind in dialect.encode):
        spelled = found
    return found if spelled == value else None


def decode_captures(
    dialect: Dialect,
    definition: TableDefinition,
    captured: Mapping[str, Any],
    columns: Iterable[str],
    read: Callable[[Dialect, Kind, Any], Any] = decode_stored,
) -> dict[str, Any]:
    """The values of some columns of a captured row, read from JSON with a Decimal for each fraction."""
    return {name: decode_capture(dialect, definition.column(name).kind, captured.get(name), read) for name in columns}


def decode_capture(
    dialect: Dialect, kind: Kind, value: Any, read: Callable[[Dialect, Kind, Any], Any] = decode_stored
) -> Any:
    """One captured value: bytes are hex text, points in time text in UTC; on PostgreSQL JSON stands there as it is."""
    if value is None or (kind is Kind.TEXT and type(value) is str):
        return value
    if kind is Kind.INTEGER and type(value) is int:
        return normal_value(kind, value)
    if kind is Kind.JSON and dialect.types[kind] != dialect.types[Kind.TEXT]:
        return _with_decimals(value)
    try:
        return read(dialect, kind, _from_json(dialect, kind, value))
    except (ValueError, ArithmeticError):
        return None


def decode_like(
    dialect: Dialect,
    definition: TableDefinition,
    captured: Mapping[str, Any],
    columns: Iterable[str],
    read: Mapping[str, Any],
) -> dict[str, Any]:
    """Decode as `decode_captures` does, but a captured value that may stand for the one that was `read` is that one.

    Two kinds of captured values are ambiguous. JSON numbers have more digits than a float, and on SQLite bytes in a
    column of text are captured as text.
    """
    values = decode_captures(dialect, definition, captured, columns)
    for name, value in values.items():
        wanted = read.get(name)
        if not same(value, wanted):
            kind = definition.column(name).kind
            values[name] = wanted if same(_read_otherwise(dialect, kind, captured.get(name)), wanted) else value
    return values


def _read_otherwise(dialect: Dialect, kind: Kind, value: Any) -> Any:
    """A captured value in the other form in which a reader of the row may have it."""
    if kind is Kind.JSON:
        if dialect.types[kind] == dialect.types[Kind.TEXT]:
            value = _load(_from_json(dialect, kind, value))
        return parse_json(json.dumps(value, default=float))
    if kind is Kind.TEXT and dialect.types[Kind.JSON] == dialect.types[kind]:
        return decode_stored(dialect, kind, _bytes(value))
    return None


def _load(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


def row_reader(dialect: Dialect, definition: TableDefinition) -> Callable[[str], dict[str, Any]]:
    """A function that reads captured columns from JSON, as `decode_fields` does, and quicker.

    It leaves out columns that the table has lost, and raises ValueError for text that cannot be read.
    """
    read = {column.name: _reader(dialect, column) for column in definition.columns}
    exact = any(column.kind is Kind.DECIMAL for column in definition.columns)

    def fields(text: str) -> dict[str, Any]:
        try:
            values = read_values(text) if exact else from_json(text)
        except ValueError:  # half a surrogate, which other programs can store on SQLite
            values = read_values(text)
        if not values.keys() <= read.keys():
            values = {name: value for name, value in values.items() if name in read}
        return {
            name: value if value is None or (convert := read[name]) is None else convert(value)
            for name, value in values.items()
        }

    return fields


def _reader(dialect: Dialect, column: Column) -> Callable[[Any], Any] | None:
    """The function from a captured value to a field; None if they are the same."""
    kind, decode = column.kind, column.decode
    if decode is None and kind in _AS_CAPTURED and kind not in dialect.decode:
        return None

    def convert(value: Any) -> Any:
        neutral = _neutral(dialect, kind, value)
        return neutral if neutral is None or decode is None else decode(neutral)

    return convert


def decode_fields(dialect: Dialect, definition: TableDefinition, captured: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a captured row, as rows have them; None for a value of another kind."""
    fields = {}
    for name, value in captured.items():
        column = definition.column(name)
        try:
            neutral = None if value is None else _neutral(dialect, column.kind, value)
            fields[name] = neutral if neutral is None or column.decode is None else column.decode(neutral)
        except UNFIT as error:
            key = [captured.get(part) for part in definition.key]
            raise RowInvalid(
                f"Table {definition.name}: the row {', '.join(map(str, key))}, as captured, does not fit its "
                f"declaration: column {name}: {error}.",
                fix="Correct the row, or change the declaration.",
                table=definition.name,
                column=name,
            ) from error
    return fields


def decode_key(dialect: Dialect, definition: TableDefinition, text: str) -> list[Any]:
    """A captured key as the driver takes its values; ValueError if it is no key of this table."""
    try:
        pairs = list(zip(definition.key_columns, _split_values(text), strict=True))
        return [_key_value(dialect, column.kind, spelled) for column, spelled in pairs]
    except (TypeError, ArithmeticError) as error:
        raise ValueError(text) from error


def _split_values(text: str) -> list[str]:
    """The values of a JSON array as they are spelled there."""
    found, place = list[str](), 1
    for _ in read_values(text):
        start = place + len(_BETWEEN.findall(text, place)[0])
        place = _DECODER.raw_decode(text, start)[1]
        found.append(text[start:place])
    return found


def _key_value(dialect: Dialect, kind: Kind, spelled: str) -> Any:
    if dialect.given is not None and spelled.startswith('"'):
        return dialect.given(spelled)
    found = _from_json(dialect, kind, read_values(spelled))
    if isinstance(found, datetime) and found.tzinfo is None:
        return found.replace(tzinfo=UTC)
    if kind is Kind.REAL and isinstance(found, float) and kind in dialect.foreign:  # the column may be numeric
        return dialect.foreign[kind](found)
    return dialect.encode_value(kind, found) if isinstance(found, Decimal) else found


def _neutral(dialect: Dialect, kind: Kind, value: Any) -> Any:
    if kind is Kind.JSON and dialect.types[kind] != dialect.types[Kind.TEXT]:
        return json.dumps(value, default=float)
    found = dialect.decode_value(kind, _from_json(dialect, kind, value))
    if isinstance(found, datetime) and found.tzinfo is None:
        return found.replace(tzinfo=UTC)
    return _TYPES[kind](found) if type(found) is int and kind in {Kind.REAL, Kind.DECIMAL} else found


def _from_json(dialect: Dialect, kind: Kind, value: Any) -> Any:
    """A captured value as a driver gives it."""
    if isinstance(value, Decimal):  # SQLite has no such numbers but floats, and these are all their digits
        return value if kind is Kind.DECIMAL and kind not in dialect.decode else float(value)
    if not isinstance(value, str):
        return value
    if kind is not Kind.TEXT and value.startswith("\\x"):  # also in a column of SQLite of another type
        return _bytes(value)
    if kind is Kind.REAL and value in _NO_NUMBERS:
        return float(value)
    if value in _ENDS.get(kind, ()):
        return _ENDS[kind][value]
    parse = None if dialect.types[kind] == dialect.types[Kind.TEXT] else _PARSED.get(kind)
    return value if parse is None else parse(value)


def _bytes(value: Any) -> Any:
    """The bytes that hex text stands for; any other value as it is."""
    try:
        return bytes.fromhex(value[2:]) if isinstance(value, str) and value.startswith("\\x") else value
    except ValueError:
        return value


def _interval(text: str) -> Any:
    """A length of time as PostgreSQL writes it by default, with years and months as its driver reads them."""
    found = _INTERVAL.fullmatch(text)
    if not found or not text:
        return text
    years, months, days = (int(found[name] or 0) for name in ("years", "months", "days"))
    hours, minutes, seconds = (Decimal(found[name] or 0) for name in ("hours", "minutes", "seconds"))
    time = int((hours * 3600 + minutes * 60 + seconds) * 1_000_000) * (-1 if found["sign"] == "-" else 1)
    return timedelta(days=years * 365 + months * 30 + days, microseconds=time)


_PARSED: dict[Kind, Callable[[str], Any]] = {
    Kind.DATETIME: datetime.fromisoformat,
    Kind.DATE: date.fromisoformat,
    Kind.INTERVAL: _interval,
    Kind.UUID: UUID,
}


def _with_decimals(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_decimals(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_with_decimals, value))
    return Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _read(kind: Kind, value: Any) -> Any:
    if kind is Kind.JSON:  # an array column of PostgreSQL
        return json.dumps(value) if isinstance(value, (list, tuple)) else None
    return _adapter(kind).validate_python(value, strict=False)


@lru_cache
def _adapter(kind: Kind) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPES[kind], config=_CONFIG)
