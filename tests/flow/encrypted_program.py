"""A program that encrypts, with a function for each road into the database; a module apart, as processes import it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from cryptography.fernet import Fernet

from penstock import (
    ActionCtx,
    App,
    Encrypted,
    FernetCodec,
    Id,
    MutationCtx,
    Retry,
    Table,
    TaskCtx,
    WorkId,
    WorkResult,
)
from penstock.sync import ActionCtx as SyncActionCtx

KEY = Fernet.generate_key()
CANARY = "Canary-4f1c"
app = App(codec=FernetCodec(KEY))
pool = app.workpool("pool", max_parallelism=5)
kept = list[Any]()
tokens = list[str]()
failing = [True]


class Patient(Table):
    """A row with columns that are encrypted, and one that is not."""

    name: str
    phone: Encrypted[str]
    notes: Encrypted[tuple[dict[str, str], ...]] = ()
    born: Encrypted[str | None] = None


@dataclass
class Letter:
    text: str


@app.internal_action
async def send(ctx: ActionCtx, text: str) -> str:
    kept.append(("send", text))
    return text


@app.internal_action
async def fail(ctx: ActionCtx, text: str) -> str:
    if failing:
        raise ConnectionError("no way")
    return text


@app.internal_mutation
async def write(ctx: MutationCtx, text: str) -> str:
    kept.append(("write", text))
    return text


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    kept.append(("told", getattr(result, "value", result.kind), context))


@app.internal_action(runtime="process")
def crunch(ctx: SyncActionCtx, text: str) -> str:
    return text


@app.internal_action(batch=10, of=Letter)
async def post(ctx: ActionCtx, letters: list[Letter]) -> list[str]:
    return [letter.text for letter in letters]


@app.internal_action
async def outside(ctx: ActionCtx, text: str) -> str | None:
    tokens.append(await ctx.work.complete_later(timeout=timedelta(days=9)))
    return None


@app.internal_mutation
async def tick(ctx: MutationCtx, text: str, planned_at: datetime) -> None:
    kept.append(("tick", text, planned_at is not None))


app.crons.declare("nightly", timedelta(days=1), tick, {"text": CANARY})


@app.mutation
async def schedule(ctx: MutationCtx, text: str) -> str:
    await ctx.scheduler.run_after(timedelta(hours=1), send, text)
    await ctx.scheduler.run_after(timedelta(0), write, text)
    done = pool.with_options(on_complete=told, context=[text])
    await done.enqueue(ctx, write, text)
    await done.enqueue(ctx, send, text)
    await done.enqueue_batch(ctx, send, [{"text": text}] * 120)
    again = done.with_options(key="one", on_duplicate="debounce", run_after=timedelta(minutes=1), retry=Retry(2, 0.1))
    for _ in range(2):
        await again.enqueue(ctx, fail, text)
    status = await done.status(ctx, await done.enqueue(ctx, post, text))
    assert status is not None
    await app.crons.create(ctx, f"own {ctx.random.random()}", timedelta(days=1), tick, {"text": text})
    return text


@app.internal_mutation
async def admit(ctx: MutationCtx, phone: str) -> Id[Patient]:
    return await ctx.db.insert(Patient(name="Ada", phone=phone, notes=({phone: phone},), born=phone))


@app.internal_mutation
async def change(ctx: MutationCtx, row: Id[Patient], phone: str) -> Patient:
    await ctx.db.replace(Patient, row, Patient(name="Ada", phone=phone, notes=({phone: phone},), born=phone))
    return await ctx.db.patch(Patient, row, phone=phone)


@app.internal_mutation
async def remove(ctx: MutationCtx, row: Id[Patient]) -> None:
    await ctx.db.delete(Patient, row)


@app.reactive_task(Patient, watch=["phone"], on=("enter", "change", "delete"))
async def follow(ctx: TaskCtx[Patient]) -> None:
    gone = ctx.change == "delete"
    found: Any = ctx.previous if gone else await ctx.get_document()
    kept.append((ctx.change, found.phone, None if gone else ctx.watched_values["phone"]))
    await pool.with_options(on_complete=told, context=found.phone).enqueue(ctx, send, found.phone)


@app.outbox(Patient, on=("insert", "update", "delete"), on_failure="park", retry=Retry(1))
async def share(ctx: ActionCtx, patient: Patient) -> None:
    kept.append(("share", patient.phone))
    raise ConnectionError("no way")
