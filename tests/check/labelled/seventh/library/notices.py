"""Letters, text messages and what runs at night."""

import contextlib
import logging
import os
import smtplib
from datetime import timedelta
from email.message import EmailMessage
from pathlib import Path

import httpx
from library import Item, Loan, Reader, Title, app, couriers
from library.application import archive
from library.lending import current_reader, lend, stamp

from penstock import ActionCtx, Id, Message, MutationCtx, QueryCtx, WorkResult, signed_in

log = logging.getLogger("library")
GATEWAY = os.environ.get("GATEWAY", "https://sms.example.com")
POST = "https://letters.example.com/v1/letters"


def letter(to: str, text: str) -> EmailMessage:
    message = EmailMessage()
    message["To"] = to
    message.set_content(text)
    return message


@app.internal_query
async def address(ctx: QueryCtx, loan: Id[Loan]) -> str:
    row = await ctx.db.get(Loan, loan)
    reader = await ctx.db.get(Reader, row.reader)
    return reader.email


@app.internal_query
async def due_titles(ctx: QueryCtx, loan: Id[Loan]) -> str:
    row = await ctx.db.get(Loan, loan)
    item = await ctx.db.get(Item, row.item)
    title = await ctx.db.get(Title, item.title)
    return title.name


@app.internal_action
async def write_letter(ctx: ActionCtx, loan: Id[Loan]) -> None:
    to = await ctx.run_query(address, loan)
    name = await ctx.run_query(due_titles, loan)  # expect: PEN011
    async with httpx.AsyncClient() as client:
        await client.post(POST, json={"to": to, "text": f"Please return {name}."})


@app.internal_action
async def write_letters(ctx: ActionCtx, loans: list[Id[Loan]]) -> None:
    for loan in loans:
        to = await ctx.run_query(address, loan)
        await httpx.AsyncClient().post(POST, json={"to": to})
    await ctx.run_mutation(stamp, loans)


@app.internal_action
async def gather_addresses(ctx: ActionCtx, loans: list[Id[Loan]]) -> list[str]:
    return [await ctx.run_query(address, loan) for loan in loans]  # expect: PEN012


@app.internal_action
async def send_again(ctx: ActionCtx, loan: Id[Loan], to: str) -> None:
    httpx.post(GATEWAY, json={"to": to, "loan": loan})  # expect: PEN017, PEN022


@app.internal_action
async def send_once(ctx: ActionCtx, loan: Id[Loan], to: str) -> None:
    httpx.post(GATEWAY, json={"to": to}, headers={"Idempotency-Key": loan})  # expect: PEN022


@app.internal_action
async def send_without_retry(ctx: ActionCtx, to: str) -> None:
    httpx.post(GATEWAY, json={"to": to})  # expect: PEN022


@app.internal_mutation
async def remind(ctx: MutationCtx, loan: Id[Loan]) -> None:
    to = await address(ctx, loan)
    await couriers.with_options(retry=True).enqueue(ctx, send_again, loan, to)
    await couriers.with_options(retry=True).enqueue(ctx, send_once, loan, to)
    await couriers.enqueue(ctx, send_without_retry, to)


@app.mutation(access=signed_in)
async def lend_later(ctx: MutationCtx, title: Id[Title]) -> None:
    await current_reader(ctx)
    await ctx.scheduler.run_after(timedelta(hours=2), lend, title)  # expect: PEN008


@app.mutation(access=signed_in)
async def lend_two(ctx: MutationCtx, first: Id[Title], second: Id[Title]) -> None:
    await lend(ctx, first)
    await ctx.run_mutation(lend, second)  # expect: PEN008, PEN009


@app.mutation(access=signed_in)
async def lend_if_possible(ctx: MutationCtx, titles: list[Id[Title]]) -> int:
    lent = 0
    for title in titles:
        with contextlib.suppress(ValueError):
            await ctx.run_mutation(keep, title)
            lent += 1
    return lent


@app.internal_mutation
async def keep(ctx: MutationCtx, title: Id[Title]) -> None:
    await lend(ctx, title)


@app.mutation(access=signed_in)
async def invite(ctx: MutationCtx, friend: str) -> None:
    await current_reader(ctx)
    with smtplib.SMTP("localhost") as server:  # expect: PEN015
        server.send_message(letter(friend, "Come and read."))


@app.internal_mutation
async def export(ctx: MutationCtx, reader: Id[Reader]) -> None:
    row = await ctx.db.get(Reader, reader)
    Path("/srv/export").joinpath(row.card).write_text(row.email)  # expect: PEN015


@app.internal_mutation
async def file_name(ctx: MutationCtx, reader: Id[Reader]) -> str:
    row = await ctx.db.get(Reader, reader)
    return str(Path("/srv/export") / row.card)


@app.internal_mutation
async def gateway(ctx: MutationCtx) -> str:
    log.info("asked for the gateway")
    return os.getenv("GATEWAY_OF_TODAY", GATEWAY)  # expect: PEN014


@app.internal_mutation
async def archived(ctx: MutationCtx, work_id: str, result: WorkResult[None], context: dict) -> None:
    log.info("archived %s", context)


@app.internal_mutation
async def archive_loans(ctx: MutationCtx, reader: Id[Reader]) -> None:
    loans = await ctx.db.query(Loan).with_index(Loan.by_reader, reader=reader).collect()
    some = loans[:25]
    kept = archive.with_options(on_complete=archived, context={"loans": [one.id for one in some]})
    await kept.enqueue(ctx, pack, reader)
    everything = archive.with_options(on_complete=archived, context=[one.id for one in loans])  # expect: PEN020
    await everything.enqueue(ctx, pack, reader)


@app.internal_action
async def pack(ctx: ActionCtx, reader: Id[Reader]) -> None:
    log.info("packed %s", reader)


@app.outbox(Loan, on=("insert", "update"))
async def to_union(ctx: ActionCtx, message: Message[Loan]) -> None:
    try:
        httpx.put(f"{GATEWAY}/loans", json={"id": message.row.id}, headers={"Idempotency-Key": message.id})  # expect: PEN022
    except:  # expect: PEN019
        log.warning("the union did not answer")


@app.outbox(Item)
async def to_index(ctx: ActionCtx, item: Item) -> None:
    try:
        httpx.post(f"{GATEWAY}/items", json={"id": item.id}, headers={"Idempotency-Key": str(item.id)})  # expect: PEN022
    except httpx.HTTPError:
        log.exception("not indexed")
        raise
