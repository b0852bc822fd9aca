"""Messages that are sent to topics: with the transaction that sends them, in its order, as what their handler takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from stage.stories import tell_in

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    Conflict,
    ContextError,
    DeclarationError,
    LimitExceeded,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Retry,
    Table,
    TaskCtx,
    TopicNotFound,
    UnawaitedCall,
    ValueInvalid,
)
from penstock.outbox.message import Message
from penstock.sync import ActionCtx as SyncActionCtx
from penstock.sync import MutationCtx as SyncMutationCtx
from penstock.testing import TestApp, raising

pytestmark = pytest.mark.both_stores

app = OPENED = App()
write, read, act = tell_in(app)
heard: list[Any] = []


class Invite(BaseModel):
    to: str
    at: datetime
    price: Decimal = Decimal("0.10")


class Person(Table, name="person"):
    name: str


@app.outbox("any")
async def hear(ctx: ActionCtx, message: Message[Any]) -> None:
    heard.append((message.payload, message.key))


@app.outbox("written")
async def repeat(ctx: MutationCtx, payload: str) -> None:
    await ctx.outbox.send("any", payload)
    if payload.startswith("again "):
        await ctx.outbox.send("written", payload.removeprefix("again "))


@app.outbox("invites", on_failure="park", retry=Retry(max_attempts=1))
async def invite(ctx: ActionCtx, payload: Invite) -> None:
    heard.append(payload)


@app.outbox(Person)
async def people(ctx: ActionCtx, person: Person) -> None:
    heard.append(person.name)


@app.reactive_task(Person, name="in a transaction")
async def told_in_a_transaction(ctx: MutationTaskCtx[Person]) -> None:
    await ctx.outbox.send("any", "by a task that is a mutation")


@app.reactive_task(Person, name="in none")
async def told_in_none(ctx: TaskCtx[Person]) -> None:
    await ctx.outbox.send("any", "by a task that is an action")


@app.internal_mutation
def say_in_a_thread(ctx: SyncMutationCtx, payload: str) -> None:
    ctx.outbox.send("any", payload, key="thread")
    app.outboxes.send(ctx, "any", payload + " again")


@app.internal_action
def say_in_a_thread_of_an_action(ctx: SyncActionCtx, payload: str) -> None:
    ctx.outbox.send("any", payload)


def say(*payloads: Any, topic: str = "any", key: str | None = None, fails: bool = False) -> Callable[[Any], Any]:
    """Sends messages, and then may fail."""

    async def story(ctx: MutationCtx) -> None:
        for payload in payloads:
            await ctx.outbox.send(topic, payload, key=key)
        if fails:
            raise RuntimeError("after it was sent")

    return story


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    heard.clear()


async def test_messages_are_sent_if_the_mutation_commits_and_in_its_order(database_url: str) -> None:
    tries: list[int] = []

    async def go_on(ctx: MutationCtx) -> None:
        await ctx.outbox.send("any", "before")
        with pytest.raises(RuntimeError):
            await ctx.run_mutation(write, say("gone", fails=True))
        await ctx.run_mutation(write, say("kept"))
        await ctx.outbox.send("any", "after")

    async def forget(ctx: MutationCtx) -> None:
        ctx.outbox.send("any", "left behind")  # type: ignore[unused-coroutine]

    async def conflict(ctx: MutationCtx) -> None:
        tries.append(len(tries))
        await ctx.outbox.send("any", "once")

    async with TestApp(app, database_url) as test:
        await test.run_mutation(write, say(1, "two", None, key="k"))
        with pytest.raises(RuntimeError):
            await test.run_mutation(write, say("gone", fails=True))
        await test.run_mutation(write, go_on)
        with pytest.raises(UnawaitedCall):
            await test.run_mutation(write, forget)
        with raising("commit.before", Conflict("staged"), times=2):
            await test.run_mutation(write, conflict)
        assert tries == [0, 1, 2]
        await test.relay.drain()
        await test.relay.drain()
        assert heard == [
            (1, "k"), ("two", "k"), (None, "k"), ("before", None), ("kept", None), ("after", None), ("once", None),
        ]  # fmt: skip


async def test_each_kind_of_function_sends(database_url: str) -> None:
    async def say_in_a_query(ctx: QueryCtx) -> None:
        await app.outboxes.send(ctx, "any", "x")  # type: ignore[call-overload]

    async with TestApp(app, database_url) as test:
        await test.run_mutation(say_in_a_thread, "one")
        with pytest.raises(RuntimeError, match="after it was sent"):
            await test.run_action(act, say("two", key="action", fails=True))
        await test.run_action(say_in_a_thread_of_an_action, "three")
        await app.outboxes.send(test, "any", "four", key="program")
        with pytest.raises(ContextError, match="cannot enqueue, cancel, send"):
            await test.run_query(read, say_in_a_query)
        await test.relay.drain()
        assert heard == [
            ("one", "thread"), ("one again", None), ("two", "action"), ("three", None), ("four", "program"),
        ]  # fmt: skip
        heard.clear()
        await test.run_mutation(write, say("again again a", "b", topic="written"))
        for _ in range(2):
            await test.relay.drain()
        assert [payload for payload, _ in heard] == ["again again a", "b", "again a", "a"], "a handler to its own topic"
        heard.clear()
        await test.run_mutation(write, lambda ctx: ctx.db.insert(Person(name="x")))
        await test.run_until_idle()
        await test.relay.drain()
        assert sorted(map(str, heard)) == [
            "('by a task that is a mutation', None)", "('by a task that is an action', None)", "x",
        ]  # fmt: skip


async def test_services_are_woken_by_messages_and_by_rows_of_outboxes(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestApp(app, database_url) as test:
        woken: list[str] = []
        monkeypatch.setattr(test.engine.store.signals, "notify", lambda: woken.append("woken"))
        await test.run_mutation(write, say())
        assert woken == []
        await test.run_mutation(write, say("x"))
        await test.run_mutation(write, lambda ctx: ctx.db.insert(Person(name="x")))
        await app.outboxes.send(test, "any", "y")
        assert woken == ["woken"] * 3


async def test_a_payload_that_the_handler_does_not_take_is_refused_and_fails_its_message(database_url: str) -> None:
    wrong, other = {"to": 5, "when": "x"}, App()
    async with TestApp(app, database_url) as test:
        with pytest.raises(ArgumentsInvalid, match=r"payload\.to: Input should be a valid string"):
            await app.outboxes.send(test, "invites", wrong)
        async with TestApp(other, database_url) as elsewhere:  # which does not know the handler
            await other.outboxes.send(elsewhere, "invites", wrong, key="[not JSON")
        await app.outboxes.send(test, "invites", {"to": "next", "at": "2026-05-01T12:00:00Z"})
        await test.relay.drain()
        assert [one.to for one in heard] == ["next"]
        store = test.engine.store.outboxes
        (outbox,) = [row for row in await store.list() if row.plan.source == "topic invites"]
        (parked,) = await store.aside(outbox.id, ["parked"], 10)
        assert parked.trouble is not None
        assert "The handler of outbox" in parked.trouble.error
        assert "payload.to: Input should be a valid string" in parked.trouble.error
        assert "payload.at: Field required" in parked.trouble.error


REFUSED: list[tuple[Any, Any, Any, type[Exception], str]] = [
    ("nowhere", 1, None, TopicNotFound, r"declared for the topic 'nowhere'\. Declare one with @app.outbox"),
    ("a\0b", 1, None, TopicNotFound, "topic"),
    ("x" * 101, 1, None, TopicNotFound, "topic"),
    ("any", object(), None, ValueInvalid, "payload of a message cannot be stored as JSON"),
    ("any", "a\0b", None, ValueInvalid, "NUL"),
    ("any", "é" * 500, None, LimitExceeded, r"has 1002 bytes; one may have 1000.* send its id"),
    ("any", 1, "", ValueInvalid, "1 to 200 characters, not 0"),
    ("any", 1, "x" * 201, ValueInvalid, "not 201 characters"),
    ("any", 1, "a\0b", ValueInvalid, "key of a message contains a NUL"),
    ("any", 1, 5, ValueInvalid, "characters, not 5"),
]
KEYS = ["[", '["a"]', "a'b\\c", "é" * 200, " ", None]


async def test_what_cannot_be_sent_is_refused_and_nothing_is_done(database_url: str) -> None:
    async def story(ctx: MutationCtx) -> None:
        await ctx.outbox.send("any", "before")
        for topic, payload, key, error, text in REFUSED:
            with pytest.raises(error, match=text):
                await ctx.outbox.send(topic, payload, key=key)
        await ctx.outbox.send("any", "after")

    async with TestApp(app, database_url, max_job_argument_bytes=1000) as test:
        await test.run_mutation(write, story)
        for topic, payload, key, error, text in REFUSED:
            with pytest.raises(error, match=text):
                await app.outboxes.send(test, topic, payload, key=key)
        for key in KEYS:
            await app.outboxes.send(test, "any", key, key=key)
        await test.relay.drain()
    assert heard == [("before", None), ("after", None), *((key, key) for key in KEYS)]


async def test_messages_count_as_rows_that_a_transaction_writes(database_url: str) -> None:
    for limit in ({"max_rows_written": 3}, {"max_bytes_written": 12}):
        async with TestApp(app, database_url, **limit) as test:  # type: ignore[arg-type]
            await test.run_mutation(write, say("a1", "b2", "c3"))
            with pytest.raises(LimitExceeded, match="written more than"):
                await test.run_mutation(write, say("d1", "e2", "f3", "g4"))
    async with TestApp(app, database_url) as test:
        await test.relay.drain()
    assert [payload for payload, _ in heard] == ["a1", "b2", "c3"] * 2


async def test_a_handler_whose_payload_cannot_be_checked_is_refused(database_url: str) -> None:
    own = App()

    @own.outbox("any")
    async def listen(ctx: ActionCtx, payload: asyncio.Event) -> None:
        """Never runs."""

    with pytest.raises(DeclarationError, match="cannot be checked"):
        async with own.open(database_url):
            pass
