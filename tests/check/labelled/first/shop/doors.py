from typing import Any

import penstock
from penstock import ActionCtx, ApplicationError, Id, MutationCtx, QueryCtx, signed_in

from shop.program import app
from shop.tables import Order, Tenant

open_door = lambda ctx, user: user == "admin"  # noqa: E731  # expect: PEN007


async def owner(ctx: QueryCtx) -> str:
    identity = await ctx.auth.get_user_identity()
    if identity is None:
        raise ApplicationError("Sign in.")
    return identity.subject


@app.mutation(access=signed_in)
async def keywords(ctx: MutationCtx, order: Id[Order], **changes: str) -> None:  # expect: PEN005
    await ctx.db.patch(Order, order, **changes)


@app.mutation(access=open_door)
async def by_guard(ctx: MutationCtx, user: str) -> None:
    await ctx.db.insert(Tenant(name=user, owner=user))


@app.mutation(access=lambda ctx, user_id: user_id == "admin")  # expect: PEN007
async def by_lambda(ctx: MutationCtx, user_id: str) -> None:
    await ctx.db.insert(Tenant(name=user_id, owner=user_id))


@app.internal_mutation
async def tidied(ctx: MutationCtx, order: Id[Order]) -> str:
    await ctx.db.patch(Order, order, status="tidy")
    return "tidy"


@app.internal_query
async def price_of(ctx: QueryCtx, order: Id[Order]) -> str:
    return str(await ctx.db.get(Order, order))


@app.internal_action
async def with_outside(ctx: ActionCtx, order: Id[Order], client: Any) -> None:
    price = await ctx.run_query(price_of, order)
    await client.charge(price)
    await ctx.run_mutation(tidied, order)


@app.internal_action
async def runs_same(ctx: ActionCtx, order: Id[Order]) -> None:
    await ctx.run_action(with_outside, order, None)  # expect: PEN010


@app.reactive_task(Order)
async def posts(ctx: "penstock.TaskCtx[Order]") -> None:
    order = await ctx.get_document()
    await client.post("https://erp.example.com", json={"customer": order.customer})  # expect: PEN017
