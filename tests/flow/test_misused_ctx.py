"""A ctx that is misused: calls that nobody awaited, words of another ctx, and functions that it is not for."""

from __future__ import annotations

import asyncio
import gc
import re
import warnings
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from stage.stories import tell_in

from penstock import (
    ActionCtx,
    App,
    ContextError,
    DeclarationError,
    Id,
    Index,
    JobId,
    MutationCtx,
    QueryCtx,
    Table,
    UnawaitedCall,
    ValueInvalid,
    WorkflowCtx,
    sync,
)
from penstock.testing import JobsFailed, TestApp

NO_JOB = JobId("job_01jd3k4v5w6x7y8z9a0b1c2d3e")
NO_NOTE = "note_01jd3k4v5w6x7y8z9a0b1c2d3e"


class Note(Table):
    text: str
    number: int = 0

    by_text = Index("text", "number")


app = OPENED = App()
write, read, act = tell_in(app)
called: list[str] = []


@app.internal_mutation
async def add(ctx: MutationCtx, text: str) -> None:
    await ctx.db.insert(Note(text=text))


async def count(backend: TestApp) -> int:
    found: int = await backend.run_query(read, lambda ctx: ctx.db.query(Note).count())
    return found


def runs(backend: TestApp, story: Any) -> list[Callable[[], Any]]:
    """A story in a function of each kind."""
    return [
        lambda: backend.run_mutation(write, story),
        lambda: backend.run_query(read, story),
        lambda: backend.run_action(act, story),
    ]


READS: dict[str, Callable[[Any], Any]] = {
    "ctx.db.get": lambda ctx: ctx.db.get(Note, NO_NOTE),
    "ctx.db.query(…).collect": lambda ctx: ctx.db.query(Note).collect(),
    "ctx.db.query(…).first": lambda ctx: ctx.db.query(Note).with_index(Note.by_text).first(),
    "ctx.db.query(…).paginate": lambda ctx: ctx.db.query(Note).paginate(),
    "ctx.db.query(…).count": lambda ctx: ctx.db.query(Note).count(),
    "ctx.sql": lambda ctx: ctx.sql("select 1"),
    "ctx.run_query": lambda ctx: ctx.run_query(read, None),
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "ctx.db.insert": lambda ctx: ctx.db.insert(Note(text="x")),
    "ctx.db.patch": lambda ctx: ctx.db.patch(Note, NO_NOTE, text="x"),
    "ctx.db.delete": lambda ctx: ctx.db.delete(Note, NO_NOTE),
    "ctx.scheduler.run_after": lambda ctx: ctx.scheduler.run_after(timedelta(0), add, text="x"),
    "ctx.scheduler.cancel": lambda ctx: ctx.scheduler.cancel(NO_JOB),
    "ctx.scheduler.get": lambda ctx: ctx.scheduler.get(NO_JOB),
    "ctx.run_mutation": lambda ctx: ctx.run_mutation(add, "x"),
}
ACTS = {name: call for name, call in (READS | WRITES).items() if name.startswith(("ctx.run_", "ctx.scheduler"))}


def calls_of(ctx: Any) -> dict[str, Callable[[Any], Any]]:
    return ACTS if isinstance(ctx, ActionCtx) else READS | WRITES if isinstance(ctx, MutationCtx) else READS


async def test_each_call_that_is_not_awaited_is_named(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        for kind, calls in enumerate((READS | WRITES, READS, ACTS)):
            for name, call in calls.items():

                async def story(ctx: Any, call: Callable[[Any], Any] = call) -> None:
                    call(ctx)

                with pytest.raises(UnawaitedCall) as caught:
                    await runs(backend, story)[kind]()
                assert f"not awaited: {name}. " in str(caught.value)
                assert caught.value.facts["calls"] == name
        assert await count(backend) == 0
        assert await backend.jobs() == []


async def test_what_was_awaited_beside_a_forgotten_call_is_undone(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        tasks: list[asyncio.Task[Any]] = []

        async def forget(ctx: MutationCtx) -> None:
            await ctx.db.insert(Note(text="awaited"))
            await ctx.scheduler.run_after(timedelta(0), add, text="awaited")
            ctx.db.insert(Note(text="forgotten"))  # type: ignore[unused-coroutine]  # what is tested
            ctx.run_mutation(add, "forgotten")  # type: ignore[unused-coroutine]

        async def begun(ctx: MutationCtx) -> None:
            inside, go_on = asyncio.Event(), asyncio.Event()

            async def part(inner: MutationCtx) -> None:
                await inner.db.insert(Note(text="part"))
                inside.set()
                await go_on.wait()
                await inner.db.insert(Note(text="too late"))

            tasks.append(asyncio.create_task(ctx.run_mutation(write, part)))
            await inside.wait()
            go_on.set()

        async def forgetful_part(ctx: MutationCtx) -> None:
            await ctx.db.insert(Note(text="part"))
            ctx.db.query(Note).count()  # type: ignore[unused-coroutine]  # what is tested

        async def whole(ctx: MutationCtx) -> None:
            with pytest.raises(UnawaitedCall):
                await ctx.run_mutation(write, forgetful_part)
            await ctx.db.insert(Note(text="kept"))

        with pytest.raises(UnawaitedCall, match=r"not awaited: ctx\.db\.insert, ctx\.run_mutation\."):
            await backend.run_mutation(write, forget)
        with pytest.raises(UnawaitedCall):
            await backend.run_mutation(write, begun)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, Exception) for outcome in outcomes)
        assert await count(backend) == 0
        assert await backend.jobs() == []
        await backend.run_mutation(write, whole)
        assert await count(backend) == 1, "a part that forgets a call is undone alone"


async def test_calls_that_run_side_by_side_and_are_awaited_are_fine(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def helper(ctx: MutationCtx, text: str) -> None:
            await ctx.db.insert(Note(text=text))

        async def story(ctx: MutationCtx) -> None:
            await asyncio.gather(*(ctx.db.insert(Note(text=f"gathered {n}")) for n in range(20)))
            tasks = [asyncio.create_task(ctx.db.insert(Note(text=f"task {n}"))) for n in range(3)]
            await asyncio.wait(tasks)
            async with asyncio.TaskGroup() as group:
                group.create_task(helper(ctx, "group"))
                group.create_task(ctx.run_mutation(add, "part"))
            later = ctx.db.insert(Note(text="kept for later"))
            await ctx.db.query(Note).count()
            await later
            beside = ctx.db.insert(Note(text="beside")), ctx.db.delete(Note, Id("x"))
            outcomes = await asyncio.gather(*beside, return_exceptions=True)
            assert [type(outcome).__name__ for outcome in outcomes] == ["Id", "IdInvalid"]

        await backend.run_mutation(write, story)
        assert await count(backend) == 20 + 3 + 2 + 1 + 1


async def test_a_function_that_fails_tells_its_own_error_alone(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def failing(ctx: Any) -> None:
            for call in calls_of(ctx).values():
                call(ctx)
            raise KeyError("its own")

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for run in runs(backend, failing):
                with pytest.raises(KeyError, match="its own"):
                    await run()
            gc.collect()
        assert [str(warning.message) for warning in caught] == []
        assert (await count(backend), await backend.jobs()) == (0, [])


@app.internal_query
async def look(ctx: QueryCtx, text: str) -> int:
    return await ctx.db.query(Note).with_index(Note.by_text, text=text).count()


@app.internal_action
async def call_out(ctx: ActionCtx, text: str) -> int:
    called.append(text)
    return len(text)


async def plain(ctx: Any, text: str = "x") -> None:
    await ctx.db.insert(Note(text=text))


class Repository:
    """Keeps the ctx, as classes of programs do."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    async def store(self) -> None:
        await plain(self.ctx)


def of_closure(ctx: Any) -> Any:
    async def inside() -> None:
        await plain(ctx)

    return inside()


DROPPED: dict[str, Callable[[Any], Any]] = {
    "look": lambda ctx: look(ctx, "x") if not isinstance(ctx, ActionCtx) else call_out(ctx, "x"),
    "plain": plain,
    "plain of a part": lambda ctx: plain(getattr(ctx, "db", ctx)),
    "Repository.store": lambda ctx: Repository(ctx).store(),
    "inside": of_closure,
}


async def test_a_helper_that_is_not_awaited_is_named_and_nothing_is_written(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for how, drop in DROPPED.items():

            async def story(ctx: Any, drop: Callable[[Any], Any] = drop) -> None:
                if isinstance(ctx, MutationCtx):
                    await ctx.db.insert(Note(text="awaited"))
                drop(ctx)

            for run in runs(backend, story):
                with pytest.raises(UnawaitedCall) as caught:  # and no warning, which would be an error here
                    await run()
                name = how.partition(" ")[0].replace("look", "(look|call_out)")
                assert re.search(
                    rf"not awaited: {name} \(.*test_misused_ctx\.py:\d+\)\. Write await", str(caught.value)
                )
        assert await count(backend) == 0


@app.internal_mutation
def forgetful(ctx: sync.MutationCtx) -> None:
    ctx.db.insert(Note(text="waited for"))
    plain(ctx)  # type: ignore[unused-coroutine]  # what is tested


@app.internal_mutation
async def forgetful_job(ctx: MutationCtx) -> None:
    await plain(ctx)
    plain(ctx)  # type: ignore[unused-coroutine]  # what is tested


@app.internal_mutation
async def handing_on(ctx: MutationCtx):  # type: ignore[no-untyped-def]  # noqa: ANN201 - so its result is not checked
    """Return what it should have awaited."""
    return plain(ctx)


async def test_functions_in_threads_and_jobs_await_their_helpers_too(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for function in (forgetful, forgetful_job, handing_on):
            with pytest.raises(UnawaitedCall, match=r"plain \("):
                await backend.run_mutation(function)
        await backend.scheduler.run_after(timedelta(0), forgetful_job)
        with pytest.raises(JobsFailed, match=r"UnawaitedCall.*plain \("):
            await backend.run_until_idle()
        assert all("UnawaitedCall" in str(job.error) for job in await backend.jobs("failed"))
        assert await count(backend) == 0


TASKS: dict[str, Callable[..., Any]] = {
    "not begun": lambda ctx, *_: asyncio.create_task(plain(ctx)),
    "gathered": lambda ctx, *_: asyncio.gather(plain(ctx), plain(ctx, "y")),
    "in a class": lambda ctx, *_: asyncio.create_task(Repository(ctx).store()),
    "in another": lambda ctx, *_: asyncio.create_task(pass_on(plain(ctx))),
    "waiting": lambda ctx, *events: asyncio.create_task(late(ctx, *events)),
}


async def pass_on(call: Any) -> None:
    await call


async def late(ctx: Any, begun: asyncio.Event, go_on: asyncio.Event) -> None:
    begun.set()
    await go_on.wait()
    for call in calls_of(ctx).values():
        with pytest.raises(ContextError, match="has ended; its ctx can no longer be used"):
            await call(ctx)
    await plain(ctx)


async def test_a_task_that_outlives_its_function_is_named_and_nothing_is_written(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        go_on, tasks, others = asyncio.Event(), list[Any](), list[Any]()
        for how, start in TASKS.items():

            async def story(ctx: Any, how: str = how, start: Callable[..., Any] = start) -> None:
                if isinstance(ctx, MutationCtx):
                    await ctx.db.insert(Note(text="awaited"))
                begun = asyncio.Event()
                tasks.append(start(ctx, begun, go_on))
                if how.startswith("waiting"):
                    await begun.wait()

            for run in runs(backend, story):
                with pytest.raises(UnawaitedCall) as caught:
                    await run()
                named = r"(plain|late|pass_on|Repository\.store) \(.*test_misused_ctx\.py:\d+\)"
                assert re.search(named, str(caught.value)), how
                assert "Await the task" in str(caught.value)

        async def without_ctx_or_cancelled(ctx: Any) -> None:
            others.append(asyncio.create_task(go_on.wait()))
            begun = asyncio.Event()
            beat = asyncio.create_task(late(ctx, begun, go_on))
            await begun.wait()
            beat.cancel()

        for run in runs(backend, without_ctx_or_cancelled):
            await run()
        go_on.set()
        await asyncio.gather(*others)
        assert all(isinstance(one, Exception) for one in await asyncio.gather(*tasks, return_exceptions=True))
        assert await count(backend) == 0


async def test_coroutines_of_others_are_left_to_python() -> None:
    async def alone() -> None:
        """Nothing."""

    with pytest.warns(RuntimeWarning, match="alone' was never awaited") as told:
        alone()  # type: ignore[unused-coroutine]  # what is tested
    assert told[0].filename == __file__, "where it was dropped"


async def test_calls_that_have_ended_are_not_kept(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url, max_rows_read=100_000) as backend:
        note = await backend.run_mutation(write, lambda ctx: ctx.db.insert(Note(text="x")))

        async def many(ctx: Any) -> None:
            for _ in range(2_000):
                await ctx.run_query(read, lambda inner: inner.db.get(Note, note))
            calls = ctx._calls._calls if isinstance(ctx, ActionCtx) else ctx._scope._calls
            assert len(calls) <= 600

        await backend.run_query(read, many)
        await backend.run_action(act, many)
        call = backend.scheduler.get(NO_JOB)
        kept = weakref.ref(call)
        await call
        del call
        assert kept() is None, "the backend's own scheduler lives long, and keeps none"


# ----- words of another ctx, and functions called with it


@app.internal_mutation
def write_in_thread(ctx: sync.MutationCtx, story: Any) -> Any:
    return story(ctx)


@app.internal_query
async def count_notes(ctx: QueryCtx) -> int:
    return await ctx.db.query(Note).count()


WORDS: dict[str, list[tuple[str, str]]] = {
    "query": [
        ("db.insert", r"DatabaseReader has no insert\. Do it in a mutation: @app\.mutation, and ctx: MutationCtx\."),
        ("run_mutation", r"QueryCtx has no run_mutation\. Do it in a mutation"),
        ("scheduler", r"Do it in a mutation"),
        ("run_action", r"QueryCtx has no run_action\. Do it in an action: @app\.action, and ctx: ActionCtx\."),
        ("runQuery", r"Write run_query\."),
    ],
    "mutation": [
        ("run_action", r"MutationCtx has no run_action\. .*Write ctx\.scheduler\.run_after\(timedelta\(0\), function"),
        ("cancelled", r"Do it in an action"),
        ("insert", r"Write ctx\.db\.insert\(…\)\."),
        ("auth.getUserIdentity", r"Auth has no getUserIdentity\. Write get_user_identity\."),
        ("scheduler.runAfter", r"Scheduler has no runAfter\. Write run_after\."),
    ],
    "action": [
        ("db", r"ActionCtx has no db\. Read with ctx\.run_query\(function, …\), and write with ctx\.run_mutation\(f"),
        ("check_fence", r"Do it in a mutation"),
        ("runQuery", r"Write run_query\."),
    ],
    "workflow": [
        ("db", r"WorkflowCtx has no db\. Read with ctx\.run_query\(function, …\), and write with ctx\.run_mutation\(f"),
        ("scheduler", r"Do it in a mutation, and call that with ctx\.run_mutation"),
        ("work", r"Do it in an action, and call that with ctx\.run_action"),
        ("runAction", r"Write run_action\."),
    ],
}


stories: list[Callable[[Any], None]] = []


@app.workflow
async def flow(ctx: WorkflowCtx) -> str:
    stories[-1](ctx)
    return "used"


async def test_a_word_of_another_ctx_says_what_to_write_instead(sqlite_url: str) -> None:
    def use(ctx: Any, kind: str) -> None:
        for words, text in WORDS[kind]:
            *way, word = words.split(".")
            owner = ctx
            for step in way:
                owner = getattr(owner, step)
            with pytest.raises(ContextError, match=text):
                getattr(owner, word)
            assert not hasattr(owner, word), "programs may ask"

    def on_the_loop(kind: str) -> Callable[[Any], Any]:
        async def story(ctx: Any) -> None:
            use(ctx, kind)

        return story

    async def unknown(ctx: Any) -> None:
        for owner in (ctx, ctx.db, ctx.db.query(Note)):
            with pytest.raises(AttributeError, match=r"has no attribute 'inzert'") as caught:
                _ = owner.inzert
            assert not isinstance(caught.value, ContextError)
        with pytest.raises(ContextError, match=r"Write with_index\."):
            _ = ctx.db.query(Note).withIndex

    stories.append(lambda ctx: use(ctx, "workflow"))
    async with TestApp(app, sqlite_url) as backend:
        await backend.run_query(read, on_the_loop("query"))
        await backend.run_mutation(write, on_the_loop("mutation"))
        await backend.run_mutation(write_in_thread, lambda ctx: use(ctx, "mutation"))
        await backend.run_action(act, on_the_loop("action"))
        await backend.run_mutation(write, unknown)
        run = await backend.scheduler.run_after(timedelta(0), flow)
        await backend.run_until_idle()
        status = await backend.job(run)
        assert status is not None
        assert status.result == "used"


async def test_calls_as_convex_has_them_say_how_they_are_written(sqlite_url: str) -> None:
    async def story(ctx: Any) -> None:
        note = await ctx.db.insert(Note(text="x"))
        for call, error, text in (
            (ctx.db.insert({"text": "x"}), ValueInvalid, r"not dict\. Write insert\(YourTable\(text=…\)\)\."),
            (ctx.db.patch(Note, note, {"text": "y"}), ValueInvalid, r"Write patch\(Booking, row_id, text=…\)\."),
            (ctx.db.patch(note, {"text": "y"}), DeclarationError, r"is not a table\. Pass the class of the table"),
            (ctx.db.replace("note", note, {"text": "y"}), DeclarationError, r"'note' is not a table\. Pass the class"),
        ):
            with pytest.raises(error, match=text):
                await call
        with pytest.raises(DeclarationError, match=r"'note' is not a table\. Pass the class"):
            ctx.db.query("note")

    def in_thread(ctx: Any) -> None:
        with pytest.raises(ValueInvalid, match=r"Write insert\(YourTable\(text=…\)\)\."):
            ctx.db.insert("note", {"text": "x"})

    async with TestApp(app, sqlite_url) as backend:
        await backend.run_mutation(write, story)
        await backend.run_mutation(write_in_thread, in_thread)


# ----- functions called as helpers


async def test_a_function_called_in_one_that_cannot_hold_it_is_refused_before_it_runs(sqlite_url: str) -> None:
    called.clear()

    async def story(ctx: Any) -> None:
        if isinstance(ctx, MutationCtx):
            await ctx.db.insert(Note(text="x"))
        await call_out(ctx, "out")

    async with TestApp(app, sqlite_url) as backend:
        with pytest.raises(ContextError) as caught:
            await backend.run_mutation(write, story)
        assert str(caught.value) == (
            "test_misused_ctx:call_out is an action, and was called in a mutation. A mutation may run again. Write "
            "await ctx.scheduler.run_after(timedelta(0), call_out, …), or call it from an action."
        )
        with pytest.raises(ContextError, match="call_out is an action, and was called in a query"):
            await backend.run_query(read, story)
        assert called == []
        assert await backend.run_query(count_notes) == 0
        await backend.run_action(act, lambda ctx: call_out(ctx, "out"))
        assert called == ["out"]
        for run, text in (
            (backend.run_query(read, lambda ctx: add(ctx, "x")), "add is a mutation, and was called in a query."),
            (backend.run_action(act, lambda ctx: add(ctx, "x")), "Write await ctx.run_mutation(add, …)."),
            (backend.run_action(act, count_notes), "Write await ctx.run_query(count_notes, …)."),
        ):
            with pytest.raises(ContextError, match=re.escape(text)):
                await run
        assert await backend.run_mutation(write, count_notes) == 0
