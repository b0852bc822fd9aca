"""Runs of mutation tasks that share transactions: their rows and records are read together, and each keeps its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from stage.reactive import settle

from penstock import App, MutationCtx, MutationTaskCtx, QueryCtx, Table
from penstock.store.postgres.session import PostgresSession
from penstock.testing import TestApp, gate

MANY = 30


class Item(Table):
    number: int
    state: str = "new"


class Done(Table):
    number: int
    state: str


app = App(tables=[Item, Done])


@app.reactive_task(Item, watch=("state",))
async def note(ctx: MutationTaskCtx[Item]) -> None:
    """Read the row, and write another one."""
    row = await ctx.get_document()
    await ctx.db.insert(Done(number=row.number, state=row.state))


@app.mutation
async def add(ctx: MutationCtx, first: int, count: int) -> None:
    """Insert rows."""
    for number in range(first, first + count):
        await ctx.db.insert(Item(number=number))


@app.mutation
async def turn(ctx: MutationCtx, number: int, states: list[str]) -> None:
    """Give a row one state after another."""
    for row in await ctx.db.query(Item).collect():
        for state in states if row.number == number else ():
            await ctx.db.patch(Item, row.id, state=state)


@app.query
async def noted(ctx: QueryCtx) -> list[tuple[int, str]]:
    """What the task has written."""
    return sorted((row.number, row.state) for row in await ctx.db.query(Done).collect())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often PostgreSQL was asked for rows of a table within transactions."""
    counts: Counter[str] = Counter()
    fetch = PostgresSession.fetch

    async def counting(session: PostgresSession, statement: Any, args: Any = ()) -> Any:
        for name in ('"item"', "penstock.task_record where"):
            counts[name] += statement.sql.startswith("select") and f"from {name}" in statement.sql
        return await fetch(session, statement, args)

    monkeypatch.setattr(PostgresSession, "fetch", counting)
    return counts


async def test_rows_and_records_of_runs_are_read_together(database_url: str, asked: Counter[str]) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(add, first=MANY, count=1)
        await settle(test)  # from now on it is known that the handler asks for its row
        await test.run_mutation(add, first=0, count=MANY)
        await test.plan()
        asked.clear()
        await test.run_until_idle(plan=False)
        assert asked['"item"'] < MANY / 2
        assert asked["penstock.task_record where"] == 0, "in a serializable transaction it is a reason for a conflict"
        assert await test.run_query(noted) == [(number, "new") for number in range(MANY + 1)]


async def test_a_row_that_changes_and_is_planned_while_its_run_waits_for_others_is_handled_as_it_is_then(
    database_url: str,
) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(add, first=0, count=3)
        await settle(test)
        for number in range(3):
            await test.run_mutation(turn, number=number, states=["x"])
        await test.plan()
        with gate("task.begun", most=1) as held:
            running = asyncio.create_task(test.run_until_idle(plan=False))
            await held.arrived()
            for number in range(3):
                await test.run_mutation(turn, number=number, states=["y"])
            held.open()
            await running
        await settle(test)
        found = await test.run_query(noted)
        assert {(number, state) for number in range(3) for state in ("new", "y")} <= set(found)
        assert len(found) == len(set(found)), "each state once"
