"""A program whose outboxes fail in each way, as those meet it who look after outboxes from outside."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock import ActionCtx, App, MutationCtx, Retry, Table
from penstock.testing import TestApp

app = App()
failing: set[str] = set()
got: list[tuple[str, str]] = []

ONCE = Retry(max_attempts=1)


class Letter(Table, name="letter_of_deliveries"):
    name: str
    town: str = "Brno"


class Count(Table, name="count_of_deliveries"):
    letters: int


def work(outbox: str, name: str) -> None:
    if name in failing:
        raise ConnectionError(f"no way for {name}")
    got.append((outbox, name))


@app.outbox(Letter, name="post", start="end", retry=ONCE)
async def post(ctx: ActionCtx, letter: Letter) -> None:
    work("post", letter.name)


@app.outbox(Letter, name="files", start="end", on_failure="park", retry=ONCE)
async def files(ctx: ActionCtx, letter: Letter) -> None:
    work("files", letter.name)


@app.outbox(Letter, name="sorted", start="end", on_failure="halt_key", partition_by="town")
async def sort(ctx: ActionCtx, letter: Letter) -> None:
    work("sorted", letter.name)


async def clear(ctx: MutationCtx) -> None:
    async for one in ctx.db.query(Count):
        await ctx.db.delete(Count, one.id)
    if "clear" in failing:
        raise RuntimeError("not now")


@app.outbox(Letter, name="counts", reset=clear)
async def count(ctx: MutationCtx, letter: Letter) -> None:
    await ctx.db.insert(Count(letters=1))


@app.outbox("talks", name="talks", on_failure="park", retry=ONCE)
async def talk(ctx: ActionCtx, said: Any) -> None:
    work("talks", said if isinstance(said, str) else "talk")


@app.internal_mutation
async def put(ctx: MutationCtx, names: list[str]) -> None:
    for name in names:
        await ctx.db.insert(Letter(name=name))


async def hand_over(test: TestApp) -> None:
    """Let all outboxes look at how they stand, and hand over what there is."""
    test.clock.advance(timedelta(seconds=2))
    await test.relay.drain()


async def put_and_fail(test: TestApp) -> None:
    failing.add("bad")
    await hand_over(test)
    await test.run_mutation(put, ["good", "bad", "worse", "bad"])
    await hand_over(test)
