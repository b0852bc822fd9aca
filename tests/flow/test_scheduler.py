"""`ctx.scheduler`: what is scheduled exists if and only if its transaction commits, and what cannot be is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
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
    UnawaitedCall,
    ValueInvalid,
    sync,
)
from penstock.testing import TestApp, TestClock

NOW = timedelta(0)
app, other_app = App(), App()
OPENED = app


class Visit(Table):
    guest: str
    at: datetime | None = None


@app.mutation
async def visit(ctx: MutationCtx, guest: str, at: datetime | None = None) -> None:
    await ctx.db.insert(Visit(guest=guest, at=at or ctx.now()))


@app.action
async def ring(ctx: ActionCtx, guest: str) -> None: ...


greeted: list[Visit] = []


@app.internal_action
async def greet(ctx: ActionCtx, row: Visit) -> None:
    greeted.append(row)


@app.mutation
async def greet_later(ctx: MutationCtx) -> None:
    (row,) = await ctx.db.query(Visit).collect()
    await ctx.scheduler.run_after(NOW, greet, row=row)


@app.query
async def all_visits(ctx: QueryCtx) -> list[Visit]:
    return await ctx.db.query(Visit).collect()


@app.query
async def visits(ctx: QueryCtx) -> list[str]:
    return [found.guest for found in await ctx.db.query(Visit).collect()]


@other_app.mutation
async def elsewhere(ctx: MutationCtx) -> None: ...


async def no_function(ctx: MutationCtx) -> None: ...


@app.mutation
async def invite(ctx: MutationCtx, guests: list[str], fail: bool = False) -> list[JobId]:
    jobs = [await ctx.scheduler.run_after(timedelta(hours=1), visit, guest=guest) for guest in guests]
    if fail:
        raise RuntimeError("no party")
    return jobs


@app.mutation
async def call_off(ctx: MutationCtx, job: JobId) -> None:
    await ctx.scheduler.cancel(job)


@app.mutation
def invite_from_a_thread(ctx: sync.MutationCtx, guest: str) -> JobStatus | None:
    job = ctx.scheduler.run_after(NOW, visit, guest=guest)
    other = ctx.scheduler.run_at(ctx.now(), visit, guest="unwelcome")
    ctx.scheduler.cancel(other)
    return ctx.scheduler.get(job)


@app.mutation
async def invite_some(ctx: MutationCtx) -> None:
    """Sub-transactions, of which one fails."""
    await ctx.run_mutation(invite, guests=["kept"])
    with pytest.raises(RuntimeError):
        await ctx.run_mutation(invite, guests=["dropped"], fail=True)


@app.mutation
async def invite_and_look(ctx: MutationCtx) -> list[str]:
    """How a job is seen by the transaction that schedules it."""
    job = await ctx.scheduler.run_after(NOW, visit, guest="seen")
    status = await ctx.scheduler.get(job)
    assert status is not None
    assert (status.run_at, status.enqueued_at) == (ctx.now(), ctx.now())
    return [status.id, status.state.value, status.function]


@app.mutation
async def invite_and_disinvite(ctx: MutationCtx, guest: str) -> JobId:
    job = await ctx.scheduler.run_after(NOW, visit, guest=guest)
    await ctx.scheduler.cancel(job)
    return job


@app.mutation
async def disinvite(ctx: MutationCtx, job: str, fail: bool = False) -> None:
    await ctx.scheduler.cancel(JobId(job))
    if fail:
        raise RuntimeError("changed my mind")


@app.mutation
async def forget_to_await(ctx: MutationCtx) -> None:
    ctx.scheduler.run_after(NOW, visit, guest="forgotten")  # type: ignore[unused-coroutine]


@app.action
async def forget_to_await_outside(ctx: ActionCtx) -> None:
    ctx.scheduler.run_after(NOW, visit, guest="forgotten")  # type: ignore[unused-coroutine]


Wrong = Callable[[Any], Awaitable[Any]]

WRONG: dict[str, tuple[type[PenstockError], Wrong]] = {
    "a negative delay": (ValueInvalid, lambda ctx: ctx.scheduler.run_after(timedelta(seconds=-1), visit, guest="x")),
    "a delay of six years": (ValueInvalid, lambda ctx: ctx.scheduler.run_after(timedelta(days=2200), visit, guest="x")),
    "a number": (ValueInvalid, lambda ctx: ctx.scheduler.run_after(5, visit, guest="x")),
    "a time without a zone": (
        ValueInvalid,
        lambda ctx: ctx.scheduler.run_at(datetime(2030, 1, 1), visit, guest="x"),  # noqa: DTZ001
    ),
    "a text for a time": (ValueInvalid, lambda ctx: ctx.scheduler.run_at("2030-01-01", visit, guest="x")),
    "a time in six years": (
        ValueInvalid,
        lambda ctx: ctx.scheduler.run_at(datetime(2036, 1, 1, tzinfo=UTC), visit, guest="x"),
    ),
    "a query": (ContextError, lambda ctx: ctx.scheduler.run_after(NOW, visits)),
    "a plain function": (ContextError, lambda ctx: ctx.scheduler.run_after(NOW, no_function)),
    "another app's function": (ContextError, lambda ctx: ctx.scheduler.run_after(NOW, elsewhere)),
    "a missing argument": (ArgumentsInvalid, lambda ctx: ctx.scheduler.run_after(NOW, visit)),
    "an unknown argument": (ArgumentsInvalid, lambda ctx: ctx.scheduler.run_after(NOW, visit, guest="x", colour=1)),
    "an argument of another type": (ArgumentsInvalid, lambda ctx: ctx.scheduler.run_after(NOW, visit, guest=7)),
    "too many arguments": (ArgumentsInvalid, lambda ctx: ctx.scheduler.run_after(NOW, visit, "x", None, 3)),
    "too large an argument": (LimitExceeded, lambda ctx: ctx.scheduler.run_after(NOW, visit, guest="x" * 2000)),
    "no id": (IdInvalid, lambda ctx: ctx.scheduler.cancel("job_7")),
    "an id of a row": (IdInvalid, lambda ctx: ctx.scheduler.get(Id("visit_01jd3k4v5w6x7y8z9a0b1c2d3e"))),
}


@app.mutation
async def do_wrong(ctx: MutationCtx, what: str) -> str:
    await ctx.scheduler.run_after(NOW, visit, guest="before")
    with pytest.raises(PenstockError) as caught:
        await WRONG[what][1](ctx)
    return type(caught.value).__name__


# ----- when


async def test_work_starts_when_it_was_asked_for_and_takes_what_it_was_given(database_url: str) -> None:
    at = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=timezone(timedelta(hours=-5)))
    prague, odd = timezone(timedelta(hours=1)), "Ada \U0001f600 'quoted'\n"
    async with TestApp(app, database_url, clock=TestClock(datetime(2030, 6, 1, 12, tzinfo=UTC))) as test:
        (job,) = await test.run_mutation(invite, guests=["hourly"])
        noon = await test.scheduler.run_at(datetime(2030, 6, 1, 14, tzinfo=prague), visit, odd, at=at)
        past = await test.scheduler.run_at(datetime(1999, 1, 1, tzinfo=UTC), visit, guest="late")
        statuses = [await test.job(one) for one in (job, noon, past)]
        assert [status.run_at.hour for status in statuses if status] == [13, 13, 12], "in any zone, and past is now"
        assert await test.run_until_idle(advance=False) == 1
        assert await test.run_until_idle() == 2
        assert sorted(await test.run_query(visits)) == [odd, "hourly", "late"]
        assert [row.at for row in await test.run_query(all_visits) if row.guest == odd] == [at]


async def test_a_row_among_the_arguments_keeps_its_id(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(visit, guest="ada")
        await test.run_mutation(greet_later)
        greeted.clear()
        await test.run_until_idle()
        assert greeted == await test.run_query(all_visits)
        assert greeted[0].id.startswith("visit_")


# ----- with its transaction or not at all


async def test_a_job_exists_if_its_transaction_commits(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        with pytest.raises(RuntimeError):
            await test.run_mutation(invite, guests=["ada", "bob"], fail=True)
        for forgets in (test.run_mutation(forget_to_await), test.run_action(forget_to_await_outside)):
            with pytest.raises(UnawaitedCall, match=r"ctx\.scheduler\.run_after"):
                await forgets
        assert await test.jobs() == []
        jobs = await test.run_mutation(invite, guests=["ada", "bob"])
        assert len(set(jobs)) == 2
        assert [job.args["guest"] for job in await test.jobs("pending")] == ["bob", "ada"]
        await test.run_mutation(invite_some)
        with pytest.raises(RuntimeError):
            await test.run_mutation(disinvite, job=jobs[0], fail=True)
        await test.run_mutation(disinvite, job=jobs[1])
        await test.run_until_idle()
        assert await test.run_query(visits) == ["ada", "kept"]


async def test_a_transaction_sees_and_cancels_the_jobs_it_schedules(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        job, state, function = await test.run_mutation(invite_and_look)
        assert (state, function) == ("pending", "test_scheduler:visit")
        assert [status.id for status in await test.jobs()] == [job]
        status = await test.run_mutation(invite_from_a_thread, guest="from a thread")
        assert status is not None
        assert status.state is JobState.PENDING
        never = await test.run_mutation(invite_and_disinvite, guest="nobody")
        await test.run_until_idle()
        status = await test.job(never)
        assert status is not None
        assert status.state is JobState.CANCELED
        assert await test.run_query(visits) == ["seen", "from a thread"]


# ----- what is refused


async def test_what_cannot_be_is_refused_and_leaves_no_trace(database_url: str) -> None:
    async with TestApp(app, database_url, max_job_argument_bytes=1000, max_jobs_scheduled=5) as test:
        for what, (expected, call) in WRONG.items():
            with pytest.raises(expected) as caught:
                await call(test)
            assert str(caught.value).endswith("."), what
        assert await test.jobs() == []
        for what, (expected, _) in WRONG.items():
            assert await test.run_mutation(do_wrong, what=what) == expected.__name__, what
        assert [job.args["guest"] for job in await test.jobs()] == ["before"] * len(WRONG)
        with pytest.raises(LimitExceeded, match="more than 5 jobs"):
            await test.run_mutation(invite, guests=["x"] * 6)
        assert len(await test.jobs()) == len(WRONG)
        await test.run_mutation(invite, guests=["x"] * 5)

        assert await test.job(JobId("job_01jd3k4v5w6x7y8z9a0b1c2d3e")) is None, "it is unknown"
        with pytest.raises(IdInvalid):
            await test.job(JobId("visit_01jd3k4v5w6x7y8z9a0b1c2d3e"))
        with pytest.raises(ArgumentsInvalid, match="job: Input should be an id of a job, like job_"):
            await test.run_mutation(call_off, JobId("visit_01jd3k4v5w6x7y8z9a0b1c2d3e"))
