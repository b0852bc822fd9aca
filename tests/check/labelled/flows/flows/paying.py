"""Actions that pay: as steps of workflows they may run again, and send a key that is the same each time."""

import uuid

import httpx

from penstock import ActionCtx, App, Retry, WorkflowCtx, sync

app = App()
pool = app.workpool("payments")
client = httpx.AsyncClient()
URL = "https://pay.example.com"


@app.internal_action
async def charge(ctx: ActionCtx, card: str) -> None:
    await client.post(URL, json={"card": card})  # expect: PEN017


@app.internal_action
async def charge_in_pool(ctx: ActionCtx, card: str) -> None:
    await client.post(URL, json={"card": card})  # expect: PEN017


@app.internal_action
async def charge_in_gather(ctx: ActionCtx, card: str) -> None:
    await client.post(URL, json={"card": card}, headers={"idempotency-key": str(uuid.uuid4())})  # expect: PEN017


@app.internal_action
def charge_in_thread(ctx: sync.ActionCtx, card: str) -> None:
    httpx.post(URL, json={"card": card})  # expect: PEN017


@app.internal_action
async def charge_by_helper(ctx: ActionCtx, card: str) -> None:
    await pay(card)


async def pay(card: str) -> None:
    await client.post(URL, json={"card": card})  # expect: PEN017


@app.internal_action
async def charge_with_key(ctx: ActionCtx, card: str) -> None:
    await client.post(URL, json={"card": card}, headers={"idempotency-key": ctx.work.key})


@app.internal_action
async def charge_with_reference(ctx: ActionCtx, card: str) -> None:
    await client.post(URL, json={"card": card, "reference": ctx.work.key})


@app.internal_action
async def charge_once(ctx: ActionCtx, card: str) -> None:
    await client.post(URL, json={"card": card})


@app.internal_action
async def charge_once_by_name(ctx: ActionCtx, card: str) -> None:
    await client.post(URL, json={"card": card})


@app.internal_action
async def charge_alone(ctx: ActionCtx, card: str) -> None:
    await client.post(URL, json={"card": card})


@app.internal_action
async def look_up(ctx: ActionCtx, card: str) -> None:
    await client.get(URL, params={"card": card})


@app.workflow
async def paying(ctx: WorkflowCtx, card: str) -> None:
    await ctx.run_action(charge, card)
    patient = ctx.with_options(retry=Retry(max_attempts=3))
    await patient.run_action(charge_by_helper, card)
    await ctx.with_options(pool=pool).run_action(charge_in_pool, card)
    await patient.with_options(timeout=None).run_action(charge_in_gather, card)
    await patient.run_action(charge_with_key, card)
    await ctx.run_action(charge_with_reference, card)
    await ctx.with_options(retry=False).run_action(charge_once, card)
    once = ctx.with_options(retry=False)
    await once.run_action(charge_once_by_name, card)
    await ctx.run_action(look_up, card)


@app.workflow
def paying_in_thread(ctx: sync.WorkflowCtx, card: str) -> None:
    ctx.run_action(charge_in_thread, card)
