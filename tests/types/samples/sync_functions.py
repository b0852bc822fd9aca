"""Functions written with def: the ctx of a thread gives results, and nothing to await."""

from typing import assert_type

from samples.shop import Booking, Customer, book, confirm, rename, seats_of, upcoming

from penstock import App, Id, QueryCtx, sync

app = App()


@app.query
def in_a_query(ctx: sync.QueryCtx, customer: Id[Customer], booking: Id[Booking]) -> int:
    assert_type(ctx.db.get(Booking, booking), Booking | None)
    assert_type(ctx.run_query(upcoming, customer), list[Booking])
    ctx.db.get(Booking, customer)  # refused: misc
    ctx.db.insert(Customer(name="Ada"))  # refused: attr-defined
    return seats_of(ctx)  # refused: call-arg


@app.mutation
def in_a_mutation(ctx: sync.MutationCtx, customer: Id[Customer], booking: Id[Booking]) -> Id[Booking]:
    assert_type(ctx.db.insert(Customer(name="Ada")), Id[Customer])
    assert_type(ctx.db.patch(Booking, booking, seats=2), Booking)
    assert_type(ctx.run_mutation(book, customer, ctx.now()), Id[Booking])
    assert_type(rename(ctx, customer, "Eve"), Customer)
    ctx.db.delete(Booking, customer)  # refused: misc
    ctx.run_mutation(seats_of, customer)  # refused: arg-type
    return ctx.db.insert(Customer(name="Ada"))  # refused: arg-type


@app.action
def in_an_action(ctx: sync.ActionCtx, customer: Id[Customer], booking: Id[Booking]) -> str:
    assert_type(ctx.wait_cancelled(1.5), bool)
    assert_type(ctx.run_query(upcoming, customer), list[Booking])
    assert_type(ctx.run_mutation(rename, customer, "Eve"), Customer)
    assert_type(ctx.run_action(confirm, booking), str)
    ctx.db.get(Booking, booking)  # refused: attr-defined
    return ctx.run_query(seats_of, customer)  # refused: return-value


@app.query
async def not_in_a_thread(ctx: QueryCtx, customer: Id[Customer]) -> int:
    return seats_of(ctx, customer)  # refused: arg-type
