"""Crons and jobs of the library."""

import logging
from datetime import timedelta

import httpx

from library.base import app, notices, urgent
from library.lending import pay, renew_quietly, send_once
from library.schema import Fine, Loan, Patron
from penstock import ActionCtx, Id, MutationCtx, QueryCtx, Retry, WorkId, WorkResult

log = logging.getLogger(__name__)


@app.cron(timedelta(hours=1), name="hourly count")
@app.mutation
async def hourly(ctx: MutationCtx) -> int:  # expect: PEN006, PEN008
    return await ctx.db.query(Loan).count()


@app.internal_query
async def fines_of(ctx: QueryCtx, patron: Id[Patron]) -> list[Fine]:
    query = ctx.db.query(Fine).with_index(Fine.by_patron_and_paid, patron=patron)
    return await query.collect()


@app.internal_query
async def loans_of(ctx: QueryCtx, patron: Id[Patron]) -> list[Loan]:
    query = ctx.db.query(Loan).with_index(Loan.by_patron_and_due, patron=patron)
    return await query.collect()


@app.internal_action
async def statement_sent(ctx: ActionCtx, patron: Id[Patron]) -> None:
    fines = await ctx.run_query(fines_of, patron)
    httpx.post("https://mail.example.com", json={"fines": len(fines)})  # expect: PEN022
    await ctx.run_mutation(pay_all, patron)


@app.internal_action
async def pay_and_log(ctx: ActionCtx, patron: Id[Patron]) -> None:
    fines = await ctx.run_query(fines_of, patron)
    log.info("%s fines", len(fines))
    await ctx.run_mutation(pay_all, patron)  # expect: PEN011


@app.internal_action
async def either(ctx: ActionCtx, patron: Id[Patron], loans: bool) -> int:
    if loans:
        return len(await ctx.run_query(loans_of, patron))
    return len(await ctx.run_query(fines_of, patron))


@app.internal_action
async def pay_each(ctx: ActionCtx, fines: list[Id[Fine]]) -> None:
    for fine in fines:
        await ctx.run_mutation(pay, fine)  # expect: PEN008, PEN012


@app.internal_action
async def pay_each_outside(ctx: ActionCtx, patrons: list[Id[Patron]]) -> None:
    for patron in patrons:
        httpx.post("https://bank.example.com", json={"patron": patron})  # expect: PEN022
        await ctx.run_mutation(pay_all, patron)


@app.internal_mutation
async def pay_all(ctx: MutationCtx, patron: Id[Patron]) -> None:
    for fine in await fines_of(ctx, patron):
        await ctx.db.patch(Fine, fine.id, paid=True)


@app.internal_action
async def settle_later(ctx: ActionCtx, patron: Id[Patron]) -> None:
    await ctx.run_mutation(pay_all, patron)
    await ctx.scheduler.run_after(timedelta(0), send_once, patron)  # expect: PEN016


@app.internal_action
async def settle_outside(ctx: ActionCtx, patron: Id[Patron]) -> None:
    await ctx.run_mutation(pay_all, patron)
    answer = httpx.get("https://bank.example.com")  # expect: PEN022
    await notices.enqueue(ctx, send_once, answer.text)


@app.internal_mutation
async def noticed(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: dict[str, str]) -> None:
    log.info("%s: %s", work_id, result.kind)


@app.internal_mutation
async def notice_all(ctx: MutationCtx, patron: Id[Patron]) -> None:
    loans = await loans_of(ctx, patron)
    pool = notices.with_options(on_complete=noticed, context={"loans": loans})  # expect: PEN020
    await pool.enqueue(ctx, send_once, patron)


@app.internal_mutation
async def notice_count(ctx: MutationCtx, patron: Id[Patron]) -> None:
    loans = await loans_of(ctx, patron)
    pool = notices.with_options(on_complete=noticed, context={"loans": len(loans)})
    await pool.enqueue(ctx, send_once, patron)


@app.internal_mutation
async def notice_few(ctx: MutationCtx, patron: Id[Patron]) -> None:
    rows = await ctx.db.query(Loan).with_index(Loan.by_patron, patron=patron).take(5)
    ids = [row.id for row in rows]
    await urgent.with_options(on_complete=noticed, context=ids).enqueue(ctx, send_once, patron)


@app.internal_mutation
async def notice_ids(ctx: MutationCtx, patron: Id[Patron]) -> None:
    ids = []
    async for row in ctx.db.query(Loan).with_index(Loan.by_patron_and_due, patron=patron):
        ids.append(row.id)
    await urgent.with_options(on_complete=noticed, context=ids).enqueue(ctx, send_once, patron)  # expect: PEN020


slow = app.workpool("slow", max_parallelism=1, default_retry=Retry(max_attempts=6, initial_backoff=20))  # expect: PEN018
slow_but_short = app.workpool("short", max_parallelism=1, default_retry=Retry(max_attempts=2, initial_backoff=1))


@app.internal_mutation
async def book_keeping(ctx: MutationCtx, loan: Id[Loan]) -> None:
    await slow.enqueue(ctx, renew_quietly, loan)
    await slow.enqueue_batch(ctx, pay, [{"fine": "a"}])  # expect: PEN008
    await slow_but_short.enqueue_batch(ctx, renew_quietly, [{"loan": loan}])
