"""Who may do what."""


from fleet.tables import Parcel, Van, app
from penstock import AccessDenied, Id, QueryCtx, public, signed_in


async def is_driver(ctx: QueryCtx, van: Id[Van]) -> bool:
    identity = await ctx.auth.get_user_identity()
    row = await ctx.db.get(Van, van)
    return identity is not None and row is not None and row.driver == identity.subject


driver = signed_in & is_driver


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
