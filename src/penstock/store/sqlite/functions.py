"""What SQLite lacks and every connection of penstock's brings: exact decimals, and sums beyond 64 bits."""

from __future__ import annotations

import sqlite3
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def register_functions(connection: sqlite3.Connection) -> None:
    """Teach a connection what `store.sqlite.dialect` says."""
    connection.create_collation("penstock_decimal", compare_decimals)
    connection.create_aggregate("penstock_decimal_sum", 1, DecimalSum)  # type: ignore[arg-type]  # stub wants ints
    connection.create_function("penstock_wide_integer", 2, wide_integer, deterministic=True)


def compare_decimals(left: str, right: str) -> int:
    """Order two decimals in text form by their value."""
    first, second = Decimal(left), Decimal(right)
    return (first > second) - (first < second)


def wide_integer(high: int | None, low: int | None) -> str | None:
    """An integer of more than 64 bits from its upper part and its lower 32 bits, as text."""
    return None if high is None or low is None else str((high << 32) + low)


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
