"""What the people at the desk call."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any, Mapping

from penstock import AccessDenied, ActionCtx, Id, MutationCtx, QueryCtx
from penstock import public as anybody
from pydantic import BaseModel

from .. import core, jobs
from ..core import is_staff, mails, office, require_role, require_staff_email, staff_mutation
from ..schema import Event, Order, Refund, Seat, Staff, Venue


class NewEvent(BaseModel):
    venue: Id[Venue]
    title: str


@staff_mutation
async def add_event(ctx: MutationCtx, event: NewEvent) -> Id[Event]:
    return await ctx.db.insert(Event(venue=event.venue, title=event.title, starts_at=ctx.now()))


@staff_mutation
async def add_raw(ctx: MutationCtx, event: Event) -> Id[Event]:  # expect: PEN005
    return await ctx.db.insert(event)


@office.mutation(access=is_staff)
async def edit(ctx: MutationCtx, event: Id[Event], changes: Mapping[str, Any]) -> None:  # expect: PEN005
    await ctx.db.patch(Event, event, **changes)


@office.mutation(access=is_staff)
async def retitle(ctx: MutationCtx, event: Id[Event], title: str):  # expect: PEN005
    await ctx.db.patch(Event, event, title=title)


@office.mutation(access=is_staff)
async def cancel(ctx: MutationCtx, event: Id[Event]) -> None:
    await ctx.db.patch(Event, event, state="canceled")
    orders = await ctx.db.query(Order).with_index(Order.by_event, event=event, state="paid").collect()
    await mails.with_options(
        on_complete=told,
        context={"orders": [order.id for order in orders]},  # expect: PEN020
    ).enqueue(ctx, jobs.tell_all, event)


@office.internal_mutation
async def told(ctx: MutationCtx, work_id: str, result: Any, context: dict[str, Any]) -> None:
    await core.record(ctx, "desk", "told", **context)


@office.mutation(access=is_staff)
async def cancel_all(ctx: MutationCtx, events: list[Id[Event]]) -> None:
    for event in events:
        await ctx.run_mutation(cancel, event)  # expect: PEN008, PEN009


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


@office.mutation
async def hire(ctx: MutationCtx, user: str, email: str) -> Id[Staff]:
    await require_role(ctx, "manager")
    return await ctx.db.insert(Staff(user=user, email=email))


@office.mutation(access=anybody)
async def fire(ctx: MutationCtx, staff: Id[Staff], email: str) -> None:
    await require_staff_email(ctx, email)  # expect: PEN007
    await ctx.db.delete(Staff, staff)


@office.mutation
async def promote(ctx: MutationCtx, staff: Id[Staff]) -> None:  # expect: PEN006
    await ctx.db.patch(Staff, staff, role="manager")


async def find_staff(ctx: QueryCtx, email: str) -> Staff | None:
    staff = await ctx.db.query(Staff).collect()  # expect: PEN003
    return next((one for one in staff if one.email == email), None)  # expect: PEN002


@office.query(access=is_staff)
async def staff_of(ctx: QueryCtx, email: str) -> Staff | None:
    return await find_staff(ctx, email)


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


@office.mutation(access=is_staff)
async def remind(ctx: MutationCtx, event: Id[Event], emails: list[str]) -> None:
    calls = [{"email": email, "text": event} for email in emails]
    await mails.enqueue_batch(ctx, jobs.send_mail, calls)
    ctx.scheduler.run_after(timedelta(days=1), jobs.tell_all, event)  # expect: PEN001


@office.mutation(access=is_staff)
async def remind_unsafely(ctx: MutationCtx, events: list[Id[Event]]) -> None:
    await mails.enqueue_batch(ctx, cancel, [{"event": event} for event in events])  # expect: PEN008


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
async def venue_list(ctx: QueryCtx) -> list[Venue]:
    return await ctx.db.query(Venue).collect()  # penstock: ignore[PEN003] we have three houses


@office.query(access=is_staff)
async def short_list(ctx: QueryCtx) -> list[Venue]:
    return await ctx.db.query(Venue).take(3)  # penstock: ignore[PEN003] three # expect: PEN000


@office.query(access=is_staff)
async def whose(ctx: QueryCtx, event: Id[Event]) -> list[str]:
    if not await is_staff(ctx):
        raise AccessDenied("no")
    return [seat.holder or "" for seat in await core_seats(ctx, event)]


async def core_seats(ctx: QueryCtx, event: Id[Event]) -> list[Seat]:
    q = ctx.db.query(Seat)
    if event:
        q = q.with_index(Seat.by_event, event=event)
    return await q.take(100)
