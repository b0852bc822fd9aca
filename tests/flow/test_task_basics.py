"""Reactive tasks: rows that are written are run, each as often as it should be."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest
from stage.databases import Databases, as_user, name_of
from stage.stories import Stage, known_record, record_of, settle, task_row
from stage.waits import events, until

from penstock import DeclarationError, JobState, MutationCtx, MutationTaskCtx, Retry, Table, TaskCtx
from penstock.jobs.job import JobStatus
from penstock.store.nouns.tasks import RecordRow
from penstock.testing import TestApp, TestClock, raising

pytestmark = pytest.mark.both_stores

SOON = Retry.fixed(timedelta(seconds=10), max_attempts=3)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Order(Table):
    status: str = "new"
    amount: int = 0
    note: str = ""


class Tally(Table):
    order: str


async def test_rt5_rt6_what_fails_is_tried_again_until_its_attempts_are_used_up(database_url: str) -> None:
    stage = Stage()
    stage.task(Order, retry=SOON)
    async with stage.open(database_url) as test:
        with raising("task.begun", ConnectionError("away"), times=2):
            (order,) = await stage.insert(test, Order())
            assert await settle(test) == 3
        (ran,) = stage.taken()
        job = await record_job(test, order)
        assert (ran.attempt, job.state, job.attempt, job.error) == (3, JobState.SUCCESS, 3, None)
        with raising("task.begun", ConnectionError("away"), times=9):
            (order,) = await stage.insert(test, Order())
            assert await settle(test) == 3
        job = await record_job(test, order)
        assert (job.state, job.attempt, job.error) == (JobState.FAILED, 3, "ConnectionError: away")
        assert "raise error" in (job.traceback or "")
        assert stage.taken() == []


async def test_rt11_a_failed_run_is_told_with_its_task_how_long_it_took_and_why(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Starts and ends are told as well, of a task in a pool that tells of its work."""
    stage = Stage()

    async def take_long(ctx: TaskCtx[Any]) -> None:
        test.clock.advance(timedelta(seconds=3))
        raise ConnectionError("away")

    async def take_long_too(ctx: TaskCtx[Any]) -> None:
        test.clock.advance(timedelta(seconds=3))

    stage.task(Order, filter=lambda o: o.amount == 0, retry=SOON, handler=take_long)
    pool = stage.app.workpool("told", max_parallelism=1, log_level="info")
    stage.task(Order, "good", filter=lambda o: o.amount == 1, retry=None, pool=pool, handler=take_long_too)
    caplog.set_level(logging.INFO, "penstock")
    async with stage.open(database_url) as test:
        (order,) = await stage.insert(test, Order())
        await settle(test)
        job = await record_job(test, order)
        assert events(caplog, "job.failed") == [
            {
                "job": job.id, "function": job.function, "task": "react", "key": f'["{order}"]', "attempt": attempt,
                "seconds": 3.0, "error": "ConnectionError: away",
            }
            for attempt in (1, 2, 3)
        ]  # fmt: skip
        told = [one for one in caplog.records if getattr(one, "event", "") == "job.failed"]
        assert [(one.levelname, one.exc_info is None) for one in told] == [
            ("WARNING", True), ("WARNING", True), ("ERROR", False),
        ]  # fmt: skip
        (order,) = await stage.insert(test, Order(amount=1))
        await settle(test)
        job = await record_job(test, order, "good")
        (began,), (ended,) = events(caplog, "workpool.started"), events(caplog, "workpool.completed")
        assert (began["workId"], began["fnName"], began["attempt"]) == (job.id, job.function, 1)
        assert (ended["workId"], ended["fnName"], ended["status"]) == (job.id, job.function, "success")
        assert ended["completedAt"] - began["startedAt"] == 3000
        assert job.function.endswith(":good")


# ----- each exactly once


async def test_st1_five_hundred_rows_run_exactly_once_each(database_url: str) -> None:
    stage = Stage(Tally)

    @stage.app.reactive_task(Order)
    async def count(ctx: MutationTaskCtx[Order]) -> None:
        await ctx.db.insert(Tally(order=ctx.doc_id))

    async with stage.open(database_url) as test:
        orders = await stage.insert(test, *(Order(amount=number) for number in range(500)))
        assert await settle(test) == 500

        async def tallies(ctx: MutationCtx) -> list[str]:
            return [row.order for row in await ctx.db.query(Tally).collect()]

        assert Counter(await stage.do(test, tallies)) == Counter(orders)
        assert (await test.job_counts())["success"] == 500


async def test_rep2_rep3_a_row_that_changes_while_it_runs_runs_again_after_its_debounce(database_url: str) -> None:
    stage, amounts = Stage(), list[int]()

    async def change_it(ctx: TaskCtx[Any]) -> None:
        amounts.append(ctx.watched_values["amount"])
        if len(amounts) == 2:
            await stage.patch(test, Order, ctx.doc_id, amount=2)
            await test.plan()

    stage.task(Order, watch=("amount",), debounce=MINUTE, handler=change_it, retry=SOON)
    async with stage.open(database_url) as test:
        (order,) = await stage.insert(test, Order(amount=1))
        await test.plan()
        test.clock.advance(MINUTE)
        with raising("task.begun", ConnectionError("away")):
            await test.run_until_idle(advance=False)
        amounts.append(0)
        test.clock.advance(timedelta(seconds=15))  # the wait after the attempt that failed
        started = test.clock.now()
        await test.run_until_idle(advance=False)
        record, job = await record_and_job(test, order)
        assert record.live
        assert record.due_at == started + MINUTE, "not when it would be tried again"
        assert (job.state, job.attempt, job.run_at) == (JobState.PENDING, 0, started + MINUTE)
        await settle(test)
        assert amounts == [0, 1, 2]
        assert [ran.attempt for ran in stage.taken()] == [2, 1], "its attempts are counted anew"


async def test_rt1_rt4_ops1_ops2_a_record_says_when_its_row_is_due(database_url: str) -> None:
    stage = Stage()
    stage.task(Order, watch=("amount",), debounce=MINUTE, retry=SOON)
    async with stage.open(database_url) as test:
        (order,) = await stage.insert(test, Order(amount=1))
        await test.plan()
        record, job = await record_and_job(test, order)
        due = test.clock.now() + MINUTE
        assert (record.generation, record.live, record.change, record.gone) == (1, True, "enter", None)
        assert (record.due_at, job.run_at, job.state) == (due, due, JobState.PENDING)
        test.clock.advance(timedelta(seconds=30))
        await stage.patch(test, Order, order, note="not watched")
        await test.plan()
        record, _ = await record_and_job(test, order)
        assert (record.generation, record.due_at) == (1, due)
        await stage.patch(test, Order, order, amount=2)
        await test.plan()
        due = test.clock.now() + MINUTE
        record, job = await record_and_job(test, order)
        assert (record.generation, record.due_at, job.run_at) == (2, due, due)
        with raising("task.begun", ConnectionError("away")):
            test.clock.advance(MINUTE)
            await test.run_until_idle(advance=False)
        record, job = await record_and_job(test, order)
        assert record.due_at == due < job.run_at, "a further attempt does not change when it was due"
        await settle(test)
        (ran,) = stage.taken()
        assert (ran.doc_id, ran.change, ran.values) == (order, "enter", {"amount": 2}), "one run with the last"
        assert (await record_job(test, order)).state is JobState.SUCCESS


async def test_db1_db2_db3_db6_a_row_is_left_alone_for_its_debounce(database_url: str) -> None:
    stage, step = Stage(), timedelta(milliseconds=1)
    short, long = timedelta(milliseconds=500), timedelta(seconds=1)
    stage.task(Order, "none")
    for name, debounce in (("zero", timedelta(0)), ("short", short), ("long", long)):
        stage.task(Order, name, debounce=debounce)
    async with stage.open(database_url) as test:
        await settle(test)
        await stage.insert(test, Order())
        for passing, expected in (
            (timedelta(0), ["none", "zero"]),
            (short - step, []),
            (step, ["short"]),
            (long - short - step, []),
            (step, ["long"]),
        ):
            test.clock.advance(passing)
            await test.run_until_idle(advance=False)
            assert sorted(one.task for one in stage.taken()) == expected


# ----- what is planned


async def test_pln1_only_what_a_task_reads_is_captured(database_url: str) -> None:
    stage = Stage()
    stage.task(Order, filter=lambda o: o.status == "paid", watch=("amount",))
    async with stage.open(database_url) as test:
        (order,) = await stage.insert(test, Order(status="paid", amount=1, note="a secret"))
        position = await test.engine.store.changes.take("tasks", await take_lease(test))
        assert position is not None
        (change,) = (await test.engine.store.changes.read(position, 10)).changes
        assert (change.key, change.before, change.values("after")) == (f'["{order}"]', None, {"amount": 1})


async def test_su1_a_mutation_wakes_the_planner_and_that_the_worker(database_url: str) -> None:
    stage = Stage()
    stage.task(Order)
    async with stage.open(database_url) as test:
        await settle(test)
        clock = test.clock
    # The clock stands still, so nothing is found by looking from time to time.
    async with stage.app.open(database_url, clock=clock, services=("planner", "worker")) as backend:

        async def has_run() -> bool:
            return stage.changes() == ["enter"]

        for _ in range(4):
            await stage.insert(backend, Order())
            await until(has_run)


# ----- retries


async def test_rp5_f15_a_change_leaves_attempts_alone_if_that_is_asked_for(database_url: str) -> None:
    stage = Stage()
    stage.task(Order, "kept", retry=SOON, reset_retries_on_data_change=False)
    stage.task(Order, "reset", retry=SOON)
    stage.error = ConnectionError("away")
    async with stage.open(database_url) as test:
        (order,) = await stage.insert(test, Order())
        for amount in (1, 2, 3, 4):
            await test.run_until_idle(advance=False, raise_errors=False)
            await stage.patch(test, Order, order, amount=amount)
            await test.plan()
            test.clock.advance(timedelta(seconds=15))
        kept, reset = [await record_job(test, order, name) for name in ("kept", "reset")]
        assert reset.attempt == 0
        assert [one.number for one in reset.attempts] == [1] * 4
        assert [one.number for one in kept.attempts] == [1, 2, 3, 1], "after its last attempt a change begins anew"


async def test_rp5_a_change_leaves_alone_since_when_a_row_fails_if_that_is_asked_for(database_url: str) -> None:
    stage, policy = Stage(), Retry.fixed(timedelta(seconds=10), max_duration=MINUTE)
    stage.task(Order, "kept", retry=policy, reset_retries_on_data_change=False)
    stage.task(Order, "reset", retry=policy)
    stage.error = ConnectionError("away")
    async with stage.open(database_url) as test:
        begun = test.clock.now()
        (order,) = await stage.insert(test, Order())
        await test.run_until_idle(advance=False, raise_errors=False)
        for amount in range(1, 6):
            job = await record_job(test, order, "kept")
            assert job.state is JobState.PENDING, "it fails for a minute at most"
            await stage.patch(test, Order, order, amount=amount)
            await test.plan()
            test.clock.advance(timedelta(seconds=15))
            await test.run_until_idle(advance=False, raise_errors=False)
        kept, reset = [await record_job(test, order, name) for name in ("kept", "reset")]
        assert (kept.state, reset.state) == (JobState.FAILED, JobState.PENDING)
        assert [one.failing_since for one in kept.attempts] == [begun] * 6
        assert [one.failing_since for one in reset.attempts] == [one.ended_at for one in reset.attempts]


async def fail(ctx: MutationTaskCtx[Any]) -> None:
    raise ConnectionError("no way")


async def test_rp3_rp6_rp8_rd1_a_row_is_tried_as_its_policy_says_and_five_times_without_one(database_url: str) -> None:
    policies: dict[str, tuple[dict[str, Any], list[float]]] = {  # and seconds between attempts
        "for_an_hour": ({"retry": Retry.fixed(10 * MINUTE, max_duration=HOUR, jitter=0)}, [600] * 7),
        "series": ({"retry": Retry.series([1, 10, MINUTE], max_attempts=4, jitter=0)}, [1, 10, 60]),
        "cron": ({"retry": Retry.cron("*/10 * * * *", max_attempts=4)}, [304, 600, 600]),
        "none": ({"retry": None}, []),
        "usual": ({}, [10, 20, 40, 80]),
    }
    stage = Stage(Order)
    stage.error = ConnectionError("no way")
    for name, (options, _) in policies.items():
        stage.task(Order, name, **options)
    stage.app.reactive_task(Order, name="mutation")(fail)
    policies["mutation"] = policies["usual"]
    async with stage.open(database_url, clock=TestClock(datetime(2030, 1, 1, 12, 34, 56, tzinfo=UTC), seed=7)) as test:
        (row,) = await stage.insert(test, Order())
        await settle(test)
        for name, (_, expected) in policies.items():
            jitter = 0.5 if name in {"usual", "mutation"} else 0
            job = await record_job(test, row, name)
            assert (job.state, job.error) == (JobState.FAILED, "ConnectionError: no way"), name
            assert job.attempt == len(expected) + 1, name
            assert [one.what for one in job.attempts] == [*["raised"] * len(expected), "exhausted"], name
            waits = [(then.started_at - before.ended_at).total_seconds() for before, then in pairwise(job.attempts)]
            assert waits == [pytest.approx(wait, rel=jitter) for wait in expected], name


# ----- starting and stopping


async def test_se2_a_task_declared_while_the_app_runs_is_known_to_the_next_start(database_url: str) -> None:
    stage = Stage(Order)
    async with stage.open(database_url) as test:
        stage.task(Order)
        await stage.insert(test, Order())
        assert await settle(test) == 0
    async with stage.open(database_url) as test:
        assert await settle(test) == 1


def test_se3_two_tasks_of_one_name_are_refused() -> None:
    stage = Stage()
    stage.task(Order)
    with pytest.raises(DeclarationError, match="two reactive tasks called 'react'"):
        stage.task(Tally)


async def test_se4_starting_again_changes_nothing(database_url: str) -> None:
    stage = Stage()
    stage.task(Order)
    async with stage.open(database_url) as test:
        await stage.insert(test, Order())
        await settle(test)
        first = await task_row(test)
    for _ in range(2):
        async with stage.open(database_url) as test, stage.open(database_url, clock=test.clock) as other:
            assert await settle(test) == 0
            assert await settle(other) == 0
            again = await task_row(test)
            assert (again.id, again.interests, again.reconciling) == (first.id, first.interests, None)
    assert len(stage.taken()) == 1


async def test_se6_se7_stopping_is_harmless_at_any_time(database_url: str) -> None:
    stage = Stage()
    stage.task(Order)
    async with stage.open(database_url) as test:
        planner = test.make_service("planner")
        await planner.stop()
        await planner.stop()
        worker = test.make_service("worker")
        await worker.stop()
        await worker.stop()
        await stage.insert(test, Order())
        assert await settle(test) == 1
        await test.planner.finish()
        await test.planner.finish()


# ----- what it needs


async def test_f27_it_needs_no_rights_beyond_its_own_tables(databases: Databases) -> None:
    """Its user may make a schema for penstock, and tables; whoever writes these tables need not even do that."""
    with databases.one() as url:
        name = name_of(url)
        owner, writer = f"owner_of_{name}", f"writer_of_{name}"
        admin = await asyncpg.connect(url)
        await admin.execute(
            f"create role {owner} login password 'secret' nosuperuser nocreatedb nocreaterole; create role {writer};"
            f"grant create on database {name} to {owner}; grant create, usage on schema public to {owner}"
        )
        try:
            await tell_of_rights(as_user(url, owner), admin, writer)
        finally:
            for role in (owner, writer):
                await admin.execute(f"drop owned by {role}; drop role {role}")
            await admin.close()


async def tell_of_rights(url: str, admin: asyncpg.Connection[Any], writer: str) -> None:
    stage = Stage()
    stage.task(Order, watch=("amount",))
    async with stage.open(url) as test:
        (order,) = await stage.insert(test, Order())
        assert await settle(test) == 1
        await admin.execute(
            f'grant usage on schema public to {writer}; grant select, update on "order" to {writer};'
            f'set role {writer}; update "order" set amount = 7; reset role'
        )
        assert await settle(test) == 1
        assert [(ran.change, ran.values) for ran in stage.taken()] == [
            ("enter", {"amount": 0}),
            ("change", {"amount": 7}),
        ]
        await stage.delete(test, Order, order)
        await settle(test)
        await settle(test, timedelta(days=2))
        assert await record_of(test, order) is None, "it is forgotten, too"


async def record_job(test: TestApp, doc_id: Any, name: str = "react") -> Any:
    """The job of a row."""
    return (await record_and_job(test, doc_id, name))[1]


async def record_and_job(test: TestApp, doc_id: Any, name: str = "react") -> tuple[RecordRow, JobStatus]:
    """What is kept of a row."""
    record = await known_record(test, doc_id, name)
    job = await test.job_calls.find(record.job)
    assert job is not None
    return record, job


async def take_lease(test: TestApp) -> int:
    return await test.engine.store.leases.take("reader", timedelta(minutes=1), test.clock.now())
