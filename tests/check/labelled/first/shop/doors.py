
import penstock
from penstock import ApplicationError, Id, MutationCtx, QueryCtx, signed_in

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


@app.reactive_task(Order)
async def posts(ctx: "penstock.TaskCtx[Order]") -> None:
    order = await ctx.get_document()
    await client.post("https://erp.example.com", json={"customer": order.customer})  # expect: PEN017
