"""Interests in one table share its triggers: one row of the feed tells all of them, each as if it were alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stage.databases import run_sql
from stage.feed import NOW, opened, write

from penstock.changes.change import CapturedChange
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.errors import DeclarationError
from penstock.store.session import Row, Statement
from penstock.store.store import Store

ORDERS = "create table orders (id integer primary key, status text, amount integer, note text)"
ALL = Interest(name="all", table="orders", key=["id"], before=["note", "id"], after=["note", "id"], each=True)
PAID = Interest(
    name="paid", table="orders", key=["id"], matches="{row}.status = 'paid'", watches=["{row}.amount"], after=["amount"]
)
BIG = Interest(name="big", table="orders", key=["id"], matches="{row}.amount > 10", after=["status"])
WRITES = (
    "insert into orders values (1, 'open', 1, 'a')",
    "insert into orders values (2, 'paid', 20, 'b')",
    "update orders set status = 'paid', amount = 11 where id = 1",
    "update orders set amount = 2, note = 'é\"\u001f' where id = 2",
    "update orders set note = null",
    "update orders set id = 3 where id = 2",
    "delete from orders",
)
KINDS = [
    [("all", "enter")],
    [("all", "enter"), ("big", "enter"), ("paid", "enter")],
    [("all", "change"), ("big", "enter"), ("paid", "enter")],
    [("all", "change"), ("big", "leave"), ("paid", "change")],
]


async def rows(store: Store, sql: str) -> list[Row]:
    session = await store.begin_read()
    try:
        return list(await session.fetch(Statement(sql)))
    finally:
        await session.rollback()


async def feed_rows(store: Store) -> int:
    feed = "penstock.change" if store.dialect.schemas else "penstock_change"
    return int((await rows(store, f"select count(*) from {feed}"))[0][0])


async def changes(store: Store, *interests: int) -> list[CapturedChange]:
    return (await store.changes.read(BEGINNING, 1000, interests or None)).changes


async def triggers(store: Store) -> list[str]:
    """The names of the triggers that one statement fires, for the usual sessions."""
    found = (
        "select tgname from pg_trigger where tgname like '_penstock%' and tgenabled <> 'R'"
        if store.dialect.schemas
        else "select name from sqlite_schema where type = 'trigger' and name like '_penstock_change_%'"
    )
    return sorted(row[0].rpartition("_")[2] for row in await rows(store, found))


async def states(store: Store) -> list[str]:
    return [row.state for row in await store.interests.list()]


async def test_a_write_fires_one_trigger_and_appends_one_row_for_all(database_url: str) -> None:
    await run_sql(database_url, ORDERS)
    async with opened(database_url) as store:
        numbers = await store.interests.declare([ALL, BIG, PAID], NOW)
        names = dict(zip(numbers, ("all", "big", "paid"), strict=True))
        events = ["delete", "insert", *["truncate"] * store.dialect.schemas, "update"]
        assert await triggers(store) == events
        told = list[list[tuple[str, str]]]()
        for statement in WRITES[:4]:
            before, seen = await feed_rows(store), len(await changes(store))
            await write(store, statement)
            assert await feed_rows(store) == before + 1, statement
            told.append([(names[one.interest], one.kind) for one in (await changes(store))[seen:]])
        assert told == KINDS
        await write(store, *WRITES[4:])
        assert await states(store) == ["ok"] * 3
        await write(store, "insert into orders select 9, 'open', 1, 'x' union all select 8, 'paid', 1, 'y'")
        assert [(names[one.interest], one.key) for one in await changes(store)][-3:] == [
            ("all", "[9]"),
            ("all", "[8]"),
            ("paid", "[8]"),
        ]


async def test_each_is_told_what_it_would_be_told_alone_letter_by_letter(database_url: str) -> None:
    """Records compare the text of a row with what its source reads."""
    await run_sql(database_url, ORDERS)
    async with opened(database_url) as store:
        apart = dict[int, list[Any]]()
        for only in (ALL, BIG, PAID):
            (alone,) = await store.interests.declare([only], NOW)
            await write(store, *WRITES)
            apart[alone] = [(one.kind, one.key, one.before, one.after) for one in await changes(store, alone)]
            assert len(apart[alone]) > 3
            await store.interests.drop([alone])
        position = (await store.changes.read(BEGINNING, 1000)).position
        numbers = await store.interests.declare([ALL, BIG, PAID], NOW)
        await write(store, *WRITES)
        for number, told in zip(numbers, apart.values(), strict=True):
            together = (await store.changes.read(position, 1000, [number])).changes
            assert [(one.kind, one.key, one.before, one.after) for one in together] == told


async def test_what_one_write_tells_is_handed_over_together(database_url: str) -> None:
    await run_sql(database_url, ORDERS)
    async with opened(database_url) as store:
        await store.interests.declare([ALL, PAID], NOW)
        await write(store, *(f"insert into orders values ({n}, 'paid', 1, 'a')" for n in range(3)))
        batch = await store.changes.read(BEGINNING, 2)
        assert ([one.key for one in batch.changes], batch.complete) == (["[0]", "[0]", "[1]", "[1]"], False)
        assert (batch.at(1), batch.at(3), batch.at(4)) == (BEGINNING, batch.at(2), batch.position)
        following = await store.changes.read(batch.at(3), 10)
        assert [one.key for one in following.changes] == ["[1]", "[1]", "[2]", "[2]"]
        assert (await store.changes.lag(batch.at(2), 10)).rows == 2


async def test_one_row_tells_many_that_capture_many_other_columns(database_url: str) -> None:
    """SQLite takes no chain of a thousand operators, PostgreSQL no call with a hundred arguments."""
    columns = [f"c{number}" for number in range(300)]
    declared = ", ".join(f"{name} integer" for name in columns)
    await run_sql(database_url, f"create table orders (id integer primary key, {declared})")
    wide = [Interest(name="wide", table="orders", key=["id"], before=columns, after=columns)]
    narrow = [Interest(name=f"n{n}", table="orders", key=["id"], after=columns[n : n + 3]) for n in range(60)]
    async with opened(database_url) as store:
        for interests in (wide, narrow) if store.dialect.schemas else (wide, narrow[:12]):
            numbers = await store.interests.declare(interests, NOW)
            count, seen = await feed_rows(store), len(await changes(store, *numbers))
            await write(
                store,
                "insert into orders (id, c0) values (1, 5)",
                "update orders set c2 = 6, id = 2",
                "delete from orders",
            )
            assert await feed_rows(store) == count + 4
            told = (await changes(store, *numbers))[seen:]
            assert [one.kind for one in told[:: len(interests)]] == ["enter", "delete", "enter", "delete"]
            assert told[0].values("after") == dict.fromkeys(interests[0].after) | {"c0": 5}
            await store.interests.drop(numbers)


async def test_one_is_dropped_and_the_others_go_on(database_url: str) -> None:
    await run_sql(database_url, ORDERS)
    async with opened(database_url) as store:
        first, second, third = await store.interests.declare([ALL, BIG, PAID], NOW)
        await store.interests.drop([first])
        assert await states(store) == ["ok", "ok"]
        await write(store, WRITES[1])
        assert [(one.interest, one.kind) for one in await changes(store)] == [(second, "enter"), (third, "enter")]
        (again,) = await store.interests.declare([replace(ALL, after=["amount"])], NOW)
        await store.interests.drop([second, third])
        assert await states(store) == ["ok"]
        await write(store, WRITES[0])
        assert [(one.interest, one.kind) for one in await changes(store)][2:] == [(again, "enter")], "nothing was lost"
        await store.interests.drop([again])
        assert await triggers(store) == []
        position = (await store.changes.read(BEGINNING, 1000)).position
        one, other = await store.interests.declare([ALL, replace(ALL, name="notes", key=["note"])], NOW)
        await write(store, "insert into orders values (7, 'open', 1, 'a')")
        told = sorted((each.interest, each.key) for each in (await store.changes.read(position, 9)).changes)
        assert told == [(one, "[7]"), (other, '["a"]')], "rows told apart by another key are captured apart"


async def test_one_that_does_not_fit_the_table_any_more_keeps_no_other_from_being_captured(database_url: str) -> None:
    await run_sql(database_url, ORDERS)
    async with opened(database_url) as store:
        fine, broken = await store.interests.declare([PAID, replace(ALL, watches=["{row}.note"])], NOW)
        await write(store, "alter table orders rename column note to remark")
        assert await states(store) == ["ok", "altered"]
        await write(store, "insert into orders values (1, 'paid', 1, 'a')", "update orders set amount = 2")
        assert [one.kind for one in await changes(store, fine)] == ["enter", "change"]
        if store.dialect.schemas:
            assert {one.kind for one in await changes(store, broken)} == {"lost"}
        with pytest.raises(DeclarationError, match="no column note"):
            await store.interests.mend(broken)
        await store.interests.declare([BIG], NOW)
        assert await states(store) == ["ok", "missing", "ok"], "it is left out where triggers are made anew"
        await write(store, "update orders set amount = 30")
        assert [one.kind for one in await changes(store, fine)] == ["enter", "change", "change"]
        await write(store, "alter table orders rename column remark to note")
        assert await store.interests.mend(broken)
        assert (await changes(store, broken))[-1].kind == "lost"
        assert await states(store) == ["ok"] * 3
        assert "lost" not in [one.kind for one in await changes(store, fine)]
