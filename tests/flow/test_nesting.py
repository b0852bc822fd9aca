"""Functions that run functions: one transaction, in parts that can be undone alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from stage.stories import tell_in
from stage.waits import SOON

from penstock import (
    App,
    ApplicationError,
    ContextError,
    Id,
    Index,
    LimitExceeded,
    MutationCtx,
    QueryCtx,
    Table,
    UniqueViolation,
)
from penstock.testing import TestApp


class Note(Table):
    text: str
    number: int = 0

    by_text = Index("text", unique=True)
    by_number = Index("number")


app = OPENED = App()
write, read, _ = tell_in(app)


@app.internal_mutation
async def add(ctx: MutationCtx, text: str, *, fail: bool = False) -> Id[Note]:
    """Insert a note and schedule a job, and perhaps fail after that."""
    note_id = await ctx.db.insert(Note(text=text))
    await ctx.scheduler.run_after(timedelta(0), add, text=f"later {text}")
    if fail:
        raise ApplicationError(f"{text} failed")
    return note_id


@app.internal_mutation
async def add_one(ctx: MutationCtx, text: str) -> None:
    await ctx.db.insert(Note(text=text))


@app.internal_mutation
async def again(ctx: MutationCtx) -> None:
    await ctx.db.insert(Note(text=str(await ctx.db.query(Note).count())))
    await ctx.run_mutation(again)


async def texts(backend: TestApp) -> list[str]:
    rows = await backend.run_query(read, lambda ctx: ctx.db.query(Note).with_index(Note.by_text).collect())
    return [row.text for row in rows]


async def scheduled(backend: TestApp) -> list[str]:
    return sorted(job.args["text"] for job in await backend.jobs("pending"))


# ----- parts that are undone


async def test_what_a_failed_part_changed_is_read_as_it_was(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            kept, gone = await ctx.db.insert(Note(text="kept")), await ctx.db.insert(Note(text="gone"))

            async def part(inner: MutationCtx) -> None:
                await inner.db.patch(Note, kept, text="changed")
                await inner.db.delete(Note, gone)
                await inner.db.insert(Note(text="new"))
                raise ApplicationError("no")

            with pytest.raises(ApplicationError):
                await ctx.run_mutation(write, part)
            assert await ctx.db.get(Note, gone) is not None
            assert (await ctx.db.patch(Note, kept, number=5)).text == "kept"
            assert await ctx.db.query(Note).with_index(Note.by_text, text="new").first() is None
            await ctx.db.insert(Note(text="new"))

        await backend.run_mutation(write, story)
        assert await texts(backend) == ["gone", "kept", "new"]


async def test_parts_that_fail_are_undone_alone_with_their_parts(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def innermost(ctx: MutationCtx) -> None:
            await ctx.run_mutation(add, "innermost")

        async def inner(ctx: MutationCtx) -> None:
            await ctx.run_mutation(write, innermost)
            with pytest.raises(UniqueViolation):
                await ctx.run_mutation(add, "innermost")
            await ctx.db.insert(Note(text="inner"))
            raise ApplicationError("no")

        async def story(ctx: MutationCtx) -> None:
            await ctx.run_mutation(add, "before")
            with pytest.raises(ApplicationError):
                await ctx.run_mutation(write, inner)
            assert await ctx.db.query(Note).count() == 1
            await ctx.run_mutation(write, innermost)

        async def uncaught(ctx: MutationCtx) -> None:
            await ctx.run_mutation(add, "kept?")
            await ctx.run_mutation(add, "failed", fail=True)

        await backend.run_mutation(write, story)
        with pytest.raises(ApplicationError, match="failed failed"):
            await backend.run_mutation(write, uncaught)
        assert await texts(backend) == ["before", "innermost"]
        assert await scheduled(backend) == ["later before", "later innermost"]


async def test_a_cancel_asked_for_in_a_failed_part_is_not_carried_out(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        kept = await backend.scheduler.run_after(timedelta(0), add_one, text="kept")
        gone = await backend.scheduler.run_after(timedelta(0), add_one, text="gone")

        async def failing(ctx: MutationCtx) -> None:
            await ctx.scheduler.cancel(kept)
            raise ApplicationError("no")

        async def story(ctx: MutationCtx) -> None:
            with pytest.raises(ApplicationError):
                await ctx.run_mutation(write, failing)
            await ctx.run_mutation(write, lambda inner: inner.scheduler.cancel(gone))

        await backend.run_mutation(write, story)
        await backend.run_until_idle()
        assert await texts(backend) == ["kept"]


async def test_a_part_whose_time_is_over_is_undone_before_the_function_goes_on(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            started = asyncio.Event()

            async def endless(inner: MutationCtx) -> None:
                await inner.run_mutation(add, "endless")
                started.set()
                await asyncio.Event().wait()

            part = asyncio.ensure_future(ctx.run_mutation(write, endless))
            await started.wait()
            part.cancel()
            with pytest.raises(asyncio.CancelledError):
                await part
            assert await ctx.db.query(Note).count() == 0
            await ctx.run_mutation(add, "endless")

        await backend.run_mutation(write, story)
        assert await texts(backend) == ["endless"]
        assert await scheduled(backend) == ["later endless"]


# ----- side by side


async def test_parts_and_writes_side_by_side_do_not_undo_each_other(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            outcomes = await asyncio.gather(
                ctx.db.insert(Note(text="own 1")),
                ctx.run_mutation(add, "failed 1", fail=True),
                ctx.db.insert(Note(text="own 2")),
                ctx.run_mutation(add, "part 1"),
                ctx.scheduler.run_after(timedelta(0), add, text="own job"),
                ctx.run_mutation(add, "failed 2", fail=True),
                ctx.db.insert(Note(text="own 3")),
                ctx.run_mutation(add, "part 2"),
                return_exceptions=True,
            )
            assert [isinstance(outcome, ApplicationError) for outcome in outcomes].count(True) == 2

        await backend.run_mutation(write, story)
        assert await texts(backend) == ["own 1", "own 2", "own 3", "part 1", "part 2"]
        assert await scheduled(backend) == ["later part 1", "later part 2", "own job"]


async def test_a_write_beside_a_part_waits_until_the_part_has_ended(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            inside, go_on = asyncio.Event(), asyncio.Event()

            async def part(inner: MutationCtx) -> None:
                await inner.db.insert(Note(text="part"))
                inside.set()
                await go_on.wait()
                raise ApplicationError("no")

            failing = asyncio.ensure_future(ctx.run_mutation(write, part))
            await inside.wait()
            beside = asyncio.ensure_future(ctx.db.insert(Note(text="beside")))
            reading = asyncio.ensure_future(ctx.db.query(Note).count())
            _, waiting = await asyncio.wait([beside, reading], timeout=0.01)
            assert len(waiting) == 2
            go_on.set()
            with pytest.raises(ApplicationError):
                await failing
            await beside
            assert await reading <= 1, "what the part wrote is never seen"

        await backend.run_mutation(write, story)
        assert await texts(backend) == ["beside"]


# ----- whose ctx


async def test_the_ctx_of_the_outer_function_is_refused_inside(database_url: str) -> None:
    uses: list[Callable[[MutationCtx], Any]] = [
        lambda ctx: ctx.db.insert(Note(text="x")),
        lambda ctx: ctx.db.query(Note).collect(),
        lambda ctx: ctx.sql("select 1"),
        lambda ctx: ctx.scheduler.run_after(timedelta(0), add, text="x"),
        lambda ctx: asyncio.gather(ctx.db.query(Note).count()),
    ]
    async with TestApp(app, database_url) as backend:
        for use in uses:

            async def story(ctx: MutationCtx, use: Callable[[MutationCtx], Any] = use) -> None:
                async def wrong(_inner: Any) -> None:
                    await use(ctx)

                async def in_a_task(_inner: Any) -> None:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(wrong(None))

                for call in (
                    ctx.run_mutation(write, wrong),
                    ctx.run_mutation(write, in_a_task),
                    ctx.run_query(read, wrong),
                    ctx.run_mutation(write, lambda inner: inner.run_query(read, wrong)),
                ):
                    with pytest.raises((ContextError, ExceptionGroup)) as caught:
                        await call
                    error = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
                    assert "used its own ctx inside a sub-transaction" in str(error)
                await ctx.db.query(Note).collect()

            async with asyncio.timeout(SOON):
                await backend.run_mutation(write, story)
        assert await texts(backend) == []
        assert await backend.jobs() == []


async def test_an_inner_ctx_reads_what_was_written_and_ends_with_its_function(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            kept: list[Any] = []
            await ctx.run_mutation(add, "a")

            async def look(inner: QueryCtx) -> int:
                assert (inner.now(), inner.random) == (ctx.now(), ctx.random)
                return await inner.run_query(read, lambda innermost: innermost.db.query(Note).count())

            async def keep(inner: MutationCtx) -> None:
                kept.append(inner)

            assert await ctx.run_query(read, look) == 1
            await ctx.run_mutation(write, keep)
            with pytest.raises(ContextError, match="has ended"):
                await kept[0].db.insert(Note(text="x"))

        await backend.run_mutation(write, story)
        with pytest.raises(LimitExceeded, match="nested deeper than 64 levels"):
            await backend.run_mutation(again)
        assert await texts(backend) == ["a"]
