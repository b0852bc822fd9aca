"""Filters and watches: what is said of a row is checked as if it were one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeVar, assert_type

from pydantic import BaseModel

from penstock import Table, has, in_, is_none, known, length
from penstock.reactive.tracing import RowFilter, RowWatch

RowT = TypeVar("RowT", bound=Table)


class Address(BaseModel):
    city: str


class Booking(Table):
    status: Literal["pending", "paid"] = "pending"
    amount: int
    limit: int | None = None
    price: Decimal
    at: datetime
    address: Address
    tags: list[str]


def declare(table: type[RowT], rows: RowFilter[RowT], watch: Iterable[RowWatch[RowT]] | None = None) -> None:
    """As a reactive task is declared."""


declare(Booking, lambda b: (b.status == "paid") & (b.amount > 100))
declare(Booking, lambda b: ~(b.amount > 100) | (b.address.city == "Brno") | b.address.city.startswith("B"))
declare(Booking, lambda b: in_(b.status, ["paid"]) & is_none(b.limit) & (length(b.tags) == 0) & has(b.tags, "x"))
declare(Booking, lambda b: (known(b.limit) > b.amount) & (b.at + timedelta(hours=1) < b.at))
declare(
    Booking, lambda b: b.price * b.amount > Decimal(5), watch=("status", "address.city", lambda b: b.price * b.amount)
)


def loose(row: Any) -> Any:
    return row.status.in_(["paid"]) & row.limit.is_none()


declare(Booking, loose)

declare(Booking, lambda b: b.statsu == "paid")  # refused: attr-defined
declare(Booking, lambda b: b.status == "payd")  # refused: comparison-overlap
declare(Booking, lambda b: b.amount > "1")  # refused: operator
declare(Booking, lambda b: b.limit > 1)  # refused: operator
declare(Booking, lambda b: b.address.city)  # refused: arg-type, return-value
declare(Booking, lambda b: b.status.in_(["paid"]))  # refused: union-attr

booking = Booking(
    amount=1, price=Decimal(1), at=datetime.fromisoformat("2026-01-01T00:00Z"), address=Address(city=""), tags=[]
)
assert_type(known(booking.limit), int)
assert_type(in_(booking.amount, [1]), bool)
