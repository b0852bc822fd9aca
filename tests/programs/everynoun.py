"""A program with some of all that people look after: pools, a reactive task, outboxes that fail in each way, a cron."""

from __future__ import annotations

from datetime import timedelta

from penstock import ActionCtx, App, MutationCtx, Retry, Table, TaskCtx, TokenBucket, WorkflowCtx

ONCE = Retry(max_attempts=1)

app = App()
mail = app.workpool("mail", max_parallelism=1)
minute = TokenBucket(rate=600, period=timedelta(minutes=1), capacity=20)
texts = app.workpool("texts", max_parallelism=5, key_parallelism=1, rate_limit=minute)
failing = {"bad"}


class Parcel(Table, name="parcel_of_yard"):
    name: str
    password: str = "hush-hush"
    weight: int = 1


def work(name: str) -> None:
    if name in failing:
        raise ConnectionError(f"no way for {name}")


@app.action
async def send(ctx: ActionCtx, to: str) -> None:
    work(to)


@app.reactive_task(Parcel, name="ship", filter=lambda one: one.weight > 0, watch=("password",), retry=None)
async def ship(ctx: TaskCtx[Parcel]) -> None:
    work((await ctx.get_document()).name)


@app.outbox(Parcel, name="ledger", retry=ONCE)
async def to_ledger(ctx: ActionCtx, parcel: Parcel) -> None:
    work(parcel.name)


@app.outbox(Parcel, name="files", on_failure="park", retry=ONCE)
async def to_files(ctx: ActionCtx, parcel: Parcel) -> None:
    work(parcel.name)


async def clear(ctx: MutationCtx) -> None:
    """There is nothing to clear."""


@app.outbox(Parcel, name="counts", reset=clear)
async def count(ctx: MutationCtx, parcel: Parcel) -> None:
    """Only its place matters."""


paid = app.event("paid", int)


@app.workflow
async def order(ctx: WorkflowCtx) -> int:
    return await ctx.wait_for(paid)


@app.internal_action
async def deliver(ctx: ActionCtx, to: str) -> None:
    work(to)


@app.workflow
async def delivery(ctx: WorkflowCtx, to: str) -> None:
    await ctx.run_action(deliver, to)


@app.cron("0 9 * * MON-FRI", timezone="Europe/Prague", name="remind")
async def remind(ctx: MutationCtx) -> None:
    """Only its times matter."""


@app.mutation
async def put(ctx: MutationCtx, names: list[str]) -> list[str]:
    return [await ctx.db.insert(Parcel(name=name)) for name in names]
