from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from library.schema import Copy, Loan, Patron

if TYPE_CHECKING:
    from penstock import Id, MutationCtx, QueryCtx


async def open_loans(ctx: QueryCtx, patron: Id[Patron]) -> list[Loan]:
    query = ctx.db.query(Loan).with_index(Loan.by_patron, patron=patron)
    return await query.order("desc").take(100)


async def every_loan(ctx: QueryCtx) -> list[Loan]:
    return await ctx.db.query(Loan).collect()  # expect: PEN003


def _today() -> date:
    return date.today()  # expect: PEN014


def _tomorrow_of(day: date) -> date:
    return day + timedelta(days=1)


async def lend(ctx: MutationCtx, copy: Id[Copy], patron: Id[Patron]) -> Id[Loan]:
    ctx.db.patch(Copy, copy, state="out")  # expect: PEN001
    return await ctx.db.insert(Loan(copy_id=copy, patron=patron, due=_tomorrow_of(_today())))


async def give_back(ctx: MutationCtx, loan: Id[Loan]) -> None:
    row = await ctx.db.patch(Loan, loan, returned_at=datetime.now(tz=UTC))  # expect: PEN014
    await ctx.db.patch(Copy, row.copy_id, state="in")


async def give_back_at(ctx: MutationCtx, loan: Id[Loan], at: datetime) -> None:
    row = await ctx.db.patch(Loan, loan, returned_at=at)
    await ctx.db.patch(Copy, row.copy_id, state="in")
