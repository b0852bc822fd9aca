"""Work as type checkers know it: results of the annotated type, and options and arguments that they see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from penstock import ActionCtx, App, ArgumentsInvalid, Id, MutationCtx, QueryCtx, Success, Table
from penstock.testing import TestApp

app = App()
pool = app.workpool("pool")
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Note(Table):
    text: str


@dataclass
class Told:
    at: datetime
    times: set[int]


@app.internal_mutation
async def keep(ctx: MutationCtx, text: str) -> list[Id[Note]]:
    return [await ctx.db.insert(Note(text=text))]


@app.query
async def text_of(ctx: QueryCtx, note: Id[Note]) -> Note | None:
    return await ctx.db.get(Note, note)


@app.internal_action
async def tell(ctx: ActionCtx, at: datetime) -> Told:
    return Told(at, {1, 2})


@app.internal_action
async def ask(ctx: ActionCtx) -> str | None:
    tokens.append(await ctx.work.complete_later())
    return None


tokens: list[str] = []


async def test_a_result_has_the_type_that_its_function_names(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        kept, told = await pool.enqueue(backend, keep, "hello"), await pool.enqueue(backend, tell, NOON)
        asked = await pool.enqueue(backend, ask)
        await backend.run_until_idle()
        await pool.complete(backend, tokens.pop(), "tomorrow")
        made = await pool.result(backend, kept)
        assert isinstance(made, Success)
        assert type(made.value[0]) is Id
        shown = await pool.enqueue(backend, text_of, made.value[0])
        await backend.run_until_idle()
        row = await pool.result(backend, shown)
        assert row == Success(await backend.run_query(text_of, made.value[0]))
        assert isinstance(row, Success)
        assert type(row.value) is Note
        assert await pool.result(backend, told) == Success(Told(NOON, {1, 2}))
        assert await pool.result(backend, asked, timedelta(1)) == Success("tomorrow"), "as an outside system has said"


async def test_arguments_of_a_batch_are_written_like_a_call(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        works = await pool.enqueue_batch(backend, keep, [keep.args("a"), keep.args(text="b")])
        await backend.run_until_idle()
        ends = [await pool.result(backend, work) for work in works]
        notes = [end.value[0] for end in ends if isinstance(end, Success)]
        rows = [await backend.run_query(text_of, note) for note in notes]
        assert [row.text for row in rows if row] == ["a", "b"]
        with pytest.raises(ArgumentsInvalid, match="given twice"):
            keep.args("a", text="b")  # type: ignore[misc]  # wrong on purpose
