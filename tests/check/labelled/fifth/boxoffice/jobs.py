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
    MutationCtx,
    Retry,
    WorkId,
    WorkResult,
    daily,
)

from boxoffice.core import PAYMENTS_URL, office
from boxoffice.schema import Order, Refund

client = httpx.AsyncClient(base_url=PAYMENTS_URL)


@office.internal_action
async def charge(ctx: ActionCtx, order: str) -> str:
    answer = await client.post("/charges", json={"order": order})  # expect: PEN017
    return str(answer.json()["id"])


@office.internal_mutation
async def charged(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: dict[str, Any]) -> None:
    state = "failed" if isinstance(result, Failed) else "paid"
    await ctx.db.patch(Order, context["order"], state=state)
    await asyncio.sleep(0.1)  # expect: PEN015


@office.cron(timedelta(hours=6), name="rates", retry=Retry(max_attempts=5))
async def push_rates(ctx: ActionCtx) -> None:
    await client.post("/rates/refresh")  # expect: PEN017


office.crons.declare("settle", daily("settle", hour=2), charge_all, {"orders": []})


@office.outbox(Refund)
async def to_bank(ctx: ActionCtx, refund: Refund) -> None:
    with suppress(Exception):  # expect: PEN019
        await client.post("/refunds", json={"cents": refund.cents}, headers={"Idempotency-Key": refund.id})
