"""What the desk of a clinic does."""

from __future__ import annotations
import asyncio
import datetime as dt
import logging
import random as rnd
import time
from typing import Any, Literal, Optional
import requests as http
import penstock
from penstock import ActionCtx, ApplicationError, Id, Message, MutationCtx, QueryCtx, signed_in, public
from . import model as m
from .model import Patient, Visit, calls, clinic

logger = logging.getLogger(__name__)
session = http.Session()


@clinic.query(access=signed_in)
async def visits(ctx: QueryCtx, patient: Id[Patient]) -> list[Visit]:
    return await m.visits_of(ctx, patient).take(10)


@clinic.query(access=signed_in)
async def rooms(ctx: QueryCtx) -> dict[int, int]:
    found: dict[int, int] = {}
    async for visit in ctx.db.query(Visit):
        found[visit.room] = found.get(visit.room, 0) + 1
    return found


@clinic.query(access=signed_in)
async def in_room(ctx: QueryCtx, room: int) -> list[Visit]:
    everything = await ctx.db.query(Visit).collect()  # expect: PEN003
    return list(filter(lambda v: v.room == room, everything))  # expect: PEN002


@clinic.query(access=signed_in)
async def busy(ctx: QueryCtx, room: int) -> bool:
    return any(v.room == room for v in await ctx.db.query(Visit).collect())  # expect: PEN002, PEN003


@clinic.query(access=signed_in)
async def count_room(ctx: QueryCtx, room: int) -> int:
    return await ctx.db.query(Visit).filter(lambda v: v.room == room and v.made_by != "").count()  # expect: PEN002


@clinic.query(access=signed_in)
async def later(ctx: QueryCtx) -> list[Visit]:
    now = dt.datetime.now(tz=dt.UTC)  # expect: PEN014
    return await ctx.db.query(Visit).with_index(Visit.by_room, room=1, at=penstock.gte(now)).take(5)


@clinic.query
async def mine(ctx: QueryCtx) -> list[Patient]:
    doctor = await m.doctor_of(ctx)
    return await ctx.db.query(Patient).with_index(Patient.by_doctor, doctor=doctor).collect()


@clinic.query
async def of_doctor(ctx: QueryCtx, doctor: str) -> list[Patient]:  # expect: PEN006
    return await ctx.db.query(Patient).with_index(Patient.by_doctor, doctor=doctor).take(50)


@clinic.mutation(access=public)
async def move(ctx: MutationCtx, visit: Id[Visit], room: int, user_id: str) -> None:
    found = await ctx.db.get(Visit, visit)
    if found is None:
        raise ApplicationError("none")
    if found.made_by == user_id:  # expect: PEN007
        await ctx.db.patch(Visit, visit, room=room)
    else:
        raise ApplicationError("not yours")


@clinic.mutation(access=signed_in)
async def annotate(ctx: MutationCtx, visit: Id[Visit], notes: Optional[dict[str, Any]] = None) -> None:  # expect: PEN005
    await ctx.db.patch(Visit, visit, made_by=str(notes))


@clinic.mutation(access=signed_in)
async def plan(ctx: MutationCtx, patient: Id[Patient], at: dt.datetime, kind: Literal["short", "long"]) -> Id[Visit]:
    room = rnd.randint(1, 9)  # expect: PEN014
    visit = await ctx.db.insert(Visit(patient=patient, at=at, room=room))
    asyncio.create_task(remember(ctx, visit))  # expect: PEN001
    return visit


async def remember(ctx: MutationCtx, visit: Id[Visit]) -> None:
    await ctx.scheduler.run_after(dt.timedelta(hours=1), call, visit)


@clinic.mutation(access=signed_in)
async def plan_quick(ctx: MutationCtx, patient: Id[Patient]) -> None:
    visit = await ctx.db.insert(Visit(patient=patient, at=ctx.now()))
    remember(ctx, visit)  # expect: PEN001
    logger.info("planned %s", visit)


@clinic.mutation(access=signed_in)
async def plan_slow(ctx: MutationCtx, patient: Id[Patient]) -> None:
    time.sleep(1)  # expect: PEN015
    if (await ctx.db.get(Patient, patient)) is None:
        return
    session.post("https://desk.example.com", data={"patient": patient})  # expect: PEN015


@clinic.internal_action
async def call(ctx: ActionCtx, visit: Id[Visit]) -> None:
    found = await ctx.run_query(one, visit)
    session.post("https://calls.example.com", json={"room": found.room})  # expect: PEN017, PEN022


@clinic.internal_query
async def one(ctx: QueryCtx, visit: Id[Visit]) -> Visit | None:
    return await ctx.db.get(Visit, visit)


@clinic.internal_mutation
async def call_all(ctx: MutationCtx, visits: list[Id[Visit]]) -> None:
    for visit in visits:
        await calls.enqueue(ctx, call, visit)


@clinic.internal_action
async def sync_all(ctx: ActionCtx, visits: list[Id[Visit]]) -> None:
    found = []
    for visit in visits:
        row = await ctx.run_query(one, visit)  # expect: PEN012
        if row:
            found.append(row)
    logger.info("%s", len(found))


@clinic.internal_action
async def compare(ctx: ActionCtx, first: Id[Visit], second: Id[Visit]) -> bool:
    return (await ctx.run_query(one, first)) == (await ctx.run_query(one, second))  # expect: PEN011


@clinic.internal_action
async def note_and_call(ctx: ActionCtx, visit: Id[Visit]) -> None:
    await ctx.run_mutation(call_all, [visit])
    logger.info("noted")
    await calls.enqueue(ctx, call, visit)  # expect: PEN016


@clinic.outbox(Visit, on_failure="halt_key", partition_by="patient")
async def to_insurance(ctx: ActionCtx, message: Message[Visit]) -> None:
    try:
        session.get("https://insurance.example.com")  # expect: PEN022
    except BaseException:  # expect: PEN019
        pass


@clinic.query(access=signed_in)
async def nested(ctx: QueryCtx, visit: Id[Visit]) -> Visit | None:
    return await ctx.run_query(one, visit)  # expect: PEN009


@clinic.cron("@daily")
async def nightly(ctx: ActionCtx) -> None:
    await ctx.run_action(tidy)  # expect: PEN010


@clinic.internal_action
async def tidy(ctx: ActionCtx) -> None:
    await asyncio.sleep(1)


@clinic.mutation(access=signed_in)
async def drop(ctx: MutationCtx, visit: Id[Visit]) -> None:
    match await ctx.db.get(Visit, visit):
        case Visit(room=0):
            await ctx.db.delete(id=visit)  # expect: PEN013
        case _:
            pass
