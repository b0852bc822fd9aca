"""Batch functions: to those who call them they take the arguments of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from pydantic import BaseModel

from penstock import ActionCtx, App, JobId, MutationCtx
from penstock.sync import ActionCtx as SyncActionCtx

app = App()
pool = app.workpool("pool")


@dataclass
class Message:
    to: str
    text: str = ""


class Letter(BaseModel):
    to: str
    pages: int


@app.internal_action(batch=10, of=Message)
async def send(ctx: ActionCtx, calls: list[Message]) -> list[str | Exception]:
    return [call.to for call in calls]


@app.action(batch=10, of=Letter)
def post(ctx: SyncActionCtx, calls: list[Letter]) -> list[int | Exception]:
    return [call.pages for call in calls]


@app.internal_action(batch=10, of=Message)  # refused: arg-type
async def other(ctx: ActionCtx, calls: list[Letter]) -> list[str]:
    return []


@app.mutation
async def enqueue(ctx: MutationCtx) -> None:
    assert_type(await pool.enqueue(ctx, send, to="ada", text="Hello"), JobId[str])
    await pool.enqueue(ctx, post, to="ada", pages=1)
    await pool.enqueue(ctx, send, to=1)  # refused: call-overload
    await pool.enqueue(ctx, send, [Message("ada")])  # refused: call-overload
    many = [send.args(to=name) for name in ("ada", "eve")]
    assert_type(await pool.enqueue_batch(ctx, send, many), list[JobId[str]])
    await pool.enqueue_batch(ctx, send, [send.args(name="ada")])  # refused: call-arg


@app.action
async def call(ctx: ActionCtx) -> None:
    assert_type(await ctx.run_action(send, to="ada"), str)
    assert_type(await send(ctx, to="ada"), str)
    assert_type(await ctx.run_action(post, to="ada", pages=2), int)
