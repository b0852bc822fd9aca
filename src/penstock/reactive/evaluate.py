"""The values of expressions for a row, in Python: the meaning that SQL has to share.

Owns that meaning. No row makes it fail: a value that does not fit its column counts as absent. Values have one form,
which `row_values` makes of a row and `stored_value` of a value as a store's `Dialect` gives it.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache
from operator import eq, ge, gt, le, lt
from typing import Any
from uuid import UUID

from penstock.reactive import expression as ex
from penstock.reactive.pattern import is_found
from penstock.schema.fields import PLAIN, Column, Kind
from penstock.schema.table import Table, TableDefinition
from penstock.values import INT64_MAX, INT64_MIN

Values = Mapping[str, Any]
"""The values of columns: None for what is not there; points and lengths of time in microseconds; JSON as Python reads
it, with a Decimal for each number; all else as `schema.fields` gives it."""

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_MAX_DAYS = 300_000_000  # of a length of time in a database; penstock stores shorter ones
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
_WIDER = frozenset({Kind.REAL, Kind.DECIMAL, Kind.JSON})  # with which whole numbers are compared
_ORDER: dict[str, Callable[[Any, Any], bool]] = {"==": eq, "<": lt, "<=": le, ">": gt, ">=": ge}
_TEXT: dict[str, Callable[[str, str], bool]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
    "contains": str.__contains__,
}
_CLASSES: dict[Kind, type | tuple[type, ...]] = {
    **{kind: one for one, kind in PLAIN.items()},
    Kind.REAL: (float, int),
    Kind.INTERVAL: (timedelta, int),
    Kind.DECIMAL: (Decimal, int),
    Kind.JSON: (str, bytes),
    Kind.ENCRYPTED: str,
}


def holds(condition: ex.Condition, values: Values) -> bool:
    if isinstance(condition, ex.Every):
        return all(holds(one, values) for one in condition.conditions)
    if isinstance(condition, ex.Some):
        return any(holds(one, values) for one in condition.conditions)
    if isinstance(condition, ex.LEAVES):
        return _leaf(condition, values)
    return not holds(condition.condition, values)


def watched(expressions: Iterable[ex.Expression], values: Values) -> tuple[Any, ...]:
    """Values of some terms and conditions; `same` tells whether they have changed."""
    return tuple(_read(one, values) if isinstance(one, ex.TERMS) else holds(one, values) for one in expressions)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal and of one type; JSON is compared all through."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


# ----- values


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


def normal_value(kind: Kind, value: Any) -> Any:
    """A value from `schema.fields` in the form of `Values`; None if it is invalid."""
    if not isinstance(value, _CLASSES[kind]) or (isinstance(value, bool) and kind is not Kind.BOOLEAN):
        return None
    normal = _NORMAL.get(kind)
    return value if normal is None else normal(value)


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


def parsed(text: str | bytes) -> Any:
    """JSON as `Values` has it; None if it is invalid."""
    try:
        return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=_no_number)
    except (ValueError, ArithmeticError, RecursionError):
        return None


def _no_number(name: str) -> None:
    raise ValueError(name)


_NORMAL: dict[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: str.__str__,  # ids are of a subclass
    Kind.INTEGER: lambda value: value if INT64_MIN <= value <= INT64_MAX else None,
    Kind.REAL: lambda value: None if math.isnan(value) else float(value),
    Kind.DATETIME: _microseconds,
    Kind.DATE: lambda value: None if isinstance(value, datetime) else value,
    Kind.INTERVAL: _length_of_time,
    Kind.DECIMAL: _finite,
    Kind.UUID: lambda value: UUID(int=value.int),  # drivers have classes of their own
    Kind.JSON: parsed,
}


@lru_cache(maxsize=4096)
def _constant(kind: Kind, value: Any) -> Any:
    return normal_value(kind, value)


# ----- terms


def _read(term: ex.Term, values: Values) -> Any:
    if isinstance(term, ex.Field):
        return values.get(term.column)
    if isinstance(term, ex.Constant):
        return _constant(term.kind, term.value)
    if isinstance(term, ex.Path):
        return _stepped(values.get(term.column), term.steps)
    if isinstance(term, ex.Length):
        found = _read(term.of, values)
        return len(found) if isinstance(found, (str, bytes, list)) else None
    return _computed(term, values)


def _stepped(found: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        if isinstance(step, str):
            found = found.get(step) if isinstance(found, dict) else None
        elif isinstance(found, list) and -len(found) <= step < len(found):
            found = found[step]
        else:
            return None
    return found


def _computed(term: ex.Arithmetic, values: Values) -> Any:
    left, right = (_operand(one, term.kind, values) for one in (term.left, term.right))
    if left is None or right is None:
        return None
    if isinstance(left, Decimal):
        operation = {"+": _EXACT.add, "-": _EXACT.subtract, "*": _EXACT.multiply}[term.operator]
        return operation(left, right)
    return left + right if term.operator == "+" else left - right if term.operator == "-" else left * right


def _operand(term: ex.Term, kind: Kind, values: Values) -> Any:
    """A value to compute with; one so large or small that a result could leave the range of numbers is not there."""
    found = _read(term, values)
    if found is None:
        return None
    if kind is Kind.REAL:
        found = float(found)
        fits = isinstance(term, ex.Arithmetic) or found == 0 or ex.MIN_REAL <= abs(found) <= ex.MAX_REAL
        return found if fits else None
    if kind is Kind.DECIMAL:
        found = Decimal(found)
        if not isinstance(term, ex.Arithmetic) and not _fits(found):
            return None
    return found


def _fits(number: Decimal) -> bool:
    exponent = number.as_tuple().exponent
    return not number or (
        isinstance(exponent, int) and number.adjusted() <= ex.MAX_DIGITS and exponent >= -ex.MAX_DIGITS
    )


# ----- leaves


def _leaf(leaf: Any, values: Values) -> bool:
    if isinstance(leaf, ex.Compare):
        return _compared(leaf, values)
    found = _read(leaf.term, values)
    if isinstance(leaf, ex.Missing):
        return found is None
    return found is not None and _says(leaf, found, values)


def _says(leaf: Any, found: Any, values: Values) -> bool:
    if isinstance(leaf, ex.OneOf):
        return any(same(found, _read(constant, values)) for constant in leaf.constants)
    if isinstance(leaf, ex.TextIs):
        return isinstance(found, str) and _TEXT[leaf.test](found, leaf.text)
    if isinstance(leaf, ex.Matches):
        return isinstance(found, str) and is_found(leaf.pattern, found)
    if isinstance(leaf, ex.Has):
        wanted = _read(leaf.constant, values)
        return isinstance(found, list) and any(same(one, wanted) for one in found)
    return found is True


def _compared(leaf: ex.Compare, values: Values) -> bool:
    kind, left, right = ex.compared_as(leaf), _read(leaf.left, values), _read(leaf.right, values)
    if kind in _WIDER:
        left, right = _as(kind, left), _as(kind, right)
    if leaf.operator == "==":
        return same(left, right)
    if left is None or right is None or (kind is Kind.JSON and not _alike(left, right)):
        return False
    return _ORDER[leaf.operator](left, right)


def _as(kind: Kind, value: Any) -> Any:
    if kind is Kind.REAL and isinstance(value, int):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    return value


def _alike(left: Any, right: Any) -> bool:
    """Whether two values from JSON have an order: two numbers, or two texts."""
    return type(left) is type(right) and isinstance(left, (Decimal, str))
