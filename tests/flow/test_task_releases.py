"""Two releases of a program on one database, of which the other one declares a task otherwise."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from stage.reactive import Stage, settle

from penstock import MutationTaskCtx, Table, TaskBatchCtx, TaskCtx
from penstock.testing import TestApp

MINUTE = timedelta(minutes=1)


class Item(Table):
    number: int = 0
    owner: str = "a"
    state: str = "new"


def release(**options: Any) -> Stage:
    """A release of the program, whose handler reads the row."""
    stage = Stage(Item)

    async def handler(ctx: TaskCtx[Item]) -> None:
        await ctx.get_document()

    stage.task(Item, handler=handler, **{"watch": ("number",), **options})
    return stage


def of_an_action(app: Any, ran: list[Any], **options: Any) -> None:
    """A task whose rows are read one at a time, and some of their columns."""

    @app.reactive_task(Item, watch=("number",), **options)
    async def react(ctx: TaskCtx[Item]) -> None:
        await ctx.get_document(fields=("number",))
        ran.append(ctx.doc_id)


def of_a_mutation(app: Any, ran: list[Any], **options: Any) -> None:
    """A task whose rows are read in the transaction of the run."""

    @app.reactive_task(Item, watch=("number",), **options)
    async def react(ctx: MutationTaskCtx[Item]) -> None:
        await ctx.get_document()
        ran.append(ctx.doc_id)


def of_batches(app: Any, ran: list[Any], **options: Any) -> None:
    """A task whose rows are read together."""

    @app.reactive_task(Item, watch=("number",), batch=5, **options)
    async def react(ctx: TaskBatchCtx[Item]) -> None:
        ran.extend(run.doc_id for run in await ctx.get_documents())


async def work(test: TestApp) -> None:
    """Let a worker of one release run what is planned already."""
    await test.run_until_idle(plan=False, advance=False, raise_errors=False)


# ----- a worker of the release before


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("declare", [of_an_action, of_a_mutation, of_batches])
async def test_runs_that_only_the_filter_of_the_next_release_calls_for_are_left_to_it(
    database_url: str, declare: Callable[..., None], version: int
) -> None:
    first, second, first_ran, second_ran = Stage(Item), Stage(Item), list[Any](), list[Any]()
    declare(first.app, first_ran, filter=lambda i: i.state == "new")
    declare(second.app, second_ran, filter=lambda i: i.state != "closed", version=version)
    async with first.open(database_url) as old:
        older, known = await first.insert(old, Item(state="paid"), Item())
        await settle(old)
        assert first_ran == [known]
        async with second.open(database_url, clock=old.clock) as new:
            later, common = await second.insert(new, Item(state="paid"), Item())
            old.clock.advance(timedelta(seconds=6))  # in which planners look for what was declared
            await old.plan()
            await work(old)
            assert first_ran == [known, common], "what both know may be run by either"
            assert not second_ran
            explained = await second.app.tasks.explain(new, "react", later)
            assert "Another release has declared the task otherwise" in str(explained)
            old.clock.advance(timedelta(seconds=29))
            await work(new)
            assert not second_ran, "it is not tried over and over"
            old.clock.advance(timedelta(seconds=1))
            await work(new)
            assert sorted(second_ran) == sorted([older, later])
            assert await new.job_counts() == {"ready": 0, "scheduled": 0, "running": 0, "success": 4}


async def test_a_worker_before_a_narrower_filter_ends_as_skipped_what_has_left_both(database_url: str) -> None:
    first, second = release(filter=lambda i: i.state != "closed"), release(filter=lambda i: i.state == "new")
    async with first.open(database_url) as old, second.open(database_url, clock=old.clock) as new:
        stays, leaves, closes = await second.insert(new, Item(), Item(), Item())
        await new.plan()
        await second.patch(new, Item, leaves, state="paid")
        await second.patch(new, Item, closes, state="closed")
        await work(old)
        assert sorted(first.ids()) == sorted([stays, leaves]), "it has not left the filter of its release"
        await settle(new, MINUTE)
        assert not second.ids()
        assert (await new.job_counts())["skipped"] == 1


@pytest.mark.parametrize("on", [("enter", "change"), ("enter", "change", "leave")])
async def test_a_change_that_only_the_release_before_watches_is_no_reason_to_skip_a_run(
    database_url: str, on: tuple[str, ...]
) -> None:
    first, second = release(watch=("number", "owner"), on=on), release(on=on)
    async with first.open(database_url) as old, second.open(database_url, clock=old.clock) as new:
        (row,) = await second.insert(new, Item())
        await new.plan()
        await second.patch(new, Item, row, owner="b")
        await new.plan()
        await work(old)
        await settle(new, MINUTE)
        assert first.ids() + second.ids() == [row]


async def test_what_was_not_captured_when_a_run_was_planned_is_no_change(database_url: str) -> None:
    first = release(debounce=MINUTE)
    second = release(watch=("number", "owner"), reconcile_on_trigger_change=False)
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Item())
        await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        await settle(test, MINUTE)
        assert second.ids() == [row]
