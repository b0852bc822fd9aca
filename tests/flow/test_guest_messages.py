"""Messages that are sent in transactions of the user's own, on connections of all kinds: with them, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from stage.guests import PLAIN_KINDS, Kind, Visit, play

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    ConfigError,
    ContextError,
    LimitExceeded,
    Table,
    TopicNotFound,
    ValueInvalid,
)
from penstock.outbox.message import Message
from penstock.store.guest.drivers import answer
from penstock.testing import TestApp

app = OPENED = App()

heard: list[Any] = []


@dataclass
class Greeting:
    to: str
    times: int = 1


class Order(Table, name="orders"):
    item: str


@app.outbox("greetings")
async def hear(ctx: ActionCtx, message: Message[Greeting]) -> None:
    heard.append((message.payload.to, message.key))


@app.outbox(Order)
async def hear_of_order(ctx: ActionCtx, order: Order) -> None:
    heard.append(order.item)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    heard.clear()


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


def tell(kind: Kind, url: str, story: Callable[[Visit], Any]) -> None:
    """Run a story on a connection of a kind."""

    async def main() -> None:
        async with kind.open(url) as visit:
            await story(visit)

    play(kind.is_async, main())


def hand_over(url: str) -> list[Any]:
    """Hand over all messages of a database; what was heard."""

    async def run() -> None:
        async with TestApp(app, url) as backend:
            await backend.relay.drain()

    asyncio.run(run())
    found, heard[:] = list(heard), []
    return found


def test_messages_are_sent_if_the_transaction_commits_and_leave_no_trace_if_not(kind: Kind, app_url: str) -> None:
    cases: list[tuple[str, Any, Any, type[Exception]]] = [
        ("nowhere", 1, None, TopicNotFound),
        ("greetings", object(), None, ArgumentsInvalid),
        ("greetings", Greeting("x" * 5_000_000), None, LimitExceeded),
        ("greetings", 1, "", ValueInvalid),
    ]

    async def story(visit: Visit) -> None:
        await answer(visit.begin())
        await answer(app.outboxes.send(visit.connection, "greetings", Greeting("Ada"), key="100% %s"))
        await answer(visit.run("savepoint here"))
        await answer(app.outboxes.send(visit.connection, "greetings", Greeting("gone with its savepoint")))
        await answer(visit.run("rollback to savepoint here"))
        for topic, payload, key, error in cases:
            with pytest.raises(error):
                await answer(app.outboxes.send(visit.connection, topic, payload, key=key))
        await answer(app.outboxes.send(visit.connection, "greetings", {"to": "Čeněk %s", "times": 2}))
        await answer(visit.commit())
        await answer(visit.begin())
        await answer(app.outboxes.send(visit.connection, "greetings", Greeting("gone")))
        await answer(visit.rollback())

    tell(kind, app_url, story)
    assert hand_over(app_url) == [("Ada", "100% %s"), ("Čeněk %s", None)]
    assert hand_over(app_url) == []
    for wrong in (None, 5, "postgresql://", object()):
        with pytest.raises(ContextError, match="neither a ctx nor a backend, nor a connection"):
            app.outboxes.send(wrong, "greetings", Greeting("Ada"))  # type: ignore[call-overload]


def test_a_connection_that_can_run_nothing_is_refused(kind: Kind, app_url: str) -> None:
    async def story(visit: Visit) -> None:
        await answer(visit.begin())
        if kind.dialect == "postgres":  # a transaction on SQLite goes on after an error
            with suppress(Exception):
                await answer(visit.run("select * from nowhere"))
            with pytest.raises(ContextError, match=r"has failed before.* Roll back"):
                await answer(app.outboxes.send(visit.connection, "greetings", Greeting("Ada")))
        await answer(visit.rollback())
        await answer(visit.close())
        with pytest.raises(ContextError, match=r"is not open|permanently closed|released"):
            await answer(app.outboxes.send(visit.connection, "greetings", Greeting("Ada")))

    tell(kind, app_url, story)
    assert hand_over(app_url) == []


def test_a_database_without_tables_of_penstock_says_what_to_do(kind: Kind, url: str) -> None:
    async def story(visit: Visit) -> None:
        await answer(visit.begin())
        with pytest.raises(ConfigError, match=r"penstock's tables are not in .* penstock migrate"):
            await answer(app.outboxes.send(visit.connection, "greetings", Greeting("Ada")))
        await answer(visit.rollback())

    tell(kind, url, story)


def test_messages_are_written_where_changes_are_though_a_statement_was_prepared_before(postgres_url: str) -> None:
    with app.sync.open(postgres_url), psycopg.connect(postgres_url, autocommit=True, prepare_threshold=0) as connection:

        def send() -> None:
            app.outboxes.send(connection, "greetings", Greeting("Ada"))
            connection.execute("""select penstock.send('greetings', '{"to": "Eve"}')""")

        send()
        with psycopg.connect(postgres_url, autocommit=True) as pruner:
            text = "create or replace function penstock.current_slot() returns smallint language sql immutable as "
            pruner.execute(text + "'select 1::smallint'")
        send()
        rows = connection.execute("select slot from penstock.change order by seq").fetchall()
    assert [row[0] for row in rows] == [0, 0, 1, 1]


def test_the_rights_that_the_docs_name_are_enough(postgres_url: str) -> None:
    with app.sync.open(postgres_url), psycopg.connect(postgres_url, autocommit=True) as connection:
        ((database,),) = connection.execute("select current_database()")
        role = f"sender_of_{database}"
        connection.execute(f"create role {role}")
        try:
            connection.execute(f"set role {role}")
            with pytest.raises(ConfigError, match=r"may not do this.* Grant it the right"):
                app.outboxes.send(connection, "greetings", Greeting("Ada"))
            connection.execute("reset role")
            connection.execute(f"grant usage on schema penstock to {role}")
            connection.execute(f"grant select, insert on all tables in schema penstock to {role}")
            connection.execute(f"set role {role}")
            app.outboxes.send(connection, "greetings", Greeting("Ada"))
            connection.execute("""select penstock.send('greetings', '{"to": "Eve"}')""")
            connection.execute("reset role")
        finally:
            connection.execute("reset role")
            connection.execute(f"drop owned by {role}")
            connection.execute(f"drop role {role}")
    assert hand_over(postgres_url) == [("Ada", None), ("Eve", None)]
