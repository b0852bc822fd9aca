"""SQL functions of penstock's own connections to SQLite: decimals, sums beyond 64 bits, Python's filters, vectors."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache
from typing import Any

from penstock.reactive.evaluate import holds
from penstock.reactive.expression import Leaf, fields
from penstock.reactive.signature import read_signature
from penstock.schema.fields import Kind
from penstock.store.sql.values import decode_stored
from penstock.store.sqlite.dialect import SQLITE, read_spelled
from penstock.store.sqlite.vectors import CoarselyNearest, Nearest
from penstock.values import EPOCH

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def register_functions(connection: sqlite3.Connection) -> None:
    """Add the functions to a connection that `store.sqlite.dialect` uses."""
    connection.create_collation("penstock_decimal", compare_decimals)
    connection.create_aggregate("penstock_decimal_sum", 1, DecimalSum)  # type: ignore[arg-type]  # stub wants ints
    connection.create_aggregate("penstock_nearest", 4, Nearest)  # type: ignore[arg-type]  # stub wants ints
    connection.create_aggregate("penstock_near", 4, CoarselyNearest)  # type: ignore[arg-type]  # stub wants ints
    connection.create_function("penstock_wide_integer", 2, wide_integer, deterministic=True)
    connection.create_function("penstock_bytes", 1, bytes.fromhex, deterministic=True)
    connection.create_function("penstock_given", 1, read_spelled, deterministic=True)
    connection.create_function("penstock_text", 1, readable, deterministic=True)
    connection.create_function("penstock_is_text", 1, is_readable, deterministic=True)
    connection.create_function("penstock_microseconds", 1, microseconds, deterministic=True)
    connection.create_function("penstock_holds", -1, leaf_holds, deterministic=True)


def compare_decimals(left: str, right: str) -> int:
    """Order two decimals in text form by their value."""
    first, second = Decimal(left), Decimal(right)
    return (first > second) - (first < second)


def wide_integer(high: int | None, low: int | None) -> str | None:
    """An integer of more than 64 bits from its upper part and its lower 32 bits, as text."""
    return None if high is None or low is None else str((high << 32) + low)


def readable(text: bytes | None) -> str | None:
    """Text, given as its bytes: bytes that are no UTF-8, which other programs can store, are replaced."""
    return None if text is None else text.decode(errors="replace")


def is_readable(text: bytes) -> bool:
    """Whether bytes are text that Python can read."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def microseconds(moment: str) -> int:
    """A point in time, as stored, in microseconds since 1970."""
    return (datetime.fromisoformat(moment) - EPOCH) // timedelta.resolution


def leaf_holds(text: str, *columns: Any) -> bool:
    """Whether a part of a filter, given as `reactive.signature` writes it, is true of the columns that it reads."""
    leaf, kinds = _leaf(text)
    read = zip(kinds.items(), columns, strict=True)
    return holds(leaf, {name: decode_stored(SQLITE, kind, value) for (name, kind), value in read})


@lru_cache(maxsize=256)
def _leaf(text: str) -> tuple[Leaf, dict[str, Kind]]:
    leaf = read_signature(text)
    return leaf, fields(leaf)


class DecimalSum:
    """Adds decimals, in text form or as numbers, exactly; NULL over no rows, as SQL's sum does."""

    def __init__(self) -> None:
        self._sum: Decimal | None = None

    def step(self, value: str | float | None) -> None:
        """Add one."""
        if value is not None:
            self._sum = _EXACT.add(Decimal(str(value)), self._sum or Decimal(0))

    def finalize(self) -> str | None:
        """The sum as text."""
        return None if self._sum is None else str(self._sum)
