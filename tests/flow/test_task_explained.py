"""What `explain` says of runs that never began or are to be canceled, and of what keeps a row waiting for its key."""

from __future__ import annotations

from datetime import timedelta

from stage.stories import Stage, settle

from penstock import ActionCtx, Retry, Table, TaskFilter
from penstock.testing import TestApp, gate

MINUTE = timedelta(minutes=1)


class Item(Table):
    number: int = 0
    owner: str = "a"


async def told(stage: Stage, test: TestApp, row: str, task: str = "react") -> str:
    """All that is told of a row."""
    return str(await stage.app.tasks.explain(test, task, row))


async def test_a_run_that_was_skipped_or_canceled_before_it_began_is_told_so(database_url: str) -> None:
    stage = Stage(Item)
    stage.task(Item, debounce=MINUTE)
    async with stage.open(database_url) as test:
        skipped, canceled = await stage.insert(test, Item(), Item())
        await test.plan()
        await stage.app.tasks.skip(test, TaskFilter(task="react", key=str(skipped)))
        await stage.app.tasks.cancel(test, TaskFilter(task="react", key=str(canceled)))
        text = await told(stage, test, canceled)
        assert "A run is pending because of a row that began to match, due at" in text
        assert "- Somebody has asked for the run to be canceled" in text
        await settle(test)
        for row, what in ((skipped, "skipped"), (canceled, "canceled")):
            text = await told(stage, test, row)
            assert f"- Its run because of a row that began to match was {what} before it began, at " in text
            assert "It was run" not in text
            assert "Somebody has asked" not in text
        await stage.patch(test, Item, skipped, number=1)
        await test.run_until_idle()
        assert "It was run because of a change, and succeeded" in await told(stage, test, skipped)


async def test_a_cancel_between_attempts_or_amid_one_is_told(database_url: str) -> None:
    stage = Stage(Item)
    stage.task(Item, retry=Retry.fixed(60, max_attempts=9))
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Item())
        await test.plan()
        with gate("task.begun") as held:
            await test.worker.tick()
            await held.arrived()
            assert "Somebody" not in await told(stage, test, row)
            await stage.app.tasks.cancel(test, TaskFilter(task="react"))
            assert "Somebody has asked for the run to be canceled" in await told(stage, test, row)
            held.open()
            await settle(test)
        (row,) = await stage.insert(test, Item())
        stage.error = ConnectionError("away")
        await test.run_until_idle(advance=False, raise_errors=False)
        await stage.app.tasks.cancel(test, TaskFilter(task="react", key=row))
        await test.run_until_idle(advance=False, raise_errors=False)
        text = await told(stage, test, row)
        assert "- Its run because of a row that began to match was canceled before its next attempt, at " in text


async def test_work_of_the_same_key_that_comes_first_is_named(database_url: str) -> None:
    stage = Stage(Item)
    pool = stage.app.workpool("mixed", key_parallelism=1)
    stage.task(Item, key="owner", pool=pool)

    @stage.app.action
    async def work(ctx: ActionCtx) -> None: ...

    async with stage.open(database_url) as test:
        job = await pool.with_options(concurrency_key="a").enqueue(test, work)
        await pool.with_options(concurrency_key="b").enqueue(test, work)
        (row,) = await stage.insert(test, Item())
        await test.plan()
        first = f"Rows with the same owner are run one at a time: job {job} of the same concurrency key"
        assert f"{first} comes first." in await told(stage, test, row)
        with gate("worker.outcome") as held:
            await test.worker.tick()
            await held.arrived()
            assert f"{first} is being run." in await told(stage, test, row)
            held.open()
            await test.run_until_idle()
        assert "one at a time" not in await told(stage, test, row)


async def test_a_row_whose_next_attempt_is_due_is_in_line_like_others(database_url: str) -> None:
    stage = Stage(Item)
    pool = stage.app.workpool("mixed", key_parallelism=1)
    stage.task(Item, key="owner", pool=pool, retry=Retry.fixed(10, max_attempts=9, jitter=0), name="usual")
    stage.task(Item, key="owner", pool=pool, priority=9, on=("change",), name="urgent")

    async def waits_for(name: str, row: str) -> str:
        return (await told(stage, test, row, name)).partition("one at a time: ")[2].partition("\n")[0]

    async with stage.open(database_url) as test:
        first, other = await stage.insert(test, Item(), Item(owner="b"))
        stage.error = ConnectionError("away")
        await test.run_until_idle(advance=False, raise_errors=False)
        stage.error = None
        (second,) = await stage.insert(test, Item())
        await test.plan()
        assert await waits_for("usual", second) == f"row {first} comes first, and waits for its next attempt."
        test.clock.advance(timedelta(seconds=10))
        assert await waits_for("usual", second) == f"row {first} comes first."
        assert await waits_for("usual", first) == await waits_for("usual", other) == ""
        await stage.patch(test, Item, second, number=1)
        await test.plan()
        assert await waits_for("usual", first) == f"row {second} of urgent comes first."
        assert await waits_for("urgent", second) == ""
        await test.run_until_idle(advance=False)
        assert stage.taken()[0].task == "urgent"
        assert await waits_for("usual", second) == ""
