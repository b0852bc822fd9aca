"""Reactive tasks, outboxes and the ends of jobs."""

import contextlib
import logging
from collections.abc import Awaitable, Callable

import httpx
import requests

from fleet.driving import route_here, send_map, set_note
from fleet.tables import Parcel, State, Stop, Trip, Van, app, maps, texts
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


class Rejected(Exception):
    pass


@app.reactive_task(Parcel, filter=lambda p: p.state == "done", watch=("state",))
async def tell_receiver(ctx: TaskCtx[Parcel]) -> None:
    parcel = await ctx.get_document()
    await client.post("https://sms.example.com", json={"to": parcel.phone})  # expect: PEN017


@app.reactive_task(Parcel, filter=lambda p: p.weight > 20)
async def tell_depot(ctx: TaskCtx[Parcel]) -> None:
    parcel = await ctx.get_document()
    headers = {"Idempotency-Key": f"{parcel.id}-{parcel.state}"}
    await client.post("https://depot.example.com", json={"weight": parcel.weight}, headers=headers)


@app.reactive_task(Van)
async def read_map(ctx: TaskCtx[Van]) -> None:
    van = await ctx.get_document()
    answer = await client.get(f"https://maps.example.com/{van.plate}")
    log.info("%s", answer.status_code)


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


@app.outbox(Parcel)
async def to_ledger(ctx: ActionCtx, parcel: Parcel) -> None:
    try:
        await client.post("https://ledger.example.com", headers={"Idempotency-Key": parcel.id})
    except:  # expect: PEN019
        log.exception("not sent")


@app.outbox(Parcel, name="partner")
async def to_partner(ctx: ActionCtx, parcel: Parcel) -> None:
    try:
        await client.post("https://partner.example.com", headers={"Idempotency-Key": parcel.id})
    except (httpx.HTTPError, Exception) as error:  # expect: PEN019
        log.warning("not sent: %s", error)
        return


@app.outbox(Parcel, name="insurer")
async def to_insurer(ctx: ActionCtx, parcel: Parcel) -> None:
    try:
        await client.post("https://insurer.example.com", headers={"Idempotency-Key": parcel.id})
    except Exception:
        log.exception("not sent")
        raise


@app.outbox(Parcel, name="museum")
async def to_museum(ctx: ActionCtx, parcel: Parcel) -> None:
    with contextlib.suppress(Rejected):
        await _post("https://museum.example.com", parcel)


@app.outbox(Parcel, name="customs")
async def to_customs(ctx: ActionCtx, parcel: Parcel) -> None:
    with contextlib.suppress(Exception):  # expect: PEN019
        await _post("https://customs.example.com", parcel)


@app.outbox(Stop)
async def stops_out(ctx: ActionCtx, stop: Stop) -> None:
    try:
        await _post_plain("https://stops.example.com", stop.note)
    except Exception as error:
        raise Rejected from error


@app.outbox(Stop, name="retried", parallelism=4)
async def stops_retried(ctx: ActionCtx, stop: Stop) -> None:
    for attempt in range(3):
        try:
            await client.put("https://stops.example.com", headers={"Idempotency-Key": stop.id})
            break
        except httpx.HTTPError:
            if attempt == 2:
                raise


@app.outbox(Stop, name="base", batch=50)
async def stops_batch(ctx: ActionCtx, stops: list[Stop]) -> None:
    for stop in stops:
        try:
            await client.put("https://stops.example.com", headers={"Idempotency-Key": stop.id})
        except BaseException:  # expect: PEN019
            continue


async def _post(url: str, parcel: Parcel) -> None:
    await client.post(url, json={}, headers={"Idempotency-Key": parcel.id})


async def _post_plain(url: str, text: str) -> None:
    await client.post(url, content=text)  # expect: PEN017


@app.outbox(Trip)
async def trips_out(ctx: MutationCtx, trip: Trip) -> None:
    try:
        await ctx.db.patch(Van, trip.van, driver=None)
    except Exception:  # expect: PEN019
        pass


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
async def map_vans(ctx: MutationCtx, depot: str) -> None:
    plates = [van.plate async for van in ctx.db.query(Van).with_index(Van.by_depot, depot=depot)]
    await maps.with_options(on_complete=ended, context=plates).enqueue(ctx, route_here, plates)  # expect: PEN020


@app.internal_mutation
async def map_ten(ctx: MutationCtx, depot: str) -> None:
    query = ctx.db.query(Van).with_index(Van.by_depot, depot=depot)
    vans = await query.take(10)
    await maps.with_options(on_complete=ended, context=[van.plate for van in vans]).enqueue(ctx, send_map, depot)


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


@app.internal_mutation
async def map_all(ctx: MutationCtx) -> None:
    pages = await ctx.db.query(Van).paginate(cursor=None, num_items=20)
    plates = [van.plate for van in pages.page]
    await maps.with_options(on_complete=ended, context=plates).enqueue(ctx, route_here, plates)


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


STEPS: dict[str, Callable[..., Awaitable[None]]] = {"note": set_note, "map": send_map}


@app.internal_action
async def follow(ctx: ActionCtx, stop: Id[Stop]) -> None:
    row = await ctx.run_query(stop_of, stop)
    if row is not None:
        await ctx.run_mutation(set_note, stop, "followed")  # expect: PEN011


@app.internal_action
async def follow_outside(ctx: ActionCtx, stop: Id[Stop]) -> None:
    row = await ctx.run_query(stop_of, stop)
    answer = await client.get(f"https://maps.example.com/{row}")
    await ctx.run_mutation(set_note, stop, answer.text)


@app.internal_action
async def follow_slowly(ctx: ActionCtx, stops: list[Id[Stop]]) -> None:
    rows = {stop: await ctx.run_query(stop_of, stop) for stop in stops}  # expect: PEN012
    log.info("%s", rows)


@app.internal_action
async def follow_together(ctx: ActionCtx, stop: Id[Stop], other: Id[Stop]) -> list[Stop | None]:
    return [await ctx.run_query(stop_of, stop), await ctx.run_query(stop_of, other)]  # expect: PEN011


@app.internal_action
async def follow_all(ctx: ActionCtx, stops: list[Id[Stop]]) -> None:
    async with ctx.with_lock("follow"):
        for number, stop in enumerate(stops):
            text = f"{number}"
            await ctx.run_mutation(set_note, stop, note=text)  # expect: PEN012


@app.internal_action
async def follow_parts(ctx: ActionCtx, stops: list[Id[Stop]]) -> None:
    rest = stops
    while rest:
        part, rest = rest[:100], rest[100:]
        await ctx.run_mutation(set_note, part[0], "part")


@app.internal_action
async def note_and_map(ctx: ActionCtx, stop: Id[Stop]) -> None:
    done = await ctx.run_mutation(set_note, stop, "")
    log.info("noted %s", done)
    await maps.with_options(priority=2).enqueue(ctx, send_map, stop)  # expect: PEN016


@app.internal_action
async def map_and_note(ctx: ActionCtx, stop: Id[Stop]) -> None:
    await maps.enqueue(ctx, send_map, stop)
    answer = await client.get("https://maps.example.com")
    await ctx.run_mutation(set_note, stop, answer.text)


@app.internal_action
async def map_after_read(ctx: ActionCtx, stop: Id[Stop]) -> None:
    row = await ctx.run_query(stop_of, stop)
    if row is not None:
        await maps.enqueue(ctx, send_map, row.note)
