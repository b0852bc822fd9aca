"""A program with values of every kind and with awkward names, for which clients are written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date as day
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from penstock import (
    ActionCtx,
    App,
    Id,
    Index,
    MutationCtx,
    Page,
    PaginationOptions,
    QueryCtx,
    Table,
    WorkflowCtx,
    WorkId,
    WorkStatus,
    public,
)

T = TypeVar("T")
app = App()
press = app.workpool("press")
shipped = app.event("shipped", day, access=public)
tokens: dict[str, str] = {}  # which end jobs, by their ids


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Tree(BaseModel):
    """A tree. */ \""" \\ are no end."""

    name: str
    children: tuple[Tree, ...] = ()


class Box(BaseModel, Generic[T]):
    content: T


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    Any: str


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    known: int


class Odd(BaseModel):
    name: str = Field(alias="the-name")


class Order(Table):
    customer: str
    due: datetime | None = None
    price: Decimal = Decimal(0)
    size: Size = Size.SMALL
    tree: Tree | None = None
    data: bytes = b""

    by_customer = Index("customer")


class Secret(Table):
    text: str


class Seat(Table, managed=False, source="seat", key=("row", "number")):
    row: str
    number: int


@dataclass
class Kinds:
    at: datetime
    took: timedelta
    date: day
    later: day | None
    number: UUID
    orders: dict[int, Id[Order]]
    pair: tuple[int, str]
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    more: dict[str, Any]
    tags: set[str]


@app.mutation
async def put(
    ctx: MutationCtx, customer: str, price: Decimal, due: datetime | None = None, data: bytes = b""
) -> Id[Order]:
    return await ctx.db.insert(Order(customer=customer, price=price, due=due, data=data))


@app.query
async def list(  # noqa: A001 - programs do this
    ctx: QueryCtx, customer: str, pagination_opts: PaginationOptions
) -> Page[Order]:
    """The orders of a customer. */ \""" \\ are no end.

    The oldest come first.
    """
    return await ctx.db.query(Order).with_index(Order.by_customer, customer=customer).paginate(pagination_opts)


@app.query
async def prices(ctx: QueryCtx, customer: str | None = None) -> tuple[Decimal, ...]:
    orders = await ctx.db.query(Order).collect()
    return tuple(order.price for order in orders if customer in {None, order.customer})


@app.query
async def same(ctx: QueryCtx, kinds: Kinds, seat: Id[Seat] | None = None, date: day | None = None) -> Kinds:
    return kinds


@app.query
async def sides(
    ctx: QueryCtx, tree: Tree, box: Box[int], odd: Odd, more: Open, size: Size = Size.LARGE
) -> tuple[Tree, Box[int], Odd, Open, Seat | None, Any]:
    return tree, box, odd, more, None, size


@app.internal_query
async def secrets(ctx: QueryCtx) -> tuple[Secret, ...]:
    return tuple(await ctx.db.query(Secret).collect())


@app.internal_action
async def print_order(ctx: ActionCtx) -> None:
    await ctx.work.progress(1, 2, "printing")
    tokens[ctx.work.id] = await ctx.work.complete_later()


@app.mutation
async def start(ctx: MutationCtx) -> WorkId:
    return await press.enqueue(ctx, print_order)


@app.query
async def state(ctx: QueryCtx, work: WorkId) -> WorkStatus | None:
    return await press.status(ctx, work)


@app.query
async def states(ctx: QueryCtx, known: dict[str, WorkStatus]) -> dict[str, WorkStatus]:
    """Statuses that a client sends back."""
    return known


@app.workflow(access=public)
async def ship(ctx: WorkflowCtx, order: Id[Order], size: Size = Size.LARGE) -> dict[str, Decimal]:
    """Ship an order."""
    ctx.publish({"order": order})
    on = await ctx.wait_for(shipped)
    return {str(on): Decimal("4.20")}
