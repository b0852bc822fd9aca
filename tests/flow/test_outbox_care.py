"""Looking after outboxes: they are listed, moved, paused, rebuilt, dropped; their messages are retried and skipped."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from stage.logs import events

from penstock import (
    ActionCtx,
    App,
    ContextError,
    CursorInvalid,
    DataError,
    DeclarationError,
    Id,
    Index,
    Message,
    MutationCtx,
    OutboxNotFound,
    QueryCtx,
    Retry,
    Table,
    ValueInvalid,
)
from penstock.calls.run.syncctx import SyncMutationCtx
from penstock.changes.position import BEGINNING
from penstock.clock import SystemClock
from penstock.testing import TestApp

SECOND = timedelta(seconds=1)

app = OPENED = App()
sent: list[tuple[str, str]] = []
ids: list[str] = []
failing: set[str] = set()


class Parcel(Table, name="parcel_of_outbox"):
    name: str
    city: str = "Brno"


class Total(Table, name="total_of_outbox"):
    city: str
    parcels: int

    by_city = Index("city", unique=True)


def work(outbox: str, name: str) -> None:
    if name in failing:
        raise ConnectionError(f"no way for {name}")
    sent.append((outbox, name))


@app.outbox(Parcel, name="ship", retry=Retry.fixed(60, max_attempts=2, jitter=0))
async def ship(ctx: ActionCtx, message: Message[Parcel]) -> None:
    assert message.row is not None
    ids.append(message.id)
    work("ship", message.row.name)


@app.outbox(Parcel, name="notify", on_failure="halt_key", partition_by="city", start="end")
async def notify(ctx: ActionCtx, parcel: Parcel) -> None:
    work("notify", parcel.name)


@app.outbox(Parcel, name="bill", on_failure="park", retry=Retry(max_attempts=1), start="end")
async def bill(ctx: ActionCtx, parcel: Parcel) -> None:
    work("bill", parcel.name)


async def clear_totals(ctx: MutationCtx) -> None:
    async for total in ctx.db.query(Total):
        await ctx.db.delete(Total, total.id)
    if "reset" in failing:
        raise ValueError("not now")


@app.outbox(Parcel, name="count", reset=clear_totals)
async def count(ctx: MutationCtx, parcel: Parcel) -> None:
    total = await ctx.db.query(Total).with_index(Total.by_city, city=parcel.city).first()
    if total is None:
        await ctx.db.insert(Total(city=parcel.city, parcels=1))
    else:
        await ctx.db.patch(Total, total.id, parcels=total.parcels + 1)


@app.internal_mutation
async def put(ctx: MutationCtx, names: list[str]) -> list[Id[Parcel]]:
    return [await ctx.db.insert(Parcel(name=name, city=name[:1])) for name in names]


@app.internal_query
async def totals(ctx: QueryCtx) -> dict[str, int]:
    return {total.city: total.parcels async for total in ctx.db.query(Total)}


@pytest.fixture(autouse=True)
def fresh() -> None:
    sent.clear()
    ids.clear()
    failing.clear()


async def status(test: TestApp, name: str) -> Any:
    return next(one for one in await app.outboxes.list(test) if one.name == name)


async def hand_over(test: TestApp, seconds: int = 2) -> None:
    """Let all outboxes look at how they stand, and hand over what there is."""
    test.clock.advance(seconds * SECOND)
    await test.relay.drain()


async def put_rows(test: TestApp, *names: str) -> None:
    await test.run_mutation(put, list(names))


async def test_outboxes_are_listed_as_they_stand(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await put_rows(test, "a1", "b1")
        before = {one.name: one for one in await app.outboxes.list(test)}
        assert list(before) == ["bill", "count", "notify", "ship"]
        assert (before["count"].kind, before["notify"].older_rows) == ("mutation", None)
        ship = before["ship"]
        assert (ship.source, ship.kind, ship.declared) == ("parcel_of_outbox", "action", True)
        assert (ship.paused, ship.halted, ship.read_by) == (False, False, None)
        assert (ship.messages, ship.older_rows, ship.delivered) == (2, 0, 0)

        await hand_over(test)
        after = await status(test, "ship")
        assert (after.messages, after.delivered, after.older_rows, after.error) == (0, 2, None, None)
        assert after.delivered_at == test.clock.now()
        assert after.rate > 0
        assert (after.read_by or "").startswith("relay ")
        test.clock.advance(60 * SECOND)
        assert (await status(test, "ship")).rate == 0

        await app.outboxes.pause(test, "ship")
        await put_rows(test, "c1")
        await hand_over(test)
        assert ("ship", "c1") not in sent
        found = await status(test, "ship")
        assert (found.paused, found.messages) == (True, 1)
        await app.outboxes.resume(test, "ship")
        await hand_over(test)
        assert ("ship", "c1") in sent


async def test_a_message_that_fails_is_shown_retried_and_skipped(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        failing.add("a1")
        await put_rows(test, "a1", "a2")
        await hand_over(test)
        found = await status(test, "ship")
        assert not found.halted
        assert found.error == "ConnectionError: no way for a1"
        assert found.retry_at is not None
        assert found.messages == 2
        await hand_over(test, 61)
        assert (await status(test, "ship")).halted

        page = await app.outboxes.messages(test, "ship")
        (one,) = page.messages
        assert page.next is None
        assert (one.state, one.kind, one.content["name"], one.attempts) == ("failing", "insert", "a1", 2)
        assert "ConnectionError" in (one.traceback or "")
        assert str(one.key).startswith("parcel_of_outbox_")
        assert ids == [one.id, one.id]

        with pytest.raises(DataError, match="no message"):
            await app.outboxes.skip(test, "ship", one.number + 1, "a guess")
        with pytest.raises(ValueInvalid, match="reason"):
            await app.outboxes.skip(test, "ship", one.number, " ")
        assert await app.outboxes.retry(test, "ship", [one.number + 1]) == 0
        assert await app.outboxes.retry(test, "ship") == 1
        await hand_over(test)
        assert not (await status(test, "ship")).halted  # its attempts are counted from the first
        await app.outboxes.skip(test, "ship", one.number, "he moved away")
        await hand_over(test)
        assert [name for outbox, name in sent if outbox == "ship"] == ["a2"]
        assert (await status(test, "ship")).messages == 0
        assert events(caplog, "outbox.skipped") == [
            {"outbox": "ship", "message": one.number, "reason": "he moved away"}
        ]
        assert events(caplog, "outbox.retried")[-1] == {"outbox": "ship", "messages": 1}


async def test_messages_that_are_put_aside_come_in_pages(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        failing.update({"a1", "c1"})
        await put_rows(test, "a1", "a2", "b1", "a3", "c1")
        await hand_over(test)
        found = await status(test, "notify")
        assert (found.waits_for, found.waiting, found.messages, found.halted) == (2, 2, 4, False)
        assert found.seconds >= 0
        page = await app.outboxes.messages(test, "notify", limit=3)
        assert [(one.state, one.content["name"]) for one in page.messages] == [
            ("halted", "a1"), ("waiting", "a2"), ("waiting", "a3"),
        ]  # fmt: skip
        page = await app.outboxes.messages(test, "notify", limit=3, after=page.next)
        assert [(one.state, one.content["name"]) for one in page.messages] == [("halted", "c1")]
        assert page.next is None
        parked = await app.outboxes.messages(test, "bill", states=("parked",))
        assert [one.content["name"] for one in parked.messages] == ["a1", "c1"]
        assert (await status(test, "bill")).parked == 2
        assert (await status(test, "bill")).messages == 0  # it waits for nobody

        failing.clear()
        await app.outboxes.skip(test, "notify", page.messages[0].number, "a wrong city")
        assert await app.outboxes.retry(test, "notify") == 1
        assert await app.outboxes.retry(test, "bill", [parked.messages[1].number]) == 1
        await hand_over(test)
        assert [name for outbox, name in sent if outbox == "notify"] == ["b1", "a1", "a2", "a3"]
        assert [name for outbox, name in sent if outbox == "bill"] == ["a2", "b1", "a3", "c1"]
        with pytest.raises(ValueInvalid, match="states"):
            await app.outboxes.messages(test, "bill", states=("lost",))  # type: ignore[arg-type]
        with pytest.raises(ValueInvalid, match="limit"):
            await app.outboxes.messages(test, "bill", limit=0)


async def test_an_outbox_is_moved(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        begun = (await status(test, "ship")).position
        await put_rows(test, "a1")
        machine = SystemClock()
        before = machine.now()
        while machine.now() - before < timedelta(milliseconds=2):  # SQLite tells no shorter times apart
            await machine.sleep(0)
        await put_rows(test, "a2")
        await hand_over(test)
        first = list(ids)
        written = next(
            one.changed_at for one in await feed(test) if "a2" in (one.after or "")
        )  # by the database's clock
        assert (await app.outboxes.move(test, "ship", "beginning")).messages == 2
        await hand_over(test)
        assert ids == first * 2  # the same ids again
        assert (await app.outboxes.move(test, "ship", written)).messages == 1
        assert (await app.outboxes.move(test, "ship", begun)).messages == 2
        assert (await app.outboxes.move(test, "ship", "end")).messages == 0
        await hand_over(test)
        assert ids == first * 2
        await put_rows(test, "a3")
        await hand_over(test)
        assert [name for outbox, name in sent if outbox == "ship"] == ["a1", "a2", "a1", "a2", "a3"]

        ahead = '{"seen": "9:99999999:", "batch": null, "last": 0, "high": 99999999}'
        with pytest.raises(CursorInvalid, match="not reached"):
            await app.outboxes.move(test, "ship", ahead)
        with pytest.raises(CursorInvalid, match="no position"):
            await app.outboxes.move(test, "ship", "yesterday")
        with pytest.raises(ValueInvalid, match="aware"):
            await app.outboxes.move(test, "ship", test.clock.now().replace(tzinfo=None))
        with pytest.raises(OutboxNotFound, match="no outbox"):
            await app.outboxes.move(test, "nobody", "end")


async def test_a_read_model_is_rebuilt_from_the_rows(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await put_rows(test, "a1", "a2", "b1")
        await hand_over(test)
        await test.run_mutation(spoil)
        assert await test.run_query(totals) == {"a": 99, "b": 1}
        await app.outboxes.rebuild(test, "count")
        assert await test.run_query(totals) == {}
        found = await status(test, "count")
        assert found.older_rows == 0
        assert found.read_by is None
        await put_rows(test, "b2")
        await hand_over(test)
        assert await test.run_query(totals) == {"a": 2, "b": 2}
        failing.add("reset")
        with pytest.raises(ValueError, match="not now"):
            await app.outboxes.rebuild(test, "count")
        await put_rows(test, "c1")
        await hand_over(test)  # it goes on as before
        assert await test.run_query(totals) == {"a": 2, "b": 2, "c": 1}
        found = await status(test, "count")
        assert (found.older_rows, found.error, found.messages) == (None, None, 0)
        with pytest.raises(ContextError, match="declares no reset"):
            await app.outboxes.rebuild(test, "ship")
        with pytest.raises(ContextError, match="has no declaration in this program"):
            await App().outboxes.rebuild(test, "count")


def test_a_reset_is_a_mutation_of_a_projection() -> None:
    other = App()

    async def sends(ctx: ActionCtx, parcel: Parcel) -> None: ...

    async def counts(ctx: MutationCtx, parcel: Parcel) -> None: ...

    async def hears(ctx: MutationCtx, payload: Any) -> None: ...

    async def clears(ctx: ActionCtx) -> None: ...

    def clears_in_a_thread(ctx: SyncMutationCtx) -> None: ...

    for source, handler in ((Parcel, sends), ("news", hears)):
        with pytest.raises(DeclarationError, match="reset= is for"):
            other.outbox(source, reset=clear_totals)(handler)
    for reset in (clears, put, "clears", lambda ctx: None):
        with pytest.raises(DeclarationError, match=r"reset="):
            other.outbox(Parcel, reset=reset)(counts)  # type: ignore[arg-type]
    other.outbox(Parcel, reset=clears_in_a_thread)(counts)


async def test_an_outbox_is_dropped_with_all_that_is_kept_of_it(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        failing.add("a1")
        await put_rows(test, "a1", "a2")
        await hand_over(test)
        store = test.engine.store
        number = next(row.id for row in await store.outboxes.list() if row.plan.name == "notify")
        await app.outboxes.drop(test, "notify")
        assert "notify" not in {one.name for one in await app.outboxes.list(test)}
        assert "outbox:notify" not in {one.name for one in await store.changes.readers()}
        assert "outbox:notify" not in {one.interest.name for one in await store.interests.list()}
        assert await store.outboxes.aside(number, ("waiting", "halted"), 10) == []
        before = len(await feed(test))
        await put_rows(test, "a3")
        assert len(await feed(test)) - before == 3  # for the three others
        await hand_over(test)
        with pytest.raises(OutboxNotFound, match="no outbox"):
            await app.outboxes.drop(test, "notify")
    failing.clear()
    async with TestApp(app, database_url) as test:  # it is declared still
        await put_rows(test, "a4")
        await hand_over(test)
        assert [name for outbox, name in sent if outbox == "notify"] == ["a4"]


async def test_outboxes_are_looked_after_outside_of_transactions(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        with pytest.raises(ContextError, match="Outboxes are looked after"):
            await test.run_mutation(lists)
        with pytest.raises(ContextError, match="neither a ctx nor a backend"):
            app.outboxes.list(app)  # type: ignore[call-overload]
        assert len(await test.run_action(lists_outside)) == 4
    await asyncio.to_thread(look_after_them_without_await, database_url)


def look_after_them_without_await(url: str) -> None:
    with app.sync.open(url) as backend:
        app.outboxes.pause(backend, "ship")
        assert {one.name: one.paused for one in app.outboxes.list(backend)}["ship"]
        app.outboxes.resume(backend, "ship")
        assert app.outboxes.move(backend, "ship", "end").messages == 0
        assert app.outboxes.retry(backend, "ship") == 0
        assert app.outboxes.messages(backend, "ship").messages == []
        app.outboxes.rebuild(backend, "count")
        app.outboxes.drop(backend, "notify")
        assert len(app.outboxes.list(backend)) == 3


@app.internal_mutation
async def lists(ctx: MutationCtx) -> int:
    return len(await app.outboxes.list(ctx))  # type: ignore[call-overload]


@app.internal_action
async def lists_outside(ctx: ActionCtx) -> list[str]:
    return [one.name for one in await app.outboxes.list(ctx)]


@app.internal_mutation
async def spoil(ctx: MutationCtx) -> None:
    total = await ctx.db.query(Total).with_index(Total.by_city, city="a").first()
    assert total is not None
    await ctx.db.patch(Total, total.id, parcels=99)


async def feed(test: TestApp) -> list[Any]:
    """All that the change feed holds."""
    return list((await test.engine.store.changes.read(BEGINNING, 1000)).changes)
