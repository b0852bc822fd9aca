"""Messages that are sent in plain SQL, as programs in other languages do, in their own transactions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from stage.guests import sqlite_file

from penstock import ActionCtx, App, Message
from penstock.testing import TestApp

app = OPENED = App()
heard: list[Any] = []


@app.outbox("anything")
async def hear_anything(ctx: ActionCtx, message: Message[Any]) -> None:
    heard.append((message.payload, message.key))


@pytest.fixture
def started_url(database_url: str) -> str:
    """URL of a database on which the program was started once."""
    with app.sync.open(database_url):
        return database_url


def hand_over(url: str) -> list[Any]:
    """Hand over all messages of a database; what was heard."""

    async def run() -> None:
        async with TestApp(app, url) as backend:
            await backend.relay.drain()

    asyncio.run(run())
    found, heard[:] = list(heard), []
    return found


def test_messages_are_written_where_changes_are_though_a_statement_was_prepared_before(postgres_url: str) -> None:
    with app.sync.open(postgres_url), psycopg.connect(postgres_url, autocommit=True, prepare_threshold=0) as connection:

        def send() -> None:
            app.outboxes.send(connection, "anything", 1)
            connection.execute("select penstock.send('anything', '2')")

        send()
        with psycopg.connect(postgres_url, autocommit=True) as pruner:
            text = "create or replace function penstock.current_slot() returns smallint language sql immutable as "
            pruner.execute(text + "'select 1::smallint'")
        send()
        rows = connection.execute("select slot from penstock.change order by seq").fetchall()
    assert [row[0] for row in rows] == [0, 0, 1, 1]


@contextmanager
def raw(url: str) -> Iterator[Any]:
    """A connection of some other program to a database."""
    connection: Any = sqlite3.connect(sqlite_file(url)) if url.startswith("sqlite") else psycopg.connect(url)
    with closing(connection):
        yield connection


def send(connection: Any, topic: Any, payload: Any, key: Any = None) -> None:
    """Send a message in plain SQL."""
    given = [topic, payload] if key is None else [topic, payload, key]
    if isinstance(connection, sqlite3.Connection):
        columns, marks = ", ".join(["topic", "payload", "key"][: len(given)]), ", ".join("?" * len(given))
        connection.execute(f"insert into penstock_send ({columns}) values ({marks})", given)
    else:
        connection.execute(f"select penstock.send(%s, %s::jsonb{', key => %s' * (key is not None)})", given)


def test_messages_are_sent_if_the_transaction_commits(started_url: str) -> None:
    with raw(started_url) as program:
        send(program, "anything", '{"to": "Žofie %s", "times": 2.5}', "k")
        program.execute("savepoint here")
        send(program, "anything", '"gone"')
        program.execute("rollback to savepoint here")
        for payload in ("null", "[]", '"é 😀"', "-0.5", "true", "123456789012345678901234567890"):
            send(program, "anything", payload)
        send(program, "anything", "1", "é" * 200)
        program.commit()
        send(program, "anything", '"gone"')
        program.rollback()
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
        run = program.execute
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
        program.commit()
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
    ("anything", "1", 5, "key"),
    ("anything", "1", "a\0b", "key"),
]


def test_what_cannot_be_sent_is_refused_with_the_reason(started_url: str) -> None:
    with raw(started_url) as program:
        for topic, payload, key, text in [*REFUSED, *REFUSED_BY_SQLITE * started_url.startswith("sqlite")]:
            with pytest.raises(
                (sqlite3.IntegrityError, psycopg.errors.InvalidParameterValue), match="penstock: " + text
            ):
                send(program, topic, payload, key)
            program.rollback()
    assert hand_over(started_url) == []
