"""A program whose outboxes write, or tell the outside world, and can be held in the middle of a message.

The race acts on it, in the test's own process and on a machine that is cut off.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from penstock import ActionCtx, App, Index, MutationCtx, QueryCtx, Table
from penstock.clock import SystemClock
from penstock.outbox.message import Message

HELD = 5
app = App()


class Parcel(Table):
    number: int


class Label(Table):
    """One row for each time that a parcel was handled."""

    number: int


class Total(Table):
    """How many parcels were handled: a row that each message locks."""

    name: str
    count: int

    by_name = Index("name", unique=True)


@app.outbox(Parcel, name="label")
async def label(ctx: MutationCtx, parcel: Parcel) -> None:
    await ctx.db.insert(Label(number=parcel.number))
    known = await ctx.db.query(Total).with_index(Total.by_name, name="all").first()
    if known is None:
        await ctx.db.insert(Total(name="all", count=1))
    else:
        await ctx.db.patch(Total, known.id, count=known.count + 1)
        await ctx.db.get(Total, known.id)  # so that it is written, and locked, by now
    await _hold("label", parcel.number)


@app.outbox(Parcel, name="dispatch")
async def dispatch(_ctx: ActionCtx, message: Message[Parcel]) -> None:
    assert message.row is not None
    _tell(f"{message.row.number} {message.id}")
    await _hold("dispatch", message.row.number)


async def _hold(name: str, number: int) -> None:
    """Wait in the middle of a message until the test lets go."""
    if name != os.environ["SEVERED_HOLDS"] or number != HELD:
        return
    _say("held")
    while not _may_go_on():
        try:
            await SystemClock().sleep(0.01)
        except asyncio.CancelledError:
            if not os.environ["SEVERED_STUBBORN"]:
                _say("interrupted")
                raise
    _say("let go")


def _tell(what: str) -> None:
    with (Path(os.environ["SEVERED_FOLDER"]) / "outside").open("a") as file:
        file.write(f"{what}\n")


def _may_go_on() -> bool:
    return (Path(os.environ["SEVERED_FOLDER"]) / "go").exists()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


@app.mutation
async def put(ctx: MutationCtx, first: int, last: int) -> None:
    for number in range(first, last):
        await ctx.db.insert(Parcel(number=number))


@app.query
async def labels(ctx: QueryCtx) -> tuple[list[int], int]:
    total = await ctx.db.query(Total).with_index(Total.by_name, name="all").first()
    return [row.number for row in await ctx.db.query(Label).collect()], 0 if total is None else total.count
