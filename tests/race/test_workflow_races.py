"""Races of workflows, staged: what comes while a mutation of a run commits, or while the run waits in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from stage.faults import MACHINE, Effect, effects_in, run_with_crashes
from stage.waits import until

from penstock import ActionCtx, App, JobId, MutationCtx, WorkId, WorkResult
from penstock.calls.workflows.context import WorkflowCtx
from penstock.errors import Conflict, DatabaseUnavailable, EventTimeout
from penstock.jobs.job import JobStatus
from penstock.observe import points
from penstock.operations import jobs
from penstock.testing import TestApp, TestClock, gate, raising

pytestmark = pytest.mark.both_stores

NOW, SECOND, DAY = timedelta(0), timedelta(seconds=1), timedelta(days=1)
app = OPENED = App()
do, effects = effects_in(app)
arrived = app.event("arrived", str)
ends = app.workpool("ends")
begun: list[str] = []


@app.internal_action
async def nothing(ctx: ActionCtx) -> None:
    pass


@app.internal_mutation
async def tell(ctx: MutationCtx, run: JobId, what: str) -> None:
    await arrived.send(ctx, run, what)


@app.workflow
async def pay_in_time(ctx: WorkflowCtx) -> list[str]:
    found = []
    try:
        async with asyncio.timeout(0.5):
            found.append(await ctx.run_mutation(do, "paid"))
            ctx.compensate(do, "paid back")
            found.append(await ctx.run_mutation(do, "noted"))
    except TimeoutError:
        found.append(await ctx.run_mutation(do, "late"))
    await ctx.sleep(DAY)  # and all of it is replayed
    return found


@app.workflow
async def pay_many(ctx: WorkflowCtx) -> None:
    for number in range(5):
        await ctx.run_mutation(do, f"paid {number}")
        ctx.compensate(do, f"paid back {number}")
    await ctx.sleep(DAY)


@app.workflow
async def pay_or_fail(ctx: WorkflowCtx) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(pay(ctx))
        group.create_task(fail_soon(ctx))


async def pay(ctx: WorkflowCtx) -> None:
    await ctx.run_mutation(do, "paid")
    ctx.compensate(do, "paid back")


async def fail_soon(ctx: WorkflowCtx) -> None:
    await ctx.sleep(timedelta(seconds=0.5))
    raise ValueError("as asked")


@app.workflow
async def hear_in_time(ctx: WorkflowCtx) -> list[Any]:
    return [*await asyncio.gather(hear(ctx), ctx.run_action(nothing))]


async def hear(ctx: WorkflowCtx) -> str:
    try:
        return await ctx.wait_for(arrived, timeout=SECOND)
    except EventTimeout:
        return "late"


@asynccontextmanager
async def held(backend: TestApp, moment: str, when: Callable[..., bool]) -> AsyncIterator[None]:
    """Hold the run at its first such moment for the time of a block; after that let it come to rest."""
    with gate(moment, most=1, when=when) as closed:
        work = asyncio.ensure_future(backend.run_until_idle(advance=False, raise_errors=False))
        came = asyncio.ensure_future(closed.arrived())
        await asyncio.wait([work, came], return_when=asyncio.FIRST_COMPLETED)
        assert came.done(), [(one.error, one.traceback) for one in await backend.jobs()]
        yield
        for running in backend.worker.running.values():
            running.wake()  # as after a part of a second
        await MACHINE.sleep(0.05)  # a run that would go on does; it must not
        closed.open()
        await work


def writes(transaction: Any) -> bool:
    return bool(transaction.wrote)


async def end_of(backend: TestApp, job: JobId) -> JobStatus:
    await backend.run_until_idle(raise_errors=False)
    status = await backend.job(job)
    assert status is not None
    return status


async def test_a_time_that_comes_during_a_commit_is_learned_after_it_and_is_replayed_so(database_url: str) -> None:
    """The mutation that began after it does not commit: the body waits for it no more (WF21, WF31)."""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, pay_in_time)
        async with held(backend, "commit.before", writes):
            backend.clock.advance(SECOND)
        status = await end_of(backend, job)
        assert status.result == ["paid", "late"], status
        assert await backend.run_query(effects) == ["paid", "late"]


async def test_a_mutation_that_the_body_waits_for_no_more_does_not_commit(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, pay_in_time)
        async with held(backend, "mutation.ran", lambda function: function == do.name):
            backend.clock.advance(SECOND)
        status = await end_of(backend, job)
        assert status.result == ["late"], status
        assert await backend.run_query(effects) == ["late"]


@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before"])
async def test_each_mutation_that_has_committed_is_compensated(database_url: str, moment: str) -> None:
    """The run is canceled while a mutation runs, or commits (WF102, WF105, WF114, WF115)."""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, pay_many)
        async with held(backend, moment, writes if moment == "commit.before" else lambda function: True):
            (running,) = backend.worker.running.values()
            running.cancelled.set()  # as the worker does; on SQLite nobody else writes now
        status = await end_of(backend, job)
        assert status.state.value == "canceled", status
        assert await backend.run_query(effects) == ["paid 0", "paid back 0"]


@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before"])
async def test_a_mutation_of_a_branch_is_compensated_or_has_not_taken_effect_if_another_fails(
    database_url: str, moment: str
) -> None:
    """It fails while the mutation runs, or commits (WF84, WF115)."""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, pay_or_fail)
        async with held(backend, moment, writes if moment == "commit.before" else lambda function: True):
            backend.clock.advance(SECOND)
        status = await end_of(backend, job)
        assert status.state.value == "failed", status
        assert await backend.run_query(effects) == (["paid", "paid back"] if moment == "commit.before" else [])


class Stage:
    """Holds a mutation until a failure of another step is stored, and its commit until the body has learned of that."""

    def __init__(self, *, commits: bool) -> None:
        self.writes, self.commits, self.answers = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._fails = not commits

    async def commit(self, transaction: Any, **_facts: Any) -> None:
        """Come to the commit of a transaction."""
        if writes(transaction) and not self.commits.is_set():
            self.commits.set()
            await self.answers.wait()
            if self._fails:
                raise Conflict("It conflicts as asked.")


stages: list[Stage] = []


@app.internal_mutation
async def pay_slowly(ctx: MutationCtx) -> None:
    await stages[-1].writes.wait()
    await ctx.db.insert(Effect(what="paid"))


@app.internal_action
async def fail(ctx: ActionCtx) -> None:
    raise ValueError("as asked")


async def slow_pay(ctx: WorkflowCtx) -> None:
    await ctx.run_mutation(pay_slowly)
    ctx.compensate(do, "paid back")
    await ctx.run_mutation(do, "never")


async def pay_in_group(ctx: WorkflowCtx) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(slow_pay(ctx))
        group.create_task(ctx.run_action(fail))


async def pay_and_cancel(ctx: WorkflowCtx) -> None:
    paying, failing = asyncio.create_task(slow_pay(ctx)), asyncio.create_task(ctx.run_action(fail))
    await asyncio.wait([paying, failing], return_when=asyncio.FIRST_COMPLETED)
    paying.cancel()
    assert isinstance((await asyncio.gather(paying, return_exceptions=True))[0], asyncio.CancelledError)
    await failing


WAYS = {"group": pay_in_group, "cancel": pay_and_cancel}


@app.workflow
async def pay_or_refuse(ctx: WorkflowCtx, way: str) -> None:
    try:
        await WAYS[way](ctx)
    finally:
        await ctx.sleep(DAY)  # and all of it is replayed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ["commits", "conflicts", "loses the answer"])
async def test_a_mutation_that_commits_as_its_call_is_canceled_is_compensated(
    postgres_url: str, way: str, end: str
) -> None:
    """The call returns, and the cancel comes at its next await; or now, if it does not commit after all. (WF115)

    On SQLite nothing is stored while a mutation writes, so this cannot be staged there.
    """
    stages.append(stage := Stage(commits=end != "conflicts"))
    points.arm("commit.before", stage.commit)
    lost = DatabaseUnavailable("The connection was lost.", uncertain=True)
    times = 2 if end == "loses the answer" else 0
    async with TestApp(app, postgres_url) as backend, AsyncExitStack() as stack:
        stack.enter_context(raising("commit.after", lost, times=times, when=writes))
        run = await backend.scheduler.run_after(NOW, pay_or_refuse, way)
        with gate("workflow.recorded", most=1, when=lambda records, **_: "as asked" in str(records)) as failed:
            work = asyncio.ensure_future(backend.run_until_idle(raise_errors=False))
            await failed.arrived()
            stage.writes.set()
            await stage.commits.wait()
            failed.open()
            await MACHINE.sleep(0.05)  # a body that would go on does; it must not
            stage.answers.set()
            await work
        points.disarm("commit.before")
        status = await backend.job(run)
        assert status is not None
        assert (status.state.value, "as asked" in str(status.traceback)) == ("failed", True)
        assert await backend.run_query(effects) == ([] if end == "conflicts" else ["paid", "paid back"])


@app.workflow
async def pay_beside_a_failure(ctx: WorkflowCtx, label: str) -> None:
    async def pay_one(number: int) -> None:
        for part in range(number):
            await ctx.run_mutation(do, f"{label} {number}.{part}")
            ctx.compensate(do, f"back {label} {number}.{part}")

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(pay_one(number))
        for _ in range(2):
            group.create_task(ctx.run_action(fail))


async def test_each_mutation_beside_a_failure_is_compensated_if_it_committed(database_url: str) -> None:
    """Whatever commits as the group cancels its branches, at whichever moment the worker dies. (WF84, WF115, WF116)"""
    async with TestApp(app, database_url) as backend:
        for at in range(25):
            run = await backend.scheduler.run_after(NOW, pay_beside_a_failure, f"{at}")
            moments = await run_with_crashes(backend, [at] if at else [])
            status = await backend.job(run)
            assert status is not None
            assert (status.state.value, "as asked" in str(status.traceback)) == ("failed", True)
            done = [one.partition(f"{at} ") for one in await backend.run_query(effects) if f"{at} " in one]
            paid = [part for back, _, part in done if not back]
            assert sorted(part for back, _, part in done if back) == sorted(set(paid)), (at, moments, done)
            assert len(set(paid)) == len(paid)


async def test_an_event_in_time_wins_though_its_run_waits_in_memory_and_was_not_told(database_url: str) -> None:
    """The timeout passes meanwhile (WF66)."""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, hear_in_time)
        async with held(backend, "workflow.step_ran", lambda **_: True):
            await backend.run_mutation(tell, job, "in time")
            backend.clock.advance(2 * SECOND)
        status = await end_of(backend, job)
        assert status.result == ["in time", None], status


@app.workflow
async def hear_all(ctx: WorkflowCtx, many: int) -> list[str]:
    return sorted([await ctx.wait_for(arrived) for _ in range(many)])


async def test_senders_that_hold_all_connections_do_not_wait_for_each_other(database_url: str) -> None:
    async with TestApp(app, database_url, max_connections=2) as backend:
        job = await backend.scheduler.run_after(NOW, hear_all, 8)
        await asyncio.gather(*(backend.run_mutation(tell, job, f"{number}") for number in range(8)))
        status = await end_of(backend, job)
        assert status.result == [f"{number}" for number in range(8)], status


async def test_a_run_that_goes_to_sleep_while_cancels_are_carried_out_is_not_ended_without_its_code(
    database_url: str,
) -> None:
    """On PostgreSQL each statement sees what has committed before it (WF114)."""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, pay_many)
        await backend.run_until_idle(advance=False)
        await backend.scheduler.cancel(job)
        jobs = backend.engine.store.jobs
        with patch.object(jobs, "_fetch", partial(_pass_over, jobs._fetch)):
            await backend.worker.tick()
        status = await end_of(backend, job)
        assert status.state.value == "canceled", status
        assert await backend.run_query(effects) == [*PAID, *(f"paid back {number}" for number in reversed(range(5)))]


PAID = [f"paid {number}" for number in range(5)]


async def _pass_over(fetch: Any, session: Any, query: str, /, **values: Any) -> Any:
    return [] if query == "cancel_begun" else await fetch(session, query, **values)


async def test_a_sender_runs_again_whose_look_for_the_run_lost_the_database(database_url: str) -> None:
    """It is a scheduled mutation, which takes effect once whatever fails (WF76)."""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, hear_all, 1)
        await backend.run_until_idle()
        store, lost = backend.engine.store.workflows, [DatabaseUnavailable("The connection was lost.")]

        async def look(runs: list[UUID], most: int, inside: Any) -> dict[UUID, bool]:
            if lost:
                raise lost.pop()
            return await type(store).find_unfinished(store, runs, most, inside)

        with patch.object(store, "find_unfinished", look):
            await backend.scheduler.run_after(NOW, tell, job, "again")
            status = await end_of(backend, job)
        assert status.result == ["again"], status


# ----- a worker of an older release


older = App()
older.workpool("pool", max_parallelism=2)
pool = app.workpool("pool", max_parallelism=2)


@older.internal_mutation(name=do.name)
async def do_as_before(ctx: MutationCtx, what: str) -> str:
    await ctx.db.insert(Effect(what=f"{what}, by the older one"))
    return what


@app.workflow
async def of_the_new_release(ctx: WorkflowCtx) -> list[str]:
    found = [await ctx.run_mutation(do, "first")]
    await ctx.sleep(DAY)
    found.append(await ctx.with_options(pool=pool).run_mutation(do, "pooled"))
    await ctx.sleep(DAY)
    return [*found, await ctx.run_mutation(do, "last")]


async def test_a_worker_of_an_older_release_leaves_the_run_alone_and_does_what_it_knows(database_url: str) -> None:
    """Only the step in a pool is a job of its own (WF10, WF131)."""
    async with TestApp(app, database_url) as new, TestApp(older, database_url, clock=new.clock) as old:
        job = await pool.enqueue(new, of_the_new_release)
        for _ in range(3):
            await old.run_until_idle(advance=False)
        assert await new.run_query(effects) == []
        for _ in range(2):
            await new.run_until_idle(advance=False)
            new.clock.advance(DAY + SECOND)
            await old.run_until_idle(advance=False)  # moves what is due, and wakes runs
        await new.worker.tick()
        status = await end_of(new, job)
        assert status.result == ["first", "pooled", "last"], status
        found = await new.run_query(effects)
        assert [one.partition(",")[0] for one in found] == ["first", "pooled", "last"]
        assert not found[0].endswith("one")
        assert not found[2].endswith("one")


# ----- a deadline


clocks: list[TestClock] = []


@app.internal_mutation
async def take_a_second(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Effect(what=f"{number}"))
    clocks[-1].advance(SECOND)


@app.workflow
async def mutate_on_and_on(ctx: WorkflowCtx) -> None:
    for number in range(100):
        await ctx.run_mutation(take_a_second, number)


async def test_a_deadline_comes_between_mutations_that_follow_each_other(database_url: str) -> None:
    """The run never waits for anything else (WF125)."""
    async with TestApp(app, database_url) as backend:
        clocks.append(backend.clock)
        job = await pool.with_options(deadline=timedelta(seconds=5)).enqueue(backend, mutate_on_and_on)
        status = await end_of(backend, job)
        assert status.state.value == "failed", status
        assert 5 <= len(await backend.run_query(effects)) <= 7


@app.workflow
async def pay_and_end(ctx: WorkflowCtx) -> str:
    await ctx.run_mutation(do, "paid")
    ctx.compensate(do, "paid back")
    await ctx.run_mutation(do, "sent")
    return "done"


@app.internal_mutation
async def hear_of_end(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: None) -> None:
    await ctx.db.insert(Effect(what=f"told {result.kind}"))


@app.internal_mutation
async def call_off(ctx: MutationCtx, run: JobId) -> None:
    await ctx.scheduler.cancel(run)


@pytest.mark.parametrize("number", range(1, 13))
async def test_a_cancel_that_races_the_end_has_one_outcome_that_all_are_told(database_url: str, number: int) -> None:
    """It is asked for at the n-th moment. The effects, the status, on_complete and the one who asked agree. (WF110)"""
    moments, asked = list[str](), list[asyncio.Future[None]]()
    async with TestApp(app, database_url) as backend:
        run = await ends.with_options(on_complete=hear_of_end, context=None).enqueue(backend, pay_and_end)

        async def come(moment: str) -> None:
            moments.append(moment)
            if len(moments) == number:
                asked.append(asyncio.ensure_future(backend.run_mutation(call_off, run)))
                for running in backend.worker.running.values():
                    running.cancelled.set()
                if moment not in {"mutation.ran", "commit.before"}:  # where SQLite's only writer is held
                    await asked[0]

        for moment in ("mutation.ran", "commit.before", "commit.after", "workflow.recorded", "worker.outcome"):
            points.arm(moment, lambda moment=moment, **_: come(moment))
        try:
            await backend.run_until_idle(raise_errors=False)
        finally:
            for moment in {*moments}:
                points.disarm(moment)
        await asyncio.gather(*asked)
        status = await end_of(backend, run)
        *found, told = await backend.run_query(effects)
        assert told == f"told {status.state.value}"
        ways = {"success": [["paid", "sent"]], "canceled": [[], ["paid", "paid back"], ["paid", "sent", "paid back"]]}
        assert found in ways[status.state.value], (moments, number)
        answer = await jobs.cancel.run(backend, {"job": [run]})
        assert [(one.id, one.state) for one in answer["jobs"]] == [(run, status.state)]
        assert [*found, told] == await backend.run_query(effects)


@app.internal_action
async def hang_once(ctx: ActionCtx) -> None:
    begun.append(ctx.work.key)
    if len(begun) == 1:
        await asyncio.Event().wait()


@app.workflow
async def hang_and_rest(ctx: WorkflowCtx) -> int:
    await ctx.run_mutation(do, "before")
    await asyncio.gather(ctx.run_action(hang_once), ctx.sleep(0.5 * SECOND))
    await ctx.run_mutation(do, "after")
    return len(begun)


async def test_a_worker_that_stops_hands_its_runs_over_at_once(database_url: str) -> None:
    """No lease has to expire: the clock stands still. (WF129)"""
    begun.clear()
    async with TestApp(app, database_url) as taker:
        async with TestApp(app, database_url, clock=taker.clock, grace=0.05) as stopping:
            run = await stopping.scheduler.run_after(NOW, hang_and_rest)
            await stopping.worker.tick()
            await until(lambda: bool(begun))
            await stopping.worker.finish()
        status = await taker.job(run)
        assert status is not None
        assert (status.state.value, status.attempt) == ("pending", 0)
        await taker.run_until_idle(advance=False)
        taker.clock.advance(SECOND)
        await taker.run_until_idle(advance=False)
        status = await taker.job(run)
        assert status is not None
        assert (status.result, len({*begun})) == (2, 1)
        assert await taker.run_query(effects) == ["before", "after"]
