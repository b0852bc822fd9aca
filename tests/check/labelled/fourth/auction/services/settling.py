"""Payment of invoices: actions that talk to the bank."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta

import httpx
from penstock import ActionCtx, Id, MutationCtx, QueryCtx, TaskCtx

from auction.application import PAYMENT_URL, application, mailing, patient_mailing, payments
from auction.models import Bidder, Invoice, Lot
from auction.services import bidding

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Receipt:
    number: str
    cents: int


class Bank:
    """The bank's interface."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def charge(self, key: str, cents: int) -> str:
        answer = await self._client.post(PAYMENT_URL, json={"cents": cents}, headers={"Idempotency-Key": key})
        return str(answer.json()["number"])

    async def balance(self) -> int:
        return int((await self._client.get(PAYMENT_URL)).json()["cents"])


@application.internal_query
async def invoice(ctx: QueryCtx, invoice: Id[Invoice]) -> Invoice | None:
    return await ctx.db.get(Invoice, invoice)


@application.internal_query
async def debts(ctx: QueryCtx, bidder: Id[Bidder]) -> int:
    return await bidding.debts(ctx, bidder)


@application.internal_query
async def debts_again(ctx: QueryCtx, bidder: Id[Bidder]) -> int:
    return await ctx.run_query(debts, bidder)  # expect: PEN009


@application.internal_query
async def invoices(ctx: QueryCtx, ids: list[Id[Invoice]]) -> list[Invoice | None]:
    return [await invoice(ctx, one) for one in ids]


@application.internal_query
async def invoices_slowly(ctx: QueryCtx, ids: list[Id[Invoice]]) -> list[Invoice | None]:
    return [await ctx.run_query(invoice, one) for one in ids]  # expect: PEN009


@application.internal_mutation
async def paid(ctx: MutationCtx, invoice: Id[Invoice], number: str) -> None:
    await ctx.db.patch(Invoice, invoice, paid=True, changed_at=ctx.now())


@application.internal_mutation
async def paid_all(ctx: MutationCtx, invoices: list[Id[Invoice]]) -> None:
    for one in invoices:
        await paid(ctx, one, "")


@application.internal_mutation
async def paid_and_thanked(ctx: MutationCtx, invoice: Id[Invoice], number: str) -> None:
    await paid(ctx, invoice, number)
    await mailing.enqueue(ctx, thank, invoice)


class Settlement:
    def __init__(self, ctx: MutationCtx) -> None:
        self.ctx = ctx

    async def mark(self, one: Id[Invoice]) -> None:
        await self.ctx.run_mutation(paid, one, "by hand")  # expect: PEN009

    async def mark_softly(self, one: Id[Invoice]) -> bool:
        try:
            await self.ctx.run_mutation(paid, one, "by hand")
        except ValueError:
            return False
        return True

    async def mark_plainly(self, one: Id[Invoice]) -> None:
        await paid(self.ctx, one, "by hand")


@application.internal_action
async def thank(ctx: ActionCtx, invoice: str) -> None:
    logger.info("thanks for %s", invoice)


@application.internal_action
async def settle(ctx: ActionCtx, invoice_id: str) -> None:
    found = await ctx.run_query(invoice, invoice_id)
    if found is None:
        return
    async with httpx.AsyncClient() as client:
        number = await Bank(client).charge(invoice_id, found.cents)
    await ctx.run_mutation(paid, invoice_id, number)


@application.internal_action
async def settle_blindly(ctx: ActionCtx, invoice_id: str) -> None:
    found = await ctx.run_query(invoice, invoice_id)
    if found is not None and found.cents == 0:
        await ctx.run_mutation(paid, invoice_id, "nothing to pay")  # expect: PEN011


@application.internal_action
async def compare(ctx: ActionCtx, bidder: str, other: str) -> bool:
    mine = await ctx.run_query(debts, bidder)
    theirs = await ctx.run_query(debts, other)  # expect: PEN011
    return mine < theirs


@application.internal_action
async def compare_together(ctx: ActionCtx, bidder: str, other: str) -> bool:
    mine, theirs = await asyncio.gather(ctx.run_query(debts, bidder), ctx.run_query(debts, other))  # expect: PEN011
    return mine < theirs


@application.internal_action
async def compare_with_bank(ctx: ActionCtx, bidder: str) -> bool:
    before = await ctx.run_query(debts, bidder)
    async with httpx.AsyncClient() as client:
        balance = await Bank(client).balance()
    return before <= balance and await ctx.run_query(debts, bidder) == before


@application.internal_action
async def either(ctx: ActionCtx, bidder: str, late: bool) -> int:
    if late:
        return await ctx.run_query(debts, bidder)
    else:
        return await ctx.run_query(debts_again, bidder)


@application.internal_action
async def settle_all(ctx: ActionCtx, ids: list[str]) -> None:
    for one in ids:
        await ctx.run_mutation(paid, one, "")  # expect: PEN012


@application.internal_action
async def settle_all_at_once(ctx: ActionCtx, ids: list[str]) -> None:
    await ctx.run_mutation(paid_all, ids)


@application.internal_action
async def settle_together(ctx: ActionCtx, ids: list[str]) -> None:
    await asyncio.gather(*[ctx.run_mutation(paid, one, "") for one in ids])  # expect: PEN012


@application.internal_action
async def settle_in_turn(ctx: ActionCtx, ids: list[str]) -> None:
    async with httpx.AsyncClient() as client:
        bank = Bank(client)
        for one in ids:
            await ctx.run_mutation(paid, one, await bank.charge(one, 100))


@application.internal_action
async def settle_pages(ctx: ActionCtx) -> None:
    done = False
    while not done:
        done = await ctx.run_mutation(settle_page)


@application.internal_mutation
async def settle_page(ctx: MutationCtx) -> bool:
    page = await ctx.db.query(Invoice).with_index(Invoice.by_paid, paid=False).paginate(cursor=None, num_items=100)
    for one in page.page:
        await ctx.db.patch(Invoice, one.id, paid=True)
    return page.is_done


@application.internal_action
async def pay_then_thank(ctx: ActionCtx, one: str) -> None:
    await ctx.run_mutation(paid, one, "")
    await ctx.scheduler.run_after(timedelta(0), thank, one)  # expect: PEN016


@application.internal_action
async def pay_then_thank_all(ctx: ActionCtx, ids: list[str]) -> None:
    await ctx.run_mutation(paid_all, ids)
    await mailing.enqueue_batch(ctx, thank, [{"invoice": one} for one in ids])  # expect: PEN016


@application.internal_action
async def pay_bank_then_thank(ctx: ActionCtx, one: str) -> None:
    await ctx.run_mutation(paid, one, "")
    async with httpx.AsyncClient() as client:
        await Bank(client).balance()
    await mailing.enqueue(ctx, thank, one)


@application.internal_action
async def look_then_thank(ctx: ActionCtx, one: str) -> None:
    if await ctx.run_query(invoice, one) is not None:
        await mailing.enqueue(ctx, thank, one)


@application.internal_action
async def pay_and_thank(ctx: ActionCtx, one: str) -> None:
    await ctx.run_mutation(paid_and_thanked, one, "")


@application.internal_action
async def remind(ctx: ActionCtx, bidder: str) -> None:
    async with httpx.AsyncClient() as client:
        await client.post("https://mail.example.com", json={"to": bidder})  # expect: PEN017


@application.internal_action
async def remind_once(ctx: ActionCtx, bidder: str) -> None:
    async with httpx.AsyncClient() as client:
        await client.post("https://mail.example.com", json={"to": bidder})


@application.internal_action
async def remind_with_key(ctx: ActionCtx, bidder: str, day: str) -> None:
    async with httpx.AsyncClient(headers={"Idempotency-Key": f"{bidder} {day}"}) as client:
        await client.post("https://mail.example.com", json={"to": bidder})


@application.internal_mutation
async def remind_everybody(ctx: MutationCtx, bidders: list[str]) -> None:
    for bidder in bidders:
        await patient_mailing.enqueue(ctx, remind, bidder)
        await patient_mailing.enqueue(ctx, remind_with_key, bidder, "today")
        await mailing.with_options(retry=False).enqueue(ctx, remind_once, bidder)


@application.reactive_task(Invoice, filter=lambda one: one.paid == True, watch=("paid",))  # noqa: E712
async def book(ctx: TaskCtx[Invoice]) -> None:
    row = await ctx.get_document()
    async with httpx.AsyncClient() as client:
        await client.post("https://books.example.com", json={"cents": row.cents})  # expect: PEN017


@application.reactive_task(Invoice, filter=lambda one: one.paid == False, watch=("paid",), name="open")  # noqa: E712
async def book_once(ctx: TaskCtx[Invoice]) -> None:
    row = await ctx.get_document()
    async with httpx.AsyncClient() as client:
        await Bank(client).charge(row.id, row.cents)


@application.reactive_task(Lot, watch=("state",))
async def look_up(ctx: TaskCtx[Lot]) -> None:
    row = await ctx.get_document()
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"https://prices.example.com/{row.title}")
    logger.info("%s", answer.text)


@application.internal_action(runtime="process")
def render(ctx: ActionCtx, lot: str) -> str:
    return lot.upper()


@application.internal_action
async def render_all(ctx: ActionCtx, lots: list[str]) -> list[str]:
    return [await ctx.run_action(render, lot) for lot in lots]


@application.internal_action
async def settle_now(ctx: ActionCtx, one: str) -> None:
    await ctx.run_action(settle, one)  # expect: PEN010


@application.internal_action
async def settle_directly(ctx: ActionCtx, one: str) -> None:
    await settle(ctx, one)
