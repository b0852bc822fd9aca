"""Reactive tasks, outboxes and the ends of jobs."""

import contextlib
import logging

import httpx

from fleet.driving import send_map
from fleet.tables import Parcel, Van, app, maps, texts
from penstock import (
    ActionCtx,
    Id,
    MutationCtx,
    QueryCtx,
    Retry,
    WorkId,
    WorkResult,
)

log = logging.getLogger("fleet")
client = httpx.AsyncClient()


@app.outbox(Parcel, name="customs")
async def to_customs(ctx: ActionCtx, parcel: Parcel) -> None:
    with contextlib.suppress(Exception):  # expect: PEN019
        await _post("https://customs.example.com", parcel)


async def _post(url: str, parcel: Parcel) -> None:
    await client.post(url, json={}, headers={"Idempotency-Key": parcel.id})


@app.internal_mutation
async def ended(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: list[str]) -> None:
    log.info("%s", len(context))


async def plates_of(ctx: QueryCtx, depot: str) -> list[str]:
    vans = await ctx.db.query(Van).with_index(Van.by_depot, depot=depot).collect()
    return [van.plate for van in vans]


@app.internal_mutation
async def map_helper(ctx: MutationCtx, depot: str) -> None:
    options = {"on_complete": ended}
    pool = maps.with_options(**options, context={"plates": await plates_of(ctx, depot)})  # expect: PEN020
    await pool.enqueue(ctx, send_map, depot)


careful = maps.with_options(retry=Retry(max_attempts=4))


@app.internal_action
async def charge(ctx: ActionCtx, parcel: Id[Parcel]) -> None:
    await client.post("https://bank.example.com/charges", json={"parcel": parcel})  # expect: PEN017


@app.internal_action
async def charge_once(ctx: ActionCtx, parcel: Id[Parcel]) -> None:
    await client.request("POST", "https://bank.example.com/charges", headers={"idempotency-key": parcel})


@app.internal_mutation
async def charge_parcel(ctx: MutationCtx, parcel: Id[Parcel]) -> None:
    await careful.enqueue(ctx, charge, parcel)
    await careful.enqueue(ctx, charge_once, parcel)
    await texts.with_options(retry=False).enqueue(ctx, charge_unretried, parcel)


@app.internal_action
async def charge_unretried(ctx: ActionCtx, parcel: Id[Parcel]) -> None:
    await client.post("https://bank.example.com/charges", json={"parcel": parcel})
