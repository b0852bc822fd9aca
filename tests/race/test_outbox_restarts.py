"""PostgreSQL goes away, or is restored, while outboxes hand over: what is written, and how far they are, stay one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from stage.databases import connected, run_sql
from stage.faults import held
from stage.outboxes import OutboxStage, aside, outbox_row, relaying
from stage.postgres import Server, copy_database, server
from stage.waits import SOON, until

from penstock import Retry, Table
from penstock.app import Backend
from penstock.errors import CursorInvalid, TryAgain
from penstock.outbox.message import Message
from penstock.services.relay.relay import Relay
from penstock.testing import TestClock

NOTES = [f"{number:02}" for number in range(30)]
ANYHOW = Retry(max_attempts=None, initial_backoff=0.001)


class Item(Table):
    note: str = ""


def staged(**options: Any) -> OutboxStage:
    stage = OutboxStage(Item)
    stage.outbox(Item, start="end", **{"mutation": True, "retry": ANYHOW, **options})
    return stage


async def put(stage: OutboxStage, backend: Backend, *notes: str) -> None:
    await stage.insert(backend, *[Item(note=note) for note in notes])


async def once(relay: Relay) -> None:
    """Hand over what there is, as a service that is told of an error, and tries again."""
    with contextlib.suppress(TryAgain):
        await relay.drain()


async def drained(stage: OutboxStage, backend: Backend, relay: Relay, clock: TestClock, count: int) -> list[str]:
    """What is written once all is handed over, by a relay that tries again as its service does."""
    async with asyncio.timeout(SOON):
        while True:
            clock.advance(timedelta(seconds=1))
            await once(relay)
            with contextlib.suppress(TryAgain):
                if (await outbox_row(backend)).delivered >= count:
                    return await stage.written(backend)


async def crash(own: Server) -> None:
    """Kill a process of the server, once it runs again after the last time, and wait until all others have ended."""
    watching: list[Any] = []

    async def is_up() -> bool:
        with contextlib.suppress(OSError, asyncpg.PostgresError):
            watching.append(await asyncpg.connect(own.url))
        return bool(watching)

    await until(is_up)
    await own.crash()
    await until(watching[0].is_closed)


async def test_a_server_that_dies_around_the_commit_of_a_mutation() -> None:
    """In the middle of the handler, before the commit, and after it."""
    stage, clock = staged(batch=4), TestClock()
    with server() as own:
        async with relaying(stage.app, own.url, clock) as (backend, relay):
            await relay.drain()

            async def during(_ctx: Any, message: Message[Item]) -> None:
                if message.row is not None and message.row.note == NOTES[7]:
                    stage.during = None
                    await crash(own)

            stage.during = during
            for part, moment in enumerate(("mutation.ran", "commit.before", "commit.after")):
                await put(stage, backend, *NOTES[part * 10 : part * 10 + 10])
                async with held(moment, once(relay)):
                    await crash(own)
                assert await drained(stage, backend, relay, clock, part * 10 + 10) == NOTES[: part * 10 + 10]
            assert (await outbox_row(backend)).delivered == len(NOTES), "each once"


LOST = timedelta(seconds=31)
ONCE = Retry.fixed(timedelta(seconds=5), max_attempts=1, jitter=0)
BURN = "do $$ begin for n in 1..3000 loop perform pg_current_xact_id(); commit; end loop; end $$"
TABLE = "create table item (number integer primary key, note text not null, lane integer not null)"
BEFORE, LATER = range(1, 11), range(11, 13)
SLOW = 100
OLDER = range(201, 204)  # rows that are there before the outboxes


class Numbered(Table, source="item", key="number", managed=False):
    number: int
    note: str
    lane: int


def inserts(*numbers: int) -> list[str]:
    """Inserts items, one by one."""
    return [f"insert into item values ({number}, '{number}', {number % 3})" for number in numbers]


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """One, and another."""
    with server() as source, server(own_identifier=True) as target:
        yield source, target


class Told:
    """What outboxes have handed over: of each the notes, in order, with the ids of their messages."""

    def __init__(self, messages: list[Message[Any]]) -> None:
        self.ids = {(one.outbox, one.row.note): one.id for one in messages if one.row}
        self.notes: dict[str, list[int]] = {}
        for one in messages:
            if one.row is not None:
                self.notes.setdefault(one.outbox, []).append(int(one.row.note))


def of_each_kind() -> OutboxStage:
    """Outboxes of each kind, of which some fail."""
    stage = OutboxStage(Numbered)
    stage.outbox(Numbered, "halts", start="end", retry=ONCE)
    stage.outbox(Numbered, "parks", start="end", on_failure="park", retry=ONCE)
    stage.outbox(Numbered, "holds", start="end", on_failure="halt_key", partition_by="lane", retry=ONCE)
    stage.outbox(Numbered, "writes", start="end", mutation=True)
    stage.outbox(Numbered, "older", retry=ONCE)
    bad = {("older", "202"), ("halts", "6"), ("parks", "3"), ("holds", "4")}
    stage.fails = lambda one: ValueError("no") if one.row and (one.outbox, one.row.note) in bad else None
    return stage


async def hand_over(stage: OutboxStage, relay: Relay, clock: TestClock) -> Told:
    """Hand over all there is, after a lease."""
    clock.advance(LOST)
    for _ in range(4):
        clock.advance(timedelta(seconds=2))
        await relay.drain()
    got, stage.got[:] = list(stage.got), []
    return Told(got)


@pytest.mark.parametrize("further", ["the old server", "the new one"])
async def test_outboxes_of_a_restored_database_go_on_from_where_they_were(
    servers: tuple[Server, Server], further: str
) -> None:
    """Whose transactions are counted from far below, or far above, those of the dump."""
    source, target = servers
    stage, clock = of_each_kind(), TestClock()
    await run_sql(source.url, TABLE, *inserts(*OLDER))
    await run_do((source if further == "the old server" else target).url, BURN)
    async with relaying(stage.app, source.url, clock) as (backend, relay), connected(source.url) as slow:
        await relay.drain()
        await slow.execute(f"begin; {inserts(SLOW)[0]}")
        for statement in inserts(*BEFORE):
            await run_sql(source.url, statement)
        first = await hand_over(stage, relay, clock)
        assert first.notes == {
            "halts": [1, 2, 3, 4, 5],
            "parks": [1, 2, 4, 5, 6, 7, 8, 9, 10],
            "holds": [1, 2, 3, 5, 6, 8, 9],
            "older": [201],
        }
        await slow.execute("commit")
        for statement in inserts(*LATER):
            await run_sql(source.url, statement)
        readers = await backend.engine.store.changes.readers()
        await asyncio.to_thread(copy_database, source, target)
        stage.fails = lambda _message: None
        gone_on = await hand_over(stage, relay, clock)  # after the dump, so the restored database knows nothing of it
        assert gone_on.notes == {
            "halts": [6, 7, 8, 9, 10, SLOW, 11, 12],
            "parks": [SLOW, 11, 12],
            "holds": [4, 7, 10, SLOW, 11, 12],
            "older": [202, 203, SLOW, *BEFORE, *LATER],
        }
    await run_sql(target.url, *inserts(13))  # before anybody reads there
    async with relaying(stage.app, target.url, clock) as (backend, relay):
        store = backend.engine.store.outboxes
        assert [(one.state, one.change.key) for one in await aside(backend, "parks")] == [("parked", "[3]")]
        restored = await hand_over(stage, relay, clock)
        assert restored.notes == {name: [*notes, 13] for name, notes in gone_on.notes.items()}
        assert {what: restored.ids[what] for what in gone_on.ids} == gone_on.ids, "with the same ids"
        assert first.ids.items().isdisjoint(restored.ids.items())
        await run_sql(target.url, *inserts(14, 15))
        assert await store.retry("parks", clock.now()) == 1
        last = await hand_over(stage, relay, clock)
        assert last.notes == {"halts": [14, 15], "parks": [3, 14, 15], "holds": [14, 15], "older": [14, 15]}
        assert len({*first.ids.values(), *restored.ids.values(), *last.ids.values()}) == 4 * 16 + len(OLDER)
        written = sorted(map(int, await stage.written(backend)))
        assert written == [*BEFORE, *LATER, 13, 14, 15, SLOW], "each once"
        assert (await outbox_row(backend, "writes")).delivered == 16
        if further == "the old server":  # a place that was told there
            with pytest.raises(CursorInvalid):
                await store.place("halts", readers[0].position, None, clock.now())


async def run_do(url: str, statement: str) -> None:
    """Run a statement that makes transactions of its own."""
    async with connected(url) as connection:
        await connection.execute(statement)
