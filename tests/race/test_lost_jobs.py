"""Jobs that are lost with their worker: who takes them over tells of each, as of those that raise."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from race.test_workers import make_worker
from stage.reactive import Stage
from stage.told import events
from stage.waits import until

from penstock import ActionCtx, App, MutationCtx, Retry, Table, TaskCtx, WorkId, WorkResult
from penstock.testing import TestApp

app = App()
mail = app.workpool("mail", max_parallelism=20)
begun: list[str] = []
MORE_THAN_A_LEASE = timedelta(seconds=61)
WHY = "WorkerLost: the worker that ran this job died or lost its lease"


class Order(Table, name="order_of_lost"):
    amount: int = 0


@app.internal_action
async def send(ctx: ActionCtx, to: str) -> str:
    begun.append(to)
    if ctx.work.attempt == 1 and to != "at once":
        await asyncio.Event().wait()
    return f"sent {to}"


@app.internal_mutation
async def tell(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    begun.append(f"told of {result.kind}")
    if begun.count("told of success") == 1:
        raise ValueError("not now")
    if begun.count("told of success") == 2:
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def fresh() -> None:
    begun.clear()


async def begin_and_die(test: TestApp, count: int) -> None:
    """Let a worker begin until so much has begun, and kill it."""
    worker = make_worker(test)

    async def enough() -> bool:
        await worker.tick()
        return len(begun) == count

    await until(enough)
    await worker.kill()


async def test_each_that_is_lost_with_its_worker_is_told(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with TestApp(app, database_url) as test:
        works = [
            await mail.enqueue(test, send, "once"),
            await mail.with_options(on_complete=tell).enqueue(test, send, "told of"),
            await mail.with_options(retry=Retry(3, 0.01, 1)).enqueue(test, send, "again"),
        ]
        await begin_and_die(test, 3)
        assert events(caplog, "job.failed") == []
        test.clock.advance(MORE_THAN_A_LEASE)
        await test.run_until_idle(raise_errors=False)
        told = {one.pop("job"): one for one in events(caplog, "job.failed")}
        lost = {"function": send.name, "attempt": 1, "seconds": 61.0, "error": WHY}
        assert told == dict.fromkeys(works, lost)
        assert len(events(caplog, "job.failed")) == 3, "each once"
        assert sorted(begun) == ["again", "again", "once", "told of", "told of failed"]


async def test_an_on_complete_that_is_lost_is_told_as_one_that_raised(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with TestApp(app, database_url) as test:
        options = mail.with_options(on_complete=tell, on_complete_retry=Retry.fixed(0, max_attempts=9))
        work = await options.enqueue(test, send, "at once")
        await begin_and_die(test, 3)
        test.clock.advance(MORE_THAN_A_LEASE)
        await test.run_until_idle(raise_errors=False)
        assert events(caplog, "job.failed") == [], "it succeeded"
        told = [(one["job"], one["function"], str(one["error"])) for one in events(caplog, "job.on_complete_failed")]
        assert told == [(work, tell.name, "ValueError: not now"), (work, tell.name, WHY)]
        assert begun == ["at once", *["told of success"] * 3]


async def test_a_run_of_a_task_that_is_lost_is_told_with_its_row(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(Order)

    async def hang(ctx: TaskCtx[Any]) -> None:
        if ctx.attempt == 1:
            begun.append("run")
            await asyncio.Event().wait()

    stage.task(Order, handler=hang, retry=Retry.fixed(10, max_attempts=3))
    async with stage.open(database_url) as one, stage.open(database_url, clock=one.clock) as two:
        (order,) = await stage.insert(one, Order())
        await one.plan()
        await begin_and_die(one, 1)
        one.clock.advance(MORE_THAN_A_LEASE)
        await two.run_until_idle()
        (told,) = events(caplog, "job.failed")
        expected = {"task": "react", "key": f'["{order}"]', "attempt": 1, "seconds": 61.0, "error": WHY}
        assert {name: told[name] for name in expected} == expected
        assert len(stage.taken()) == 1
