"""Rows: made, read, changed, and told apart by the tables of their ids."""

from datetime import datetime
from typing import assert_type

from samples.shop import Booking, Customer

from penstock import App, Id, MutationCtx, QueryCtx

app = App()


@app.query
async def read(ctx: QueryCtx, customer: Id[Customer], booking: Id[Booking]) -> str:
    found = await ctx.db.get(Booking, booking)
    assert_type(found, Booking | None)
    await ctx.db.get(Booking, Id("booking_1"))
    await ctx.db.get(Booking, customer)  # refused: misc
    await ctx.db.get(booking)  # refused: call-arg, arg-type
    await ctx.db.insert(Customer(name="Ada"))  # refused: attr-defined
    return found.customer  # refused: union-attr


@app.mutation
async def write(ctx: MutationCtx, customer: Id[Customer], booking: Id[Booking]) -> Id[Booking]:
    assert_type(await ctx.db.insert(Customer(name="Ada")), Id[Customer])
    assert_type(await ctx.db.patch(Booking, booking, seats=2), Booking)
    assert_type(await ctx.db.replace(Customer, customer, Customer(name="Eve")), Customer)
    await ctx.db.delete(Booking, booking)
    await ctx.db.insert(Customer)  # refused: type-var
    await ctx.db.insert_many([{"name": "Ada"}])  # refused: type-var
    await ctx.db.patch(Booking, customer, seats=2)  # refused: misc
    await ctx.db.patch(Booking, booking, {"seats": 2})  # refused: arg-type
    await ctx.db.delete(Booking, customer)  # refused: misc
    ctx.db.delete(Booking, booking)  # refused: unused-coroutine
    return await ctx.db.insert(Customer(name="Ada"))  # refused: arg-type


def made(customer: Id[Customer], booking: Id[Booking], time: datetime) -> Booking:
    Booking(customer=customer)  # refused: call-arg
    Booking(customer=booking, starts_at=time)  # refused: arg-type
    Booking(customer=customer, starts_at=time, id=booking)  # refused: call-arg
    return Booking(customer=customer, starts_at=time)


def looked_at(row: Booking) -> None:
    assert_type(row.id, Id[Booking])
    assert_type(row.creation_time, datetime)
    _other: Id[Customer] = row.id  # refused: assignment
    print(row.seat)  # refused: attr-defined
    row.seats = 2  # refused: misc
