from dataclasses import dataclass

from library.schema import Fine, Patron
from penstock import ApplicationError, Id, MutationCtx, QueryCtx


async def current_patron(ctx: QueryCtx) -> Patron:
    identity = await ctx.auth.require()
    query = ctx.db.query(Patron).with_index(Patron.by_user, user=identity.token_identifier)
    found = await query.unique()
    if found is None:
        raise ApplicationError("You have no card.")
    return found


async def is_patron(ctx: QueryCtx) -> bool:
    identity = await ctx.auth.get_user_identity()
    return identity is not None


async def must_be(ctx: QueryCtx, patron: Id[Patron], email: str) -> Patron:
    found = await ctx.db.get(Patron, patron)
    if found is None or found.email != email:
        raise ApplicationError("Not you.")
    return found


async def same_name(ctx: QueryCtx, name: str) -> list[Patron]:
    return await ctx.db.query(Patron).with_index(Patron.by_name, name=name).order("asc").take(5)


@dataclass
class Desk:
    """A desk works within one transaction."""

    ctx: MutationCtx

    async def ban(self, patron: Id[Patron]) -> None:
        await self.ctx.db.patch(Patron, patron, banned=True)

    async def unban(self, patron: Id[Patron]) -> None:
        self.ctx.db.patch(Patron, patron, banned=False)  # expect: PEN001

    async def fines(self, patron: Id[Patron]) -> list[Fine]:
        db = self.ctx.db
        return await db.query(Fine).filter(lambda fine: fine.patron == patron).take(50)  # expect: PEN002

    async def owed(self, patron: Id[Patron]) -> int:
        query = self.ctx.db.query(Fine).with_index(Fine.by_patron_and_paid, patron=patron, paid=False)
        return await query.count()

    async def forget(self, patron: Id[Patron]) -> None:
        await self.ctx.db.delete(patron)  # expect: PEN013

    async def everything(self) -> list[Fine]:
        return await self.ctx.db.query(Fine).order("desc").collect()  # expect: PEN003
