"""`ctx.mark_completed`: a run that ends as success with a transaction of the user's own, or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from stage.guests import PLAIN_KINDS, Kind, Visit, play
from stage.stories import TaskApp
from stage.waits import until

from penstock import (
    App,
    ConfigError,
    ContextError,
    Id,
    MutationCtx,
    QueryCtx,
    Retry,
    SyncTaskCtx,
    Table,
    TaskConditionFailed,
    TaskCtx,
)
from penstock.store.guest.drivers import answer

app = OPENED = App()
SOON = Retry(max_attempts=3, initial_backoff=1.0, base=1)


class Order(Table):
    status: str = "paid"


class Entry(Table):
    what: str


Step = Callable[[TaskCtx[Order]], Awaitable[None]]
steps: list[Step] = []
sync_steps: list[Callable[[SyncTaskCtx[Order]], None]] = []


@app.reactive_task(Order, filter=lambda o: o.status == "paid", watch=("status",), retry=SOON)
async def book(ctx: TaskCtx[Order]) -> None:
    """Do what the test says, the last of it again and again."""
    await (steps.pop(0) if len(steps) > 1 else steps[0])(ctx)


@app.reactive_task(Order, filter=lambda o: o.status == "sync", watch=("status",), retry=SOON)
def book_in_thread(ctx: SyncTaskCtx[Order]) -> None:
    sync_steps[0](ctx)


@app.mutation
async def place(ctx: MutationCtx, status: str = "paid") -> Id[Order]:
    return await ctx.db.insert(Order(status=status))


@app.mutation
async def change(ctx: MutationCtx, order_id: Id[Order], status: str) -> None:
    await ctx.db.patch(Order, order_id, status=status)


@app.query
async def entries(ctx: QueryCtx) -> list[str]:
    return [entry.what for entry in await ctx.db.query(Entry).collect()]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    steps.clear()
    sync_steps.clear()


AWAITED = [kind for kind in PLAIN_KINDS if not kind.name.startswith("Django")]  # which refuses to run on an event loop


@pytest.fixture
def url(kind: Kind, request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{kind.dialect}_url")
    return found


async def write(visit: Visit, what: str) -> None:
    """The business write of a transaction."""
    columns, time = "id, creation_time, what", "2030-01-01 00:00:00.000000+00:00"
    await answer(visit.run(f"insert into entry ({columns}) values ('entry_{len(what):026}', '{time}', '{what}')"))


async def completed(visit: Visit, ctx: TaskCtx[Order], what: str) -> None:
    """Write and complete, in a transaction that is open then."""
    await answer(visit.begin())
    await write(visit, what)
    await ctx.mark_completed(visit.connection)


@pytest.mark.parametrize("kind", AWAITED, ids=lambda kind: kind.name)
async def test_tx1_tx2_tx3_tx4_f6_the_write_and_the_end_of_the_run_commit_together_or_not_at_all(
    kind: Kind, url: str
) -> None:
    async def commits(ctx: TaskCtx[Order]) -> None:
        async with kind.open(url) as visit:
            await completed(visit, ctx, "booked")
            await answer(visit.commit())

    async def only_writes(ctx: TaskCtx[Order]) -> None:
        async with kind.open(url) as visit:
            await answer(visit.begin())
            await write(visit, "written")
            await answer(visit.commit())

    async def rolls_back(ctx: TaskCtx[Order]) -> None:
        async with kind.open(url) as visit:
            await completed(visit, ctx, "taken back")
            await answer(visit.rollback())
        raise ConnectionError("no")

    async def says_it_again(ctx: TaskCtx[Order]) -> None:
        async with kind.open(url) as visit:
            await completed(visit, ctx, "booked again")
            await ctx.mark_completed(visit.connection)
            await answer(visit.commit())
            await ctx.mark_completed()
        await ctx.mark_completed()

    async def tries_the_transaction_again(ctx: TaskCtx[Order]) -> None:
        async with kind.open(url) as visit:
            for attempt in range(3):
                await completed(visit, ctx, "at the third try")
                await answer(visit.commit() if attempt == 2 else visit.rollback())
        raise ConnectionError("after the commit")

    async with TaskApp(app, url) as t:
        for step, attempts, error in (
            (commits, 1, None),
            (only_writes, 1, None),
            (rolls_back, 3, "ConnectionError: no"),
            (says_it_again, 1, None),
            (tries_the_transaction_again, 1, None),
        ):
            steps[:] = [step]
            order = await t.run_mutation(place)
            assert await t.settle_down() == attempts, step
            (job,) = [job for job in await t.jobs() if str(order) in job.args["key"]]
            assert (job.attempt, job.error) == (attempts, error), step
            assert job.state.value == ("success" if error is None else "failed"), step
        assert sorted(await t.run_query(entries)) == ["at the third try", "booked", "booked again", "written"]


# ----- TX


POSTGRES = [kind for kind in AWAITED if kind.name in {"psycopg", "asyncpg"}]
MAY_WRITE = "grant usage on schema public to {role}; grant select, insert on all tables in schema public to {role}"
DOCUMENTED = ("grant usage on schema penstock to {role}", "grant select, update on penstock.running_job to {role}")


@pytest.mark.parametrize("guest", POSTGRES, ids=lambda guest: guest.name)
async def test_the_rights_that_the_docs_name_are_enough_and_needed(guest: Kind, postgres_url: str) -> None:
    """The user of the connection may write tables of its own, and of penstock's only what the docs say."""
    page = (Path(__file__).parents[2] / "docs" / "reactive-tasks.md").read_text()
    assert all(grant.format(role="shop") in page for grant in DOCUMENTED)
    role, said = f"booker_of_{postgres_url.partition('?')[0].rpartition('/')[2]}", list[str]()

    async def step(ctx: TaskCtx[Order]) -> None:
        async with guest.open(postgres_url) as visit:
            await answer(visit.begin())
            await answer(visit.run(f"set local role {role}"))
            await write(visit, "booked")
            refused = None
            try:
                await ctx.mark_completed(visit.connection)
            except ConfigError as error:
                said.append(str(error))
                refused = error
            await answer(visit.commit() if refused is None else visit.rollback())
        if refused is not None:
            raise refused

    steps.append(step)
    owner = await asyncpg.connect(postgres_url)
    try:
        async with TaskApp(app, postgres_url) as t:
            await owner.execute(f"create role {role}")
            for grant in (MAY_WRITE, *DOCUMENTED):
                await owner.execute(grant.format(role=role))
                said.clear()
                await t.run_mutation(place)
                await t.settle_down()
                if grant == DOCUMENTED[-1]:
                    assert not said
                    continue
                assert await t.run_query(entries) == []
                assert said
                for text in said:
                    assert "The user of the database may not do this: permission denied for" in text
                    assert "Grant it the right, or connect as a user who has it." in text
            assert await t.run_query(entries) == ["booked"]
            assert sorted(job.state.value for job in await t.jobs()) == ["failed", "failed", "success"]
    finally:
        await owner.execute(f"drop owned by {role}; drop role {role}")
        await owner.close()


@pytest.mark.parametrize("kind", PLAIN_KINDS, ids=lambda kind: kind.name)
async def test_a_def_handler_completes_with_a_sync_connection(kind: Kind, url: str) -> None:
    refused = list[str]()

    async def visited(ctx: SyncTaskCtx[Order]) -> None:
        async with kind.open(url) as visit:
            try:
                await answer(visit.begin())
                ctx.mark_completed(visit.connection)
            except ContextError as error:
                refused.append(str(error))
            await answer(visit.commit())

    def step(ctx: SyncTaskCtx[Order]) -> None:
        play(kind.is_async, visited(ctx))
        if not refused:
            raise ConnectionError("after the commit")

    async with TaskApp(app, url) as t:
        sync_steps.append(step)
        await t.run_mutation(place, "sync")
        assert await t.settle_down() == 1
        assert (await t.only_job()).state.value == "success"
        assert bool(refused) is kind.is_async


# ----- after the commit


async def test_whatever_comes_after_the_commit_is_ignored_and_told(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def raises(ctx: TaskCtx[Order]) -> None:
        await ctx.mark_completed()
        raise ConnectionError("after the end")

    async def defers(ctx: TaskCtx[Order]) -> None:
        await ctx.mark_completed()
        ctx.defer_current(timedelta(minutes=1))

    async def skips(ctx: TaskCtx[Order]) -> None:
        await ctx.mark_completed()
        raise TaskConditionFailed("never mind")

    async with TaskApp(app, database_url) as t:
        for step in (raises, defers, skips):
            steps[:] = [step]
            await t.run_mutation(place)
            assert await t.settle_down() == 1
        assert [job.state.value for job in await t.jobs()] == ["success"] * 3
    assert caplog.text.count("task.end_ignored") == 3


async def test_a_transaction_that_is_open_at_the_end_holds_up_nobody_else(postgres_url: str) -> None:
    """PostgreSQL only: on SQLite an open transaction that writes keeps all others from writing, whoever they are."""
    guest = next(kind for kind in PLAIN_KINDS if kind.dialect == "postgres" and kind.is_async)
    async with TaskApp(app, postgres_url) as t:
        async with guest.open(postgres_url) as visit:

            async def leaves_it_open(ctx: TaskCtx[Order]) -> None:
                await completed(visit, ctx, "booked")
                raise ConnectionError("which does not matter")

            async def plain(ctx: TaskCtx[Order]) -> None:
                await ctx.get_document()

            steps.extend((leaves_it_open, plain))
            first = await t.run_mutation(place)
            await t.plan()
            await t.worker.tick()
            await t.run_mutation(place)
            await t.run_mutation(change, first, "other")
            await t.run_mutation(change, first, "paid")
            await t.plan()

            async def other_has_ended() -> bool:
                await t.worker.tick()
                return any(job.state.value == "success" for job in await t.jobs())

            await until(other_has_ended)
            assert sorted(job.state.value for job in await t.jobs()) == ["running", "success"]
            await answer(visit.commit())
        await t.settle_down()
        assert [job.state.value for job in await t.jobs()] == ["success"] * 2
        assert sorted(len(job.attempts) for job in await t.jobs()) == [0, 1], "the change was one more run"
        assert await t.run_query(entries) == ["booked"]
