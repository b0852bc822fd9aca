"""What keeps a row of a reactive task waiting because of its key, as `explain` says it: other work of that key, too."""

from __future__ import annotations

from datetime import timedelta

from stage.reactive import Stage

from penstock import ActionCtx, Retry, Table
from penstock.testing import TestApp, gate


class Item(Table):
    owner: str = "a"
    note: str = ""


class Mixed(Stage):
    """A task with the owners of its rows as their keys, and work that is enqueued with such a key."""

    def __init__(self) -> None:
        super().__init__(Item)
        self.pool = self.app.workpool("mixed", key_parallelism=1)
        self.task(Item, key="owner", pool=self.pool)

        @self.app.action
        async def work(ctx: ActionCtx) -> None: ...

        self.work = work

    async def told(self, test: TestApp, row: str) -> str:
        """All that is told of a row."""
        return str(await self.app.tasks.explain(test, "react", row))


async def test_work_of_the_same_key_that_comes_first_is_named(database_url: str) -> None:
    stage = Mixed()
    async with stage.open(database_url) as test:
        job = await stage.pool.with_options(concurrency_key="a").enqueue(test, stage.work)
        await stage.pool.with_options(concurrency_key="b").enqueue(test, stage.work)
        (row,) = await stage.insert(test, Item())
        await test.plan()
        first = f"Rows with the same owner are run one at a time: job {job} of the same concurrency key"
        assert f"{first} comes first." in await stage.told(test, row)
        with gate("worker.outcome") as held:
            await test.worker.tick()
            await held.arrived()
            assert f"{first} is being run." in await stage.told(test, row)
            held.open()
            await test.run_until_idle()
        assert "one at a time" not in await stage.told(test, row)


async def test_a_row_whose_next_attempt_is_due_is_in_line_like_others(database_url: str) -> None:
    stage = Stage(Item)
    pool = stage.app.workpool("mixed", key_parallelism=1)
    stage.task(Item, key="owner", pool=pool, retry=Retry.fixed(10, max_attempts=9, jitter=0), name="usual")
    stage.task(Item, key="owner", pool=pool, priority=9, on=("change",), name="urgent")

    async def told(name: str, row: str) -> str:
        found = [one for one in (await stage.app.tasks.explain(test, name, row)).reasons if "one at a time" in one]
        return found[0].partition("one at a time: ")[2] if found else ""

    async with stage.open(database_url) as test:
        (first,) = await stage.insert(test, Item())
        stage.error = ConnectionError("away")
        await test.run_until_idle(advance=False, raise_errors=False)
        stage.error = None
        (second,) = await stage.insert(test, Item())
        await test.plan()
        assert await told("usual", second) == f"row {first} comes first, and waits for its next attempt."
        test.clock.advance(timedelta(seconds=10))
        assert await told("usual", second) == f"row {first} comes first."
        assert await told("usual", first) == ""
        await stage.patch(test, Item, second, note="urgent now")
        await test.plan()
        assert await told("usual", first) == f"row {second} of urgent comes first."
        assert await told("urgent", second) == ""
        await test.run_until_idle(advance=False)
        assert stage.taken()[0].task == "urgent"
