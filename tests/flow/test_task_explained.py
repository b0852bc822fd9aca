"""What `explain` says of runs that never began, and of those that somebody wants to be canceled."""

from __future__ import annotations

from datetime import timedelta

from stage.reactive import Stage, settle

from penstock import Retry, Table, TaskFilter
from penstock.testing import gate

MINUTE = timedelta(minutes=1)


class Item(Table):
    number: int = 0


async def test_a_run_that_was_skipped_or_canceled_before_it_began_is_told_so(database_url: str) -> None:
    stage = Stage(Item)
    stage.task(Item, debounce=MINUTE)
    async with stage.open(database_url) as test:
        skipped, canceled = await stage.insert(test, Item(), Item())
        await test.plan()
        await stage.app.tasks.skip(test, TaskFilter(task="react", key=str(skipped)))
        await stage.app.tasks.cancel(test, TaskFilter(task="react", key=str(canceled)))
        text = str(await stage.app.tasks.explain(test, "react", canceled))
        assert "A run is pending because of a row that began to match, due at" in text
        assert "- Somebody has asked for the run to be canceled" in text
        await settle(test)
        for row, what in ((skipped, "skipped"), (canceled, "canceled")):
            text = str(await stage.app.tasks.explain(test, "react", row))
            assert f"- Its run because of a row that began to match was {what} before it began, at " in text
            assert "It was run" not in text
            assert "Somebody has asked" not in text
        await stage.patch(test, Item, skipped, number=1)
        await test.run_until_idle()
        assert "It was run because of a change, and succeeded" in str(
            await stage.app.tasks.explain(test, "react", skipped)
        )


async def test_a_run_that_is_canceled_between_its_attempts_is_told_so(database_url: str) -> None:
    stage = Stage(Item)
    stage.task(Item, retry=Retry.fixed(60, max_attempts=9))
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Item())
        stage.error = ConnectionError("away")
        await test.run_until_idle(advance=False, raise_errors=False)
        await stage.app.tasks.cancel(test, TaskFilter(task="react"))
        await test.run_until_idle(advance=False, raise_errors=False)
        text = str(await stage.app.tasks.explain(test, "react", row))
        assert "- Its run because of a row that began to match was canceled before its next attempt, at " in text


async def test_a_cancel_of_a_run_that_is_under_way_is_told(database_url: str) -> None:
    stage = Stage(Item)
    stage.task(Item)
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Item())
        await test.plan()
        with gate("task.begun") as held:
            await test.worker.tick()
            await held.arrived()
            assert "Somebody" not in str(await stage.app.tasks.explain(test, "react", row))
            await stage.app.tasks.cancel(test, TaskFilter(task="react"))
            assert "Somebody has asked for the run to be canceled" in str(
                await stage.app.tasks.explain(test, "react", row)
            )
            held.open()
            await settle(test)
