"""What SQLite lacks and every connection of penstock's brings: the order and the sum of exact decimals."""

from __future__ import annotations

import sqlite3
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def register_functions(connection: sqlite3.Connection) -> None:
    """Teach a connection the collation `penstock_decimal` and the aggregate `penstock_decimal_sum`."""
    connection.create_collation("penstock_decimal", compare_decimals)
    connection.create_aggregate("penstock_decimal_sum", 1, DecimalSum)  # type: ignore[arg-type]  # stub wants ints


def compare_decimals(left: str, right: str) -> int:
    """Order two decimals in text form by their value."""
    first, second = Decimal(left), Decimal(right)
    return (first > second) - (first < second)


class DecimalSum:
    """Adds decimals in text form exactly; NULL over no rows, as SQL's sum does."""

    def __init__(self) -> None:
        self._sum: Decimal | None = None

    def step(self, value: str | None) -> None:
        """Add one."""
        if value is not None:
            self._sum = _EXACT.add(Decimal(value), self._sum or Decimal(0))

    def finalize(self) -> str | None:
        """The sum as text."""
        return None if self._sum is None else str(self._sum)
