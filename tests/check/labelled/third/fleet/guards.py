"""Who may do what."""

from functools import partial, wraps

from fleet.tables import Parcel, Van, app
from penstock import AccessDenied, ApplicationError, Id, MutationCtx, NotSignedIn, QueryCtx, owner_of, public, signed_in


async def is_driver(ctx: QueryCtx, van: Id[Van]) -> bool:
    identity = await ctx.auth.get_user_identity()
    row = await ctx.db.get(Van, van)
    return identity is not None and row is not None and row.driver == identity.subject


driver = signed_in & is_driver
driver_query = partial(app.query, access=driver)
open_query = app.query(access=public)
LEVELS = {"driver": driver, "all": public}


@app.query(access=LEVELS["all"])
async def depots(ctx: QueryCtx) -> list[str]:
    return [van.depot for van in await ctx.db.query(Van).take(50)]


@app.query(access=driver | owner_of(Van, "van"))
async def van_of(ctx: QueryCtx, van: Id[Van]) -> Van | None:
    return await ctx.db.get(Van, van)


@app.query
async def asks_itself(ctx: QueryCtx, van: Id[Van]) -> Van | None:
    identity = await ctx.auth.get_user_identity()
    if identity is None:
        raise NotSignedIn
    return await ctx.db.get(Van, van)


@app.query
async def asks_by_guard(ctx: QueryCtx, van: Id[Van]) -> Van | None:
    if not await is_driver(ctx, van):
        raise AccessDenied
    return await ctx.db.get(Van, van)


@app.query(access=None)
async def asks_nobody(ctx: QueryCtx, van: Id[Van]) -> Van | None:  # expect: PEN006
    return await ctx.db.get(Van, van)


@app.mutation(rate_limit="calls")
async def only_limited(ctx: MutationCtx, van: Id[Van]) -> None:  # expect: PEN006
    await ctx.db.patch(Van, van, driver=None)


@app.mutation(access=public, rate_limit="calls")
async def call_me(ctx: MutationCtx, phone: str) -> None:
    await ctx.db.insert(Parcel(van=None, receiver="", phone=phone, weight=0))


@app.mutation(access=public)
async def drop_parcel(ctx: MutationCtx, parcel: Id[Parcel], username: str) -> None:
    row = await ctx.db.get(Parcel, parcel)
    assert row is not None and row.receiver == username  # expect: PEN007
    await ctx.db.delete(Parcel, parcel)


@app.mutation(access=public)
async def drop_parcels(ctx: MutationCtx, van: Id[Van], user_email: str) -> None:
    row = await ctx.db.get(Van, van)
    if row is None or user_email not in {row.driver, "root@example.com"}:  # expect: PEN007
        raise AccessDenied
    await ctx.db.delete(Van, van)


@app.mutation(access=signed_in)
async def drop_mine(ctx: MutationCtx, parcel: Id[Parcel]) -> None:
    who = await ctx.auth.require()
    row = await ctx.db.get(Parcel, parcel)
    if row is None or row.receiver != who.email:
        raise AccessDenied
    await ctx.db.delete(Parcel, parcel)


@app.query(access=public)
async def receivers(ctx: QueryCtx, email: str) -> list[Parcel]:
    return await ctx.db.query(Parcel).with_index(Parcel.by_receiver, receiver=email).take(20)


@app.mutation(access=signed_in)
async def send_to(ctx: MutationCtx, email: str, weight: int) -> None:
    if weight > 30:
        raise ApplicationError("Too heavy.")
    if "@" not in email:
        raise ApplicationError("This is no email.")
    await ctx.db.insert(Parcel(van=None, receiver=email, phone="", weight=weight))


async def _is_receiver(ctx: QueryCtx, parcel: Id[Parcel], email: str) -> bool:
    row = await ctx.db.get(Parcel, parcel)
    return row is not None and row.receiver == email


@app.query(access=_is_receiver)  # expect: PEN007
async def look(ctx: QueryCtx, parcel: Id[Parcel], email: str) -> Parcel | None:
    return await ctx.db.get(Parcel, parcel)


@app.query(access=public)
async def look_too(ctx: QueryCtx, parcel: Id[Parcel], email: str) -> Parcel | None:
    if not await _is_receiver(ctx, parcel, email):  # expect: PEN007
        raise AccessDenied
    return await ctx.db.get(Parcel, parcel)


def logged(function):
    @wraps(function)
    async def inner(ctx, *args, **kwargs):
        return await function(ctx, *args, **kwargs)

    return inner


@app.query(access=driver)
@logged
async def decorated(ctx: QueryCtx, van: Id[Van]) -> Van | None:
    return await ctx.db.get(Van, van)


@app.internal_query
async def inner_look(ctx: QueryCtx, parcel: Id[Parcel], email: str) -> Parcel | None:
    row = await ctx.db.get(Parcel, parcel)
    if row is None or row.receiver != email:
        raise ApplicationError("Not found.")
    return row
