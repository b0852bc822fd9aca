"""A program that other programs' clients watch: two sides whose sum stays the same, lines, and values of all kinds.

It is served as ``penstock --app programs.tally serve``.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from penstock import ActionCtx, App, ApplicationError, Index, Int64, MutationCtx, QueryCtx, Table

WHOLE = 100
app = App()
runs = 0


class Side(Table):
    """Two rows, `left` and `right`: together they hold `WHOLE`."""

    name: str
    amount: int

    by_name = Index("name", unique=True)


class Line(Table):
    text: str

    by_text = Index("text")


async def _amount(ctx: QueryCtx, name: str) -> int:
    row = await ctx.db.query(Side).with_index(Side.by_name, name=name).unique()
    return 0 if row is None else row.amount


@app.query
async def left(ctx: QueryCtx) -> int:
    return await _amount(ctx, "left")


@app.query
async def right(ctx: QueryCtx) -> int:
    return await _amount(ctx, "right")


@app.mutation
async def fill(ctx: MutationCtx) -> None:
    await ctx.db.insert(Side(name="left", amount=WHOLE))
    await ctx.db.insert(Side(name="right", amount=0))


@app.mutation
async def move(ctx: MutationCtx, amount: int) -> None:
    """Move an amount from left to right."""
    for name, change in ("left", -amount), ("right", amount):
        row = await ctx.db.query(Side).with_index(Side.by_name, name=name).unique()
        assert row is not None
        await ctx.db.patch(Side, row.id, amount=row.amount + change)


@app.query
async def lines(ctx: QueryCtx) -> list[str]:
    global runs  # noqa: PLW0603 - how often a process ran this is no part of its data
    runs += 1
    return [row.text for row in await ctx.db.query(Line).with_index(Line.by_text).collect()]


@app.query
async def count(ctx: QueryCtx, text: str) -> int:
    return await ctx.db.query(Line).with_index(Line.by_text, text=text).count()


@app.mutation
async def write(ctx: MutationCtx, text: str) -> int:
    """Write a line; how many there are of its text."""
    await ctx.db.insert(Line(text=text))
    return await count(ctx, text)


@app.action
async def write_from_outside(ctx: ActionCtx, text: str) -> int:
    return await ctx.run_mutation(write, text=text)


@app.action
async def runs_of_lines(_ctx: ActionCtx) -> int:
    return runs


@app.query
async def same(_ctx: QueryCtx, value: Any) -> Any:
    return value


class Kinds(TypedDict):
    large: Int64
    raw: bytes
    real: float
    least: Int64
    bytes: bytes


@app.query
async def kinds(_ctx: QueryCtx, large: Int64, raw: bytes, real: float) -> Kinds:
    """Values that JSON does not have, as they came and as they are."""
    return {"large": large, "raw": raw, "real": real, "least": -(2**63), "bytes": bytes(range(256))}


@app.query
async def guarded(ctx: QueryCtx, most: int) -> int:
    """How many lines there are; an error with data beyond `most`."""
    found = await ctx.db.query(Line).count()
    if found > most:
        raise ApplicationError({"kind": "too many", "found": found})
    return found


@app.mutation
async def refuse(ctx: MutationCtx) -> None:
    await ctx.db.insert(Line(text="refused"))
    raise ApplicationError({"kind": "refused", "raw": b"\0\xff"})


@app.mutation
async def break_down(ctx: MutationCtx) -> None:
    await ctx.db.insert(Line(text="broken"))
    raise RuntimeError("a secret")
