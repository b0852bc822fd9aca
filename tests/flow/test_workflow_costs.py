"""What workflows cost: statements for each step, and how often a run is replayed."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from penstock import ActionCtx, App, MutationCtx, Table
from penstock.calls.workflows.context import WorkflowCtx
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW = timedelta(0)
app = OPENED = App()


class Done(Table):
    number: int


@app.internal_action
async def act(ctx: ActionCtx, number: int) -> int:
    return number


@app.internal_mutation
async def do(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Done(number=number))


@app.workflow
async def steps(ctx: WorkflowCtx, how: str, many: int) -> int:
    chosen = ctx.with_options(retry=False) if how == "once" else ctx
    if how == "together":
        return sum(await asyncio.gather(*(ctx.run_action(act, number) for number in range(many))))
    for number in range(many):
        await (ctx.run_mutation(do, number) if how == "mutations" else chosen.run_action(act, number))
    return many


async def statements(backend: TestApp, how: str, many: int) -> Counter[str]:
    """The statements on the tables of workflows, and the transactions, that a run of so many steps takes."""
    store, found = backend.engine.store.workflows, Counter[str]()
    run_each, execute, writing = store._run_each, store._fetch_each, store._writing

    def count(name: str, call: Any) -> Any:
        def counted(*args: Any, **values: Any) -> Any:
            found[name] += 1
            return call(*args, **values)

        return counted

    job = await backend.scheduler.run_after(NOW, steps, how, many)
    with (
        patch.object(store, "_run_each", count("statement", run_each)),
        patch.object(store, "_fetch_each", count("within", execute)),
        patch.object(store, "_writing", count("transaction", writing)),
    ):
        await backend.run_until_idle()
    status = await backend.job(job)
    assert status is not None
    assert status.state.value == "success", status
    return found


@pytest.mark.parametrize(
    ("how", "each", "most"), [("alone", 1, 1), ("once", 2, 1), ("mutations", 0, 0), ("together", 0, 4)]
)
async def test_a_step_takes_one_statement_or_two_or_that_of_its_mutation(
    database_url: str, how: str, each: int, most: int
) -> None:
    """Actions that end together share one (WF83, WF88, WF159)."""
    async with TestApp(app, database_url) as backend:
        found = await statements(backend, how, 20)
        assert found["transaction"] == 0, found
        assert 20 * each <= found["statement"] <= 20 * each + most, found
        assert found["within"] == (20 if how == "mutations" else 0), found
