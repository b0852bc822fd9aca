"""Tables of another program whose keys have several columns, and how it makes them."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from stage.outboxes import run_sql

from penstock import App, Index, Table

ONE, TWO = UUID(int=1), UUID("ffffffff-0000-4000-8000-00000000000f")
HOSTILE = ["", "a", "O'Brien", 'say "hi"', "$1", "$$", "{row}", "Ωmega ☃", "a,b", "[7, 1]", "\\x00", "%_", "a\tb", "?"]


class Side(Enum):
    BUY = "buy"
    SELL = "sell"


class Order(Table, source="orders", key=("tenant", "number"), managed=False):
    tenant: int
    number: str
    amount: int = 0
    note: str | None = None

    by_amount = Index("amount")
    by_number = Index("number")


class Tenant(Table, source="tenants", key="tenant", managed=False):
    tenant: int
    name: str


class Turned(Table, source="turned", key=["number", "tenant"], managed=False):
    """Its key has another order than the primary key."""

    number: str
    tenant: int
    amount: int = 0


class Rate(Table, source="rates", key=("fund", "day", "side"), managed=False):
    fund: UUID
    day: date
    side: Side
    at: datetime | None = None
    rate: Decimal | None = None


class Moment(Table, source="moments", key=("at", "raw", "worth"), managed=False):
    at: datetime
    raw: bytes
    worth: Decimal
    id: int | None = None  # type: ignore[assignment]  # a column of its own, that is no key


ORDERS = (
    "create table orders (tenant integer not null, number {text} not null, amount integer not null default 0,"
    " note text, primary key (tenant, number))"
)
TURNED = ORDERS.replace("orders", "turned")
TENANTS = "create table tenants (tenant integer primary key, name text not null)"
RATES = (
    "create table rates (fund {uuid} not null, day {day} not null, side text not null, at {at}, rate numeric,"
    " unique (side, day, fund))"
)
MOMENTS = (
    "create table moments (at {at} not null, raw {bytes} not null, worth {money} not null, id integer,"
    " primary key (at, raw, worth))"
)
SQLITE = {"text": "text", "uuid": "text", "day": "text", "at": "text", "bytes": "blob", "money": "text"}
POSTGRES = {
    "text": "varchar(40)",
    "uuid": "uuid",
    "day": "date",
    "at": "timestamp",
    "bytes": "bytea",
    "money": "numeric(12, 2)",
}
EMPTY = App()


def an_id(*values: Any) -> Any:
    """An id; type checkers take those of all tables for texts."""
    return values


def spelled(url: str, *statements: str) -> list[str]:
    types = SQLITE if url.startswith("sqlite") else POSTGRES
    return [statement.format(**types) for statement in statements]


async def prepare(url: str, *statements: str) -> None:
    await run_sql(url, *spelled(url, *statements))
