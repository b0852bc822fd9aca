"""How SQLite spells what penstock says."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from penstock.schema.fields import Kind
from penstock.store.dialect import Dialect

_MICROSECOND = timedelta(microseconds=1)


def encode_datetime(value: datetime) -> str:
    """A point in time as text of fixed width, so that its order is that of time: 2026-11-21T09:00:00.000000Z."""
    return value.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


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
        Kind.INTERVAL: lambda value: timedelta(microseconds=value),
        Kind.DECIMAL: Decimal,
        Kind.UUID: UUID,
    },
    collate={Kind.DECIMAL: "penstock_decimal"},
    sum={Kind.DECIMAL: "penstock_decimal_sum"},
)
