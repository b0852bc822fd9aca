"""Jobs, crons and outboxes of the kitchen."""

import asyncio
import contextlib
import os
import time
import uuid

import httpx
import structlog
from penstock import (
    ActionCtx,
    Id,
    Message,
    MutationCtx,
    QueryCtx,
    Retry,
    TaskBatchCtx,
    TaskCtx,
    MutationTaskCtx,
    hourly,
)

from kitchen import front
from kitchen.domain import Dish, Item, Supplier, Ticket
from kitchen.setup import app, ask, bills, cmd, rpc, stove, swift

log = structlog.get_logger()
KEY = os.environ.get("TILL_KEY")


class Till:
    """A client of the till."""

    def __init__(self, key: str | None) -> None:
        self.http = httpx.AsyncClient(base_url="https://till.example.com", headers={"Authorization": f"Bearer {key}"})

    async def book(self, ticket: str, total: str) -> None:
        (await self.http.post("/book", json={"ticket": ticket, "total": total})).raise_for_status()  # expect: PEN017

    async def book_once(self, ticket: str, total: str) -> None:
        headers = {"Idempotency-Key": ticket}
        (await self.http.post("/book", json={"total": total}, headers=headers)).raise_for_status()

    async def state(self, ticket: str) -> str:
        return (await self.http.get(f"/book/{ticket}")).text


till = Till(KEY)


@rpc
async def cook(ctx: ActionCtx, item: str) -> None:
    await asyncio.sleep(1)
    await ctx.run_mutation(cook_done, item)


@cmd
async def cook_done(ctx: MutationCtx, item: Id[Item]) -> None:
    await ctx.db.patch(Item, item, cook="robot")


@cmd
async def cook_done_at(ctx: MutationCtx, item: Id[Item]) -> None:
    await ctx.db.patch(Item, item, cook=time.strftime("%H:%M"))  # expect: PEN014


@cmd
async def cooked(ctx: MutationCtx, work_id: str, result: object, context: list[str]) -> None:
    for one in context:
        ctx.db.patch(Item, Id(one), cook="done")  # expect: PEN001


@rpc
async def serve_all(ctx: ActionCtx, ticket: str) -> None:
    items = await ctx.run_query(items_of, ticket)
    for item in items:
        log.info("serve", item=item)
        await ctx.run_mutation(cook_done, item)  # expect: PEN012


@rpc
async def serve_all_at_once(ctx: ActionCtx, ticket: str) -> None:
    items = await ctx.run_query(items_of, ticket)
    jobs = [ctx.run_mutation(cook_done, item) for item in items]  # expect: PEN012
    await asyncio.gather(*jobs)


@ask
async def items_of(ctx: QueryCtx, ticket: Id[Ticket]) -> list[str]:
    return [item.id async for item in ctx.db.query(Item).with_index(Item.by_ticket_dish_cook, ticket=ticket)]


@ask
async def dish_names(ctx: QueryCtx) -> list[str]:
    rows = ctx.db.query(Dish).order("desc")
    return [row.name for row in await rows.collect()]  # expect: PEN003


@rpc
async def print_bill(ctx: ActionCtx, ticket: str, total: str) -> None:
    await till.book(ticket, total)


@rpc
async def print_bill_once(ctx: ActionCtx, ticket: str, total: str) -> None:
    await till.book_once(ticket, total)


@cmd
async def print_all(ctx: MutationCtx, tickets: list[str]) -> None:
    for ticket in tickets:
        await bills.enqueue(ctx, print_bill_once, ticket, "0")
        await swift.enqueue(ctx, restock, ticket)


@rpc
async def restock(ctx: ActionCtx, url: str) -> None:
    async with httpx.AsyncClient() as http:
        await http.request("POST", url, json={"items": []})  # expect: PEN017


@rpc
async def compare(ctx: ActionCtx, ticket: str) -> bool:
    items = await ctx.run_query(items_of, ticket)
    names = await ctx.run_query(dish_names)  # expect: PEN011
    return len(items) == len(names)


@rpc
async def compare_with_till(ctx: ActionCtx, ticket: str) -> bool:
    items = await ctx.run_query(items_of, ticket)
    state = await till.state(ticket)
    if not items and state == "paid":
        await ctx.run_mutation(cook_done, ticket)
    return bool(items)


@rpc
async def cook_and_bill(ctx: ActionCtx, item: str, ticket: str) -> None:
    await ctx.run_mutation(cook_done, item)
    await ctx.scheduler.run_after(__import__("datetime").timedelta(seconds=5), print_bill_once, ticket, "1")  # missed: PEN016


@rpc
async def cook_and_bill_by_pool(ctx: ActionCtx, item: str, ticket: str) -> None:
    done = await ctx.run_mutation(cook_done, item)
    if done is None:
        await bills.enqueue(ctx, print_bill_once, ticket, "1")  # expect: PEN016


@rpc
async def again(ctx: ActionCtx, ticket: str) -> None:
    return await ctx.run_action(compare, ticket)  # expect: PEN010


@rpc
async def pay_for(ctx: ActionCtx, ticket: str) -> None:
    await ctx.run_mutation(front.pay, ticket)  # expect: PEN008


@app.cron("0 * * * *", retry=Retry(max_attempts=2))
async def refresh(ctx: ActionCtx) -> None:
    await till.http.get("/refresh")


@app.cron("30 3 * * *")
async def number(ctx: MutationCtx) -> None:
    async for one in ctx.db.query(Supplier):
        await ctx.db.patch(Supplier, one.id, name=uuid.uuid4().hex)  # expect: PEN014


app.crons.declare("tickets", hourly("tickets"), front.serve, {"ticket": "t"})  # expect: PEN008
app.crons.declare("bills", hourly("bills"), print_all, {"tickets": []})


@app.outbox(Ticket, name="guests")
async def to_guests(ctx: ActionCtx, message: Message[Ticket]) -> None:
    try:
        await till.book_once(message.id, "1")
    except Exception as error:  # expect: PEN019
        log.exception("lost", error=str(error))


@app.outbox(Ticket, name="stats")
async def to_stats(ctx: ActionCtx, message: Message[Ticket]) -> None:
    try:
        await till.book_once(message.id, "1")
    except httpx.ConnectError:
        raise
    except httpx.HTTPStatusError:
        log.info("sent before")


@app.outbox(Dish, name="board", batch=20)
async def to_board(ctx: ActionCtx, dishes: list[Dish]) -> None:
    async with httpx.AsyncClient() as http:
        for dish in dishes:
            await http.post("https://board.example.com", json={"name": dish.name})  # expect: PEN017


@app.outbox(Dish, name="quiet")
async def to_nobody(ctx: ActionCtx, dish: Dish) -> None:
    with contextlib.suppress(BaseException):  # expect: PEN019
        await till.state(dish.name)


@app.reactive_task(Ticket, filter=lambda t: t.state == "served", batch=10)
async def thank(ctx: TaskBatchCtx[Ticket]) -> None:
    await till.http.post("/thanks", json={"n": 1})  # expect: PEN017


@app.reactive_task(Ticket, filter=lambda t: t.state == "open", name="nag")
async def nag(ctx: TaskCtx[Ticket]) -> None:
    ticket = await ctx.get_document()
    await till.http.post("/nag", json={"t": ticket.id}, headers={"Idempotency-Key": f"nag-{ticket.id}"})


@app.reactive_task(Item, name="count")
async def count(ctx: MutationTaskCtx[Item]) -> None:
    item = ctx.get_document()  # expect: PEN001
    log.info("item", item=item)


@app.reactive_task(Item, name="wait")
async def wait(ctx: MutationTaskCtx[Item]) -> None:
    item = await ctx.get_document()
    time.sleep(0.2)  # expect: PEN015
    await stove.enqueue(ctx, cook, item.id)
