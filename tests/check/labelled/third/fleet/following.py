"""Reactive tasks, outboxes and the ends of jobs."""

import contextlib
import logging

import httpx
import requests

from fleet.driving import send_map, set_note
from fleet.tables import Parcel, Stop, Trip, Van, app, maps, texts
from penstock import (
    ActionCtx,
    Id,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Retry,
    TaskBatchCtx,
    TaskCtx,
    WorkId,
    WorkResult,
)

log = logging.getLogger("fleet")
client = httpx.AsyncClient()


@app.reactive_task(Parcel, filter=lambda p: p.state == "done", watch=("state",))
async def tell_receiver(ctx: TaskCtx[Parcel]) -> None:
    parcel = await ctx.get_document()
    await client.post("https://sms.example.com", json={"to": parcel.phone})  # expect: PEN017


@app.reactive_task(Stop, batch=20)
async def tell_stops(ctx: TaskBatchCtx[Stop]) -> None:
    requests.post("https://stops.example.com", json={}, timeout=3)  # expect: PEN017, PEN022


@app.reactive_task(Trip)
async def count_trip(ctx: MutationTaskCtx[Trip]) -> None:
    trip = await ctx.get_document()
    await ctx.db.patch(Van, trip.van, driver=None)
    ctx.db.patch(Van, trip.van, driver="")  # expect: PEN001


@app.reactive_task(Trip, name="mail trips")
async def mail_trip(ctx: MutationTaskCtx[Trip]) -> None:
    trip = await ctx.get_document()
    requests.get(f"https://trips.example.com/{trip.km}", timeout=3)  # expect: PEN015


@app.reactive_task(Trip, name="forgotten")
async def forgotten(ctx: TaskCtx[Trip]) -> None:
    ctx.get_document()  # expect: PEN001


@app.outbox(Parcel, name="customs")
async def to_customs(ctx: ActionCtx, parcel: Parcel) -> None:
    with contextlib.suppress(Exception):  # expect: PEN019
        await _post("https://customs.example.com", parcel)


async def _post(url: str, parcel: Parcel) -> None:
    await client.post(url, json={}, headers={"Idempotency-Key": parcel.id})


@app.internal_action
async def quiet(ctx: ActionCtx, url: str) -> None:
    try:
        await client.get(url)
    except Exception:
        log.exception("%s", url)


@app.internal_mutation
async def ended(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: list[str]) -> None:
    log.info("%s", len(context))


@app.internal_mutation
async def map_one(ctx: MutationCtx, depot: str) -> None:
    vans = await ctx.db.query(Van).with_index(Van.by_depot, depot=depot).collect()
    first = vans[0].plate
    await maps.with_options(on_complete=ended, context=[first]).enqueue(ctx, send_map, depot)


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


@app.internal_query
async def stop_of(ctx: QueryCtx, stop: Id[Stop]) -> Stop | None:
    return await ctx.db.get(Stop, stop)


@app.internal_action
async def follow(ctx: ActionCtx, stop: Id[Stop]) -> None:
    row = await ctx.run_query(stop_of, stop)
    if row is not None:
        await ctx.run_mutation(set_note, stop, "followed")  # expect: PEN011


@app.internal_action
async def follow_slowly(ctx: ActionCtx, stops: list[Id[Stop]]) -> None:
    rows = {stop: await ctx.run_query(stop_of, stop) for stop in stops}  # expect: PEN012
    log.info("%s", rows)


@app.internal_action
async def follow_all(ctx: ActionCtx, stops: list[Id[Stop]]) -> None:
    async with ctx.with_lock("follow"):
        for number, stop in enumerate(stops):
            text = f"{number}"
            await ctx.run_mutation(set_note, stop, note=text)  # expect: PEN012


@app.internal_action
async def note_and_map(ctx: ActionCtx, stop: Id[Stop]) -> None:
    done = await ctx.run_mutation(set_note, stop, "")
    log.info("noted %s", done)
    await maps.with_options(priority=2).enqueue(ctx, send_map, stop)  # expect: PEN016
