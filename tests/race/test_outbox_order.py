# mypy: disable-error-code="union-attr"
"""The order in which outboxes hand over: causes first, statements of a transaction and rows of a key in theirs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest
from stage.feed import NOW, Writer, Written, check
from stage.outboxes import OutboxStage, drain, run_sql
from stage.server import server

from penstock import Retry, Table
from penstock.changes.change import CapturedChange
from penstock.errors import TryAgain
from penstock.outbox.message import Message
from penstock.testing import TestApp

WRITERS, TRANSACTIONS = 24, 12
TABLES = (
    "create table entry (writer integer, n integer, saw text, id bigint generated always as identity primary key)",
    "create table tally (id integer primary key, n integer not null)",
    "insert into tally select value, 0 from generate_series(0, 4) value",
)


class Entry(Table, source="entry", key="id", managed=False):
    id: int  # type: ignore[assignment]  # it hides Table.id, which is the id as text
    writer: int
    n: int
    saw: str | None = None


class Tally(Table, source="tally", key="id", managed=False):
    id: int  # type: ignore[assignment]  # it hides Table.id, which is the id as text
    n: int


class Watched:
    """Two outboxes on what writers write, and what they have handed over."""

    def __init__(self, **options: Any) -> None:
        self.stage = OutboxStage(Entry, Tally)
        self.stage.outbox(Entry, "entries", **options)
        self.stage.outbox(Tally, "tallies", on=("update",), **options)

    def changes(self) -> list[CapturedChange]:
        """What was handed over, as the checker of the feed has it."""
        return [_change(message) for message in self.stage.got]

    def entries(self) -> list[str]:
        """The entries that were handed over since it was last asked."""
        told = [f"{one.row.writer}.{one.row.n}" for one in self.stage.got if isinstance(one.row, Entry)]
        self.stage.got.clear()
        return told


def _change(message: Message[Any]) -> CapturedChange:
    row = message.row
    if isinstance(row, Entry):
        key, after = [row.writer, row.n], {"saw": row.saw}
    else:
        key, after = [row.id], {"n": row.n}
    return CapturedChange(message.number, 1, "enter", json.dumps(key), None, json.dumps(after), NOW)


@asynccontextmanager
async def watched(url: str, others: int, **options: Any) -> AsyncIterator[tuple[Watched, TestApp, list[Any]]]:
    """The outboxes, and connections of other programs."""
    await run_sql(url, *TABLES)
    made = Watched(**options)
    async with made.stage.open(url) as test, AsyncExitStack() as stack:
        await drain(test)
        connections = [await asyncpg.connect(url) for _ in range(others)]
        for connection in connections:
            stack.push_async_callback(connection.close)
        yield made, test, connections


def entry(writer: int, n: int) -> str:
    """Inserts an entry."""
    return f"insert into entry values ({writer}, {n}, null)"


@pytest.mark.parametrize("options", [{}, {"batch": 7}], ids=["one by one", "batches"])
async def test_24_writers_that_hold_their_transactions_open(postgres_url: str, options: dict[str, Any]) -> None:
    async with watched(postgres_url, WRITERS, **options) as (made, test, own):
        written = Written()
        writing = [
            asyncio.create_task(Writer(connection, number, written).run(TRANSACTIONS))
            for number, connection in enumerate(own)
        ]
        while not all(task.done() for task in writing):
            await drain(test)
        await asyncio.gather(*writing)
        await drain(test)
        assert len(written.entries) > WRITERS * TRANSACTIONS
        check(made.changes(), written.entries, set(written.tallies))


async def test_an_early_transaction_that_writes_a_row_late_and_one_that_stays_open(postgres_url: str) -> None:
    async with watched(postgres_url, 3) as (made, test, [early, late, slow]):
        await slow.execute(f"begin; {entry(9, 1)}")
        await early.execute("begin; select pg_current_xact_id()")
        await late.execute("update tally set n = 1 where id = 0")
        await drain(test)
        await early.execute("update tally set n = 2 where id = 0; commit")
        await drain(test)
        assert [message.row.n for message in made.stage.got if message.row] == [1, 2]
        made.stage.got.clear()
        for number in range(1, 4):
            await late.execute(entry(2, number))
            await drain(test)
            assert made.entries() == [f"2.{number}"], "others flow"
        await slow.execute(f"savepoint a; {entry(9, 2)}; rollback to a; {entry(9, 3)}; commit")
        await late.execute(f"begin; {entry(2, 4)}; rollback")
        await late.execute(entry(2, 5))
        await drain(test)
        assert made.entries() == ["9.1", "9.3", "2.5"]


async def test_a_prepared_transaction_comes_once_it_is_committed() -> None:
    with server() as own:
        await run_alone(own.url, "alter system set max_prepared_transactions = 5")
        await own.restart()
        async with watched(own.url, 1) as (made, test, [connection]):
            await connection.execute(f"begin; {entry(1, 1)}; prepare transaction 'one'")
            await connection.execute(entry(1, 2))
            await drain(test)
            assert made.entries() == ["1.2"]
            await connection.execute("commit prepared 'one'")
            await drain(test)
            assert made.entries() == ["1.1"]


async def test_the_server_dies_between_messages_and_their_cursor() -> None:
    with server() as own:
        async with watched(own.url, 0, retry=Retry(max_attempts=None)) as (made, test, _):
            await run_sql(own.url, *(entry(1, number) for number in range(1, 6)))

            async def during(_ctx: Any, message: Message[Any]) -> None:
                if message.row.n == 3:
                    made.stage.during = None
                    await own.restart()

            made.stage.during = during
            for _ in range(10):
                with contextlib.suppress(TryAgain):  # a service tries again
                    await drain(test)
            told = made.entries()
            assert list(dict.fromkeys(told)) == [f"1.{number}" for number in range(1, 6)]


async def run_alone(url: str, statement: str) -> None:
    """Run a statement that takes no transaction."""
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()
