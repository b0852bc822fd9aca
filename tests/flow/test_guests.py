"""Work and messages in transactions of the user's own, on connections of all kinds: with them, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from stage.guests import PLAIN_KINDS, Kind, Visit, tell

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    ConfigError,
    ContextError,
    DataError,
    Finished,
    IdInvalid,
    JobId,
    LimitExceeded,
    Message,
    MutationCtx,
    Pending,
    QueryCtx,
    Success,
    TopicNotFound,
    UsageError,
    ValueInvalid,
    WorkflowCtx,
    WorkId,
    WorkResult,
)
from penstock.clock import SystemClock
from penstock.store.guest.drivers import answer
from penstock.testing import TestApp, TestClock

app = App()
mail = app.workpool("mail", max_parallelism=2)

part = App()
part_mail = part.workpool("mail")

sent: list[str] = []
ended: list[tuple[WorkId, str]] = []
heard: list[tuple[str, str | None]] = []


@dataclass
class Greeting:
    to: str
    times: int = 1


greeting = app.event("greeting", Greeting)


@app.outbox("greetings")
async def hear(ctx: ActionCtx, message: Message[Greeting]) -> None:
    heard.append((message.payload.to, message.key))


@app.internal_action
async def send(ctx: ActionCtx, to: str) -> str:
    sent.append(to)
    return f"sent to {to}"


@app.workflow
async def greet_twice(ctx: WorkflowCtx, by: str) -> str:
    heard = [await ctx.wait_for(greeting, timeout=timedelta(days=1)) for _ in range(2)]
    return ", ".join(f"{one.to} {one.times}" for one in heard)


@app.internal_query
async def look(ctx: QueryCtx) -> int:
    return 0


@app.internal_mutation
async def note(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    ended.append((work_id, f"{result.kind} {context}"))


@part.outbox("greetings")
async def hear_in_part(ctx: ActionCtx, message: Message[Greeting]) -> None:
    heard.append((f"part {message.payload.to}", message.key))


@part.internal_action
async def send_in_part(ctx: ActionCtx, to: str) -> None:
    sent.append(f"part {to}")


middle = App()
inner = middle.use(part, name="inner")
outer = app.use(middle, name="outer")
deep = app.components["outer/inner"]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for left in (sent, ended, heard):
        left.clear()


@pytest.fixture(params=PLAIN_KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def url(kind: Kind, request: pytest.FixtureRequest) -> str:
    """URL of an empty database of the kind that the connection leads to."""
    found: str = request.getfixturevalue(f"empty_{kind.dialect}_url")
    return found


@pytest.fixture
def app_url(kind: Kind, request: pytest.FixtureRequest) -> str:
    """The same with penstock's tables, and those of the app."""
    url: str = request.getfixturevalue(f"{kind.dialect}_url")

    async def make() -> None:
        async with app.open(url):
            pass

    asyncio.run(make())
    return url


def start(visit: Visit) -> Any:
    return mail.enqueue(visit.connection, greet_twice, "Ada")


def send_to(visit: Visit, payload: Any, topic: str = "greetings", key: str | None = None) -> Any:
    return app.outboxes.send(visit.connection, topic, payload, key=key)


def work_off(url: str) -> None:
    async def run() -> None:
        async with TestApp(app, url, clock=TestClock(SystemClock().now())) as backend:
            await backend.run_until_idle()

    asyncio.run(run())


def test_runs_are_started_and_events_sent_if_the_transaction_commits(kind: Kind, app_url: str) -> None:
    """(WF1, WF60, WF71)"""
    runs: list[JobId[str]] = []

    async def story(visit: Visit) -> None:
        connection = visit.connection
        await answer(visit.begin())
        runs.append(await answer(start(visit)))
        runs.append(await answer(start(visit)))
        await answer(greeting.send(connection, runs[0], Greeting("100% %s")))
        await answer(greeting.send(connection, runs[0], Greeting("never"), key="%s"))
        await answer(visit.commit())
        await answer(visit.begin())
        gone = await answer(start(visit))
        await answer(greeting.send(connection, runs[1], Greeting("never")))
        await answer(visit.rollback())
        await answer(visit.begin())
        sent = greeting.broadcast(connection, [gone, *runs], Greeting("Bob"), key="%s")
        assert await answer(sent) == runs
        for run, error in ((gone, DataError), ("job_1", IdInvalid)):
            with pytest.raises(error):
                await answer(greeting.send(connection, JobId(run), Greeting("nobody")))
        wrong: Any = "no greeting"
        with pytest.raises(ValueInvalid, match="payload of event greeting"):
            await answer(greeting.send(connection, runs[0], wrong))
        await answer(greeting.send(connection, runs[1], Greeting("Eve", times=2)))
        await answer(visit.commit())

    tell(kind, app_url, story)
    work_off(app_url)
    found: list[Any] = []

    async def look_at(visit: Visit) -> None:
        await answer(visit.begin())
        found.extend(await answer(mail.status_batch(visit.connection, runs)))
        with pytest.raises(DataError, match="has ended"):
            await answer(greeting.send(visit.connection, runs[0], Greeting("late")))
        await answer(visit.rollback())

    tell(kind, app_url, look_at)
    assert found == [Finished(Success("100% %s 1, never 1")), Finished(Success("Bob 1, Eve 2"))]


def test_work_runs_and_messages_are_sent_once_if_the_transaction_commits(kind: Kind, app_url: str) -> None:
    ids: list[JobId] = []
    keyed: list[JobId] = []

    async def story(visit: Visit) -> None:
        await answer(visit.begin())
        called = mail.with_options(on_complete=note, context={"by": "100% %s"})
        ids.append(await answer(called.enqueue(visit.connection, send, "Ada")))
        ids.extend(await answer(mail.enqueue_batch(visit.connection, send, [{"to": "Bob"}, {"to": "Čeněk"}])))
        assert await answer(mail.enqueue_batch(visit.connection, send, [])) == []
        assert await answer(mail.status(visit.connection, ids[0])) == Pending(0)
        assert await answer(mail.status_batch(visit.connection, ids)) == [Pending(0)] * 3
        await answer(send_to(visit, Greeting("Ada"), key="100% %s"))
        await answer(visit.commit())
        await answer(visit.begin())
        gone = await answer(mail.enqueue(visit.connection, send, to="nobody"))
        await answer(mail.enqueue_batch(visit.connection, send, [{"to": "nobody"}]))
        await answer(send_to(visit, Greeting("nobody")))
        await answer(mail.cancel(visit.connection, ids[1]))
        await answer(visit.rollback())
        await answer(visit.begin())
        assert await answer(mail.status(visit.connection, gone)) is None
        await answer(mail.enqueue(visit.connection, send, to="Dan"))
        await answer(visit.run("savepoint here"))
        await answer(mail.enqueue(visit.connection, send, to="nobody"))
        await answer(send_to(visit, Greeting("gone with its savepoint")))
        await answer(visit.run("rollback to savepoint here"))
        await answer(send_to(visit, {"to": "Čeněk %s", "times": 2}))
        await answer(visit.commit())
        for end in (visit.rollback, visit.commit, visit.commit):
            await answer(visit.begin())
            by_key = mail.with_options(key="the one").enqueue(visit.connection, send, to=f"{len(keyed)}")
            keyed.append(await answer(by_key))
            await answer(end())

    tell(kind, app_url, story)
    assert len(set(ids)) == 3
    assert ids == sorted(ids)
    assert keyed[0] != keyed[1] == keyed[2]
    work_off(app_url)
    assert sorted(sent) == ["1", "Ada", "Bob", "Dan", "Čeněk"]
    assert ended == [(ids[0], "success {'by': '100% %s'}")]
    assert heard == [("Ada", "100% %s"), ("Čeněk %s", None)]

    async def look_again(visit: Visit) -> None:
        await answer(visit.begin())
        assert await answer(mail.status(visit.connection, ids[1])) == Finished(Success("sent to Bob"))
        await answer(visit.rollback())

    tell(kind, app_url, look_again)


def test_work_and_messages_of_a_component_are_those_of_its_use(kind: Kind, app_url: str) -> None:
    ids: list[JobId[None]] = []

    async def story(visit: Visit) -> None:
        await answer(visit.begin())
        assert deep[part_mail] is outer[inner[part_mail]]
        ids.append(await answer(deep[part_mail].enqueue(visit.connection, deep[send_in_part], "Ada")))
        await answer(send_to(visit, Greeting("Ada"), "outer/inner/greetings", key="a"))
        with pytest.raises(ContextError, match=r"the component 'inner' here.*pool of its use"):
            await answer(part_mail.enqueue(visit.connection, send_in_part, "nobody"))
        with pytest.raises(ContextError, match="the component 'inner' here"):
            await answer(part.outboxes.send(visit.connection, "greetings", Greeting("nobody")))
        await answer(visit.commit())
        await answer(visit.begin())
        await answer(deep[part_mail].enqueue(visit.connection, deep[send_in_part], "never"))
        await answer(visit.rollback())

    tell(kind, app_url, story)
    work_off(app_url)
    assert (sent, heard) == (["part Ada"], [("part Ada", "a")])


def test_what_is_canceled_never_runs_and_what_cannot_be_is_refused_alone(kind: Kind, app_url: str) -> None:
    other = App()
    ids: list[JobId] = []

    @other.internal_action
    async def foreign(ctx: ActionCtx) -> None:
        """Never runs."""

    async def story(visit: Visit) -> None:
        await answer(visit.begin())
        cases: list[Any] = [
            (mail, send, {"from": "x"}, ArgumentsInvalid),
            (mail, send, {"to": 5}, ArgumentsInvalid),
            (mail, send, {"to": "x" * 5_000_000}, LimitExceeded),
            (mail, foreign, {}, ContextError),
            (mail, print, {}, ContextError),
            (mail.with_options(retry=True), look, {}, UsageError),
        ]
        for pool, function, arguments, error in cases:
            with pytest.raises(error):
                await answer(pool.enqueue(visit.connection, function, **arguments))
        messages: list[tuple[Any, str, str | None, type[Exception]]] = [
            (1, "nowhere", None, TopicNotFound),
            (object(), "greetings", None, ArgumentsInvalid),
            (Greeting("x" * 5_000_000), "greetings", None, LimitExceeded),
            (1, "greetings", "", ValueInvalid),
        ]
        for payload, topic, key, error in messages:
            with pytest.raises(error):
                await answer(send_to(visit, payload, topic, key))
        with pytest.raises(ArgumentsInvalid):
            await answer(mail.enqueue_batch(visit.connection, send, [{"to": "Ada"}] * 6_000 + [{"to": 1}]))
        with pytest.raises(ContextError, match="cannot see a job end while it waits"):
            await answer(mail.result(visit.connection, JobId("job_01jd3k4v5w6x7y8z9a0b1c2d3e")))
        with pytest.raises(ContextError, match="Pass the backend"):
            await answer(mail.pause(visit.connection))
        await answer(mail.enqueue_batch(visit.connection, send, [{"to": "Ada"}] * 3))
        assert await answer(mail.cancel_all(visit.connection, send)) == 3
        ids.append(await answer(mail.with_options(on_complete=note).enqueue(visit.connection, send, "Bob")))
        await answer(visit.commit())
        await answer(visit.begin())
        await answer(mail.cancel(visit.connection, ids[0]))
        await answer(visit.commit())

    tell(kind, app_url, story)
    work_off(app_url)
    assert (sent, heard) == ([], [])
    assert ended == [(ids[0], "canceled None")]


def test_a_connection_of_no_use_says_what_to_do(kind: Kind, url: str) -> None:
    strict = App(database="sqlite:///x.db" if kind.dialect == "postgres" else "postgresql://nobody@nowhere/x")
    pool = strict.workpool("mail")

    @strict.internal_action
    async def never(ctx: ActionCtx) -> None:
        """Never runs."""

    async def story(visit: Visit) -> None:
        await answer(visit.begin())
        with pytest.raises(ContextError, match=r"leads to .*, but the app uses .* to the database of the app"):
            await answer(pool.enqueue(visit.connection, never))
        calls: list[Callable[[], Any]] = [
            lambda: mail.enqueue(visit.connection, send, "Ada"),
            lambda: send_to(visit, Greeting("Ada")),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match=r"penstock's tables are not in .* penstock migrate"):
                await answer(call())
            await answer(visit.rollback())
            await answer(visit.begin())
        if kind.dialect == "postgres":  # a transaction on SQLite goes on after an error
            with suppress(Exception):
                await answer(visit.run("select * from nowhere"))
            with pytest.raises(ContextError, match=r"has failed before.* Roll back"):
                await answer(send_to(visit, Greeting("Ada")))
        await answer(visit.rollback())
        await answer(visit.close())
        with pytest.raises(ContextError, match=r"is not open|permanently closed|released"):
            await answer(send_to(visit, Greeting("Ada")))

    tell(kind, url, story)


def test_what_is_no_connection_is_told_what_there_is() -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda thing: mail.enqueue(thing, send, "Ada"),
        lambda thing: app.outboxes.send(thing, "greetings", Greeting("Ada")),
        mail.cancel_all,
        mail.pause,
    ]
    for wrong in (None, "postgresql://", object()):
        for call in calls:
            with pytest.raises(ContextError, match=r"neither a ctx nor a backend, nor a connection.* psycopg, psyco"):
                call(wrong)


def test_an_event_reaches_the_run_of_a_key_within_the_transaction(kind: Kind, app_url: str) -> None:
    """(WF72)"""
    runs: list[JobId[str]] = []

    async def story(visit: Visit) -> None:
        connection, keyed = visit.connection, mail.with_options(key="ada")
        await answer(visit.begin())
        runs.append(await answer(keyed.enqueue(connection, greet_twice, "Ada")))
        for name in ("Bob", "Eve"):
            await answer(greeting.send(connection, (greet_twice, "ada"), Greeting(name)))
        with pytest.raises(DataError, match="there is none"):
            await answer(greeting.send(connection, (greet_twice, "eve"), Greeting("nobody")))
        await answer(visit.commit())

    tell(kind, app_url, story)
    work_off(app_url)
    found: list[Any] = []

    async def look_at(visit: Visit) -> None:
        await answer(visit.begin())
        found.extend(await answer(mail.status_batch(visit.connection, runs)))
        await answer(visit.rollback())

    tell(kind, app_url, look_at)
    assert found == [Finished(Success("Bob 1, Eve 1"))]
