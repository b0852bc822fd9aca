"""What keeps a row of a reactive task waiting because of its key, as `explain` says it: other work of that key, too."""

from __future__ import annotations

from stage.reactive import Stage

from penstock import ActionCtx, Table
from penstock.testing import TestApp, gate


class Item(Table):
    owner: str = "a"


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
