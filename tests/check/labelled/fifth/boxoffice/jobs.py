"""What workers do for the box office: mails, charges, tickets, and other systems that are told."""

from __future__ import annotations

import asyncio
import logging
import smtplib
from contextlib import suppress
from datetime import timedelta
from email.message import EmailMessage
from typing import Any

import httpx
from penstock import (
    ActionCtx,
    Failed,
    Id,
    Message,
    MutationCtx,
    MutationTaskCtx,
    NonRetryableError,
    QueryCtx,
    Retry,
    TaskCtx,
    WorkId,
    WorkResult,
    daily,
)

from boxoffice.core import PAYMENTS_URL, mails, office, payments, printers, record
from boxoffice.schema import Event, Order, Refund, Seat, SeatState
from boxoffice.seats import expired

logger = logging.getLogger("boxoffice")
client = httpx.AsyncClient(base_url=PAYMENTS_URL)
patiently = payments.with_options(retry=Retry.linear(timedelta(minutes=1), max_attempts=20))


class Refused(Exception):
    pass


@office.internal_action
async def charge(ctx: ActionCtx, order: str) -> str:
    answer = await client.post("/charges", json={"order": order})  # expect: PEN017
    return str(answer.json()["id"])


@office.internal_action
async def charge_safely(ctx: ActionCtx, order: str) -> str:
    answer = await client.post("/charges", json={"order": order}, headers={"Idempotency-Key": f"charge-{order}"})
    return str(answer.json()["id"])


@office.internal_action
async def look_up(ctx: ActionCtx, order: str) -> str:
    answer = await client.get(f"/charges/{order}")
    return str(answer.json()["state"])


@office.internal_mutation
async def charge_all(ctx: MutationCtx, orders: list[str]) -> None:
    await patiently.enqueue_batch(ctx, charge_safely, [{"order": order} for order in orders])
    for order in orders:
        await payments.enqueue(ctx, look_up, order)


@office.internal_mutation
async def charged(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: dict[str, Any]) -> None:
    state = "failed" if isinstance(result, Failed) else "paid"
    await ctx.db.patch(Order, context["order"], state=state)
    await asyncio.sleep(0.1)  # expect: PEN015


@office.internal_action
async def send_mail(ctx: ActionCtx, email: str, text: str) -> None:
    message = EmailMessage()
    message["To"] = email
    message.set_content(text)
    with smtplib.SMTP("localhost") as server:  # expect: PEN022
        server.send_message(message)
    httpx.get("https://mail.example.com/sent")  # expect: PEN022


@office.internal_action
async def tell_all(ctx: ActionCtx, event: str) -> int:
    emails = await ctx.run_query(emails_of, event)
    for email in emails:
        await ctx.run_action(send_mail, email, "The event is canceled.")  # expect: PEN010
    return len(emails)


@office.internal_query
async def emails_of(ctx: QueryCtx, event: Id[Event]) -> list[str]:
    return [order.email for order in await ctx.db.query(Order).with_index(Order.by_event, event=event).take(2000)]


@office.internal_action
async def print_ticket(ctx: ActionCtx, order: str) -> None:
    cents = await ctx.run_query(cents_of, order)
    async with httpx.AsyncClient() as printer:
        await printer.post("http://printer.local/print", json={"order": order, "cents": cents})
    await ctx.run_mutation(printed, order)


@office.internal_query
async def cents_of(ctx: QueryCtx, order: Id[Order]) -> int:
    row = await ctx.db.get(Order, order)
    return 0 if row is None else row.cents


@office.internal_mutation
async def printed(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, state="printed")


@office.internal_mutation
async def printed_all(ctx: MutationCtx, orders: list[Id[Order]]) -> None:
    for order in orders:
        await printed(ctx, order)


@office.internal_action
async def mark_printed(ctx: ActionCtx, orders: list[Id[Order]]) -> None:
    for order in orders:
        await ctx.run_mutation(printed, order)  # expect: PEN012


@office.internal_action
async def mark_printed_at_once(ctx: ActionCtx, orders: list[Id[Order]]) -> None:
    async with asyncio.TaskGroup() as group:
        for order in orders:
            group.create_task(ctx.run_mutation(printed, order))  # expect: PEN012


@office.internal_action
async def mark_printed_together(ctx: ActionCtx, orders: list[Id[Order]]) -> None:
    await ctx.run_mutation(printed_all, orders)


@office.internal_action
async def print_and_mark(ctx: ActionCtx, orders: list[Id[Order]]) -> None:
    for order in orders:
        await client.post("/print", json={"order": order})
        await ctx.run_mutation(printed, order)


@office.internal_action
async def print_then_mail(ctx: ActionCtx, order: Id[Order], email: str) -> None:
    await ctx.run_mutation(printed, order)
    await mails.enqueue(ctx, send_mail, email, "Your ticket is printed.")  # expect: PEN016


@office.internal_action
async def print_unless_printed(ctx: ActionCtx, order: Id[Order]) -> None:
    cents = await ctx.run_query(cents_of, order)
    if cents == 0:
        logger.info("a free ticket: %s", order)
    await ctx.run_mutation(printed, order)  # expect: PEN011


@office.internal_action
async def one_or_the_other(ctx: ActionCtx, order: Id[Order], free: bool) -> None:
    if free:
        await ctx.run_mutation(printed, order)
    else:
        await ctx.run_mutation(charge_all, [order])


@office.internal_mutation
async def print_and_mail(ctx: MutationCtx, order: Id[Order], email: str) -> None:
    await printed(ctx, order)
    await mails.enqueue(ctx, send_mail, email, "Your ticket is printed.")
    await printers.enqueue(ctx, print_ticket, order)


@office.cron("*/5 * * * *")
async def free_expired(ctx: MutationCtx) -> int:
    rows = await expired(ctx)
    for seat in rows:
        await ctx.db.patch(Seat, seat.id, state=SeatState.FREE, holder=None, held_until=None)
    return len(rows)


@office.cron(timedelta(hours=6), name="rates", retry=Retry(max_attempts=5))
async def push_rates(ctx: ActionCtx) -> None:
    await client.post("/rates/refresh")  # expect: PEN017


@office.cron("0 4 * * *", name="sweep")
@office.mutation
async def sweep(ctx: MutationCtx) -> None:  # expect: PEN006, PEN008
    await record(ctx, "cron", "sweep")


office.crons.declare("settle", daily("settle", hour=2), charge_all, {"orders": []})


@office.outbox(Order, on=("insert", "update"))
async def to_accounting(ctx: ActionCtx, message: Message[Order]) -> None:
    await client.post("/accounting", json={"cents": message.row.cents}, headers={"Idempotency-Key": message.id})


@office.outbox(Refund)
async def to_bank(ctx: ActionCtx, refund: Refund) -> None:
    with suppress(Exception):  # expect: PEN019
        await client.post("/refunds", json={"cents": refund.cents}, headers={"Idempotency-Key": refund.id})


@office.outbox(Event, name="website")
async def to_website(ctx: ActionCtx, message: Message[Event]) -> None:
    try:
        await client.post("/events", json={"title": message.row.title}, headers={"X-Idempotency-Key": message.id})
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 409:
            return
        raise


@office.outbox(Event, name="posters")
async def to_posters(ctx: ActionCtx, message: Message[Event]) -> None:
    try:
        await client.post("/posters", json={"title": message.row.title})  # expect: PEN017
    except Exception as error:
        raise NonRetryableError("no poster") from error


@office.outbox(Seat, name="screens")
async def to_screens(ctx: ActionCtx, message: Message[Seat]) -> None:
    for screen in ("left", "right"):
        try:
            await client.get(f"/screens/{screen}", params={"seat": message.row.number})
        except Exception:  # expect: PEN019
            logger.warning("screen %s is dark", screen)
            continue


@office.reactive_task(Order, filter=lambda order: order.state == "paid")
async def welcome(ctx: TaskCtx[Order]) -> None:
    order = await ctx.get_document()
    await _welcome(order.email)


async def _welcome(email: str) -> None:
    async with httpx.AsyncClient(timeout=5) as http:
        await http.post("https://mail.example.com/send", json={"to": email})  # expect: PEN017


@office.reactive_task(Seat, filter=lambda seat: seat.state == "sold")
async def count_sale(ctx: MutationTaskCtx[Seat]) -> None:
    seat = await ctx.get_document()
    await record(ctx, seat.holder or "", "sold")
    httpx.get("https://stats.example.com/sold")  # expect: PEN015
