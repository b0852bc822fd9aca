"""A small program of outboxes: some write rows of their own, some tell the outside world, which is a file.

The races act on it, in the test's own process and as `python -m stage.outgoing` in others.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

from penstock import ActionCtx, App, Conflict, Index, MutationCtx, QueryCtx, Table
from penstock.app import ServiceName
from penstock.outbox.message import Message

app = App()
outside: Path | None = None
SHELVES = ("a", "b", "c")


class Parcel(Table):
    """What is written."""

    writer: int
    number: int


class Label(Table):
    """One row for each time that a parcel was handled."""

    parcel: str

    by_parcel = Index("parcel")


@app.outbox(Parcel, name="label")
async def label(ctx: MutationCtx, parcel: Parcel) -> None:
    """Write down which parcel this is."""
    await ctx.db.insert(Label(parcel=f"{parcel.writer}.{parcel.number}"))


@app.outbox(Parcel, name="dispatch")
async def dispatch(_ctx: ActionCtx, message: Message[Parcel]) -> None:
    """Tell the outside world."""
    assert outside is not None and message.row is not None  # noqa: PT018 - both are there
    with outside.open("a") as file:
        file.write(f"{message.row.writer}.{message.row.number} {message.id}\n")


class Shelf(Table):
    """A row that all who write change."""

    name: str
    count: int = 0

    by_name = Index("name", unique=True)


class Seen(Table):
    """One row for each change of a shelf."""

    shelf: str
    count: int


@app.outbox(Shelf, name="note", on=("update",))
async def note(ctx: MutationCtx, shelf: Shelf) -> None:
    """Write down how many are on a shelf."""
    await ctx.db.insert(Seen(shelf=shelf.name, count=shelf.count))


@app.outbox(Shelf, name="report", on=("update",))
async def report(_ctx: ActionCtx, message: Message[Shelf]) -> None:
    """Tell the outside world."""
    assert outside is not None and message.row is not None  # noqa: PT018 - both are there
    with outside.open("a") as file:
        file.write(f"{message.row.name}.{message.row.count} {message.id}\n")


@app.mutation
async def stack(ctx: MutationCtx, shelves: list[str]) -> None:
    """Put one more on some shelves."""
    for name in shelves:
        known = await ctx.db.query(Shelf).with_index(Shelf.by_name, name=name).first()
        if known is None:
            await ctx.db.insert(Shelf(name=name))
        else:
            await ctx.db.patch(Shelf, known.id, count=known.count + 1)


@app.query
async def seen(ctx: QueryCtx) -> list[str]:
    return [f"{row.shelf}.{row.count}" for row in await ctx.db.query(Seen).collect()]


@app.mutation
async def put(ctx: MutationCtx, writer: int, numbers: list[int]) -> None:
    for number in numbers:
        await ctx.db.insert(Parcel(writer=writer, number=number))


@app.query
async def labels(ctx: QueryCtx) -> list[str]:
    return [row.parcel for row in await ctx.db.query(Label).with_index(Label.by_parcel).collect()]


async def main(role: str, database: str, writer: str = "0", count: str = "0", **settings: str) -> None:
    """Hand over until the process is stopped, or write so many parcels, some at a time, or put so many on shelves."""
    global outside  # noqa: PLW0603 - functions of an app are global, and so is what they write to
    outside = Path(settings.pop("outside"))
    services: tuple[ServiceName, ...] = ("relay",) if role == "relay" else ()
    async with app.open(services=services, config=app.config(database=database, **settings)) as backend:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if role == "relay":
            stopped = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
            await stopped.wait()
        if role == "stack":
            for number in range(int(count)):
                shelves = [SHELVES[number % len(SHELVES)], SHELVES[int(writer) % 2]]
                while True:
                    with suppress(Conflict):  # all want one of two shelves: each tries again, as its error says
                        await backend.run_mutation(stack, shelves=shelves)
                        break
            return
        for first in range(0, int(count), 3):
            await backend.run_mutation(put, writer=int(writer), numbers=list(range(first, first + 3)))


if __name__ == "__main__":
    from stage import outgoing  # so that its functions have the names by which others know them

    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    options = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--"))
    asyncio.run(outgoing.main(*given, **options))
