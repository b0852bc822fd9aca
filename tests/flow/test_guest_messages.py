"""Messages that are sent in transactions of the user's own, through drivers or in plain SQL: with them, or not."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from stage.guests import PLAIN_KINDS, Kind, Visit, play, sqlite_file

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    ConfigError,
    ContextError,
    LimitExceeded,
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


@app.outbox("greetings")
async def hear(ctx: ActionCtx, message: Message[Greeting]) -> None:
    heard.append((message.payload.to, message.key))


@app.outbox("anything")
async def hear_anything(ctx: ActionCtx, message: Message[Any]) -> None:
    heard.append((message.payload, message.key))


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


@pytest.fixture
def started_url(database_url: str) -> str:
    """URL of a database on which the program was started once."""
    with app.sync.open(database_url):
        return database_url


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


class Raw:
    """A connection without penstock, and its transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._lite = isinstance(connection, sqlite3.Connection)

    def send(self, topic: Any, payload: Any, key: Any = None) -> None:
        """Send a message."""
        if self._lite:
            columns, values = "topic, payload", [topic, payload]
            if key is not None:
                columns, values = "topic, payload, key", [topic, payload, key]
            marks = ", ".join("?" * len(values))
            self.connection.execute(f"insert into penstock_send ({columns}) values ({marks})", values)
        elif key is None:
            self.connection.execute("select penstock.send(%s, %s::jsonb)", [topic, payload])
        else:
            self.connection.execute("select penstock.send(%s, %s::jsonb, key => %s)", [topic, payload, key])


@contextmanager
def raw(url: str) -> Iterator[Raw]:
    """A connection of some other program to a database."""
    connection: Any = sqlite3.connect(sqlite_file(url)) if url.startswith("sqlite") else psycopg.connect(url)
    try:
        yield Raw(connection)
    finally:
        connection.close()


def test_messages_are_sent_if_the_transaction_commits(started_url: str) -> None:
    with raw(started_url) as program:
        program.send("anything", '{"to": "Žofie %s", "times": 2.5}', "k")
        program.connection.execute("savepoint here")
        program.send("anything", '"gone"')
        program.connection.execute("rollback to savepoint here")
        for payload in ("null", "[]", '"é 😀"', "-0.5", "true", "123456789012345678901234567890"):
            program.send("anything", payload)
        program.send("anything", "1", "é" * 200)
        program.connection.commit()
        program.send("anything", '"gone"')
        program.connection.rollback()
    assert hand_over(started_url) == [
        ({"to": "Žofie %s", "times": 2.5}, "k"),
        (None, None),
        ([], None),
        ("é 😀", None),
        (-0.5, None),
        (True, None),
        (123456789012345678901234567890, None),
        (1, "é" * 200),
    ]


def test_a_trigger_sends(started_url: str) -> None:
    with raw(started_url) as program:
        run = program.connection.execute
        run("create table visit (who text)")
        if started_url.startswith("sqlite"):
            run(
                "create trigger visited after insert on visit begin insert into penstock_send (topic, payload, key) "
                "values ('anything', json_object('who', new.who), new.who); end"
            )
        else:
            run(
                "create function visited() returns trigger language plpgsql as $$ begin "
                "perform penstock.send('anything', jsonb_build_object('who', new.who), new.who); return null; end $$"
            )
            run("create trigger visited after insert on visit for each row execute function visited()")
        run("insert into visit values ('Ada'), ('Bob')")
        program.connection.commit()
    assert hand_over(started_url) == [({"who": "Ada"}, "Ada"), ({"who": "Bob"}, "Bob")]


REFUSED: list[tuple[Any, Any, Any, str]] = [
    ("nowhere", "1", None, "there is no.* topic"),
    (None, "1", None, "there is no.* topic"),
    ("anything", None, None, "payload"),
    ("anything", "1", "", "key"),
    ("anything", "1", "x" * 201, "key"),
]
REFUSED_BY_SQLITE: list[tuple[Any, Any, Any, str]] = [
    ("anything", "{to: 1}", None, "payload"),
    ("anything", 5, None, "payload"),
    ("anything", b"1", None, "payload"),
    ("anything", "1", 5, "key"),
    ("anything", "1", "a\0b", "key"),
]


def test_what_cannot_be_sent_is_refused_with_the_reason(started_url: str) -> None:
    with raw(started_url) as program:
        for topic, payload, key, text in [*REFUSED, *REFUSED_BY_SQLITE * started_url.startswith("sqlite")]:
            with pytest.raises(
                (sqlite3.IntegrityError, psycopg.errors.InvalidParameterValue), match="penstock: " + text
            ):
                program.send(topic, payload, key)
            program.connection.rollback()
    assert hand_over(started_url) == []
