"""Constants of expressions: a Python value compared with a field, checked and brought into the form that stores take.

Owns the Python values that each kind of field takes. Leaves the values of columns to `schema.fields`.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from penstock.errors import PenstockError, ValueInvalid
from penstock.reactive.evaluate import FORMS
from penstock.reactive.expression import MAX_REAL, MIN_REAL, Constant
from penstock.schema.fields import ENCODERS, PLAIN, Column, Kind
from penstock.schema.ids import Id
from penstock.values import INT64_MAX, INT64_MIN, check_nesting, check_text

_TYPES: dict[Kind, type] = {kind: one for one, kind in PLAIN.items()}
_COMPUTED = {_TYPES[kind]: kind for kind in (Kind.INTEGER, Kind.REAL, Kind.DECIMAL, Kind.INTERVAL)}


class ConstantInvalid(ValueError):
    """A value that cannot stand in this place; its message says what to write instead."""


def constant_for(kind: Kind, column: Column | None, value: Any) -> Constant:
    """A value to compare with a term of some kind, or of a column if the term is one."""
    if kind is Kind.JSON:
        return Constant(kind, json_text(value))
    try:
        if column is not None and kind in {Kind.TEXT, Kind.INTEGER}:
            return Constant(kind, _plain(column.encode(column.check(value))))
        return Constant(kind, ENCODERS[kind]("It", _plain(_of_kind(kind, value))))
    except PenstockError as error:
        raise ConstantInvalid(f"{value!r} cannot stand there: {error}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise ConstantInvalid(f"{value!r} is not a value of it. {_hint(kind, column)}") from error


def plain_constant(value: Any) -> Constant:
    kind = Kind.DATETIME if isinstance(value, datetime) else _COMPUTED.get(type(value))
    if kind is None or (kind is Kind.REAL and value != 0 and not MIN_REAL <= abs(value) <= MAX_REAL):
        raise ConstantInvalid(
            f"cannot compute with {value!r}. Compute with numbers, datetimes and timedeltas; with one &, "
            "put each comparison into parentheses"
        )
    return constant_for(kind, None, value)


def json_text(value: Any) -> str:
    """A value as JSON text; equal values have equal texts."""
    try:
        check_nesting(value, "It")
        return json.dumps(_json(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except PenstockError as error:
        raise ConstantInvalid(f"{value!r} cannot stand in JSON: {error}") from error


def _json(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        check_text(value, "It")
        return str.__str__(value)
    if isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise ValueInvalid("An integer does not fit into 64 bits.")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueInvalid(f"JSON cannot say {value}.")
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {_json(key): _json(item) for key, item in value.items()}
    raise ConstantInvalid(
        f"JSON holds no {type(value).__name__}: {value!r} is something else there. Compare with what JSON holds, such "
        "as a text, or keep the value in a field of its own"
    )


def _of_kind(kind: Kind, value: Any) -> Any:
    if kind is Kind.REAL and type(value) is int:
        return float(value)
    if kind is Kind.DECIMAL and type(value) is int:
        return Decimal(value)
    wrong = (isinstance(value, bool) and kind is not Kind.BOOLEAN) or (
        isinstance(value, datetime) and kind is Kind.DATE
    )
    if wrong or not isinstance(value, _TYPES[kind]):
        raise TypeError(value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def _hint(kind: Kind, column: Column | None) -> str:
    if column is not None and column.choices:
        members = getattr(column.decode, "__members__", None)
        names = [f"{column.decode.__name__}.{name}" for name in members] if members else map(repr, column.choices)  # type: ignore[union-attr]
        return f"Compare with {', '.join(names)}"
    if column is not None and isinstance(column.decode, type) and issubclass(column.decode, Id):
        return f"Compare with an id, as insert and rows give it: {column.decode.__name__}"
    return f"Compare with {FORMS[kind].said}"
