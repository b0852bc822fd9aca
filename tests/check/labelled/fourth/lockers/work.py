"""Jobs of the lockers, in async and in threads."""

import logging
import time
from contextlib import suppress
from datetime import datetime, timedelta

import requests
from penstock import ActionCtx, ApplicationError, Id, Message, MutationCtx, NonRetryableError, QueryCtx, Retry, sync

from lockers import api
from lockers.db import API, Box, Parcel, Scan, app, bulk, calls, texts

log = logging.getLogger(__name__)


class Sent(Exception):
    pass


@app.internal_action
def ping(ctx: sync.ActionCtx, box: str) -> None:
    requests.post(f"{API}/open/{box}", timeout=5)


@app.internal_action
def ring(ctx: sync.ActionCtx, phone: str, parcel: str) -> None:
    requests.post(f"{API}/ring", json={"to": phone}, timeout=5)
    time.sleep(1)


@app.internal_action
def bill(ctx: sync.ActionCtx, parcel: str) -> None:
    requests.post(f"{API}/bill", json={"parcel": parcel}, timeout=5)  # expect: PEN017


@app.internal_action
def bill_once(ctx: sync.ActionCtx, parcel: str) -> None:
    requests.post(f"{API}/bill", json={"parcel": parcel}, headers={"Idempotency-Key": parcel}, timeout=5)


@app.internal_action
def price(ctx: sync.ActionCtx, parcel: str) -> int:
    return requests.get(f"{API}/price/{parcel}", timeout=5).json()["cents"]


@app.internal_mutation
def bill_all(ctx: sync.MutationCtx, parcels: list[str]) -> None:
    for p in parcels:
        calls.enqueue(ctx, bill, p)
        calls.enqueue(ctx, bill_once, p)
        calls.enqueue(ctx, price, p)


@app.internal_mutation
def scan(ctx: sync.MutationCtx, parcel: Id[Parcel], kind: str) -> Id[Scan]:
    return ctx.db.insert(Scan(parcel=parcel, at=ctx.now(), kind=kind))


@app.internal_mutation
def scan_badly(ctx: sync.MutationCtx, parcel: Id[Parcel], kind: str) -> Id[Scan]:
    return ctx.db.insert(Scan(parcel=parcel, at=datetime.now(), kind=kind))  # expect: PEN014


@app.internal_query
def scan_of(ctx: sync.QueryCtx, scan: Id[Scan]) -> Scan | None:
    return ctx.db.get(Scan, scan)


@app.internal_query
def last_scan(ctx: sync.QueryCtx, parcel: Id[Parcel]) -> Scan | None:
    return ctx.db.query(Scan).with_index(Scan.by_parcel_at_kind, parcel=parcel).order("desc").first()


@app.internal_query
def scans_at(ctx: sync.QueryCtx) -> list[Scan]:
    return ctx.db.query(Scan).collect()  # expect: PEN003


@app.internal_query
def lost(ctx: sync.QueryCtx) -> list[Parcel]:
    return ctx.db.query(Parcel).filter(lambda p: p.state == "lost").take(10)  # expect: PEN002


@app.internal_mutation
def found(ctx: sync.MutationCtx, parcel: Id[Parcel]) -> None:
    ctx.db.patch(Parcel, parcel, state="in")


@app.internal_mutation
def found_where(ctx: sync.MutationCtx, parcel: Id[Parcel], where: str) -> None:
    requests.get(f"{API}/where/{where}", timeout=5)  # expect: PEN015
    ctx.db.patch(Parcel, parcel, state="in")


@app.internal_query
async def parcel(ctx: QueryCtx, id: Id[Parcel]) -> Parcel | None:
    return await ctx.db.get(Parcel, id)


@app.internal_mutation
async def store(ctx: MutationCtx, id: Id[Parcel], grams: int) -> None:
    await ctx.db.patch(Parcel, id, grams=grams)


@app.internal_mutation
async def store_all(ctx: MutationCtx, grams: dict[str, int]) -> None:
    for id, one in grams.items():
        await store(ctx, id, one)


@app.internal_action
def weigh(ctx: sync.ActionCtx, id: str) -> None:
    was = ctx.run_query(parcel, id)
    ctx.run_mutation(store, id, was.grams + 1)  # expect: PEN011


@app.internal_action
def weigh_outside(ctx: sync.ActionCtx, id: str) -> None:
    was = ctx.run_query(parcel, id)
    grams = requests.get(f"{API}/scale/{was.code}", timeout=5).json()
    ctx.run_mutation(store, id, grams)


@app.internal_action
def weigh_many(ctx: sync.ActionCtx, ids: list[str]) -> None:
    for id in ids:
        ctx.run_mutation(store, id, 0)  # expect: PEN012


@app.internal_action
def weigh_each(ctx: sync.ActionCtx, ids: list[str]) -> None:
    for id in ids:
        grams = requests.get(f"{API}/scale/{id}", timeout=5).json()
        ctx.run_mutation(store, id, grams)


@app.internal_action
def weigh_at_once(ctx: sync.ActionCtx, ids: list[str]) -> None:
    ctx.run_mutation(store_all, {id: requests.get(f"{API}/scale/{id}", timeout=5).json() for id in ids})


@app.internal_action
def all_parcels(ctx: sync.ActionCtx, ids: list[str]) -> int:
    return len([ctx.run_query(parcel, id) for id in ids])  # expect: PEN012


@app.internal_action
def start(ctx: sync.ActionCtx, id: str) -> None:
    ctx.run_action(price, id)  # expect: PEN010


@app.internal_action
async def start_async(ctx: ActionCtx, id: str) -> int:
    return await ctx.run_action(price, id)


@app.internal_action
def start_plain(ctx: sync.ActionCtx, id: str) -> int:
    return price(ctx, id)


@app.internal_action
async def take_in(ctx: ActionCtx, id: str) -> None:
    await ctx.run_mutation(store, id, 5)
    await texts.enqueue(ctx, ring, "112", id)  # expect: PEN016


@app.internal_action
async def take_out(ctx: ActionCtx, id: str) -> None:
    await texts.enqueue(ctx, ring, "112", id)


@app.internal_action
async def clear(ctx: ActionCtx, id: str) -> None:
    await ctx.run_mutation(api.forget, id)  # expect: PEN008


@app.internal_action
async def clear_inside(ctx: ActionCtx, id: str) -> None:
    await ctx.run_mutation(api.forget_soon, id)


@app.internal_action
async def look(ctx: ActionCtx, id: str) -> int:
    row = ctx.run_query(parcel, id)  # expect: PEN001
    log.info("looked at %s", id)
    return 0 if row is None else 1


@app.outbox(Parcel)
def to_carrier(ctx: sync.ActionCtx, parcel: Parcel) -> None:
    try:
        requests.put(f"{API}/parcels/{parcel.id}", json={"state": parcel.state}, timeout=5)
    except:  # expect: PEN019
        log.exception("carrier")


@app.outbox(Parcel, name="mirror")
def to_mirror(ctx: sync.ActionCtx, parcel: Parcel) -> None:
    with suppress(Exception):  # expect: PEN019
        requests.get(f"{API}/mirror/{parcel.id}", timeout=5)


@app.outbox(Parcel, name="twin")
def to_twin(ctx: sync.ActionCtx, message: Message[Parcel]) -> None:
    with suppress(Sent):
        requests.post(f"{API}/twin", json={"code": message.row.code, "key": message.id}, timeout=5)


@app.outbox(Parcel, name="count")
async def count(ctx: MutationCtx, parcel: Parcel) -> None:
    await ctx.db.insert(Scan(parcel=parcel.id, at=ctx.now(), kind="new"))


@app.outbox(Parcel, name="strict")
def to_strict(ctx: sync.ActionCtx, message: Message[Parcel]) -> None:
    try:
        requests.post(f"{API}/strict", headers={"Idempotency-Key": message.id}, timeout=5)
    except Exception as error:
        log.warning("strict failed")
        raise NonRetryableError("strict") from error


@app.cron(timedelta(hours=1), name="tidy", retry=Retry(max_attempts=3))
def tidy(ctx: sync.ActionCtx) -> None:
    try:
        requests.get(f"{API}/tidy", timeout=5)
    except Exception:
        log.exception("next time")


@app.cron(timedelta(hours=1), name="post", retry=Retry(max_attempts=3))
def post(ctx: sync.ActionCtx) -> None:
    requests.post(f"{API}/hourly", json={"at": ctx.now().isoformat()}, timeout=5)  # expect: PEN017


@app.cron(timedelta(hours=1), name="pre")
def pre(ctx: sync.ActionCtx) -> None:
    requests.post(f"{API}/hourly", json={"at": ctx.now().isoformat()}, timeout=5)


@app.internal_mutation
async def counted(ctx: MutationCtx, box: Id[Box], n: int) -> None:
    if n < 0:
        raise ApplicationError("less than none")
    rows = await ctx.db.query(Parcel).with_index(Parcel.by_due).take(10)
    await bulk.with_options(context={"n": [r.id for r in rows]}).enqueue(ctx, price, box)


@app.internal_mutation
async def counted_all(ctx: MutationCtx, box: Id[Box], owner: str) -> None:
    rows = await ctx.db.query(Parcel).with_index(Parcel.by_owner, owner=owner).collect()
    codes = [r.code for r in rows]
    await bulk.with_options(on_complete=store_all, context=codes).enqueue(ctx, price, box)  # expect: PEN020


@app.internal_mutation
async def counted_some(ctx: MutationCtx, box: Id[Box], owner: str) -> None:
    rows = await ctx.db.query(Parcel).with_index(Parcel.by_owner, owner=owner).collect()
    await bulk.with_options(on_complete=store_all, context=[r.code for r in rows[:20]]).enqueue(ctx, price, box)


@app.internal_mutation
async def counted_one(ctx: MutationCtx, box: Id[Box], owner: str) -> None:
    rows = await ctx.db.query(Parcel).with_index(Parcel.by_owner, owner=owner).collect()  # expect: PEN003
    await bulk.with_options(on_complete=store_all, context={"n": len(rows)}).enqueue(ctx, price, box)
