from typing import Any

import penstock
from penstock import ActionCtx, App, ApplicationError, Id, MutationCtx, QueryCtx, Retry, public, signed_in
from pydantic import BaseModel

from shop.program import app, mails
from shop.tables import Order, Product, Tenant

guard = lambda ctx, order: ctx.auth  # noqa: E731
open_door = lambda ctx, user: user == "admin"  # noqa: E731  # expect: PEN007


class Change(BaseModel):
    status: str


@app.mutation
async def nobody_said(ctx: MutationCtx, order: Id[Order]) -> None:  # expect: PEN006
    await ctx.db.delete(Order, order)


@app.mutation()
async def nobody_said_either(ctx: MutationCtx, order: Id[Order]) -> None:  # expect: PEN006
    await ctx.db.delete(Order, order)


@app.mutation(access=guard)
async def guarded(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.delete(Order, order)


@app.query
async def asks_itself(ctx: QueryCtx, order: Id[Order]) -> Order | None:
    identity = await ctx.auth.require()
    found = await ctx.db.get(Order, order)
    return found if found and found.customer == identity.subject else None


async def owner(ctx: QueryCtx) -> str:
    identity = await ctx.auth.get_user_identity()
    if identity is None:
        raise ApplicationError("Sign in.")
    return identity.subject


@app.query
async def asks_by_helper(ctx: QueryCtx) -> list[Order]:
    return await ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=await owner(ctx)).take(5)


@app.query(access=public)
async def anything(ctx: QueryCtx, what: Any) -> str:  # expect: PEN005
    return str(what)


@app.query(access=public)
async def bare(ctx: QueryCtx, what: dict) -> str:  # expect: PEN005
    return str(what)


@app.query(access=public)
async def typed(ctx: QueryCtx, what: dict[str, int], change: Change) -> str:
    return f"{what} {change}"


@app.query(access=public)
async def inner_any(ctx: QueryCtx, what: list[Any]) -> str:  # expect: PEN005
    return str(what)


@app.query(access=public)
async def gives_any(ctx: QueryCtx) -> Any:  # expect: PEN005
    return None


@app.query(access=public)
async def gives_nothing_said(ctx: QueryCtx):  # expect: PEN005
    return None


@app.mutation(access=signed_in)
async def whole_row(ctx: MutationCtx, product: Product) -> None:  # expect: PEN005
    await ctx.db.insert(product)


@app.internal_mutation
async def whole_row_inside(ctx: MutationCtx, product: Product, more: Any) -> None:
    await ctx.db.insert(product)


@app.mutation(access=signed_in)
async def keywords(ctx: MutationCtx, order: Id[Order], **changes: str) -> None:  # expect: PEN005
    await ctx.db.patch(Order, order, **changes)


@app.mutation(access=public)
async def by_email(ctx: MutationCtx, order: Id[Order], email: str) -> None:
    found = await ctx.db.get(Order, order)
    if found is None or found.customer != email:  # expect: PEN007
        raise ApplicationError("Not yours.")
    await ctx.db.delete(Order, order)


@app.mutation(access=public)
async def sign_up(ctx: MutationCtx, email: str) -> None:
    if "@" not in email:
        raise ApplicationError("This is no address.")
    await ctx.db.insert(Tenant(name=email, owner=email))


@app.mutation(access=open_door)
async def by_guard(ctx: MutationCtx, user: str) -> None:
    await ctx.db.insert(Tenant(name=user, owner=user))


@app.mutation(access=lambda ctx, user_id: user_id == "admin")  # expect: PEN007
async def by_lambda(ctx: MutationCtx, user_id: str) -> None:
    await ctx.db.insert(Tenant(name=user_id, owner=user_id))


@app.action(access=signed_in)
async def act(ctx: ActionCtx, order: Id[Order]) -> None:
    await ctx.run_mutation(tidied, order)


@app.internal_mutation
async def tidied(ctx: MutationCtx, order: Id[Order]) -> str:
    await ctx.db.patch(Order, order, status="tidy")
    return "tidy"


@app.internal_query
async def price_of(ctx: QueryCtx, order: Id[Order]) -> str:
    return str(await ctx.db.get(Order, order))


@app.internal_action
async def two_reads(ctx: ActionCtx, order: Id[Order]) -> str:
    first = await ctx.run_query(price_of, order)
    second = await ctx.run_query(price_of, order)  # expect: PEN011
    return first + second


@app.internal_action
async def read_then_write(ctx: ActionCtx, order: Id[Order]) -> None:
    if await ctx.run_query(price_of, order) == "0":
        await ctx.run_mutation(tidied, order)  # expect: PEN011


@app.internal_action
async def either_way(ctx: ActionCtx, order: Id[Order], *, quick: bool) -> None:
    if quick:
        await ctx.run_query(price_of, order)
    else:
        await ctx.run_mutation(tidied, order)


@app.internal_action
async def with_outside(ctx: ActionCtx, order: Id[Order], client: Any) -> None:
    price = await ctx.run_query(price_of, order)
    await client.charge(price)
    await ctx.run_mutation(tidied, order)


@app.internal_action
async def in_a_loop(ctx: ActionCtx, orders: list[Id[Order]]) -> None:
    for one in orders:
        await ctx.run_mutation(tidied, one)  # expect: PEN012


@app.internal_action
async def in_a_comprehension(ctx: ActionCtx, orders: list[Id[Order]]) -> list[str]:
    return [await ctx.run_query(price_of, one) for one in orders]  # expect: PEN012


@app.internal_action
async def in_a_loop_with_outside(ctx: ActionCtx, orders: list[Id[Order]], client: Any) -> None:
    for one in orders:
        await client.charge(one)
        await ctx.run_mutation(tidied, one)


@app.internal_action
async def in_pieces(ctx: ActionCtx, order: Id[Order]) -> None:
    while await ctx.run_mutation(tidied, order) != "done":
        pass


@app.internal_action
async def runs_same(ctx: ActionCtx, order: Id[Order]) -> None:
    await ctx.run_action(with_outside, order, None)  # expect: PEN010


@app.internal_action(runtime="process")
def heavy(ctx: "SyncActionCtx", number: int) -> int:
    return number**number


@app.internal_action
async def runs_other(ctx: ActionCtx) -> int:
    return await ctx.run_action(heavy, 5)


@app.internal_action
async def enqueues_after(ctx: ActionCtx, order: Id[Order]) -> None:
    await ctx.run_mutation(tidied, order)
    await mails.enqueue(ctx, with_outside, order, None)  # expect: PEN016


@app.internal_action
async def enqueues_only(ctx: ActionCtx, order: Id[Order]) -> None:
    await mails.enqueue(ctx, with_outside, order, None)


@app.internal_action
async def enqueues_after_outside(ctx: ActionCtx, order: Id[Order], client: Any) -> None:
    await ctx.run_mutation(tidied, order)
    answer = await client.charge(order)
    await mails.enqueue(ctx, with_outside, order, answer)


@app.outbox(Order)
async def swallows(ctx: ActionCtx, order: Order) -> None:
    try:
        await deliver(order)
    except Exception:  # expect: PEN019
        print("lost")


@app.outbox(Order)
async def passes_on(ctx: ActionCtx, order: Order) -> None:
    try:
        await deliver(order)
    except Exception as error:
        raise RuntimeError("not delivered") from error


@app.outbox(Order)
async def expects(ctx: ActionCtx, order: Order) -> None:
    try:
        await deliver(order)
    except FileExistsError:
        return


async def deliver(order: Order) -> None: ...


@app.reactive_task(Order)
async def posts(ctx: "penstock.TaskCtx[Order]") -> None:
    order = await ctx.get_document()
    await client.post("https://erp.example.com", json={"customer": order.customer})  # expect: PEN017


@app.reactive_task(Order)
async def puts(ctx: "penstock.TaskCtx[Order]") -> None:
    await client.put(f"https://erp.example.com/{ctx.doc_id}")


@app.cron("0 9 * * *")
async def nightly(ctx: MutationCtx) -> None:
    await ctx.db.query(Order).first()


other = App()
retry = Retry()
