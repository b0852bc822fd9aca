"""What the desk of a clinic does."""

from __future__ import annotations
import logging
from penstock import ActionCtx, Id, MutationCtx, QueryCtx, signed_in
from . import model as m
from .model import Patient, Visit, clinic

logger = logging.getLogger(__name__)


@clinic.query(access=signed_in)
async def visits(ctx: QueryCtx, patient: Id[Patient]) -> list[Visit]:
    return await m.visits_of(ctx, patient).take(10)


@clinic.query(access=signed_in)
async def busy(ctx: QueryCtx, room: int) -> bool:
    return any(v.room == room for v in await ctx.db.query(Visit).collect())  # expect: PEN002, PEN003


@clinic.internal_query
async def one(ctx: QueryCtx, visit: Id[Visit]) -> Visit | None:
    return await ctx.db.get(Visit, visit)


@clinic.internal_action
async def sync_all(ctx: ActionCtx, visits: list[Id[Visit]]) -> None:
    found = []
    for visit in visits:
        row = await ctx.run_query(one, visit)  # expect: PEN012
        if row:
            found.append(row)
    logger.info("%s", len(found))


@clinic.mutation(access=signed_in)
async def drop(ctx: MutationCtx, visit: Id[Visit]) -> None:
    match await ctx.db.get(Visit, visit):
        case Visit(room=0):
            await ctx.db.delete(id=visit)  # expect: PEN013
        case _:
            pass
