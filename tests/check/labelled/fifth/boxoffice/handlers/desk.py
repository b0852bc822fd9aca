"""What the people at the desk call."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from penstock import ActionCtx, Id, MutationCtx, QueryCtx
from penstock import public as anybody

from .. import core
from ..core import is_staff, office, require_staff_email, staff_mutation
from ..schema import Event, Order, Refund, Seat, Staff, Venue


@staff_mutation
async def add_raw(ctx: MutationCtx, event: Event) -> Id[Event]:  # expect: PEN005
    return await ctx.db.insert(event)


@office.internal_mutation
async def told(ctx: MutationCtx, work_id: str, result: Any, context: dict[str, Any]) -> None:
    await core.record(ctx, "desk", "told", **context)


@office.mutation(access=is_staff)
async def refund(ctx: MutationCtx, order: Id[Order], reason: str) -> bool:
    with contextlib.suppress(ValueError):
        await ctx.run_mutation(refund_in_part, order, reason)
        return True
    return False


@office.internal_mutation
async def refund_in_part(ctx: MutationCtx, order: Id[Order], reason: str) -> None:
    row = await ctx.db.get(Order, order)
    if row is None:
        raise ValueError(order)
    await ctx.db.insert(Refund(order=order, cents=row.cents, reason=reason))
    await ctx.db.patch(Order, order, state="refunded")


@office.mutation(access=is_staff)
async def refund_plainly(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.run_mutation(refund_in_part, order, "desk")  # expect: PEN009


@office.mutation(access=anybody)
async def fire(ctx: MutationCtx, staff: Id[Staff], email: str) -> None:
    await require_staff_email(ctx, email)  # expect: PEN007
    await ctx.db.delete(Staff, staff)


@office.query(access=is_staff)
async def rich(ctx: QueryCtx, event: Id[Event]) -> list[Order]:
    def is_rich(order: Order) -> bool:
        return order.cents > 10_000

    return await ctx.db.query(Order).with_index(Order.by_event, event=event).filter(is_rich).take(10)


@office.query(access=is_staff)
async def refunded(ctx: QueryCtx, order: Id[Order]) -> bool:
    def of_order(refund: Refund) -> bool:
        return refund.order == order

    return await ctx.db.query(Refund).filter(of_order).first() is not None  # expect: PEN002


@office.query(access=is_staff)
async def refunds(ctx: QueryCtx) -> list[Refund]:
    return [refund async for refund in ctx.db.query(Refund)]  # expect: PEN003


@office.query(access=is_staff)
async def busy(ctx: QueryCtx) -> str:
    return f"{ctx.db.query(Order).count()} orders"  # expect: PEN001


@office.mutation(access=is_staff)
async def export(ctx: MutationCtx, event: Id[Event]) -> int:
    rows = await ctx.db.query(Seat).with_index(Seat.by_event, event=event).take(1000)
    Path("/tmp/seats.csv").write_text("\n".join(row.row for row in rows))  # expect: PEN015
    return len(rows)


@office.action(access=is_staff)
async def close_the_day(ctx: ActionCtx, event: Id[Event]) -> int:
    sold = await ctx.run_query(count_sold, event)
    taken = await ctx.run_query(count_cents, event)  # expect: PEN011
    return sold * taken


@office.internal_query
async def count_sold(ctx: QueryCtx, event: Id[Event]) -> int:
    return await ctx.db.query(Seat).with_index(Seat.by_event, event=event).count()


@office.internal_query
async def count_cents(ctx: QueryCtx, event: Id[Event]) -> int:
    total: int = await ctx.db.query(Order).with_index(Order.by_event, event=event).sum("cents")
    return total


@office.query(access=is_staff)
async def short_list(ctx: QueryCtx) -> list[Venue]:
    return await ctx.db.query(Venue).take(3)  # penstock: ignore[PEN003] three # expect: PEN000
