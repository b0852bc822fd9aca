"""Looking after outboxes: they are listed, moved, paused, rebuilt, dropped; their messages are retried and skipped."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from programs.deliveries import Letter, app, clear, failing, got, hand_over, put
from stage.databases import sql
from stage.waits import events

from penstock import (
    ActionCtx,
    App,
    ContextError,
    CursorInvalid,
    DataError,
    DeclarationError,
    MutationCtx,
    OutboxNotFound,
    ValueInvalid,
)
from penstock.calls.run.syncctx import SyncMutationCtx
from penstock.changes.position import BEGINNING
from penstock.clock import SystemClock
from penstock.testing import TestApp

OPENED = app
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def fresh() -> None:
    got.clear()
    failing.clear()


async def status(test: TestApp, name: str) -> Any:
    return next(one for one in await app.outboxes.list(test) if one.name == name)


async def put_letters(test: TestApp, *names: str) -> None:
    await test.run_mutation(put, list(names))


def names_of(outbox: str) -> list[str]:
    """What an outbox has handed over."""
    return [name for one, name in got if one == outbox]


async def counted(test: TestApp) -> int:
    """How many letters are counted."""
    ((count,),) = await sql(test, "select count(*) from count_of_deliveries")
    return int(count)


async def feed(test: TestApp) -> list[Any]:
    """All that the change feed holds."""
    return list((await test.engine.store.changes.read(BEGINNING, 1000)).changes)


async def test_outboxes_are_listed_as_they_stand(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await put_letters(test, "a", "b")
        before = {one.name: one for one in await app.outboxes.list(test)}
        assert list(before) == ["counts", "files", "post", "sorted", "talks"]
        post, counts = before["post"], before["counts"]
        assert (counts.kind, counts.older_rows, post.older_rows) == ("mutation", 0, None)
        assert (post.source, post.kind, post.declared) == ("letter_of_deliveries", "action", True)
        assert (post.paused, post.halted, post.read_by, post.messages, post.delivered) == (False, False, None, 2, 0)

        await hand_over(test)
        after = await status(test, "post")
        assert (after.messages, after.delivered, after.error) == (0, 2, None)
        assert (await status(test, "counts")).older_rows is None
        assert after.delivered_at == test.clock.now()
        assert after.rate > 0
        assert (after.read_by or "").startswith("relay ")
        test.clock.advance(60 * SECOND)
        assert (await status(test, "post")).rate == 0

        await app.outboxes.pause(test, "post")
        await put_letters(test, "c")
        await hand_over(test)
        found = await status(test, "post")
        assert (found.paused, found.messages, names_of("post")) == (True, 1, ["a", "b"])
        await app.outboxes.resume(test, "post")
        await hand_over(test)
        assert names_of("post") == ["a", "b", "c"]


async def test_a_message_that_fails_is_shown_retried_and_skipped(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        failing.add("a")
        await put_letters(test, "a", "b")
        await hand_over(test)
        found = await status(test, "post")
        assert (found.halted, found.error, found.messages) == (True, "ConnectionError: no way for a", 2)
        assert found.retry_at is not None
        page = await app.outboxes.messages(test, "post")
        (one,) = page.messages
        assert page.next is None
        assert (one.state, one.kind, one.content["name"], one.attempts) == ("failing", "insert", "a", 1)
        assert "ConnectionError" in (one.traceback or "")
        assert str(one.key).startswith("letter_of_deliveries_")

        with pytest.raises(DataError, match="no message"):
            await app.outboxes.skip(test, "post", one.number + 1, "a guess")
        assert await app.outboxes.retry(test, "post", [one.number + 1]) == 0
        assert await app.outboxes.retry(test, "post") == 1
        assert not (await status(test, "post")).halted  # its attempts are counted from the first
        await app.outboxes.skip(test, "post", one.number, "he moved away")
        await hand_over(test)
        assert names_of("post") == ["b"]
        assert (await status(test, "post")).messages == 0
        said = {"outbox": "post", "message": one.number, "reason": "he moved away"}
        assert events(caplog, "outbox.skipped") == [said]
        assert events(caplog, "outbox.retried")[-1] == {"outbox": "post", "messages": 1}


async def test_messages_that_are_put_aside_come_in_pages(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        failing.update({"a", "c"})
        await put_letters(test, "a", "b", "c")
        await hand_over(test)
        found = await status(test, "sorted")
        assert (found.waits_for, found.waiting, found.messages, found.halted) == (1, 2, 3, False)
        assert found.seconds >= 0
        page = await app.outboxes.messages(test, "sorted", limit=2)
        assert [(one.state, one.content["name"]) for one in page.messages] == [("halted", "a"), ("waiting", "b")]
        rest = await app.outboxes.messages(test, "sorted", limit=2, after=page.next)
        assert [(one.state, one.content["name"]) for one in rest.messages] == [("waiting", "c")]
        assert rest.next is None
        parked = await app.outboxes.messages(test, "files", states=("parked",))
        assert [one.content["name"] for one in parked.messages] == ["a", "c"]
        files = await status(test, "files")
        assert (files.parked, files.messages) == (2, 0), "it waits for nobody"

        failing.clear()
        await app.outboxes.skip(test, "sorted", page.messages[0].number, "a wrong town")
        assert await app.outboxes.retry(test, "sorted") == 0
        assert await app.outboxes.retry(test, "files", [parked.messages[1].number]) == 1
        await hand_over(test)
        assert (names_of("sorted"), names_of("files")) == (["b", "c"], ["b", "c"])


async def test_an_outbox_is_moved(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        begun = (await status(test, "post")).position
        await put_letters(test, "a")
        machine = SystemClock()
        before = machine.now()
        while machine.now() - before < timedelta(milliseconds=2):  # SQLite tells no shorter times apart
            await machine.sleep(0)
        await put_letters(test, "b")
        await hand_over(test)
        written = next(one.changed_at for one in await feed(test) if '"b"' in (one.after or ""))
        assert (await app.outboxes.move(test, "post", "beginning")).messages == 2
        await hand_over(test)
        assert names_of("post") == ["a", "b"] * 2
        assert (await app.outboxes.move(test, "post", written)).messages == 1
        assert (await app.outboxes.move(test, "post", begun)).messages == 2
        assert (await app.outboxes.move(test, "post", "end")).messages == 0
        await put_letters(test, "c")
        await hand_over(test)
        assert names_of("post") == [*"abab", "c"]

        ahead = '{"seen": "9:99999999:", "batch": null, "last": 0, "high": 99999999}'
        wrong: list[tuple[Any, type[Exception]]] = [
            (ahead, CursorInvalid),
            ("yesterday", CursorInvalid),
            (test.clock.now().replace(tzinfo=None), ValueInvalid),
        ]
        for to, error in wrong:
            with pytest.raises(error):
                await app.outboxes.move(test, "post", to)
        with pytest.raises(OutboxNotFound, match="no outbox"):
            await app.outboxes.move(test, "nobody", "end")


async def test_a_read_model_is_rebuilt_from_the_rows(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await put_letters(test, "a", "b", "c")
        await hand_over(test)
        await sql(test, "update count_of_deliveries set letters = 99")
        await app.outboxes.rebuild(test, "counts")
        assert await counted(test) == 0
        found = await status(test, "counts")
        assert (found.older_rows, found.read_by) == (0, None)
        await put_letters(test, "d")
        await hand_over(test)
        assert await sql(test, "select letters, count(*) from count_of_deliveries group by letters") == [(1, 4)]
        failing.add("clear")
        with pytest.raises(RuntimeError, match="not now"):
            await app.outboxes.rebuild(test, "counts")
        await put_letters(test, "e")
        await hand_over(test)  # it goes on as before
        assert await counted(test) == 5
        found = await status(test, "counts")
        assert (found.older_rows, found.error, found.messages) == (None, None, 0)
        with pytest.raises(ContextError, match="declares no reset"):
            await app.outboxes.rebuild(test, "post")
        with pytest.raises(ContextError, match="has no declaration in this program"):
            await App().outboxes.rebuild(test, "counts")


def test_a_reset_is_a_mutation_of_a_projection() -> None:
    other = App()

    async def sends(ctx: ActionCtx, letter: Letter) -> None: ...

    async def counts(ctx: MutationCtx, letter: Letter) -> None: ...

    async def hears(ctx: MutationCtx, payload: Any) -> None: ...

    async def clears(ctx: ActionCtx) -> None: ...

    def clears_in_a_thread(ctx: SyncMutationCtx) -> None: ...

    for source, handler in ((Letter, sends), ("news", hears)):
        with pytest.raises(DeclarationError, match="reset= is for"):
            other.outbox(source, reset=clear)(handler)
    for reset in (clears, put, "clears", lambda ctx: None):
        with pytest.raises(DeclarationError, match=r"reset="):
            other.outbox(Letter, reset=reset)(counts)  # type: ignore[arg-type]
    other.outbox(Letter, reset=clears_in_a_thread)(counts)


async def test_an_outbox_is_dropped_with_all_that_is_kept_of_it(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        failing.add("a")
        await put_letters(test, "a", "b")
        await hand_over(test)
        store = test.engine.store
        number = next(row.id for row in await store.outboxes.list() if row.plan.name == "sorted")
        await app.outboxes.drop(test, "sorted")
        assert "sorted" not in {one.name for one in await app.outboxes.list(test)}
        assert "outbox:sorted" not in {one.name for one in await store.changes.readers()}
        assert "outbox:sorted" not in {one.interest.name for one in await store.interests.list()}
        assert await store.outboxes.aside(number, ("waiting", "halted"), 10) == []
        before = len(await feed(test))
        await put_letters(test, "c")
        assert len(await feed(test)) - before == 3, "for the three others of letters"
        with pytest.raises(OutboxNotFound, match="no outbox"):
            await app.outboxes.drop(test, "sorted")
    failing.clear()
    async with TestApp(app, database_url) as test:  # it is declared still
        await put_letters(test, "d")
        await hand_over(test)
        assert names_of("sorted") == ["d"]


async def test_outboxes_are_looked_after_outside_of_transactions(database_url: str) -> None:
    other = App()

    @other.internal_mutation
    async def lists(ctx: MutationCtx) -> int:
        return len(await other.outboxes.list(ctx))  # type: ignore[call-overload]

    async with TestApp(other, database_url) as test:
        with pytest.raises(ContextError, match="Outboxes are looked after"):
            await test.run_mutation(lists)
    await asyncio.to_thread(look_after_them_without_await, database_url)


def look_after_them_without_await(url: str) -> None:
    with app.sync.open(url) as backend:
        app.outboxes.pause(backend, "post")
        assert {one.name: one.paused for one in app.outboxes.list(backend)}["post"]
        app.outboxes.resume(backend, "post")
        assert app.outboxes.move(backend, "post", "end").messages == 0
        assert app.outboxes.retry(backend, "post") == 0
        assert app.outboxes.messages(backend, "post").messages == []
        app.outboxes.rebuild(backend, "counts")
        app.outboxes.drop(backend, "sorted")
        assert len(app.outboxes.list(backend)) == 4
