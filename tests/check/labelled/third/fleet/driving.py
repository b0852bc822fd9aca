"""What drivers and the depot do."""

from __future__ import annotations

import asyncio
import datetime
import random as chance
import socket
import subprocess
from datetime import timedelta as span
from time import sleep, time
from typing import Any

import aiohttp

from fleet.guards import driver
from fleet.tables import Parcel, State, Stop, Trip, Van, app, maps, texts
from penstock import ActionCtx, Id, MutationCtx, QueryCtx, signed_in, sync


class Parcels:
    """Reads and writes the parcels of a van."""

    def __init__(self, ctx: MutationCtx, van: Id[Van]) -> None:
        self.db = ctx.db
        self.scheduler = ctx.scheduler
        self.van = van

    async def loaded(self) -> list[Parcel]:
        query = self.db.query(Parcel).with_index(Parcel.by_van, van=self.van, state=State.LOADED)
        return await query.collect()

    async def heavy(self) -> list[Parcel]:
        return await self.db.query(Parcel).filter(lambda p: (p.van == self.van) & (p.weight > 20)).collect()  # expect: PEN002, PEN003

    async def unload(self, parcel: Id[Parcel]) -> None:
        await self.db.patch(parcel, state=State.DONE)  # expect: PEN013

    async def later(self, parcel: Id[Parcel]) -> None:
        self.scheduler.run_after(span(hours=1), unload_one, parcel)  # expect: PEN001

    async def soon(self, parcel: Id[Parcel]) -> None:
        await self.scheduler.run_after(span(0), unload_one, parcel)

    async def unload_all(self) -> int:
        parcels = await self.loaded()
        for parcel in parcels:
            self.unload(parcel.id)  # expect: PEN001
        return len(parcels)


@app.internal_mutation
async def unload_one(ctx: MutationCtx, parcel: Id[Parcel]) -> None:
    await ctx.db.patch(Parcel, parcel, state=State.DONE)


@app.mutation(access=driver)
async def unload(ctx: MutationCtx, van: Id[Van], parcel: Id[Parcel]) -> None:
    parcels = Parcels(ctx, van)
    await parcels.unload(parcel)
    await parcels.soon(parcel)


@app.query(access=driver)
async def latest_stop(ctx: QueryCtx, van: Id[Van]) -> Stop | None:
    return await ctx.db.query(Stop).with_index(Stop.by_van, van=van).order("desc").first()


@app.query(access=driver)
async def trips(ctx: QueryCtx, van: Id[Van], day: datetime.date) -> list[Trip]:
    found = []
    async for trip in ctx.db.query(Trip):  # expect: PEN002
        if trip.van == van and trip.day == day:
            found.append(trip)
    return found


@app.query(access=driver)
async def trips_skipped(ctx: QueryCtx, van: Id[Van]) -> int:
    km = 0
    for trip in await ctx.db.query(Trip).collect():  # expect: PEN002, PEN003
        if trip.van != van:
            continue
        km += trip.km
    return km


@app.query(access=signed_in)
async def vans_of(ctx: QueryCtx, depot: str) -> list[Van]:
    def query_of(name: str):
        return ctx.db.query(Van).with_index(Van.by_depot, depot=name)

    return await query_of(depot).collect()


@app.query(access=signed_in)
async def newest_of(ctx: QueryCtx, driver_name: str) -> Van | None:
    return await ctx.db.query(Van).with_index(Van.by_driver, driver=driver_name).order("desc").first()


@app.query(access=signed_in)
async def all_vans(ctx: QueryCtx) -> list[Van]:
    query = ctx.db.query(Van).order("desc")
    return await query.collect()  # expect: PEN003


@app.query(access=signed_in)
def blocking(ctx: sync.QueryCtx, van: Id[Van]) -> list[Stop]:
    ctx.db.get(Van, van)
    return ctx.db.query(Stop).with_index(Stop.by_van_and_time, van=van).take(5)


@app.mutation(access=signed_in)
def blocking_write(ctx: sync.MutationCtx, stop: Id[Stop]) -> None:
    sleep(1)  # expect: PEN015
    ctx.db.patch(Stop, stop, note=str(time()))  # expect: PEN014


@app.mutation(access=signed_in)
def blocking_untabled(ctx: sync.MutationCtx, stop: Id[Stop]) -> None:
    ctx.db.delete(stop)  # expect: PEN013


@app.mutation(access=signed_in)
async def shuffle(ctx: MutationCtx, parcels: list[Id[Parcel]]) -> list[Id[Parcel]]:
    chance.shuffle(parcels)  # expect: PEN014
    mine = chance.Random(7)
    mine.shuffle(parcels)
    ctx.random.shuffle(parcels)
    return parcels


@app.mutation(access=signed_in)
async def ping(ctx: MutationCtx, host: str) -> None:
    socket.create_connection((host, 80)).close()  # expect: PEN015
    subprocess.run(["ping", host], check=True)  # expect: PEN015


@app.query(access=signed_in)
async def weather(ctx: QueryCtx) -> str:
    async with aiohttp.ClientSession() as session, session.get("https://weather.example.com") as answer:  # expect: PEN015
        return await answer.text()


@app.internal_mutation
async def set_note(ctx: MutationCtx, stop: Id[Stop], note: str) -> None:
    async def write() -> None:
        await ctx.db.patch(Stop, stop, note=note)

    write()  # expect: PEN001


@app.internal_mutation
async def set_notes(ctx: MutationCtx, stops: list[Id[Stop]]) -> None:
    tasks = [asyncio.create_task(ctx.db.patch(Stop, stop, note="")) for stop in stops]
    await asyncio.wait(tasks)


@app.internal_mutation
async def insert_stops(ctx: MutationCtx, van: Id[Van]) -> None:
    if van:
        ctx.db.insert_many([Stop(van=van, at=ctx.now())])  # expect: PEN001
    else:
        await ctx.db.insert_many([])


@app.internal_mutation
async def stop_job(ctx: MutationCtx, job: str) -> None:
    await ctx.scheduler.cancel(job)
    ctx.scheduler.cancel(job)  # expect: PEN001
    ctx.rate_limit("calls", key=job)  # expect: PEN001


@app.internal_action(runtime="process")
def route(ctx: sync.ActionCtx, stops: list[str]) -> list[str]:
    return sorted(stops)


@app.internal_action
def route_in_thread(ctx: sync.ActionCtx, stops: list[str]) -> list[str]:
    return sorted(stops)


@app.internal_action
async def route_here(ctx: ActionCtx, stops: list[str]) -> list[str]:
    return sorted(stops)


@app.internal_action
async def plan(ctx: ActionCtx, stops: list[str]) -> list[str]:
    first = await ctx.run_action(route, stops)
    second = await ctx.run_action(route_in_thread, first)
    return await ctx.run_action(route_here, second)  # expect: PEN010


@app.internal_action
def plan_in_thread(ctx: sync.ActionCtx, stops: list[str]) -> list[str]:
    again = ctx.run_action(route_in_thread, stops)  # expect: PEN010
    return ctx.run_action(route, again)


@app.action
async def plan_open(ctx: ActionCtx, options: dict[str, object]) -> None:  # expect: PEN005, PEN006
    await maps.enqueue(ctx, route_here, list(options))


@app.action(access=signed_in)
async def plan_optional(ctx: ActionCtx, options: dict[str, Any] | None = None) -> None:  # expect: PEN005
    await maps.enqueue(ctx, route_here, list(options or {}))


@app.mutation(access=signed_in)
async def text(ctx: MutationCtx, phone: str) -> None:
    await texts.enqueue(ctx, send_text, phone)
    await maps.enqueue(ctx, send_map, phone)


@app.internal_action
async def send_text(ctx: ActionCtx, phone: str) -> None:
    async with aiohttp.ClientSession() as session:
        await session.post("https://sms.example.com", json={"to": phone})  # expect: PEN017


@app.internal_action
async def send_map(ctx: ActionCtx, phone: str) -> None:
    async with aiohttp.ClientSession() as session:
        await session.post("https://maps.example.com", json={"to": phone})
