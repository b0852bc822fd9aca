"""Jobs from their scheduling to the end of their status: order, results, errors, retries, cancels, and deployments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from stage.stories import tell_in
from stage.waits import SOON

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    Backend,
    ContextError,
    Id,
    IdInvalid,
    JobId,
    JobState,
    JobStatus,
    LimitExceeded,
    MutationCtx,
    PenstockError,
    QueryCtx,
    Table,
    TokenBucket,
    UnawaitedCall,
    ValueInvalid,
    sync,
)
from penstock.clock import SystemClock
from penstock.services.pruner import Pruner
from penstock.store.session import reading
from penstock.testing import TestApp, TestClock, gate

pytestmark = pytest.mark.both_stores

NOW, HOUR = timedelta(0), timedelta(hours=1)
app = OPENED = App()
other_app = App()
write, read, act = tell_in(app)
visits = app.rate_limit("visits", TokenBucket(rate=2, period=timedelta(minutes=1)))


class Step(Table):
    """One row for each thing that was done."""

    what: str
    at: datetime | None = None


@app.mutation
async def do(ctx: MutationCtx, what: str, at: datetime | None = None) -> str:
    await ctx.db.insert(Step(what=what, at=at))
    return what.upper()


@app.query
async def done(ctx: QueryCtx) -> list[str]:
    return [step.what for step in await ctx.db.query(Step).collect()]


@app.internal_action
async def tell_more_than_json_says(ctx: ActionCtx) -> Any:
    return {"at": ctx.now()}


@app.mutation
async def do_and_fail(ctx: MutationCtx, what: str) -> None:
    await ctx.db.insert(Step(what=what))
    raise ValueError(f"no {what} today")


@app.mutation
async def do_and_say(ctx: MutationCtx, what: Any) -> str:
    await ctx.db.insert(Step(what="much"))
    said: str = what
    return said


ODD = ["nul \0 byte, half a \ud83d pair", "long " * 10_000]


@app.action
async def raise_odd(ctx: ActionCtx, number: int) -> None:
    raise ValueError(ODD[number])


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
        pass
    assert ctx.cancelled
    return "told"


@app.action
async def pause(ctx: ActionCtx) -> bool:
    return await ctx.wait_cancelled(0)


@app.action
async def schedule_and_fail(ctx: ActionCtx) -> None:
    await ctx.scheduler.run_after(NOW, do, what="by an action")
    raise RuntimeError("after scheduling")


async def status(backend: Backend, job: JobId) -> JobStatus:
    found = await backend.job(job)
    assert found is not None
    return found


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


FAILED: list[tuple[Any, dict[str, Any], str]] = [
    (do_and_fail, {"what": "soup"}, "ValueError: no soup today"),
    (do_and_say, {"what": "x" * 200}, "LimitExceeded: test_jobs:do_and_say returned 202 bytes"),
    (do_and_say, {"what": 7}, "ResultInvalid"),
    (tell_more_than_json_says, {}, "ResultInvalid"),
    (schedule_and_fail, {}, "RuntimeError: after scheduling"),
    (raise_odd, {"number": 0}, "ValueError: nul"),
    (raise_odd, {"number": 1}, "ValueError: long"),
]


async def test_a_job_that_fails_keeps_its_error_and_nothing_else(database_url: str) -> None:
    async with TestApp(app, database_url, worker_jobs=1, max_result_bytes=100) as test:
        for function, arguments, error in FAILED:
            job = await test.scheduler.run_after(NOW, function, **arguments)
            await test.run_until_idle(raise_errors=False)
            found = await status(test, job)
            assert (found.state, found.attempt, found.result) == (JobState.FAILED, 1, None), error
            assert (found.error or "").startswith(error)
            assert len(found.error or "") <= 10_000, error
            if function is do_and_fail:
                assert 'raise ValueError(f"no {what} today")' in (found.traceback or "")
            if function is tell_more_than_json_says:
                assert "at is a datetime, and comes back as a str" in (found.error or "")
        assert await test.run_query(done) == ["by an action"], "what an action has scheduled stays, and nothing else"


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


async def test_a_job_of_another_version_waits_for_its_function_and_fails_by_its_arguments(database_url: str) -> None:
    clock, one, two = TestClock(), App(), App()

    @one.mutation
    async def bow(ctx: MutationCtx, depth: int) -> int:
        return depth

    async def greet(ctx: MutationCtx, name: str) -> None: ...

    async def greet_later(ctx: MutationCtx, name: str, title: str) -> None: ...

    greet_later.__qualname__, greet_later.__name__ = greet.__qualname__, greet.__name__
    welcome = one.mutation(greet)
    two.mutation(greet_later)
    async with TestApp(one, database_url, clock=clock) as old, TestApp(two, database_url, clock=clock) as new:
        waits = await old.scheduler.run_after(NOW, bow, depth=3)
        fails = await old.scheduler.run_after(NOW, welcome, name="Ada")
        for _ in range(12):
            await new.run_until_idle(advance=False, raise_errors=False)
            clock.advance(timedelta(seconds=31))
        found = await status(new, waits)
        assert (found.state, found.attempt) == (JobState.PENDING, 0), "no attempt is used, however long it waits"
        assert (found.error or "").startswith(f"FunctionNotFound: no function {bow.name}"), "it says why it waits"
        failed = await status(new, fails)
        assert failed.state is JobState.FAILED
        assert (failed.error or "").startswith(f"ArgumentsInvalid: {welcome.name}")
        assert "title" in (failed.error or "")
        await old.run_until_idle()
        found = await status(old, waits)
        assert (found.state, found.attempt, found.result) == (JobState.SUCCESS, 1, 3)


async def test_the_pruner_forgets_what_is_over(database_url: str) -> None:
    async with TestApp(app, database_url, job_status_ttl=86400.0) as test:
        pruner, store = test.make_service("pruner"), test.engine.store
        assert isinstance(pruner, Pruner)
        job = await test.scheduler.run_after(NOW, do, what="a")
        await test.run_until_idle()
        await visits.take(test, "ada")
        await store.locks.take("k", UUID(int=1), "gone", HOUR, test.clock.now())
        for kept in (True, False, False):  # its status is kept for a day
            test.clock.advance(23 * HOUR)
            await pruner.tick()
            assert (await test.job(job) is not None) is kept
        assert not any((await test.job_counts()).values())
        async with reading(store.begin_read) as session:
            assert await store.locks.list(session, 10) == []
        assert await store.rates.prune(test.clock.now(), 10) == 0


class WrongClock(SystemClock):
    """The clock of a machine that is set wrong."""

    def __init__(self, wrong: timedelta) -> None:
        super().__init__()
        self.wrong = wrong

    def machine_time(self) -> datetime:
        return super().machine_time() + self.wrong


async def test_machines_whose_clocks_differ_agree_on_the_databases_time(postgres_url: str) -> None:
    clock = WrongClock(HOUR)
    async with app.open(postgres_url, clock=clock) as skewed, app.open(postgres_url, services=("worker",)) as right:
        job = await skewed.scheduler.run_after(NOW, do, what="x")
        async with asyncio.timeout(SOON):
            while (await status(right, job)).finished_at is None:
                await SystemClock().sleep(0.01)
        for clock.wrong in (-HOUR, timedelta(0)):  # it jumps, and somebody sets it right
            assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1), "at once"  # noqa: TID251
            await skewed.engine.store.synchronize()
            assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)  # noqa: TID251
            assert abs(clock.offset + clock.wrong) < timedelta(seconds=1), "as penstock doctor shows it"


@other_app.mutation
async def elsewhere(ctx: MutationCtx) -> None: ...


async def no_function(ctx: MutationCtx) -> None: ...


@app.mutation
async def call_off(ctx: MutationCtx, job: JobId) -> None:
    await ctx.scheduler.cancel(job)


@app.mutation
def invite_from_a_thread(ctx: sync.MutationCtx, guest: str) -> JobStatus | None:
    job = ctx.scheduler.run_after(NOW, do, what=guest)
    other = ctx.scheduler.run_at(ctx.now(), do, what="unwelcome")
    ctx.scheduler.cancel(other)
    return ctx.scheduler.get(job)


def inviting(*guests: str, fail: bool = False) -> Callable[[Any], Awaitable[list[JobId]]]:
    """Schedules done in an hour, and then may fail."""

    async def invite(ctx: Any) -> list[JobId]:
        jobs = [await ctx.scheduler.run_after(HOUR, do, what=guest) for guest in guests]
        if fail:
            raise RuntimeError("no party")
        return jobs

    return invite


async def forget_to_await(ctx: Any) -> None:
    ctx.scheduler.run_after(NOW, do, what="forgotten")


Wrong = Callable[[Any], Awaitable[Any]]

WRONG: list[tuple[type[PenstockError], Wrong]] = [
    (ValueInvalid, lambda ctx: ctx.scheduler.run_after(timedelta(seconds=-1), do, what="x")),
    (ValueInvalid, lambda ctx: ctx.scheduler.run_after(timedelta(days=2200), do, what="x")),
    (ValueInvalid, lambda ctx: ctx.scheduler.run_after(5, do, what="x")),
    (ValueInvalid, lambda ctx: ctx.scheduler.run_at(datetime(2030, 1, 1), do, what="x")),  # noqa: DTZ001
    (ValueInvalid, lambda ctx: ctx.scheduler.run_at("2030-01-01", do, what="x")),
    (ValueInvalid, lambda ctx: ctx.scheduler.run_at(datetime(2036, 1, 1, tzinfo=UTC), do, what="x")),
    (ContextError, lambda ctx: ctx.scheduler.run_after(NOW, done)),
    (ContextError, lambda ctx: ctx.scheduler.run_after(NOW, no_function)),
    (ContextError, lambda ctx: ctx.scheduler.run_after(NOW, elsewhere)),
    (ArgumentsInvalid, lambda ctx: ctx.scheduler.run_after(NOW, do, what=7)),
    (LimitExceeded, lambda ctx: ctx.scheduler.run_after(NOW, do, what="x" * 2000)),
    (IdInvalid, lambda ctx: ctx.scheduler.cancel("job_7")),
    (IdInvalid, lambda ctx: ctx.scheduler.get(Id("step_01jd3k4v5w6x7y8z9a0b1c2d3e"))),
]


async def test_work_starts_when_it_was_asked_for_and_takes_what_it_was_given(database_url: str) -> None:
    at = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=timezone(timedelta(hours=-5)))
    prague, odd = timezone(timedelta(hours=1)), "Ada \U0001f600 'quoted'\n"
    async with TestApp(app, database_url, clock=TestClock(datetime(2030, 6, 1, 12, tzinfo=UTC))) as test:
        (job,) = await test.run_mutation(write, inviting("hourly"))
        noon = await test.scheduler.run_at(datetime(2030, 6, 1, 14, tzinfo=prague), do, odd, at=at)
        past = await test.scheduler.run_at(datetime(1999, 1, 1, tzinfo=UTC), do, what="late")
        statuses = [await test.job(one) for one in (job, noon, past)]
        assert [status.run_at.hour for status in statuses if status] == [13, 13, 12], "in any zone, and past is now"
        assert await test.run_until_idle(advance=False) == 1
        assert await test.run_until_idle() == 2
        rows = await test.run_query(read, lambda ctx: ctx.db.query(Step).collect())
        assert sorted(row.what for row in rows) == [odd, "hourly", "late"]
        assert [row.at for row in rows if row.what == odd] == [at]


async def test_a_job_exists_if_its_transaction_commits_which_sees_and_cancels_it(database_url: str) -> None:
    async def invite_some(ctx: MutationCtx) -> JobStatus | None:
        await ctx.run_mutation(write, inviting("kept"))
        with pytest.raises(RuntimeError):
            await ctx.run_mutation(write, inviting("dropped", fail=True))
        await ctx.scheduler.cancel(await ctx.scheduler.run_after(NOW, do, what="nobody"))
        return await ctx.scheduler.get(await ctx.scheduler.run_after(NOW, do, what="seen"))

    async def change_ones_mind(ctx: MutationCtx) -> None:
        await ctx.scheduler.cancel(jobs[0])
        raise RuntimeError

    async with TestApp(app, database_url) as test:
        with pytest.raises(RuntimeError):
            await test.run_mutation(write, inviting("ada", "bob", fail=True))
        for forgets in (test.run_mutation(write, forget_to_await), test.run_action(act, forget_to_await)):
            with pytest.raises(UnawaitedCall, match=r"ctx\.scheduler\.run_after"):
                await forgets
        assert await test.jobs() == []
        jobs = await test.run_mutation(write, inviting("ada", "bob"))
        assert [job.args["what"] for job in await test.jobs("pending")] == ["bob", "ada"]
        now, seen = test.clock.now(), await test.run_mutation(write, invite_some)
        assert (seen.state, seen.function, seen.run_at, seen.enqueued_at) == (JobState.PENDING, do.name, now, now)
        found = await test.run_mutation(invite_from_a_thread, guest="from a thread")
        assert found is not None
        assert found.state is JobState.PENDING
        with pytest.raises(RuntimeError):
            await test.run_mutation(write, change_ones_mind)
        await test.run_mutation(call_off, jobs[1])
        await test.run_until_idle()
        assert await test.run_query(done) == ["seen", "from a thread", "ada", "kept"]
        assert sorted(job.args["what"] for job in await test.jobs("canceled")) == ["bob", "nobody", "unwelcome"]


async def test_what_cannot_be_is_refused_and_leaves_no_trace(database_url: str) -> None:
    async with TestApp(app, database_url, max_job_argument_bytes=1000, max_jobs_scheduled=5) as test:
        for expected, call in WRONG:

            async def do_wrong(ctx: Any, expected: Any = expected, call: Any = call) -> None:
                await ctx.scheduler.run_after(NOW, do, what="before")
                with pytest.raises(expected):
                    await call(ctx)

            with pytest.raises(expected) as caught:
                await call(test)
            assert str(caught.value).endswith("."), expected
            await test.run_mutation(write, do_wrong)
        assert [job.args["what"] for job in await test.jobs()] == ["before"] * len(WRONG)
        with pytest.raises(LimitExceeded, match="more than 5 jobs"):
            await test.run_mutation(write, inviting(*"abcdef"))
        assert len(await test.jobs()) == len(WRONG)
        await test.run_mutation(write, inviting(*"abcde"))

        assert await test.job(JobId("job_01jd3k4v5w6x7y8z9a0b1c2d3e")) is None, "it is unknown"
        with pytest.raises(IdInvalid):
            await test.job(JobId("step_01jd3k4v5w6x7y8z9a0b1c2d3e"))
        with pytest.raises(ArgumentsInvalid, match="job: Input should be an id of a job, like job_"):
            await test.run_mutation(call_off, JobId("step_01jd3k4v5w6x7y8z9a0b1c2d3e"))
