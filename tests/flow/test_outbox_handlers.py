"""Handlers that are renamed, changed to another kind, or gone for a while, with messages waiting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, aside, drain, outbox_row, run_sql

from penstock import ActionCtx, App, DeclarationError, Message, MutationCtx, Retry, Table, sync
from penstock.app import Backend
from penstock.sync import MutationCtx as ThreadMutationCtx
from penstock.testing import TestApp

ONCE = Retry.fixed(timedelta(seconds=1), max_attempts=1, jitter=0)
DAY = timedelta(days=1)
FAILS = ("b",)
got: list[str] = []


class Item(Table, source="item", key="number", managed=False):
    number: int
    note: str


class Kept(Table):
    note: str


def insert(*notes: str) -> list[str]:
    """Inserts items."""
    return [f"insert into item (note) values ('{note}')" for note in notes]


MAKE = {
    True: "create table item (number integer generated always as identity primary key, note text not null)",
    False: "create table item (number integer primary key, note text not null)",
}


def before(policy: Any) -> App:
    """The program as it was, of whose messages one fails."""
    app = App()

    @app.outbox(Item, name="send", start="end", on_failure=policy, retry=ONCE, partition_by="note")
    async def send(ctx: ActionCtx, message: Message[Item]) -> None:
        assert message.row is not None
        if message.row.note in FAILS:
            raise ValueError("no")
        got.append(message.row.note)

    return app


def renamed(policy: Any) -> App:
    """Its handler has another name."""
    app = App()

    @app.outbox(Item, name="send", start="end", on_failure=policy, retry=ONCE, partition_by="note")
    async def deliver(ctx: ActionCtx, message: Message[Item]) -> None:
        assert message.row is not None
        got.append(message.row.note)

    return app


def writes(policy: Any) -> App:
    """It is a mutation now, which takes many."""
    app = App(tables=[Kept])

    @app.outbox(Item, name="send", start="end", on_failure=policy, retry=ONCE, partition_by="note", batch=3)
    async def send(ctx: MutationCtx, items: list[Item]) -> None:
        for item in items:
            await ctx.db.insert(Kept(note=item.note))

    return app


async def told(test: Backend) -> list[str]:
    """What came through, in whichever way."""
    rows = await test.engine.store.catalog.read_tables(["kept"])
    found, got[:] = list(got), []
    if rows:
        session = await test.engine.store.begin_read()
        try:
            found += [
                row[0] for row in (await session.fetch_read_only("select note from kept order by id", (), 99, 9999))[1]
            ]
        finally:
            await session.rollback()
    return found


@pytest.mark.parametrize("later", [renamed, writes])
@pytest.mark.parametrize("policy", ["halt", "halt_key", "park"])
async def test_another_handler_under_the_same_name_goes_on_where_the_one_before_was(
    database_url: str, policy: str, later: Callable[[Any], App]
) -> None:
    got.clear()
    await run_sql(database_url, MAKE[database_url.startswith("postgres")])
    async with TestApp(before(policy), database_url) as test:
        await drain(test)
        await run_sql(database_url, *insert("a", "b", "c", "b"))
        await drain(test)
        await drain(test, timedelta(seconds=1))
        passed = await told(test)
        assert passed == (["a"] if policy == "halt" else ["a", "c"])
    app = later(policy)
    async with TestApp(app, database_url, clock=test.clock) as test:
        await run_sql(database_url, *insert("d"))
        await drain(test, DAY)
        await app.outboxes.retry(test, "send")
        await drain(test, DAY)
        await drain(test, DAY)
        rest = sorted("abcbd")
        for one in passed:
            rest.remove(one)
        found = await told(test)
        assert sorted(found) == rest, "each once"
        if policy == "halt":
            assert found == ["b", "c", "b", "d"]
        row = await outbox_row(test)
        assert (row.delivered, row.plan.function.rpartition(":")[2]) == (5, "deliver" if later is renamed else "send")
        assert await aside(test) == []


@pytest.mark.parametrize("policy", ["halt", "halt_key", "park"])
async def test_one_that_is_gone_for_a_while_misses_nothing(database_url: str, policy: str) -> None:
    got.clear()
    await run_sql(database_url, MAKE[database_url.startswith("postgres")])
    async with TestApp(before(policy), database_url) as test:
        await drain(test)
        await run_sql(database_url, *insert("a", "b"))
        await drain(test)
    stage = OutboxStage(Item)
    stage.outbox(Item, "other", start="end")
    async with stage.open(database_url, clock=test.clock) as test:
        await drain(test, DAY)
        await run_sql(database_url, *insert("c", "d"))
        await drain(test, DAY)
        assert stage.texts() == ["c", "d"]
        for hour in range(1, 9):
            await test.engine.store.changes.rotate(test.clock.now() + hour * DAY, 100)
        listed = {one.name: (one.declared, one.messages + one.parked) for one in await stage.app.outboxes.list(test)}
        assert listed == {"other": (True, 0), "send": (False, 3)}
    app = renamed(policy)
    async with TestApp(app, database_url, clock=test.clock) as test:
        await drain(test, DAY)
        await app.outboxes.retry(test, "send")
        await drain(test, DAY)
        await drain(test, DAY)
        found = await told(test)
        assert found == (["a", "b", "c", "d"] if policy != "park" else ["a", "c", "d", "b"])


# ----- what they take


def test_a_handler_says_by_its_ctx_what_kind_of_function_it_is() -> None:
    """Annotations are texts here; which ctx a name means is looked up where the handler stands."""
    app = App()

    async def calls(ctx: ActionCtx, item: Item) -> None: ...

    async def writes(ctx: MutationCtx, item: Item) -> None: ...

    def calls_in_thread(ctx: sync.ActionCtx, item: Item) -> None: ...

    def writes_in_thread(ctx: ThreadMutationCtx, item: Item) -> None: ...

    for handler in (calls, writes, calls_in_thread, writes_in_thread):
        app.outbox(Item, name=handler.__name__)(handler)
    assert [(one.outbox.name, one.function.kind.value) for one in app.outboxes] == [
        ("calls", "action"), ("writes", "mutation"), ("calls_in_thread", "action"), ("writes_in_thread", "mutation"),
    ]  # fmt: skip


def test_a_handler_whose_ctx_is_of_the_other_kind_is_refused() -> None:
    async def awaits(ctx: sync.ActionCtx, item: Item) -> None: ...

    def waits(ctx: ActionCtx, item: Item) -> None: ...

    for handler in (awaits, waits):
        declare: Any = App().outbox(Item, name="send")
        with pytest.raises(DeclarationError, match=r"takes a .*ActionCtx\. .* def those of penstock\.sync"):
            declare(handler)
