"""Workflows that ask the clock, chance and their process."""

import datetime as dt
import os
import platform
import random
import secrets
import time
import uuid
from datetime import UTC, date, datetime, timedelta
from random import choice
from uuid import uuid4

from penstock import ActionCtx, App, MutationCtx, WorkflowCtx

app = App()
STARTED = datetime.now(UTC)
REGION = os.environ.get("REGION", "eu")
rules = random.Random(7)


@app.internal_mutation
async def keep(ctx: MutationCtx, what: str) -> None: ...


@app.internal_action
async def look(ctx: ActionCtx) -> float:
    return time.time() + random.random() + os.getpid()


# ----- the clock


@app.workflow
async def wrong_clocks(ctx: WorkflowCtx, name: str) -> list[str]:
    now = datetime.now(UTC)  # expect: PEN023
    stamp = time.time()  # expect: PEN023
    today = date.today()  # expect: PEN023
    late = datetime.utcnow()  # expect: PEN023
    begun = time.monotonic()  # expect: PEN023
    await ctx.run_mutation(keep, str(now))
    took = time.monotonic() - begun  # expect: PEN023
    exact = time.perf_counter()  # expect: PEN023
    other = dt.datetime.now(dt.UTC)  # expect: PEN023
    nanos = time.time_ns()  # expect: PEN023
    text = time.strftime("%H")  # expect: PEN023
    return [str(one) for one in (stamp, today, late, took, exact, other, nanos, text)]


def is_night(hour: int | None = None) -> bool:
    return (hour or datetime.now().hour) > 22  # expect: PEN023


@app.workflow
async def wrong_in_a_helper(ctx: WorkflowCtx) -> None:
    if is_night():
        await ctx.sleep(timedelta(hours=8))


@app.workflow
async def right_clocks(ctx: WorkflowCtx, at: datetime) -> list[str]:
    now = ctx.now()
    stamp = ctx.now().timestamp()
    today = ctx.now().date()
    begun = ctx.now()
    await ctx.sleep_until(at + timedelta(hours=1))
    took = ctx.now() - begun
    parsed = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
    made = datetime(2030, 1, 1, tzinfo=UTC)
    text = time.strftime("%H", now.timetuple())
    old = STARTED
    looked = await ctx.run_action(look)
    until = datetime.combine(today, dt.time(9), tzinfo=UTC)
    return [str(one) for one in (stamp, took, parsed, made, text, old, looked, until)]


# ----- chance


@app.workflow
async def wrong_chances(ctx: WorkflowCtx, names: list[str]) -> list[str]:
    key = uuid4()  # expect: PEN023
    other = uuid.uuid4().hex  # expect: PEN023
    old = uuid.uuid1()  # expect: PEN023
    winner = choice(names)  # expect: PEN023
    if random.random() < 0.5:  # expect: PEN023
        await ctx.run_mutation(keep, "half")
    random.shuffle(names)  # expect: PEN023
    token = secrets.token_hex()  # expect: PEN023
    dice = random.randint(1, 6)  # expect: PEN023
    noise = os.urandom(4)  # expect: PEN023
    bucket = hash(winner) % 10  # expect: PEN023
    label = f"{id(names)}"  # expect: PEN023
    return [str(one) for one in (key, other, old, token, dice, noise, bucket, label)]


@app.workflow
async def right_chances(ctx: WorkflowCtx, names: list[str]) -> list[str]:
    key = ctx.uuid()
    other = ctx.uuid().hex
    winner = ctx.random.choice(names)
    if ctx.random.random() < 0.5:
        await ctx.run_mutation(keep, "half")
    ctx.random.shuffle(names)
    token = await ctx.run_action(look)
    dice = ctx.random.randint(1, 6)
    fixed = uuid.UUID("12345678123456781234567812345678")
    named = uuid.uuid5(uuid.NAMESPACE_URL, winner)
    same = secrets.compare_digest(winner, "ada")
    own = random.Random(3).random()
    return [str(one) for one in (key, other, token, dice, fixed, named, same, own)]


# ----- the process


@app.workflow
async def wrong_processes(ctx: WorkflowCtx) -> str:
    if os.environ.get("FAST"):  # expect: PEN023
        return "fast"
    region = os.getenv("REGION")  # expect: PEN023
    here = os.getcwd()  # expect: PEN023
    number = os.getpid()  # expect: PEN023
    host = platform.node()  # expect: PEN023
    said = input("Go on? ")  # expect: PEN023
    return f"{region}{here}{number}{host}{said}"


@app.workflow
async def right_processes(ctx: WorkflowCtx, region: str) -> str:
    def hash(text: str) -> int:
        return len(text)

    id = hash(region)
    return f"{REGION}{os.path.join('a', region)}{id}"
