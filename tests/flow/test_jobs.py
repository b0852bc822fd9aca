"""Jobs from their scheduling to the end of their status: order, results, errors, retries, cancels, and deployments."""

from __future__ import annotations

import asyncio
import inspect
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from stage.waits import SOON
from typing_extensions import TypedDict

from penstock import (
    ActionCtx,
    App,
    Backend,
    Index,
    JobId,
    JobState,
    JobStatus,
    MutationCtx,
    QueryCtx,
    Retry,
    Table,
    sync,
)
from penstock.clock import SystemClock, layout_uuid7
from penstock.functions.function import AnyFunction
from penstock.jobs.job import Kind, NewJob, Options, job_id
from penstock.jobs.order import rank
from penstock.jobs.settle import MAX_LOSSES
from penstock.services.pruner import Pruner
from penstock.services.worker.worker import Worker
from penstock.testing import TestApp, TestClock, gate

pytestmark = pytest.mark.both_stores

NOW = timedelta(0)
app = OPENED = App()


class Step(Table):
    """One row for each thing that was done."""

    what: str

    by_what = Index("what")


@app.mutation
async def do(ctx: MutationCtx, what: str) -> str:
    await ctx.db.insert(Step(what=what))
    return what.upper()


@app.query
async def done(ctx: QueryCtx) -> list[str]:
    return [step.what for step in await ctx.db.query(Step).collect()]


@app.mutation
async def do_and_tell(ctx: MutationCtx, what: str) -> Step | None:
    return await ctx.db.get(Step, await ctx.db.insert(Step(what=what)))


class Told(TypedDict("Told", {"é": Any})):
    step: Step | None
    at: datetime
    large: int
    seal: bytes
    odd: float


@app.internal_action
async def call_and_tell(ctx: ActionCtx, what: str) -> Told:
    step = await ctx.run_mutation(do_and_tell, what)
    return {"step": step, "at": ctx.now(), "large": 2**60, "seal": b"\xff\xfe", "odd": float("inf"), "é": [1, None]}


@app.internal_action
async def tell_more_than_json_says(ctx: ActionCtx) -> Any:
    return {"at": ctx.now()}


@app.mutation
async def do_and_fail(ctx: MutationCtx, what: str) -> None:
    await ctx.db.insert(Step(what=what))
    raise ValueError(f"no {what} today")


@app.mutation
async def do_and_say_too_much(ctx: MutationCtx) -> str:
    await ctx.db.insert(Step(what="much"))
    return "x" * 200


@app.mutation
async def do_and_say_nonsense(ctx: MutationCtx) -> int:
    await ctx.db.insert(Step(what="nonsense"))
    return "seven"  # type: ignore[return-value]


attempts: list[str] = []
failures: list[BaseException] = []


@app.action
async def call_out(ctx: ActionCtx, what: str) -> str:
    """Do as the next one of `failures` says."""
    attempts.append(what)
    if failures:
        raise failures.pop(0)
    return what


@app.action
async def call_out_until_told(ctx: ActionCtx, ending: str) -> str:
    assert not ctx.cancelled
    assert await ctx.wait_cancelled()
    assert ctx.cancelled
    if ending == "raises":
        raise RuntimeError("interrupted")
    return "had ended anyway"


in_a_thread = threading.Event()


@app.action
def call_out_in_a_thread_until_told(ctx: sync.ActionCtx) -> str:
    assert not ctx.cancelled
    in_a_thread.set()
    while not ctx.wait_cancelled(5):
        attempts.append("pause")
    assert ctx.cancelled
    return "told"


@app.action
async def pause(ctx: ActionCtx) -> bool:
    return await ctx.wait_cancelled(0)


@app.action
async def cancel_oneself(ctx: ActionCtx) -> None:
    """Await something that somebody else has cancelled."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@app.action
async def leave(ctx: ActionCtx) -> None:
    raise SystemExit(3)


@app.action
async def schedule_and_fail(ctx: ActionCtx) -> None:
    await ctx.scheduler.run_after(NOW, do, what="by an action")
    raise RuntimeError("after scheduling")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    attempts.clear()
    failures.clear()


async def status(backend: Backend, job: JobId) -> JobStatus:
    found = await backend.job(job)
    assert found is not None
    return found


async def enqueue(backend: Backend, function: AnyFunction, args: str, **facts: Any) -> JobId:
    """Enqueue a job with facts that no user can give it yet, such as a retry policy."""
    kind: Kind = function.kind.value
    uuid = UUID(int=layout_uuid7(1, len(attempts) + 7))
    now = backend.engine.clock.now()
    await backend.job_calls.enqueue(NewJob(uuid, function.name, kind, args, now, rank(now), **facts))
    return job_id(uuid)


def make_worker(backend: Backend) -> Worker:
    worker = backend.make_service("worker")
    assert isinstance(worker, Worker)
    return worker


# ----- how jobs end


async def test_a_job_goes_from_pending_through_running_to_success(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        job = await test.scheduler.run_after(timedelta(minutes=5), do, what="lunch")
        found = await status(test, job)
        scheduled_at = test.clock.now()
        assert (found.state, found.attempt, found.args) == (JobState.PENDING, 0, {"what": "lunch"})
        assert found.function == "test_jobs:do"
        assert found.run_at - scheduled_at == timedelta(minutes=5)
        test.clock.advance(timedelta(minutes=6))
        with gate("mutation.ran") as held:
            await test.worker.tick()
            await held.arrived()
            if not database_url.startswith("sqlite"):
                found = await status(test, job)
                assert (found.state, found.attempt) == (JobState.RUNNING, 1)
        await test.run_until_idle()
        found = await status(test, job)
        assert (found.state, found.result, found.error) == (JobState.SUCCESS, "LUNCH", None)
        assert found.enqueued_at == scheduled_at
        assert found.started_at == found.finished_at == scheduled_at + timedelta(minutes=6)
        assert await test.run_query(done) == ["lunch"]

        later = await test.scheduler.run_after(timedelta(days=1), do, what="late")
        canceled = await test.scheduler.run_after(timedelta(days=1), do, what="never")
        await test.scheduler.cancel(canceled)
        await test.worker.tick()
        counts = {place: count for place, count in (await test.job_counts()).items() if count}
        assert counts == {"scheduled": 1, "success": 1, "canceled": 1}
        assert [job.id for job in await test.jobs("pending")] == [later]
        assert [job.args["what"] for job in await test.jobs()] == ["never", "late", "lunch"]
        assert len(await test.jobs(limit=2)) == 2


async def test_what_a_job_returned_is_kept_as_its_annotation_says(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        told = await test.scheduler.run_after(NOW, do_and_tell, what="lunch")
        called = await test.scheduler.run_after(NOW, call_and_tell, what="tea")
        await test.run_until_idle()
        row = Step.model_validate((await status(test, told)).result, strict=False)
        assert (row.what, row.creation_time) == ("lunch", (await status(test, told)).started_at)
        found = (await status(test, called)).result
        assert found.pop("step")["what"] == "tea"
        assert datetime.fromisoformat(found.pop("at")) == test.clock.now()
        assert found == {"large": 2**60, "seal": "__4=", "odd": "Infinity", "é": [1, None]}


FAILED: list[tuple[Any, str]] = [
    (do_and_fail, "ValueError: no soup today"),
    (do_and_say_too_much, "LimitExceeded: test_jobs:do_and_say_too_much returned 202 bytes"),
    (do_and_say_nonsense, "ResultInvalid"),
    (tell_more_than_json_says, "ResultInvalid"),
    (leave, "SystemExit"),
    (cancel_oneself, "CancelledError"),
    (schedule_and_fail, "RuntimeError: after scheduling"),
    (ValueError("nul \0 byte"), "ValueError: nul"),
    (ValueError("half a \ud83d pair"), "ValueError: half"),
    (ValueError("long " * 10_000), "ValueError: long"),
]


async def test_a_job_that_fails_keeps_its_error_and_nothing_else(database_url: str) -> None:
    async with TestApp(app, database_url, worker_jobs=1, max_result_bytes=100) as test:
        for what, error in FAILED:
            failures[:] = [what] if isinstance(what, Exception) else []
            function = call_out if failures else what
            job = await test.scheduler.run_after(NOW, function, **{"what": "soup"} if "what" in names(function) else {})
            await test.run_until_idle(raise_errors=False)
            found = await status(test, job)
            assert (found.state, found.attempt, found.result) == (JobState.FAILED, 1, None), error
            assert (found.error or "").startswith(error)
            assert len(found.error or "") <= 10_000, error
            if what is do_and_fail:
                assert 'raise ValueError(f"no {what} today")' in (found.traceback or "")
            if what is tell_more_than_json_says:
                assert "at is a datetime, and comes back as a str" in (found.error or "")
        assert await test.run_query(done) == ["by an action"], "what an action has scheduled stays, and nothing else"


def names(function: AnyFunction) -> set[str]:
    return set(inspect.signature(function.handler).parameters)


async def test_a_failed_mutation_may_be_retried(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        job = await enqueue(test, do_and_fail, '{"what": "soup"}', options=Options(retry=Retry(max_attempts=3)))
        await test.run_until_idle(raise_errors=False)
        assert (await status(test, job)).attempt == 3
        assert await test.run_query(done) == []


async def test_running_actions_are_asked_to_stop_by_any_worker(database_url: str) -> None:
    clock = TestClock()
    async with (
        TestApp(app, database_url, clock=clock, worker_jobs=3) as runs,
        TestApp(app, database_url, clock=clock) as asks,
    ):
        assert not await runs.run_action(pause), "whom nobody asks waits to the end of its pause"
        in_a_thread.clear()
        raises, returns = [
            await runs.scheduler.run_after(NOW, call_out_until_told, ending=how) for how in ("raises", "returns")
        ]
        threaded = await runs.scheduler.run_after(NOW, call_out_in_a_thread_until_told)
        await runs.scheduler.run_after(NOW, do, what="more than may run at once")
        for _ in range(2):
            await runs.worker.tick()
        assert await asyncio.to_thread(in_a_thread.wait, 30)
        assert (len(runs.worker.running), (await runs.job_counts())["ready"]) == (3, 1)
        for job in (raises, returns, threaded):
            assert (await status(runs, job)).state is JobState.RUNNING
            await asks.scheduler.cancel(job)
        await asks.worker.kill()
        await runs.run_until_idle()
        ends = [await status(asks, job) for job in (raises, returns, threaded)]
        assert [end.state for end in ends] == [JobState.CANCELED, JobState.SUCCESS, JobState.SUCCESS]
        assert [end.result for end in ends] == [None, "had ended anyway", "told"]


# ----- workers, versions and times


async def test_a_mutation_that_takes_each_of_its_workers_down_ends_failed(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        job = await test.scheduler.run_after(NOW, do, what="poison")
        for attempt in range(1, MAX_LOSSES + 1):
            worker = make_worker(test)
            with gate("mutation.ran") as held:
                await worker.tick()
                await held.arrived()
                await worker.kill()
            test.clock.advance(timedelta(seconds=31))
            survivor = make_worker(test)
            survivor._executor._places = 0
            await survivor.tick()
            assert (await status(test, job)).attempt == attempt
            test.clock.advance(timedelta(minutes=2))
            await survivor.tick()
        found = await status(test, job)
        assert found.state is JobState.FAILED
        assert (found.error or "").startswith("WorkerLost")
        assert await test.run_query(done) == []


def later_version() -> App:
    """One function is gone, and the other one takes something else."""
    later = App()

    @later.mutation
    async def greet(ctx: MutationCtx, name: str, title: str) -> None: ...

    return later


async def test_a_job_of_another_version_waits_for_its_function_and_fails_by_its_arguments(database_url: str) -> None:
    clock, one, two = TestClock(), App(), later_version()

    @one.mutation
    async def bow(ctx: MutationCtx, depth: int) -> int:
        return depth

    @one.mutation
    async def greet(ctx: MutationCtx, name: str) -> None: ...

    async with TestApp(one, database_url, clock=clock) as old, TestApp(two, database_url, clock=clock) as new:
        waits = await old.scheduler.run_after(NOW, bow, depth=3)
        fails = await old.scheduler.run_after(NOW, greet, name="Ada")
        for _ in range(20):
            await new.run_until_idle(advance=False, raise_errors=False)
            clock.advance(timedelta(seconds=31))
        found = await status(new, waits)
        assert (found.state, found.attempt) == (JobState.PENDING, 0), "no attempt is used, however long it waits"
        assert (found.error or "").startswith(f"FunctionNotFound: no function {bow.name}"), "it says why it waits"
        failed = await status(new, fails)
        assert failed.state is JobState.FAILED
        assert (failed.error or "").startswith("ArgumentsInvalid: test_jobs:greet")
        assert "title" in (failed.error or "")
        await old.run_until_idle()
        found = await status(old, waits)
        assert (found.state, found.attempt, found.result) == (JobState.SUCCESS, 1, 3)


async def test_a_status_is_kept_for_its_time_and_then_forgotten(database_url: str) -> None:
    async with TestApp(app, database_url, job_status_ttl=86400.0) as test:
        pruner = test.make_service("pruner")
        assert isinstance(pruner, Pruner)
        job = await test.scheduler.run_after(NOW, do, what="a")
        await test.run_until_idle()
        test.clock.advance(timedelta(hours=23))
        await pruner.tick()
        assert await test.job(job) is not None
        test.clock.advance(timedelta(hours=2))
        assert await test.job(job) is None
        for _ in range(3):
            await pruner.tick()
            test.clock.advance(timedelta(days=1))
        assert not any((await test.job_counts()).values())


# ----- clocks that differ


class WrongClock(SystemClock):
    """The clock of a machine that is set wrong."""

    def __init__(self, wrong: timedelta) -> None:
        super().__init__()
        self.wrong = wrong

    def machine_time(self) -> datetime:
        return super().machine_time() + self.wrong


@pytest.mark.parametrize("wrong", [timedelta(hours=1), timedelta(hours=-1)])
async def test_machines_whose_clocks_differ_agree_on_the_databases_time(postgres_url: str, wrong: timedelta) -> None:
    clock = WrongClock(wrong)
    async with (
        app.open(postgres_url, clock=clock) as skewed,
        app.open(postgres_url, services=("worker",)) as right,
    ):
        assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)  # noqa: TID251 - the machine's own time
        job = await skewed.scheduler.run_after(NOW, do, what="x")
        await ended(right, job)
        for clock.wrong in (timedelta(minutes=10), timedelta(0)):  # it jumps, and somebody sets it right
            assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1), "at once"  # noqa: TID251
            await skewed.engine.store.synchronize()
            assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)  # noqa: TID251
            assert abs(clock.offset + clock.wrong) < timedelta(seconds=1), "as penstock doctor shows it"


async def test_a_worker_whose_clock_jumps_ahead_takes_nothing_from_others(postgres_url: str) -> None:
    clock = WrongClock(timedelta(0))
    async with (
        app.open(postgres_url) as right,
        app.open(postgres_url, clock=clock) as skewed,
    ):
        holder, jumper = make_worker(right), make_worker(skewed)
        job = await right.scheduler.run_after(NOW, call_out_until_told, ending="returns")
        await holder.tick()
        clock.wrong = timedelta(hours=1)
        await jumper.tick()
        assert (await status(right, job)).state is JobState.RUNNING
        await jumper.finish()
        await holder.kill()


async def ended(backend: Backend, job: JobId) -> JobStatus:
    async with asyncio.timeout(SOON):
        while (found := await status(backend, job)).finished_at is None:
            await SystemClock().sleep(0.01)
    return found
