"""Outboxes, reactive tasks, retried actions, crons, and what runs when work has ended."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import requests
from penstock import (
    ActionCtx,
    Id,
    Message,
    MutationCtx,
    MutationTaskCtx,
    NonRetryableError,
    QueryCtx,
    Retry,
    Snooze,
    TaskBatchCtx,
    TaskCtx,
    WorkId,
    WorkResult,
    signed_in,
)

from .setting import academy as app
from .setting import certificates, mails
from .tables import Answer, Certificate, Enrolment, Invoice, Student

log = logging.getLogger(__name__)
BANK = "https://bank.example.com"
client = httpx.AsyncClient(base_url=BANK)


@app.outbox(Invoice)
async def to_bank(ctx: ActionCtx, invoice: Invoice) -> None:
    reply = await client.post("/pay", json={"cents": invoice.cents}, headers={"Idempotency-Key": invoice.id})
    reply.raise_for_status()


@app.outbox(Invoice, name="to-books", on=("insert", "update"))
async def to_books(ctx: ActionCtx, message: Message[Invoice]) -> None:
    await client.post("/books", json={"cents": message.row.cents})  # expect: PEN017


@app.outbox(Invoice, name="to-tax")
async def to_tax(ctx: ActionCtx, message: Message[Invoice]) -> None:
    headers = {"X-Idempotency-Key": message.id}
    await client.post("/tax", json={"cents": message.row.cents}, headers=headers)


async def _send(cents: int) -> None:
    async with httpx.AsyncClient() as one:
        await one.post(BANK, json={"cents": cents})  # expect: PEN017


@app.outbox(Invoice, name="to-auditor", batch=50)
async def to_auditor(ctx: ActionCtx, invoices: list[Invoice]) -> None:
    for invoice in invoices:
        await _send(invoice.cents)


@app.outbox(Invoice, name="prices")
async def read_prices(ctx: ActionCtx, invoice: Invoice) -> None:
    reply = await client.get(f"/prices/{invoice.cents}")
    await ctx.run_mutation(note_price, invoice.id, reply.json()["cents"])


@app.internal_mutation
async def note_price(ctx: MutationCtx, invoice: Id[Invoice], cents: int) -> None:
    await ctx.db.patch(Invoice, invoice, cents=cents)


@app.outbox(Enrolment, on_failure="park")
async def to_crm(ctx: ActionCtx, enrolment: Enrolment) -> None:
    try:
        await client.get(f"/crm/{enrolment.student}")
    except Exception as error:  # expect: PEN019
        log.warning("crm: %s", error)


@app.outbox(Enrolment, name="crm-2")
async def to_crm_bare(ctx: ActionCtx, enrolment: Enrolment) -> None:
    try:
        await client.get(f"/crm/{enrolment.student}")
    except:  # expect: PEN019
        return


@app.outbox(Enrolment, name="crm-3")
async def to_crm_suppressed(ctx: ActionCtx, enrolment: Enrolment) -> None:
    with suppress(Exception):  # expect: PEN019
        await client.get(f"/crm/{enrolment.student}")


@app.outbox(Enrolment, name="crm-4")
async def to_crm_several(ctx: ActionCtx, enrolments: list[Enrolment]) -> None:
    for enrolment in enrolments:
        try:
            await client.get(f"/crm/{enrolment.student}")
        except (KeyError, Exception):  # expect: PEN019
            continue


@app.outbox(Enrolment, name="crm-5")
async def to_crm_raising(ctx: ActionCtx, enrolment: Enrolment) -> None:
    try:
        await client.get(f"/crm/{enrolment.student}")
    except Exception:
        log.exception("crm")
        raise


@app.outbox(Enrolment, name="crm-6")
async def to_crm_wrapping(ctx: ActionCtx, enrolment: Enrolment) -> None:
    try:
        await client.get(f"/crm/{enrolment.student}")
    except httpx.TimeoutException as error:
        raise Snooze(timedelta(minutes=1)) from error
    except Exception as error:
        raise NonRetryableError(str(error)) from error


@app.outbox(Enrolment, name="crm-7")
async def to_crm_once(ctx: ActionCtx, enrolment: Enrolment) -> None:
    try:
        await client.get(f"/crm/{enrolment.student}")
    except FileExistsError:
        log.info("known")


@app.outbox(Enrolment, name="crm-8")
async def to_crm_stored(ctx: ActionCtx, enrolment: Enrolment) -> None:
    try:
        await client.get(f"/crm/{enrolment.student}")
    except Exception as error:  # penstock: ignore[PEN019] the failure is stored, and somebody looks at it
        await ctx.run_mutation(note_failure, enrolment.id, str(error))


@app.internal_mutation
async def note_failure(ctx: MutationCtx, enrolment: Id[Enrolment], error: str) -> None:
    await ctx.db.patch(Enrolment, enrolment, state="left")


@app.internal_action
async def quiet_action(ctx: ActionCtx, url: str) -> None:
    try:
        await client.get(url)
    except Exception:
        log.info("not there")


@app.outbox(Student)
async def count_students(ctx: MutationCtx, student: Student) -> None:
    requests.post(BANK, json={"name": student.name}, timeout=1)  # expect: PEN015
    await ctx.db.patch(Student, student.id, country="cz")


@app.reactive_task(Enrolment, filter=lambda e: e.state == "done", watch=("score",))
async def issue(ctx: TaskCtx[Enrolment]) -> None:
    enrolment = await ctx.get_document()
    await client.post("/print", json={"score": enrolment.score})  # expect: PEN017


@app.reactive_task(Enrolment, name="issue-2", filter=lambda e: e.state == "done", watch=("score",))
async def issue_once(ctx: TaskCtx[Enrolment]) -> None:
    enrolment = await ctx.get_document()
    await client.post("/print", json={"score": enrolment.score}, headers={"idempotency-key": enrolment.id})


@app.reactive_task(Enrolment, name="issue-3", filter=lambda e: e.state == "open")
async def issue_here(ctx: MutationTaskCtx[Enrolment]) -> None:
    enrolment = await ctx.get_document()
    ctx.db.insert(Certificate(enrolment=enrolment.id, issued_at=ctx.now()))  # expect: PEN001


@app.reactive_task(Enrolment, name="issue-4", filter=lambda e: e.score > 50)
async def issue_unread(ctx: TaskCtx[Enrolment]) -> None:
    ctx.get_document()  # expect: PEN001


@app.reactive_task(Student, batch=100)
async def to_newsletter(ctx: TaskBatchCtx[Student]) -> None:
    requests.post(BANK, json=[1], timeout=3)  # expect: PEN017, PEN022


@app.internal_action
async def print_paper(ctx: ActionCtx, enrolment: Id[Enrolment]) -> str:
    reply = await client.post("/paper", json={"name": "x"})  # expect: PEN017
    return reply.text


@app.internal_action
async def print_paper_once(ctx: ActionCtx, enrolment: Id[Enrolment]) -> str:
    reply = await client.post("/paper", json={"name": "x"}, headers={"Idempotency-Key": str(ctx.work.id)})
    return reply.text


@app.internal_action
async def print_draft(ctx: ActionCtx, enrolment: Id[Enrolment]) -> str:
    return (await client.post("/draft", json={"name": "x"})).text


@app.internal_mutation
async def papers(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    await certificates.with_options(retry=True).enqueue(ctx, print_paper, enrolment)
    await certificates.with_options(retry=Retry(max_attempts=3)).enqueue(ctx, print_paper_once, enrolment)
    await certificates.with_options(retry=False).enqueue(ctx, print_draft, enrolment)


@app.internal_mutation
async def printed(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: dict[str, Any]) -> None:
    await ctx.db.insert(Certificate(enrolment=context["enrolment"]))


@app.internal_mutation
async def papers_of_all(ctx: MutationCtx, enrolment: Id[Enrolment], student: Id[Student]) -> None:
    rows = await ctx.db.query(Answer).with_index(Answer.by_grader, graded_by="me").collect()
    pool = certificates.with_options(on_complete=printed, context={"answers": rows})  # expect: PEN020
    await pool.enqueue(ctx, print_draft, enrolment)


@app.internal_mutation
async def papers_of_ids(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    ids = [row.id async for row in ctx.db.query(Answer).with_index(Answer.by_grader, graded_by="me")]
    await certificates.with_options(on_complete=printed, context=ids).enqueue(ctx, print_draft, enrolment)  # expect: PEN020


@app.internal_mutation
async def papers_of_points(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    rows = await ctx.db.query(Answer).with_index(Answer.by_grader, graded_by="me").collect()
    points = {row.id: row.points for row in rows}
    await mails.with_options(context=points, on_complete=printed).enqueue(ctx, print_draft, enrolment)  # expect: PEN020


@app.internal_mutation
async def papers_of_ten(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    rows = await ctx.db.query(Answer).with_index(Answer.by_grader, graded_by="me").take(10)
    ids = [row.id for row in rows]
    await mails.with_options(context={"ids": ids}, on_complete=printed).enqueue(ctx, print_draft, enrolment)


@app.internal_mutation
async def papers_counted(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    rows = await ctx.db.query(Answer).with_index(Answer.by_grader, graded_by="me").collect()
    context = {"count": len(rows), "best": max(row.points or 0 for row in rows)}
    await mails.with_options(context=context, on_complete=printed).enqueue(ctx, print_draft, enrolment)


@app.internal_mutation
async def papers_of_page(ctx: MutationCtx, enrolment: Id[Enrolment], cursor: str | None = None) -> None:
    page = await ctx.db.query(Answer).paginate(cursor=cursor, num_items=20)
    context = {"ids": [row.id for row in page.page]}
    await mails.with_options(context=context, on_complete=printed).enqueue(ctx, print_draft, enrolment)


@app.cron("0 9 * * *", timezone="Europe/Prague")
async def every_morning(ctx: MutationCtx) -> None:
    await ctx.scheduler.run_after(timedelta(0), note_all)


@app.cron(timedelta(hours=1), name="hourly")
async def every_hour(ctx: MutationCtx) -> None:
    ctx.scheduler.run_after(timedelta(0), note_all)  # expect: PEN001


@app.internal_mutation
async def note_all(ctx: MutationCtx) -> None:
    for row in await ctx.db.query(Student).collect():  # expect: PEN003
        await ctx.db.patch(Student, row.id, country="cz")


@app.internal_mutation
async def note_pages(ctx: MutationCtx, cursor: str | None = None) -> None:
    page = await ctx.db.query(Student).paginate(cursor=cursor, num_items=100)
    for row in page.page:
        await ctx.db.patch(Student, row.id, country="cz")
    if not page.is_done:
        await ctx.scheduler.run_after(timedelta(0), note_pages, page.continue_cursor)


@app.mutation(access=signed_in)
async def tidy(ctx: MutationCtx) -> None:
    await note_pages(ctx)


@app.mutation(access=signed_in)
async def tidy_later(ctx: MutationCtx) -> None:
    await ctx.scheduler.run_after(timedelta(hours=1), tidy)  # expect: PEN008


@app.internal_query
async def students_in(ctx: QueryCtx, countries: set[str]) -> list[Student]:
    found = await ctx.db.query(Student).take(1000)
    return list(filter(lambda one: one.country in countries, found))
