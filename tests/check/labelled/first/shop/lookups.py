"""Functions and pools in dictionaries, within functions, and imported there."""

from penstock import ActionCtx, Id, MutationCtx, QueryCtx, Table, signed_in
from shop.program import app, careful, mails


class Coupon(Table):
    code: str
    used: bool = False


@app.query(access=signed_in)
async def own_coupon(ctx: QueryCtx, code: Id[Coupon]) -> Coupon | None:
    return await ctx.db.get(Coupon, code)


@app.mutation
async def use(ctx: MutationCtx, code: Id[Coupon]) -> None:
    await own_coupon(ctx, code)  # asks its guard
    await ctx.db.patch(Coupon, code, used=True)


@app.internal_action
async def tell(ctx: ActionCtx, code: str) -> None:
    print(code)


async def spoil(ctx: MutationCtx, code: Id[Coupon]) -> None:
    await ctx.db.delete(Coupon, code)


POOLS = {"mail": mails, "slow": careful, "own": app.workpool("own")}
STEPS = {"spoil": spoil, "use": use}


@app.internal_mutation
async def by_name(ctx: MutationCtx, code: Id[Coupon], name: str) -> None:
    await POOLS["mail"].enqueue(ctx, tell, code)
    POOLS["own"].enqueue(ctx, tell, code)  # expect: PEN001
    POOLS.get(name).enqueue(ctx, tell, code)  # expect: PEN001
    STEPS["spoil"](ctx, code)  # expect: PEN001
    await STEPS[name](ctx, code)
    await mails.enqueue(ctx, STEPS["use"], code)  # expect: PEN008
    kept = {"db": ctx.db, "call": ctx.db.get(Coupon, code)}
    await kept["call"]
    kept["db"].patch(Coupon, code, used=False)  # expect: PEN001


@app.internal_mutation
async def within(ctx: MutationCtx, codes: list[Id[Coupon]]) -> int:
    from random import randint

    async def one(code: Id[Coupon]) -> None:
        await ctx.db.delete(Coupon, code)

    async def all_of():
        for code in codes:
            yield await ctx.db.get(Coupon, code)

    found = [row async for row in all_of()]
    for code in codes:
        one(code)  # expect: PEN001
    ctx.db.query(Coupon).group_by("used").count()  # expect: PEN001
    return randint(0, len(found))  # expect: PEN014
