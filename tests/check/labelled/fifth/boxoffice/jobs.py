"""What workers do for the box office: mails, charges, tickets, and other systems that are told."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
from penstock import (
    ActionCtx,
    Failed,
    Id,
    MutationCtx,
    Retry,
    WorkId,
    WorkResult,
    daily,
)

from boxoffice.core import PAYMENTS_URL, office, payments
from boxoffice.schema import Order, Refund

client = httpx.AsyncClient(base_url=PAYMENTS_URL)
patiently = payments.with_options(retry=Retry.linear(timedelta(minutes=1), max_attempts=20))


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


@office.internal_mutation
async def printed(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, state="printed")


@office.internal_action
async def mark_printed_at_once(ctx: ActionCtx, orders: list[Id[Order]]) -> None:
    async with asyncio.TaskGroup() as group:
        for order in orders:
            group.create_task(ctx.run_mutation(printed, order))  # expect: PEN012


@office.cron(timedelta(hours=6), name="rates", retry=Retry(max_attempts=5))
async def push_rates(ctx: ActionCtx) -> None:
    await client.post("/rates/refresh")  # expect: PEN017


office.crons.declare("settle", daily("settle", hour=2), charge_all, {"orders": []})


@office.outbox(Refund)
async def to_bank(ctx: ActionCtx, refund: Refund) -> None:
    with suppress(Exception):  # expect: PEN019
        await client.post("/refunds", json={"cents": refund.cents}, headers={"Idempotency-Key": refund.id})
