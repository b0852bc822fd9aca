"""Functions that run functions, also those written with def: one transaction, in parts that can be undone alone."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from stage.stories import tell_in
from stage.waits import SOON

from penstock import (
    App,
    ApplicationError,
    Conflict,
    ContextError,
    Id,
    Index,
    LimitExceeded,
    MutationCtx,
    Page,
    QueryCtx,
    ResultInvalid,
    Table,
    UniqueViolation,
    gte,
    sync,
)
from penstock.testing import TestApp, raising


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


async def test_parts_that_fail_are_undone_alone_with_their_parts_and_what_they_canceled(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        kept, gone = [await backend.scheduler.run_after(timedelta(0), add, text=text) for text in ("kept", "gone")]

        async def innermost(ctx: MutationCtx) -> None:
            await ctx.run_mutation(add, "innermost")

        async def inner(ctx: MutationCtx) -> None:
            await ctx.run_mutation(write, innermost)
            with pytest.raises(UniqueViolation):
                await ctx.run_mutation(add, "innermost")
            await ctx.db.insert(Note(text="inner"))
            await ctx.scheduler.cancel(kept)
            raise ApplicationError("no")

        async def story(ctx: MutationCtx) -> None:
            await ctx.run_mutation(add, "before")
            with pytest.raises(ApplicationError):
                await ctx.run_mutation(write, inner)
            assert await ctx.db.query(Note).count() == 1
            await ctx.run_mutation(write, innermost)
            await ctx.run_mutation(write, lambda part: part.scheduler.cancel(gone))

        async def uncaught(ctx: MutationCtx) -> None:
            await ctx.run_mutation(add, "kept?")
            await ctx.run_mutation(add, "failed", fail=True)

        await backend.run_mutation(write, story)
        with pytest.raises(ApplicationError, match="failed failed"):
            await backend.run_mutation(write, uncaught)
        assert await texts(backend) == ["before", "innermost"]
        assert sorted({*await scheduled(backend)} - {"gone"}) == ["kept", "later before", "later innermost"]
        await backend.worker.tick()
        await backend.worker.wait_for_jobs()
        assert {"kept", "gone"} & {*await texts(backend)} == {"kept"}


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


pool = app.workpool("beside", max_parallelism=1)
SENDS: dict[str, Callable[[MutationCtx], Any]] = {
    "run_after": lambda ctx: ctx.scheduler.run_after(timedelta(0), add, text="own"),
    "enqueue": lambda ctx: pool.enqueue(ctx, add, text="own"),
    "enqueue_batch": lambda ctx: pool.enqueue_batch(ctx, add, [{"text": "own"}]),
    "a key": lambda ctx: pool.with_options(key="one").enqueue(ctx, add, text="own"),
}


begun: list[asyncio.Event] = []


@app.internal_mutation
async def fail_late(ctx: MutationCtx) -> None:
    begun[-1].set()
    for _ in range(5):
        await ctx.db.query(Note).count()
    raise ApplicationError("failed")


@pytest.mark.parametrize("way", SENDS)
async def test_a_job_that_is_sent_while_a_part_runs_is_not_undone_with_it(database_url: str, way: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            begun.append(asyncio.Event())

            async def send_meanwhile() -> None:
                await begun[-1].wait()
                await SENDS[way](ctx)

            failed, sent = await asyncio.gather(ctx.run_mutation(fail_late), send_meanwhile(), return_exceptions=True)
            assert (type(failed), sent) == (ApplicationError, None)

        await backend.run_mutation(write, story)
        assert await scheduled(backend) == ["own"]


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


# ----- functions written with def: the same words, in threads


request_name = contextvars.ContextVar("request_name", default="none")


@app.internal_mutation
def write_in_thread(ctx: sync.MutationCtx, story: Any) -> Any:
    return story(ctx)


@app.internal_query
def read_in_thread(ctx: sync.QueryCtx, story: Any) -> Any:
    return story(ctx)


@app.internal_action
def act_in_thread(ctx: sync.ActionCtx, story: Any) -> Any:
    return story(ctx)


@app.mutation
def insert(ctx: sync.MutationCtx, text: str, number: int = 0) -> Id[Note]:
    return ctx.db.insert(Note(text=text, number=number))


@app.query
def count(ctx: sync.QueryCtx) -> int:
    return ctx.db.query(Note).count()


@app.query
def page(ctx: sync.QueryCtx, cursor: str | None = None) -> Page[Note]:
    return ctx.db.query(Note).with_index(Note.by_number).order("desc").paginate(cursor=cursor, num_items=2)


@app.internal_mutation
def wrong(_ctx: sync.MutationCtx) -> int:
    return "x"  # type: ignore[return-value]  # what is tested


@app.internal_mutation
async def down_async(ctx: MutationCtx, depth: int) -> int:
    """Go down through functions of both sorts by turns."""
    await ctx.db.insert(Note(text=f"{ctx.random.random()} {depth}", number=depth))
    return depth if depth == 0 else await ctx.run_mutation(down, depth - 1)


@app.internal_mutation
def down(ctx: sync.MutationCtx, depth: int) -> int:
    ctx.db.insert(Note(text=f"{ctx.random.random()} {depth}", number=depth))
    return depth if depth == 0 else ctx.run_mutation(down_async, depth - 1)


@app.internal_action
def act_down(ctx: sync.ActionCtx, depth: int) -> int:
    """Go down through actions, to a mutation and a query."""
    if depth:
        return ctx.run_action(act_down, depth - 1)
    ctx.run_mutation(down, 2)
    return ctx.run_query(count)


# ----- the words


async def test_all_words_wait_and_give_their_result(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        def story(ctx: sync.MutationCtx) -> None:
            ids = ctx.db.insert_many([Note(text=str(n), number=n % 3) for n in range(6)])
            ada = ctx.db.insert(Note(text="Ada"))
            assert ctx.db.patch(Note, ada, number=7).number == 7
            assert ctx.db.replace(Note, ada, Note(text="Eve", number=8)).text == "Eve"
            ctx.db.delete(Note, ids[0])
            assert ctx.db.get(Note, ids[0]) is None
            with pytest.raises(UniqueViolation):
                ctx.db.insert(Note(text="Eve"))
            notes = ctx.db.query(Note).with_index(Note.by_number)
            assert [note.text for note in notes.collect()] == ["3", "1", "4", "2", "5", "Eve"]
            assert [note.text for note in notes] == [note.text for note in notes.collect()]
            assert notes.order("desc").filter(lambda note: note.text == "4").unique() == notes.collect()[2]
            some = ctx.db.query(Note).with_index(Note.by_number, number=gte(2))
            assert (some.count(), some.sum("number"), some.min("text"), some.max("number")) == (3, 12, "2", 8)
            assert notes.group_by("number").count() == {0: 1, 1: 2, 2: 2, 8: 1}
            assert notes.group_by("number").sum("number") == {0: 0, 1: 2, 2: 4, 8: 8}
            assert notes.first() == notes.take(1)[0]
            assert ctx.sql("select count(*) as n from note where number > :low", low=1) == [{"n": 3}]
            assert ctx.run_query(count) == 6
            assert ctx.now().tzinfo is not None
            assert 0 <= ctx.random.random() < 1
            gone = ctx.scheduler.run_at(ctx.now() + timedelta(hours=1), insert, text="gone")
            ctx.scheduler.cancel(gone)
            later = ctx.scheduler.run_after(timedelta(0), insert, text="later", number=1)
            status: Any = ctx.scheduler.get(later)
            assert status.args == {"text": "later", "number": 1}

        await backend.run_mutation(write_in_thread, story)
        await backend.run_until_idle()
        assert await backend.run_query(count) == 7
        assert [row.text for row in (await backend.dispatch.call(page.name, None, "{}")).page] == ["Eve", "5"]


async def test_reading_in_a_loop_reads_in_pieces_and_threads_share_a_ctx(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        request_name.set("mine")

        def fill(ctx: sync.MutationCtx) -> str:
            ctx.db.insert_many([Note(text=f"{n:04}") for n in range(475)])
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda number: ctx.db.insert(Note(text=f"{number:04}")), range(475, 495)))
                list(pool.map(lambda number: ctx.run_mutation(insert, f"{number:04}"), range(495, 500)))
            return f"{request_name.get()} {ctx.run_query(read_in_thread, lambda _: request_name.get())}"

        def look(ctx: sync.QueryCtx) -> None:
            seen = []
            for note in ctx.db.query(Note).with_index(Note.by_text):
                seen.append(note.text)
                if len(seen) == 70:
                    break
            assert seen == [f"{number:04}" for number in range(70)]
            assert ctx._twin._scope.transaction._rows_read < 500
            assert len(list(ctx.db.query(Note))) == 500

        async with asyncio.timeout(SOON):
            assert await backend.run_mutation(write_in_thread, fill) == "mine mine", (
                "a thread knows the context of its caller"
            )
        await backend.run_query(read_in_thread, look)


async def test_an_error_in_a_thread_undoes_everything_and_a_conflict_repeats_it(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        error, seen = ApplicationError({"x": 1}), list[Any]()

        def story(ctx: sync.MutationCtx) -> None:
            ctx.db.insert(Note(text="x"))
            ctx.scheduler.run_after(timedelta(0), insert, text="later")
            seen.append((ctx.now(), ctx.random.random()))
            if len(seen) == 1:
                raise error

        with pytest.raises(ApplicationError) as caught:
            await backend.run_mutation(write_in_thread, story)
        assert caught.value is error
        with pytest.raises(ResultInvalid):
            await backend.run_mutation(wrong)
        assert (await backend.run_query(count), await backend.jobs()) == (0, [])
        with raising("commit.before", Conflict("staged"), times=2):
            await backend.run_mutation(write_in_thread, story)
        assert seen[1:] == [seen[1]] * 3, "a retry repeats itself"
        assert (await backend.run_query(count), len(await backend.jobs())) == (1, 1)


# ----- however deep


async def test_both_sorts_of_functions_run_each_other_and_do_not_lock_each_other(database_url: str) -> None:
    async with TestApp(app, database_url, threads=1, max_connections=3) as backend, asyncio.timeout(SOON):
        assert await backend.run_mutation(down, 7) == 0
        assert await backend.run_action(act_down, 3) == 8 + 3
        rows = await backend.run_query(read_in_thread, lambda ctx: ctx.db.query(Note).collect())
        assert [row.number for row in rows] == [7, 6, 5, 4, 3, 2, 1, 0, 2, 1, 0]
        await asyncio.gather(
            *(backend.run_mutation(down, 2) for _ in range(10)),
            *(backend.run_action(act_down, 2) for _ in range(5)),
            *(backend.run_query(count) for _ in range(10)),
            *(backend.run_mutation(down_async, 1) for _ in range(5)),
        )
        assert await backend.run_query(count) == 8 + 3 + 10 * 3 + 5 * 3 + 5 * 2


# ----- where it does not belong


async def test_a_synchronous_ctx_is_refused_on_an_event_loop_and_inside_a_part(database_url: str) -> None:
    uses: list[Callable[[sync.MutationCtx], Any]] = [
        lambda ctx: ctx.db.insert(Note(text="x")),
        lambda ctx: ctx.db.query(Note).collect(),
        lambda ctx: list(ctx.db.query(Note)),
        lambda ctx: ctx.run_query(count),
        lambda ctx: ctx.scheduler.run_after(timedelta(0), insert, text="x"),
    ]
    async with TestApp(app, database_url) as backend:

        def story(ctx: sync.MutationCtx) -> None:
            async def on_a_loop(use: Callable[[sync.MutationCtx], Any]) -> None:
                use(ctx)

            async def on_the_loop(_inner: Any) -> None:
                await ctx._twin.db.insert(Note(text="x"))

            for use in uses:
                with pytest.raises(ContextError, match="on an event loop, which it would block"):
                    asyncio.run(on_a_loop(use))
                with pytest.raises(ContextError, match="its own ctx inside a sub-transaction"):
                    ctx.run_mutation(write_in_thread, lambda _, use=use: use(ctx))
            with pytest.raises(ContextError, match="its own ctx inside a sub-transaction"):
                ctx.run_mutation(write, on_the_loop)
            ctx.db.insert(Note(text="kept"))

        async with asyncio.timeout(SOON):
            await backend.run_mutation(write_in_thread, story)
        assert await backend.run_query(count) == 1
        assert await backend.jobs() == []


class Stray:
    """A function that goes on in its thread when its caller has long gone."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.started, self.go_on, self.ended = asyncio.Event(), threading.Event(), asyncio.Event()
        self.errors: list[BaseException] = []

    def __call__(self, ctx: Any) -> None:
        self.loop.call_soon_threadsafe(self.started.set)
        self.go_on.wait(30)
        calls: list[Callable[[], Any]] = [
            lambda: ctx.run_mutation(insert, "x"),
            lambda: ctx.scheduler.run_after(timedelta(0), insert, "x"),
        ]
        for call in calls:
            try:
                call()
            except ContextError as error:
                self.errors.append(error)
        self.loop.call_soon_threadsafe(self.ended.set)

    def __deepcopy__(self, _memo: Any) -> Stray:
        return self


async def test_a_thread_that_outlives_its_call_can_do_no_more(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        runs: list[tuple[Any, Any]] = [(backend.run_mutation, write_in_thread), (backend.run_action, act_in_thread)]
        for run, function in runs:
            stray = Stray()
            task = asyncio.ensure_future(run(function, stray))
            await stray.started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stray.go_on.set()
            await stray.ended.wait()
            assert ["has ended" in str(error) for error in stray.errors] == [True, True]
        assert await backend.run_query(count) == 0
        assert await backend.jobs() == []
