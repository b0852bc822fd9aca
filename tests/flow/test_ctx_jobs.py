"""`ctx.jobs`: the statuses of jobs in queries and mutations, live and in pages; a mutation that cancels its own job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from stage.waits import until
from stage.watching import settle

from penstock import App, JobId, JobStatus, MutationCtx, Page, PaginationOptions, QueryCtx, Table, sync
from penstock.errors import ContextError, CursorInvalid, PenstockError, UsageError, ValueInvalid
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

HOUR = timedelta(hours=1)


class Done(Table):
    number: int


app = App()
pool = app.workpool("mail")
told: list[Any] = []


@app.internal_mutation
async def work(ctx: MutationCtx, number: int) -> int:
    if number < 0:
        raise ValueError("below zero")
    await ctx.db.insert(Done(number=number))
    return number


@app.internal_mutation
async def give_up(ctx: MutationCtx, number: int, again: bool = False) -> int:
    """Cancel its own job, or only try to in a part that is undone."""
    await ctx.db.insert(Done(number=number))
    try:
        await ctx.run_mutation(cancel, ctx.work.id, fails=again)
    except ValueError:
        return number
    return number


@app.internal_mutation
async def cancel(ctx: MutationCtx, job: JobId, fails: bool = False) -> None:
    await ctx.scheduler.cancel(job)
    if fails:
        raise ValueError("undone")


class Wish(NamedTuple):
    number: int


asked: list[JobId] = []


@app.internal_mutation(batch=10, of=Wish)
async def wishes(ctx: MutationCtx, each: list[Wish]) -> list[int | Exception]:
    for job in asked:
        await ctx.scheduler.cancel(job)
    await ctx.db.insert_many(Done(number=one.number) for one in each)
    return [ValueError("below zero") if one.number < 0 else one.number for one in each]


@app.internal_mutation
async def ended(ctx: MutationCtx, work_id: JobId, result: Any, context: Any) -> None:
    told.append(result["kind"])


@app.mutation
async def fill(ctx: MutationCtx, first: int, last: int) -> list[JobId]:
    pools = (ctx.scheduler.run_after(HOUR, work, number) for number in range(first, last))
    return [await one for one in pools]


@app.mutation
async def mix(ctx: MutationCtx) -> dict[str, list[int]]:
    """What a mutation sees of its own jobs, stored or not."""
    await pool.enqueue(ctx, work, 100)
    await pool.enqueue_batch(ctx, work, [{"number": 101}, {"number": 102}])
    await pool.with_options(key="k").enqueue(ctx, work, 103)
    one = await ctx.scheduler.run_after(HOUR, give_up, 104)
    found = await ctx.jobs.get(one)
    assert found is not None
    assert (found.state.value, found.args) == ("pending", {"number": 104})

    async def seen(**where: Any) -> list[int]:
        return sorted(job.args["number"] for job in await ctx.jobs.list(**where) if job.args["number"] > 99)

    return {
        "all": await seen(),
        "mail": await seen(pool="mail"),
        "scheduled": await seen(pool="default", state="pending"),
        "of the function": await seen(function=give_up),
        "by name": await seen(function=work.name, limit=10_000),
        "key": await seen(key="k"),
        "running": await seen(state="running"),
        "since": await seen(since=ctx.now(), before=ctx.now() + HOUR),
        "before": await seen(before=ctx.now()),
        "two": await seen(limit=2),
    }


@app.query
async def listed(ctx: QueryCtx, state: str | None = None) -> list[str]:
    found = await ctx.jobs.list() if state is None else await ctx.jobs.list(state=state)
    return [f"{job.args['number']} {job.state.value}" for job in found]


@app.query
def listed_in_thread(ctx: sync.QueryCtx, where: dict[str, Any]) -> list[JobStatus]:
    return ctx.jobs.list(**where)


@app.query
async def state_of(ctx: QueryCtx, job: JobId) -> str | None:
    found = await ctx.jobs.get(job)
    return None if found is None else found.state.value


@app.query
async def page(ctx: QueryCtx, pagination_opts: PaginationOptions, state: str = "pending") -> Page[JobStatus]:
    return await ctx.jobs.paginate(pagination_opts, state=state)


@app.query
async def done(ctx: QueryCtx) -> list[int]:
    return sorted([one.number async for one in ctx.db.query(Done)])


class Screen:
    """What one client shows: the newest answers of its queries."""

    def __init__(self, test: TestApp) -> None:
        self.test, self.view = test, test.live_queries.view()
        self.answers: dict[int, Any] = {}

    async def shows(self, *wanted: Any) -> None:
        """Look on, for five seconds at a time, until it shows these answers; fail if it never does."""

        async def moves() -> bool:
            self.test.clock.advance(timedelta(seconds=5))
            await settle(self.test.live_queries)
            found = self.view.step()
            for number, one in {} if found is None else found.answers.items():
                self.answers[number] = one.error or one.result
            shown = [self.answers.get(number) for number in range(3)]
            return shown[:2] == list(wanted[:2]) and _numbers(shown[2]) == wanted[2]

        await until(moves)


def _numbers(page: Any) -> list[int] | None:
    return None if page is None else [job.args["number"] for job in page.page]


async def test_a_mutation_sees_stored_jobs_and_its_own(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(fill, 0, 3)
        seen = await test.run_mutation(mix)
        everything = [100, 101, 102, 103, 104]
        assert seen == {
            "all": everything,
            "mail": everything[:-1],
            "scheduled": [104],
            "of the function": [104],
            "by name": everything[:-1],
            "key": [103],
            "running": [],
            "since": everything,
            "before": [],
            "two": [103, 104],
        }
        jobs = await test.jobs(limit=10)
        assert await test.run_query(listed_in_thread, {}) == jobs, "as the backend gives them"
        assert await test.run_query(listed_in_thread, {"pool": "mail", "limit": 1}) == [
            next(one for one in jobs if one.pool == "mail")
        ]


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ({"state": "done"}, ValueInvalid),
        ({"limit": 0}, ValueInvalid),
        ({"since": "today"}, ValueInvalid),
        ({"color": "red"}, UsageError),
        ({"function": 5}, ContextError),
    ],
)
async def test_wrong_conditions_are_refused(sqlite_url: str, where: dict[str, Any], error: type[PenstockError]) -> None:
    async with TestApp(app, sqlite_url) as test:
        with pytest.raises(error):
            await test.run_query(listed_in_thread, where)


async def test_pages_of_jobs_join_are_of_one_list_and_read_themselves_only(database_url: str) -> None:
    async with TestApp(app, database_url, max_rows_read=6) as test:
        await test.run_mutation(fill, 0, 7)
        cursor, pages, found = None, list[int](), list[int]()
        while True:
            one = await test.run_query(page, PaginationOptions(num_items=3, cursor=cursor))
            pages.append(len(one.page))
            found += [job.args["number"] for job in one.page]
            cursor = one.continue_cursor
            if one.is_done:
                break
        assert (pages, found) == ([3, 3, 1], [6, 5, 4, 3, 2, 1, 0])
        assert (await test.run_query(page, PaginationOptions(cursor=cursor))).page == []
        first = await test.run_query(page, PaginationOptions(num_items=3))
        await test.run_mutation(fill, 7, 9)
        again = PaginationOptions(num_items=3, end_cursor=first.continue_cursor)
        assert [job.args["number"] for job in (await test.run_query(page, again)).page] == [8, 7, 6, 5, 4]
        for state, wrong in (("failed", first.continue_cursor), ("pending", "x"), ("pending", "")):
            with pytest.raises(CursorInvalid):
                await test.run_query(page, PaginationOptions(cursor=wrong), state)


async def test_live_queries_of_jobs_are_never_left_behind(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        (job,) = await test.run_mutation(fill, 1, 2)
        screen = Screen(test)
        screen.view.add(0, listed, {})
        screen.view.add(1, state_of, {"job": job})
        screen.view.add(2, page, {"pagination_opts": PaginationOptions(num_items=1), "state": "pending"})
        await screen.shows(["1 pending"], "pending", [1])
        await test.run_mutation(fill, 2, 4)
        await screen.shows(["3 pending", "2 pending", "1 pending"], "pending", [3, 2, 1])
        await test.run_mutation(cancel, job)
        await test.run_until_idle()
        await screen.shows(["3 success", "2 success", "1 canceled"], "canceled", [])
        screen.view.close()


@pytest.mark.parametrize("alone", [True, False])
async def test_a_mutation_that_cancels_its_own_job_ends_canceled(database_url: str, alone: bool) -> None:
    async with TestApp(app, database_url) as test:
        told.clear()
        watched = pool.with_options(on_complete=ended)
        jobs = [await watched.enqueue(test, give_up, number) for number in range(1 if alone else 5)]
        jobs.append(await pool.enqueue(test, give_up, 10))
        kept = await pool.enqueue(test, give_up, 20, again=True)
        await test.run_until_idle()
        assert {await test.run_query(state_of, job) for job in jobs} == {"canceled"}
        assert await test.run_query(state_of, kept) == "success", "its cancel was undone"
        assert await test.run_query(done) == [*range(len(jobs) - 1), 10, 20], "what it wrote stays"
        assert told == ["canceled"] * (len(jobs) - 1)


async def test_jobs_of_a_batch_mutation_that_cancels_some_of_them_end_canceled(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        told.clear()
        watched = pool.with_options(on_complete=ended)
        jobs = [await watched.enqueue(test, wishes, number=number) for number in (1, 2, -3, 4)]
        asked[:] = jobs[1:3]
        await test.run_until_idle()
        states = [await test.run_query(state_of, job) for job in jobs]
        assert states == ["success", "canceled", "canceled", "success"]
        assert await test.run_query(done) == [-3, 1, 2, 4], "what it wrote stays"
        assert sorted(told) == ["canceled", "canceled", "success", "success"]
