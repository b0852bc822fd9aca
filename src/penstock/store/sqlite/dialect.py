"""How SQLite spells what penstock says."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from penstock.schema.fields import Kind
from penstock.store.dialect import Dialect
from penstock.store.sqlite.conditions import LiteSpelling

_WIDE_SUM = "penstock_wide_integer(sum({0} >> 32), sum({0} & 4294967295))"  # sum alone overflows at 64 bits
_INFINITIES = ('"\\u0049nfinity"', '"\\u002dInfinity"')
_MICROSECOND = timedelta(microseconds=1)


def encode_datetime(value: datetime) -> str:
    """A point in time as text of fixed width, so that its order is that of time: 2026-11-21T09:00:00.000000Z."""
    return value.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def given(spelled: str) -> str | bytes | float:
    """What a string in captured JSON stands for, as `store.sqlite.capture` spells it. SQLite ends text at NUL there."""
    text: str = json.loads(spelled)
    if spelled.startswith('"\\u005cx'):
        return bytes.fromhex(text[2:])
    return float(text) if spelled in _INFINITIES else text


SQLITE = Dialect(
    name="sqlite",
    parameter="?",
    types={
        Kind.TEXT: "TEXT",
        Kind.INTEGER: "INTEGER",
        Kind.REAL: "REAL",
        Kind.BOOLEAN: "INTEGER",
        Kind.BYTES: "BLOB",
        Kind.DATETIME: "TEXT",
        Kind.DATE: "TEXT",
        Kind.INTERVAL: "INTEGER",
        Kind.DECIMAL: "TEXT",
        Kind.UUID: "TEXT",
        Kind.JSON: "TEXT",
    },
    spelling=LiteSpelling,
    encode={
        Kind.BOOLEAN: int,
        Kind.DATETIME: encode_datetime,
        Kind.DATE: date.isoformat,
        Kind.INTERVAL: lambda value: value // _MICROSECOND,
        Kind.DECIMAL: str,
        Kind.UUID: str,
    },
    decode={
        Kind.BOOLEAN: bool,
        Kind.DATETIME: datetime.fromisoformat,
        Kind.DATE: date.fromisoformat,
        Kind.INTERVAL: lambda value: timedelta(microseconds=int(value)),
        Kind.DECIMAL: lambda value: Decimal(str(value)),  # a numeric column of a user holds numbers
        Kind.UUID: UUID,
    },
    given=given,
    decoded_to_compare=frozenset({Kind.DECIMAL}),
    collate={Kind.DECIMAL: "penstock_decimal"},
    sum={Kind.DECIMAL: "penstock_decimal_sum({0})", Kind.INTEGER: _WIDE_SUM, Kind.INTERVAL: _WIDE_SUM},
)
