"""Outboxes of rows that many change: one writes rows of its own, the other tells the outside world, which is a file."""

from __future__ import annotations

import os
from pathlib import Path

from penstock import ActionCtx, App, Index, MutationCtx, QueryCtx, Table
from penstock.outbox.message import Message

app = App()
SHELVES = ("a", "b", "c")


class Shelf(Table):
    name: str
    count: int = 0

    by_name = Index("name", unique=True)


class Seen(Table):
    change: str


@app.outbox(Shelf, name="note", on=("update",))
async def note(ctx: MutationCtx, shelf: Shelf) -> None:
    await ctx.db.insert(Seen(change=f"{shelf.name}.{shelf.count}"))


@app.outbox(Shelf, name="report", on=("update",))
async def report(_ctx: ActionCtx, message: Message[Shelf]) -> None:
    assert message.row is not None
    _tell(f"{message.row.name}.{message.row.count} {message.id}")


def _tell(what: str) -> None:
    with Path(os.environ["OUTSIDE"]).open("a") as file:
        file.write(f"{what}\n")


@app.mutation
async def stack(ctx: MutationCtx, shelves: list[str]) -> None:
    for name in shelves:
        known = await ctx.db.query(Shelf).with_index(Shelf.by_name, name=name).first()
        if known is None:
            await ctx.db.insert(Shelf(name=name))
        else:
            await ctx.db.patch(Shelf, known.id, count=known.count + 1)


@app.query
async def seen(ctx: QueryCtx) -> list[str]:
    return [row.change for row in await ctx.db.query(Seen).collect()]
