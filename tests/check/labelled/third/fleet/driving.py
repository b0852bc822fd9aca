"""What drivers and the depot do."""

from __future__ import annotations

import datetime
from datetime import timedelta as span

import aiohttp

from fleet.guards import driver
from fleet.tables import Parcel, State, Stop, Trip, Van, app, maps, texts
from penstock import ActionCtx, Id, MutationCtx, QueryCtx, signed_in


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
async def newest_of(ctx: QueryCtx, driver_name: str) -> Van | None:
    return await ctx.db.query(Van).with_index(Van.by_driver, driver=driver_name).order("desc").first()


@app.internal_mutation
async def set_note(ctx: MutationCtx, stop: Id[Stop], note: str) -> None:
    async def write() -> None:
        await ctx.db.patch(Stop, stop, note=note)

    write()  # expect: PEN001


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
