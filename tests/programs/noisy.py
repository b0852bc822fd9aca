"""A program whose job, reactive task and outbox fail with texts of several lines that would steer a terminal."""

from __future__ import annotations

from penstock import ActionCtx, App, MutationCtx, Retry, Table, TaskCtx
from penstock.testing import TestApp

ERROR = "no way: \x1b[31mred\x9b31m\x07\x7f\u202e\r\nsecond line\r\nthird line"
SHOWN = "no way: ␛[31mred\\x9b31m␇␡\\u202e"
ONCE = Retry(max_attempts=1)

app = App()
pool = app.workpool("pool_with_a_long_name")


class Note(Table, name="note_of_noisy"):
    text: str


@app.internal_action
async def send(ctx: ActionCtx, to: str) -> None:
    raise ConnectionError(ERROR)


@app.reactive_task(Note, name="read", retry=ONCE)
async def read(ctx: TaskCtx[Note]) -> None:
    raise ConnectionError(ERROR)


@app.outbox(Note, name="notes", start="end", retry=ONCE)
async def notes(ctx: ActionCtx, note: Note) -> None:
    raise ConnectionError(ERROR)


@app.internal_action
async def say(ctx: ActionCtx) -> str:
    return ERROR


@app.internal_mutation
async def put(ctx: MutationCtx) -> None:
    await ctx.db.insert(Note(text=ERROR))
    await pool.enqueue(ctx, send, ERROR)


async def put_and_fail(test: TestApp) -> None:
    await test.run_mutation(put)
    await test.run_until_idle(raise_errors=False)
    await test.relay.drain()
