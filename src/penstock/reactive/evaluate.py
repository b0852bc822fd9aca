"""The values of expressions for a row, in Python: for each kind the classes that hold it, its forms and its texts.

Leaves what a node makes of values to `expression`. No row makes evaluation fail: a value that does not fit its column
counts as absent. Values have one form, which `row_values` makes of a row and `decode_stored` of a value as a store's
`Dialect` gives it.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.schema.fields import Column, Kind
from penstock.schema.table import Table, TableDefinition
from penstock.values import EPOCH, INT64_MAX, INT64_MIN

Values = Mapping[str, Any]
"""The values of columns: None for what is not there; points and lengths of time in microseconds; JSON as Python reads
it, with a Decimal for each number; all else as `schema.fields` gives it."""

MICROSECOND = timedelta(microseconds=1)
_MAX_DAYS = 300_000_000  # of a length of time in a database; penstock stores shorter ones


def _microseconds(value: datetime | timedelta | int) -> int:
    if isinstance(value, datetime):
        value = (value.replace(tzinfo=UTC) if value.tzinfo is None else value) - EPOCH
    return value if isinstance(value, int) else value // MICROSECOND


def _length_of_time(value: timedelta | int) -> int | None:
    found = _microseconds(value)
    return found if isinstance(value, int) or abs(value.days) < _MAX_DAYS else None


def _finite(value: Decimal | int) -> Decimal | None:
    number = Decimal(value)
    return number if number.is_finite() else None


def parse_json(text: str | bytes) -> Any:
    """JSON as `Values` has it; None if it is invalid."""
    try:
        return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=_no_number)
    except (ValueError, ArithmeticError, RecursionError):
        return None


def _no_number(name: str) -> None:
    raise ValueError(name)


def plain_decimal(value: Decimal) -> Decimal:
    """A number without the zeros at its end: equal numbers have equal texts."""
    if not value:
        return Decimal(0)
    sign, digits, exponent = value.as_tuple()
    kept = "".join(map(str, digits)).rstrip("0")
    return Decimal((sign, tuple(map(int, kept)), int(exponent) + len(digits) - len(kept)))


def _show_time(microseconds: int) -> str:
    try:
        return (EPOCH + timedelta(microseconds=microseconds)).isoformat()
    except OverflowError:
        return f"{microseconds} microseconds"


def _show_length(microseconds: int) -> str:
    try:
        return str(timedelta(microseconds=microseconds))
    except OverflowError:
        return f"{microseconds} microseconds"


def _show_json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_show_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_show_json, value)) + "]"
    return repr(value) if isinstance(value, (str, bool)) or value is None else str(value)


def _itself(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Form:
    """The forms that a value of a kind has."""

    said: str  # as errors name it
    classes: type | tuple[type, ...]  # in stores and in rows
    normal: Callable[[Any], Any] = _itself  # in `Values`; None for what does not fit
    write: Callable[[Any], Any] = _itself  # of a constant, in JSON
    read: Callable[[Any], Any] = _itself  # the constant of that JSON
    shown: Callable[[Any], str] = repr  # of a value in `Values`, for people


FORMS: dict[Kind, Form] = {
    Kind.TEXT: Form("a str", str, str.__str__),  # ids are of a subclass
    Kind.INTEGER: Form("an int", int, lambda value: value if INT64_MIN <= value <= INT64_MAX else None),
    Kind.REAL: Form(
        "a float", (float, int), lambda value: None if math.isnan(value) else float(value), float.hex, float.fromhex
    ),
    Kind.BOOLEAN: Form("True or False", bool),
    Kind.BYTES: Form("bytes", bytes, _itself, bytes.hex, bytes.fromhex),
    Kind.DATETIME: Form(
        "an aware datetime",
        datetime,
        _microseconds,
        lambda value: value.astimezone(UTC).isoformat(),
        datetime.fromisoformat,
        shown=_show_time,
    ),
    Kind.DATE: Form(
        "a date",
        date,
        lambda value: None if isinstance(value, datetime) else value,
        date.isoformat,
        date.fromisoformat,
        shown=str,
    ),
    Kind.INTERVAL: Form(
        "a timedelta", (timedelta, int), _length_of_time, _microseconds, MICROSECOND.__mul__, shown=_show_length
    ),
    Kind.DECIMAL: Form(
        "a Decimal or an int", (Decimal, int), _finite, lambda value: str(plain_decimal(value)), Decimal, shown=str
    ),
    # Drivers have classes of their own.
    Kind.UUID: Form("a UUID", UUID, lambda value: UUID(int=value.int), str, UUID, shown=str),
    Kind.JSON: Form("a str, a number, True, False, a list or a dict", (str, bytes), parse_json, shown=_show_json),
    Kind.ENCRYPTED: Form("", str),
}


def holds(condition: Any, values: Values) -> bool:
    """Whether a condition is true of a row."""
    return bool(condition.read(values))


def read_each(expressions: Iterable[Any], values: Values) -> tuple[Any, ...]:
    """Values of some terms and conditions; `same` tells whether they have changed."""
    return tuple(one.read(values) for one in expressions)


# ----- values


def normal_value(kind: Kind, value: Any) -> Any:
    """A value from `schema.fields` in the form of `Values`; None if it is invalid."""
    form = FORMS[kind]
    if not isinstance(value, form.classes) or (isinstance(value, bool) and kind is not Kind.BOOLEAN):
        return None
    return form.normal(value)


def row_values(definition: TableDefinition, row: Table, columns: Iterable[str]) -> dict[str, Any]:
    return {name: _field_value(definition.column(name), row.__dict__.get(name)) for name in columns}


def _field_value(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.kind not in {Kind.JSON, Kind.ENCRYPTED}:
        return normal_value(column.kind, value.value if isinstance(value, enum.Enum) else value)
    try:
        return normal_value(column.kind, column.encode(value))
    except Exception:  # noqa: BLE001 - a value that cannot be stored is none that a row has
        return None


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal and of one type; JSON is compared all through."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def is_ordered(left: Any, right: Any) -> bool:
    """Whether two values from JSON have an order: two numbers, or two texts."""
    return type(left) is type(right) and isinstance(left, (Decimal, str))
