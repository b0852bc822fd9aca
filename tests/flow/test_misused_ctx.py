"""Words of another ctx, and functions called with a ctx that is not for them: refused with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
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
    MutationCtx,
    QueryCtx,
    Table,
    ValueInvalid,
    sync,
)
from penstock.testing import TestApp


class Note(Table):
    text: str
    number: int = 0

    by_text = Index("text")


app = OPENED = App()
write, read, act = tell_in(app)
called: list[str] = []


@app.internal_mutation
def write_in_thread(ctx: sync.MutationCtx, story: Any) -> Any:
    return story(ctx)


@app.internal_query
async def count(ctx: QueryCtx) -> int:
    return await ctx.db.query(Note).count()


@app.internal_mutation
async def add(ctx: MutationCtx, text: str) -> Id[Note]:
    return await ctx.db.insert(Note(text=text))


@app.internal_action
async def call_out(ctx: ActionCtx, number: int) -> int:
    called.append("out")
    return number


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
}


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

    async with TestApp(app, sqlite_url) as backend:
        await backend.run_query(read, on_the_loop("query"))
        await backend.run_mutation(write, on_the_loop("mutation"))
        await backend.run_mutation(write_in_thread, lambda ctx: use(ctx, "mutation"))
        await backend.run_action(act, on_the_loop("action"))
        await backend.run_mutation(write, unknown)


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
        await call_out(ctx, 3)

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
        assert await backend.run_query(count) == 0
        await backend.run_action(act, lambda ctx: call_out(ctx, 3))
        assert called == ["out"]
        for run, text in (
            (backend.run_query(read, lambda ctx: add(ctx, "x")), "add is a mutation, and was called in a query."),
            (backend.run_action(act, lambda ctx: add(ctx, "x")), "Write await ctx.run_mutation(add, …)."),
            (backend.run_action(act, count), "Write await ctx.run_query(count, …)."),
        ):
            with pytest.raises(ContextError, match=re.escape(text)):
                await run
        assert await backend.run_mutation(write, count) == 0
