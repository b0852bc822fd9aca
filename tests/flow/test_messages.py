"""Messages that are sent to topics: with the transaction that sends them, in its order, as what their handler takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    Conflict,
    ContextError,
    DeclarationError,
    Id,
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

heard: list[Any] = []


class Invite(BaseModel):
    to: str
    at: datetime
    price: Decimal = Decimal("0.10")


@dataclass
class Letter:
    number: UUID
    day: date
    seal: bytes
    pages: tuple[int, ...] = ()
    copies: list[Letter] | None = None


class Person(Table, name="person"):
    name: str
    calls: int = 0


class Heard(Table, name="heard"):
    text: str


@app.outbox("any", retry=Retry(max_attempts=1))
async def hear(ctx: ActionCtx, message: Message[Any]) -> None:
    heard.append((message.payload, message.key))
    if isinstance(message.payload, dict) and message.payload.get("bad"):
        raise RuntimeError("bad")


@app.outbox("written")
async def write(ctx: MutationCtx, payload: str) -> None:
    await ctx.db.insert(Heard(text=payload))
    if payload.startswith("again "):
        await ctx.outbox.send("written", payload.removeprefix("again "))


@app.outbox("invites", on_failure="park", retry=Retry(max_attempts=1))
async def invite(ctx: ActionCtx, payload: Invite) -> None:
    heard.append(payload)


@app.outbox("letters", batch=10)
async def post(ctx: ActionCtx, messages: list[Message[Letter]]) -> None:
    heard.extend(message.payload for message in messages)
    heard.extend(message.cloud_event("https://post.example")["data"]["seal"] for message in messages)


@app.outbox(Person, on=("insert", "update", "delete"))
async def people(ctx: ActionCtx, message: Message[Person]) -> None:
    row = message.row or message.previous
    assert row is not None
    heard.append((message.kind, row.name, row.calls))


@app.internal_mutation
async def say(ctx: MutationCtx, payloads: list[Any], topic: str = "any", key: str | None = None) -> None:
    for payload in payloads:
        await ctx.outbox.send(topic, payload, key=key)


@app.internal_mutation
def say_in_a_thread(ctx: SyncMutationCtx, payload: str) -> None:
    ctx.outbox.send("any", payload, key="thread")
    app.outboxes.send(ctx, "any", payload + " again")


@app.internal_action
async def say_in_an_action(ctx: ActionCtx, payload: str) -> None:
    await ctx.outbox.send("any", payload, key="action")
    raise RuntimeError("after it was sent")


@app.internal_action
def say_in_a_thread_of_an_action(ctx: SyncActionCtx, payload: str) -> None:
    ctx.outbox.send("any", payload)


@app.internal_query
async def say_in_a_query(ctx: QueryCtx) -> None:
    await app.outboxes.send(ctx, "any", "x")  # type: ignore[call-overload]


@app.internal_mutation
async def go_on(ctx: MutationCtx) -> None:
    await ctx.outbox.send("any", "before")
    for wrong in ("unknown", "fails"):
        with pytest.raises(TopicNotFound if wrong == "unknown" else RuntimeError):
            await ctx.run_mutation(part, wrong)
    await ctx.run_mutation(part, "kept")
    await ctx.outbox.send("any", "after")


@app.internal_mutation
async def part(ctx: MutationCtx, what: Literal["unknown", "fails", "kept"]) -> None:
    await ctx.outbox.send("any", what)
    if what == "unknown":
        await ctx.outbox.send("nowhere", what)
    if what == "fails":
        raise RuntimeError


@app.internal_mutation
async def fail(ctx: MutationCtx) -> None:
    await ctx.outbox.send("any", "lost")
    raise RuntimeError


@app.internal_mutation
async def forget(ctx: MutationCtx) -> None:
    ctx.outbox.send("any", "left behind")  # type: ignore[unused-coroutine]


@app.internal_mutation
async def add(ctx: MutationCtx, names: list[str]) -> list[Id[Person]]:
    return await ctx.db.insert_many(Person(name=name) for name in names)


@app.internal_mutation
async def call(ctx: MutationCtx, person: Id[Person], fails: bool = False) -> None:
    row = await ctx.db.get(Person, person)
    assert row is not None
    await ctx.outbox.send("any", f"{row.name} {row.calls}")
    await ctx.db.patch(Person, person, calls=row.calls + 1)
    await ctx.outbox.send("any", f"{row.name} {row.calls + 1}")
    if fails:
        raise RuntimeError


tries: list[str] = []


@app.internal_mutation
async def conflict(ctx: MutationCtx) -> None:
    await ctx.outbox.send("any", "once")
    tries.append("try")


@app.internal_query
async def all_heard(ctx: QueryCtx) -> list[str]:
    return [row.text for row in await ctx.db.query(Heard).collect()]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    heard.clear()
    tries.clear()


# ----- in a transaction


async def test_messages_are_sent_if_the_mutation_commits_and_in_its_order(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(say, [1, "two", None], key="k")
        with pytest.raises(RuntimeError):
            await test.run_mutation(fail)
        await test.run_mutation(go_on)
        with pytest.raises(UnawaitedCall):
            await test.run_mutation(forget)
        await test.relay.drain()
        assert heard == [
            (1, "k"), ("two", "k"), (None, "k"), ("before", None), ("kept", None), ("after", None),
        ]  # fmt: skip
        await test.relay.drain()
        assert len(heard) == 6


async def test_a_mutation_that_runs_again_sends_once(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        with raising("commit.before", Conflict("staged"), times=2):
            await test.run_mutation(conflict)
        await test.relay.drain()
    assert (len(tries), heard) == (3, [("once", None)])


async def test_of_many_who_send_at_once_each_has_its_order_and_those_who_fail_send_nothing(database_url: str) -> None:
    async def one(number: int) -> None:
        payloads: list[Any] = [[number, place] for place in range(5)]
        if number % 4 == 0:
            payloads.append("x" * 5_000_000)  # which is refused
        await test.run_mutation(say, payloads, key=str(number))

    async with TestApp(app, database_url) as test:
        ends = await asyncio.gather(*map(one, range(24)), return_exceptions=True)
        await test.relay.drain()
    assert [isinstance(end, LimitExceeded) for end in ends] == [number % 4 == 0 for number in range(24)]
    for number in range(24):
        expected = [] if number % 4 == 0 else [[number, place] for place in range(5)]
        assert [payload for payload, key in heard if key == str(number)] == expected
    assert len(heard) == 18 * 5


async def test_each_kind_of_function_sends(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(say_in_a_thread, "one")
        with pytest.raises(RuntimeError, match="after it was sent"):
            await test.run_action(say_in_an_action, "two")
        await test.run_action(say_in_a_thread_of_an_action, "three")
        await app.outboxes.send(test, "any", "four", key="program")
        with pytest.raises(ContextError, match="cannot enqueue, cancel, send"):
            await test.run_query(say_in_a_query)
        assert not hasattr(QueryCtx, "outbox")
        await test.relay.drain()
        assert heard == [
            ("one", "thread"), ("one again", None), ("two", "action"), ("three", None), ("four", "program"),
        ]  # fmt: skip


async def test_jobs_that_share_a_transaction_each_send_or_do_not(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        ids = await test.run_mutation(add, ["a", "b"])
        now = timedelta(0)
        for place, fails in ((0, False), (1, True), (0, False), (1, False)):
            await test.scheduler.run_after(now, call, ids[place], fails)
        await test.run_until_idle(raise_errors=False)
        await test.relay.drain()
        said = [one[0] for one in heard if len(one) == 2]
        assert said == ["a 0", "a 1", "a 1", "a 2", "b 0", "b 1"]


async def test_a_handler_may_send_to_its_own_topic(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(say, ["again again a", "b"], "written")
        await test.relay.drain()
        assert await test.run_query(all_heard) == ["again again a", "b", "again a", "a"]


async def test_reactive_tasks_send(database_url: str) -> None:
    own = App()
    told: list[str] = []

    @own.outbox("tasks")
    async def tell(ctx: ActionCtx, payload: str) -> None:
        told.append(payload)

    @own.reactive_task(Person, name="in a transaction")
    async def first(ctx: MutationTaskCtx[Person]) -> None:
        await ctx.outbox.send("tasks", "mutation")

    @own.reactive_task(Person, name="in none")
    async def second(ctx: TaskCtx[Person]) -> None:
        await ctx.outbox.send("tasks", "action")

    @own.internal_mutation
    async def new(ctx: MutationCtx) -> None:
        await ctx.db.insert(Person(name="x"))

    async with TestApp(own, database_url) as test:
        await test.run_mutation(new)
        await test.run_until_idle()
        await test.relay.drain()
    assert sorted(told) == ["action", "mutation"]


async def test_services_are_woken_by_messages_and_by_rows_of_outboxes(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestApp(app, database_url) as test:
        woken: list[str] = []
        monkeypatch.setattr(test.engine.store.signals, "notify", lambda: woken.append("woken"))
        await test.run_query(all_heard)
        await test.run_mutation(say, [])
        assert woken == []
        await test.run_mutation(say, ["x"])
        assert woken == ["woken"]
        await test.run_mutation(add, ["x"])
        assert woken == ["woken"] * 2
        await app.outboxes.send(test, "any", "y")
        assert woken == ["woken"] * 3


# ----- what a payload is


async def test_payloads_come_as_the_handler_takes_them(database_url: str) -> None:
    at = datetime(2026, 5, 1, 12, 30, 0, 250, UTC)
    letter = Letter(UUID(int=7), date(2026, 5, 1), b"\x00\xff seal", (1, 2))
    letter.copies = [Letter(UUID(int=8), date(2026, 5, 2), b"", ())]
    async with TestApp(app, database_url) as test:
        await app.outboxes.send(test, "invites", Invite(to="Žofie 😀", at=at, price=Decimal("12.50")))
        await app.outboxes.send(test, "invites", {"to": "x", "at": "2026-05-01T12:00:00Z"})
        await app.outboxes.send(test, "letters", letter)
        await app.outboxes.send(test, "any", {"days": ["2026-01-01"], "\u2028": 2**70})
        with pytest.raises(ValueInvalid, match=r"payload\.row is a Person, and comes back as a dict"):
            await app.outboxes.send(test, "any", {"row": Person(name="p")})
        await test.relay.drain()
    assert [one for one in heard if isinstance(one, Invite)] == [
        Invite(to="Žofie 😀", at=at, price=Decimal("12.50")),
        Invite(to="x", at=datetime(2026, 5, 1, 12, tzinfo=UTC)),
    ]
    assert letter in heard
    assert "AP8gc2VhbA==" in heard
    ((said, _),) = [one for one in heard if isinstance(one, tuple)]
    assert said == {"days": ["2026-01-01"], "\u2028": 2**70}


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


@pytest.mark.parametrize("key", ["[", "[1]", '["a"]', "a'b\\c", "é" * 200, "😀", " ", None])
async def test_keys_are_handed_over_as_they_are(database_url: str, key: str | None) -> None:
    async with TestApp(app, database_url) as test:
        await app.outboxes.send(test, "any", key, key=key)
        await test.relay.drain()
    assert heard == [(key, key)]


# ----- at the door


@pytest.mark.parametrize(
    ("topic", "payload", "key", "error", "text"),
    [
        ("nowhere", 1, None, TopicNotFound, r"declared for the topic 'nowhere'\. Declare one with @app.outbox"),
        ("", 1, None, TopicNotFound, "topic ''"),
        ("a\0b", 1, None, TopicNotFound, "topic"),
        ("\ud800", 1, None, TopicNotFound, "topic"),
        ("x" * 101, 1, None, TopicNotFound, "topic"),
        (5, 1, None, TopicNotFound, "topic 5"),
        ("any", object(), None, ValueInvalid, "payload of a message cannot be stored as JSON"),
        ("any", float("nan"), None, ValueInvalid, "payload"),
        ("any", "a\0b", None, ValueInvalid, "NUL"),
        ("any", "\ud800", None, ValueInvalid, "payload"),
        ("any", "x" * 1001, None, LimitExceeded, r"has 1003 bytes; one may have 1000.* send its id"),
        ("any", "é" * 500, None, LimitExceeded, r"has 1002 bytes"),
        ("any", 1, "", ValueInvalid, "1 to 200 characters, not 0"),
        ("any", 1, "x" * 201, ValueInvalid, "not 201 characters"),
        ("any", 1, "a\0b", ValueInvalid, "key of a message contains a NUL"),
        ("any", 1, "\ud800", ValueInvalid, "lone surrogate"),
        ("any", 1, 5, ValueInvalid, "characters, not 5"),
    ],
)
async def test_what_cannot_be_sent_is_refused_and_nothing_is_done(
    database_url: str, topic: Any, payload: Any, key: Any, error: type[Exception], text: str
) -> None:
    own = App()

    @own.outbox("any")
    async def listen(ctx: ActionCtx, message: Message[Any]) -> None:
        heard.append(message.payload)

    @own.internal_mutation
    async def both(ctx: MutationCtx) -> None:
        await ctx.outbox.send("any", "before")
        with pytest.raises(error, match=text):
            await ctx.outbox.send(topic, payload, key=key)
        await ctx.outbox.send("any", "after")

    async with TestApp(own, database_url, max_job_argument_bytes=1000) as test:
        await test.run_mutation(both)
        with pytest.raises(error, match=text):
            await own.outboxes.send(test, topic, payload, key=key)
        await test.relay.drain()
    assert heard == ["before", "after"]


@pytest.mark.parametrize("limit", [{"max_rows_written": 3}, {"max_bytes_written": 12}])
async def test_messages_count_as_rows_that_a_transaction_writes(database_url: str, limit: dict[str, Any]) -> None:
    async with TestApp(app, database_url, **limit) as test:
        await test.run_mutation(say, ["a1", "b2", "c3"])
        with pytest.raises(LimitExceeded, match="written more than"):
            await test.run_mutation(say, ["d1", "e2", "f3", "g4"])
        await test.relay.drain()
        assert [payload for payload, _ in heard] == ["a1", "b2", "c3"]


def test_a_handler_whose_payload_cannot_be_checked_is_refused(database_url: str) -> None:
    own = App()

    @own.outbox("any")
    async def listen(ctx: ActionCtx, payload: asyncio.Event) -> None:
        """Never runs."""

    async def start() -> None:
        async with own.open(database_url):
            pass

    with pytest.raises(DeclarationError, match="cannot be checked"):
        asyncio.run(start())
