"""A component with one thing of each kind, which test_components uses under several names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    File,
    Id,
    Index,
    JobId,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Rules,
    SearchIndex,
    Table,
    TokenBucket,
    WorkflowCtx,
    WorkResult,
    owner_of,
    public,
    signed_in,
    sync,
)

app = App()


async def disputed(ctx: QueryCtx) -> list[str]:
    return [one.text async for one in ctx.db.query(Line)]


class Charge(Table):
    customer: str
    cents: int
    text: str = ""
    owner: str = ""
    paid: bool = False

    by_customer = Index("customer", unique=True)
    by_text = SearchIndex("text")
    rules = Rules(
        read=lambda charge, identity, disputed: charge.owner == identity.subject and charge.text not in disputed,
        insert=lambda charge, identity, disputed: charge.owner == identity.subject,
        facts=disputed,
    )


class Line(Table):
    text: str
    charge: Id[Charge] | None = None
    file: Id[File] | None = None


class Paid(BaseModel):
    customer: str


pool = app.workpool("bank", max_parallelism=2, group="money")
attempts = app.rate_limit("attempts", TokenBucket(rate=1, period=timedelta(hours=1)))
approved = app.event("approved", str)


@app.mutation(access=public, name="billing:charge")
async def charge(ctx: MutationCtx, customer: str, cents: int, text: str = "", owner: str = "") -> Id[Charge]:
    return await ctx.db.insert(Charge(customer=customer, cents=cents, text=text, owner=owner))


@app.internal_mutation
async def charge_and_fail(ctx: MutationCtx, customer: str) -> None:
    await ctx.db.insert(Charge(customer=customer, cents=1))
    await ctx.scheduler.run_after(timedelta(0), note, "never")
    raise ApplicationError("the bank is closed")


@app.internal_query
async def customers(ctx: QueryCtx) -> list[str]:
    return sorted([one.customer async for one in ctx.db.query(Charge)])


@app.query(access=signed_in)
async def mine(ctx: QueryCtx) -> list[Charge]:
    return await ctx.db.query(Charge).take(10)


@app.query(access=public)
async def find(ctx: QueryCtx, words: str) -> list[Charge]:
    return await ctx.db.query(Charge).with_search_index(Charge.by_text, words).take(10)


@app.internal_query
async def lines(ctx: QueryCtx) -> list[str]:
    return sorted([one.text async for one in ctx.db.query(Line)])


@app.internal_mutation
async def note(ctx: MutationCtx, text: str) -> None:
    await ctx.db.insert(Line(text=text))


@app.internal_mutation
async def set_paid(ctx: MutationCtx, row: Id[Charge]) -> Charge:
    found = await ctx.db.get(Charge, row)
    assert found is not None
    await ctx.db.replace(Charge, row, Charge(customer=found.customer, cents=2 * found.cents, text=found.text))
    return await ctx.db.patch(Charge, row, paid=True)


@app.mutation(access=owner_of(Charge, "row", claim="subject"))
async def rename(ctx: MutationCtx, row: Id[Charge], customer: str) -> str:
    """Rename a charge, by a helper that looks at the owner too."""
    return await shorten(ctx, row, customer)


@app.internal_mutation(access=owner_of(Charge, "row", claim="subject"))
async def shorten(ctx: MutationCtx, row: Id[Charge], customer: str) -> str:
    await ctx.db.insert(Line(text=customer[:3], charge=row))
    return customer[:3]


@dataclass
class Noted:
    text: str


@app.internal_mutation(batch=10, of=Noted)
async def note_all(ctx: MutationCtx, items: list[Noted]) -> list[None]:
    await ctx.db.insert_many(Line(text=f"{one.text} of {len(items)}") for one in items)
    return [None for _ in items]


@app.action(runtime="process", access=public)
def compute(ctx: sync.ActionCtx, number: int) -> int:
    return number * number


# ----- work


@app.internal_mutation
async def enqueue(ctx: MutationCtx) -> None:
    """Begin one piece of work of each kind."""
    await pool.with_options(on_complete=ended).enqueue(ctx, note, "pooled")
    await ctx.scheduler.run_after(timedelta(0), note, "scheduled")
    await ctx.scheduler.run_after(timedelta(0), dunning)
    await ctx.outbox.send("paid", Paid(customer="Ada"))


@app.internal_action
async def schedule(ctx: ActionCtx) -> list[JobId]:
    """Schedule a mutation, an action, and a mutation that an action cancels."""
    soon, later = timedelta(0), timedelta(hours=1)
    jobs = [
        await ctx.scheduler.run_after(soon, note, "by an action"),
        await ctx.scheduler.run_after(soon, divide, 4, 2),
        await ctx.scheduler.run_after(later, note, "never"),
    ]
    await ctx.scheduler.cancel(jobs[-1])
    return jobs


@app.internal_query
async def states(ctx: QueryCtx, jobs: list[JobId]) -> list[str]:
    found = [await ctx.jobs.get(job) for job in jobs]
    return [one.state.value for one in found if one is not None]


@app.internal_query
async def count_work(ctx: QueryCtx) -> list[int]:
    """Count the jobs that it sees: all, of a function, of a pool, and on a page."""
    asked: list[Any] = [{}, {"function": note}, {"function": note.name}]
    asked += [{"pool": name} for name in ("bank", "default", "shop/bank")]
    return [*[len(await ctx.jobs.list(**where)) for where in asked], len((await ctx.jobs.paginate()).page)]


@app.internal_mutation
async def ended(ctx: MutationCtx, work_id: str, result: WorkResult[Any], context: Any) -> None:
    await ctx.db.insert(Line(text="ended"))


@app.reactive_task(Charge, filter=lambda charge: charge.paid, pool=pool)
async def thank(ctx: MutationTaskCtx[Charge]) -> None:
    found = await ctx.get_document()
    await ctx.db.insert(Line(text=f"thanks {found.customer}", charge=found.id))


@app.outbox(Charge)
async def booked(ctx: MutationCtx, row: Charge) -> None:
    await ctx.db.insert(Line(text=f"booked {row.customer}"))


@app.outbox("paid")
def told(ctx: sync.MutationCtx, payload: Paid) -> None:
    ctx.db.insert(Line(text=f"paid {payload.customer}"))


@app.cron("0 9 * * *", name="daily", pool=pool)
async def daily(ctx: MutationCtx) -> None:
    await ctx.db.insert(Line(text="daily"))


@app.workflow
async def dunning(ctx: WorkflowCtx) -> None:
    await ctx.with_options(pool=pool).run_mutation(note, "dunned in the pool")
    await ctx.run_mutation(note, "dunned")


@app.internal_mutation
async def attempt(ctx: MutationCtx) -> list[bool]:
    return [(await attempts.take(ctx)).ok, (await ctx.rate_limit("attempts")).ok]


@app.internal_action
async def hold(ctx: ActionCtx, inside: str | None) -> None:
    """Hold the lock of the bank, and run another function meanwhile."""
    async with ctx.with_lock("bank", wait=timedelta(0)):
        if inside is not None:
            await ctx.run_action(ctx.function(inside), None)


# ----- handles


@app.internal_query
async def sum_of(ctx: QueryCtx, a: int, b: int) -> int:
    return a + b + len([one async for one in ctx.db.query(Line)])


@app.internal_mutation
async def multiply(ctx: MutationCtx, a: int, b: int) -> int:
    await ctx.db.insert(Line(text=f"{a} times {b}"))
    return a * b


@app.internal_action
async def divide(ctx: ActionCtx, a: int, b: int) -> float:
    await ctx.run_mutation(note, f"{a} by {b}")
    return a / b


@app.internal_query
async def handles(ctx: QueryCtx) -> list[str]:
    return [ctx.handle_of(one) for one in (sum_of, multiply, divide)]


@app.internal_action
async def handles_of_action(ctx: ActionCtx) -> list[str]:
    return [ctx.handle_of(one) for one in (sum_of, multiply, divide)]


@app.internal_mutation
async def call_back(ctx: MutationCtx, handle: str) -> str:
    """Run a function of the program, which gave its handle."""
    await ctx.db.insert(Line(text="called back"))
    return str(await ctx.run_mutation(ctx.function(handle), "from billing"))


# ----- files and HTTP


@app.internal_action
async def keep(ctx: ActionCtx, text: str) -> Id[File]:
    return await ctx.storage.store(text.encode(), content_type="text/plain")


@app.internal_query
async def url_of(ctx: QueryCtx, file: str) -> str | None:
    return await ctx.storage.get_url(file)


@app.internal_mutation
async def upload_url(ctx: MutationCtx) -> str:
    return await ctx.storage.generate_upload_url()


@app.internal_query
async def files(ctx: QueryCtx) -> list[str]:
    return [one.id for one in await ctx.storage.list()]


@app.http("GET", "/total/{rest:path}", access=public)
async def total(ctx: ActionCtx, request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await ctx.run_query(customers))} of {request.path_params['rest']}")


@app.internal_query
async def by_sql(ctx: QueryCtx) -> int:
    return len(await ctx.sql("select 1 as one"))


@app.internal_query
async def reach(ctx: QueryCtx, table: Any) -> int:
    return len(await ctx.db.query(table).take(10))
