"""The change feed under test: a store with two tables that are captured, writers beside it, and a checker of the order.

The table `entry` holds what writers write, each row with all that its writer had seen before; `tally` counts under a
row lock. So what was read tells by itself whether anything is missing, told twice, or told before what it follows from.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import asyncpg

from penstock.changes.change import CapturedChange
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING, Position
from penstock.clock import SystemClock, random_of
from penstock.config import Config
from penstock.store.nouns.changes import Batch
from penstock.store.open import make_store
from penstock.store.push.migrate import push
from penstock.store.session import Session, Statement
from penstock.store.store import Store

NOW = datetime(2030, 1, 1, tzinfo=UTC)
READER = "reader"
ENTRIES = Interest(name="entries", table="entry", key=["writer", "n"], after=["saw"])
TALLIES = Interest(name="tallies", table="tally", key=["id"], kinds=["change"], after=["n"])
TABLES = (
    "create table entry (writer integer, n integer, saw text, primary key (writer, n))",
    "create table tally (id integer primary key, n integer not null)",
    "insert into tally select value, 0 from {numbers}",
)


@asynccontextmanager
async def feed(url: str, **settings: Any) -> AsyncIterator[Store]:
    """A store on an empty database, with both tables captured and a reader at the beginning."""
    async with opened(url, **settings) as store:
        await push(store, [])
        numbers = "generate_series(0, 4) value" if store.dialect.schemas else "json_each('[0,1,2,3,4]')"
        await write(store, *(statement.format(numbers=numbers) for statement in TABLES))
        await store.changes.register(READER, NOW, BEGINNING)
        await store.interests.declare([ENTRIES, TALLIES], NOW)
        yield store


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Store]:
    store = make_store(Config(database=url, **settings), SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def write(store: Store, *statements: str) -> None:
    async def run(session: Session) -> None:
        for statement in statements:
            await session.execute(Statement(statement))

    await in_transaction(store, run)


async def in_transaction(store: Store, work: Any) -> Any:
    session = await store.begin_write()
    try:
        result = await work(session)
        await session.commit()
    finally:
        await session.rollback()
    return result


async def move(store: Store, lease: int, before: Position, after: Position) -> bool:
    moved: bool = await in_transaction(
        store, lambda session: store.changes.move(session, READER, lease, before, after, NOW)
    )
    return moved


def entry(writer: int, n: int) -> str:
    return f"insert into entry values ({writer}, {n}, null)"


def told(batch: Batch) -> list[str]:
    return [".".join(map(str, one.key_values())) for one in batch.changes]


class Reader:
    def __init__(self, store: Store, lease: int, limit: int) -> None:
        self._store = store
        self._lease = lease
        self._limit = limit
        self.changes: list[CapturedChange] = []

    async def step(self) -> bool:
        """Read a piece; whether there was nothing more."""
        position = await self._store.changes.take(READER, self._lease)
        assert position is not None
        batch = await self._store.changes.read(position, self._limit)
        assert await move(self._store, self._lease, position, batch.position)
        self.changes += batch.changes
        return batch.complete


@dataclass
class Written:
    entries: set[tuple[int, int]] = field(default_factory=set)
    tallies: list[tuple[int, int]] = field(default_factory=list)


class Writer:
    def __init__(self, connection: Any, number: int, written: Written) -> None:
        self._connection = connection
        self._number = number
        self._written = written
        self._chance = random_of(number)
        self._n = 0

    async def run(self, transactions: int) -> None:
        for _ in range(transactions):
            try:
                await self._transaction()
            except asyncpg.DeadlockDetectedError:
                continue

    async def _transaction(self) -> None:
        entries: list[tuple[int, int]] = []
        tallies: list[tuple[int, int]] = []
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            if self._chance.random() < 0.3:
                await self._connection.fetchval(
                    "select pg_current_xact_id()::text"
                )  # an early number, written with late
                await self._hold()
            for _ in range(self._chance.randint(1, 3)):
                entries.append(await self._entry())
                await self._hold()
                if self._chance.random() < 0.3:
                    await self._undone()
            if self._chance.random() < 0.5:
                tallies.append(await self._tally())
                await self._hold()
        except BaseException:
            await transaction.rollback()
            raise
        if self._chance.random() < 0.1:
            await transaction.rollback()
            return
        await transaction.commit()
        self._written.entries.update(entries)
        self._written.tallies += tallies

    async def _hold(self) -> None:
        """Leave the transaction open for 0 to 20 ms, most often briefly."""
        await self._connection.execute(f"select pg_sleep({self._chance.random() ** 3 * 0.02})")

    async def _entry(self) -> tuple[int, int]:
        self._n += 1
        await self._connection.execute(
            "insert into entry select $1, $2, (select json_object_agg(writer, n) from "
            "(select writer, max(n) as n from entry group by writer) seen)::text",
            self._number,
            self._n,
        )
        return self._number, self._n

    async def _undone(self) -> None:
        """Write an entry and take it back; its number of the feed is gone."""
        inner = self._connection.transaction()
        await inner.start()
        await self._entry()
        await inner.rollback()

    async def _tally(self) -> tuple[int, int]:
        id_ = self._chance.randrange(5)
        n = await self._connection.fetchval("update tally set n = n + 1 where id = $1 returning n", id_)
        return id_, n


def check(changes: Sequence[CapturedChange], entries: set[tuple[int, int]], tallies: set[tuple[int, int]]) -> None:
    """Fail unless all was told, nothing twice, and nothing before what its writer had seen."""
    seen: dict[int, int] = {}
    told_entries: list[tuple[int, int]] = []
    told_tallies: list[tuple[int, int]] = []
    committed: dict[int, list[int]] = {}
    for writer, n in entries:
        committed.setdefault(writer, []).append(n)
    for one in changes:
        key = one.key_values()
        if len(key) == 1:
            told_tallies.append((key[0], one.values("after")["n"]))
            continue
        writer, n = key
        assert n > seen.get(writer, 0), f"{key}: statements of one writer are in order"
        for other, last in json.loads(one.values("after")["saw"] or "{}").items():
            if int(other) != writer and last in committed.get(int(other), ()):
                assert seen.get(int(other), 0) >= last, f"{key} was told before {other}.{last}, which it had seen"
        seen[writer] = n
        told_entries.append((writer, n))
    assert len(told_entries) == len(set(told_entries)), "told twice"
    assert set(told_entries) == entries, "missing, or never committed"
    assert len(told_tallies) == len(set(told_tallies)), "told twice"
    assert set(told_tallies) == tallies
    for id_ in {id_ for id_, _ in tallies}:
        numbers = [n for each, n in told_tallies if each == id_]
        assert numbers == sorted(numbers), "rows of one key keep the order of their locks"
