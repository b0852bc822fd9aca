"""What cannot be captured is refused before anything is written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain, outbox_row, run_sql, sql
from stage.reactive import Stage

from penstock import DeclarationError, MutationCtx, MutationTaskCtx, Table

MAKE = "create table noted (number integer primary key, note text not null)"
ALL = (
    MAKE,
    "create view viewed as select number, note from noted",
    "create table bare (number integer not null, note text not null)",
)
WRITTEN = ("outbox", "change_reader", "interest", "task", "cron", "function", "pool", "topic")


class Noted(Table, source="noted", key=("number",), managed=False):
    number: int
    note: str


class Viewed(Table, source="viewed", key=("number",), managed=False):
    number: int
    note: str


class Bare(Table, source="bare", key=("number",), managed=False):
    number: int
    note: str


async def written(url: str) -> dict[str, list[Any]]:
    """All that is written of what programs declare."""
    async with Stage().open(url) as test:
        schema = "penstock_" if url.startswith("sqlite") else "penstock."
        return {name: await sql(test, f"select * from {schema}{name} order by 1") for name in WRITTEN}


def busy() -> OutboxStage:
    """An app that declares something of everything, of which nothing is wrong."""
    stage = OutboxStage(Noted)
    stage.outbox(Noted, "first")
    stage.outbox("topic", "second")
    stage.app.workpool("pool", max_parallelism=3)

    @stage.app.cron(timedelta(hours=1))
    async def tick(ctx: MutationCtx) -> None:
        """Nothing."""

    @stage.app.reactive_task(Noted)
    async def note(ctx: MutationTaskCtx[Noted]) -> None:
        """Nothing."""

    return stage


async def test_what_cannot_be_captured_is_refused_and_nothing_is_left(database_url: str) -> None:
    await run_sql(database_url, *ALL)
    before = await written(database_url)
    views, tasks, bare = busy(), busy(), busy()
    views.outbox(Viewed)
    bare.outbox(Bare)

    @tasks.app.reactive_task(Viewed)
    async def view(ctx: MutationTaskCtx[Viewed]) -> None:
        """Nothing."""

    for stage, said in ((views, "viewed is a view"), (tasks, "viewed is a view"), (bare, "not told apart")):
        with pytest.raises(DeclarationError, match=said):
            async with stage.open(database_url):
                pass
        assert await written(database_url) == before


async def test_a_change_that_is_refused_leaves_what_was_declared(database_url: str) -> None:
    await run_sql(database_url, MAKE)
    first, second = OutboxStage(Noted), OutboxStage(Noted)
    first.outbox(Noted)
    second.outbox(Noted, on=("insert", "update"))
    async with first.open(database_url) as test:
        await drain(test)
        row = await outbox_row(test)
    before = await written(database_url)
    await run_sql(database_url, "drop table noted", "create view noted as select 1 as number, 'a' as note")
    with pytest.raises(DeclarationError, match="noted is a view"):
        async with second.open(database_url):
            pass
    await run_sql(database_url, "drop view noted", MAKE)
    assert await written(database_url) == before
    async with first.open(database_url, clock=test.clock) as test:
        assert await outbox_row(test) == row
