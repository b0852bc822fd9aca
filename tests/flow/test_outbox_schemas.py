"""Tables that change while messages of their outboxes wait: columns, types, and tables that go, or get another name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stage.databases import run_sql
from stage.outboxes import OutboxStage, aside, drain, error_of
from stage.stories import Stage
from stage.waits import events

from penstock import DeclarationError, Retry, Table
from penstock.errors import SchemaMismatch

MAKE = "create table legacy (number integer primary key, note text, at timestamp)"
DAY = timedelta(days=1)


class Legacy(Table, source="legacy", key="number", managed=False):
    number: int
    note: str


class Titled(Table, source="legacy", key="number", managed=False):
    number: int
    title: str


class Counted(Table, source="legacy", key="number", managed=False):
    number: int
    note: int


class Less(Table, source="legacy", key="number", managed=False):
    number: int


class Thing(Table, name="thing"):
    note: str
    extra: str | None = None


class WiderThing(Table, name="thing"):
    note: str
    extra: str | None = None
    size: int = 3
    color: str | None = None


def insert(number: int, note: str | None = None) -> str:
    """Inserts a row."""
    return f"insert into legacy (number, note) values ({number}, '{note or number}')"


def staged(table: type[Table], **options: Any) -> OutboxStage:
    """An outbox of a table."""
    stage = OutboxStage(table)
    stage.outbox(table, start="end", **options)
    return stage


async def waiting(url: str, *statements: str, **options: Any) -> None:
    """Have two messages wait for a program that knows the table as it was, and then change it."""
    await run_sql(url, MAKE)
    async with staged(Legacy, **options).open(url) as test:
        await drain(test)
        await run_sql(url, insert(1), insert(2))
    for statement in statements:
        await run_sql(url, statement)


def numbers(stage: OutboxStage) -> list[int]:
    """The rows that came through."""
    return [one.row.number for one in stage.got if one.row is not None]


async def test_a_column_that_is_not_declared_any_more_is_left_out(database_url: str) -> None:
    await waiting(database_url)
    stage = staged(Less)
    async with stage.open(database_url) as test:
        await run_sql(database_url, insert(3))
        await drain(test, DAY)
        assert [one.row.model_dump(exclude={"id"}) for one in stage.got if one.row] == [
            {"number": number} for number in (1, 2, 3)
        ]


async def test_a_column_that_has_another_name_fails_messages_from_before_and_says_which(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await waiting(database_url, "alter table legacy rename column note to title")
    stage = staged(Titled, on_failure="park", retry=Retry(max_attempts=1))
    async with stage.open(database_url) as test:
        await run_sql(database_url, "insert into legacy (number, title) values (3, 'three')")
        await drain(test, DAY)
        assert [one.row.title for one in stage.got if one.row] == ["three"]
        troubles = [one.trouble.error for one in await aside(test) if one.trouble is not None]
        assert len(troubles) == 2
        assert "the row 1 of legacy, as captured, does not fit its declaration: it has no title" in troubles[0]
    told = events(caplog, "outbox.parked")
    assert [one["key"] for one in told] == ["[1]", "[2]"]


async def test_messages_from_before_are_read_as_the_type_that_is_declared_now_or_fail(database_url: str) -> None:
    is_postgres = database_url.startswith("postgres")
    await run_sql(database_url, MAKE if is_postgres else MAKE.replace("note text", "note"))
    async with staged(Legacy).open(database_url) as test:
        await drain(test)
        await run_sql(database_url, insert(1), insert(2, "two"))
    if is_postgres:
        await run_sql(database_url, "update legacy set note = '2' where number = 2")
        await run_sql(database_url, "alter table legacy alter column note type integer using note::integer")
    stage = staged(Counted, retry=Retry(max_attempts=1))
    async with stage.open(database_url) as test:
        await drain(test, DAY)
        assert [one.row.note for one in stage.got if one.row] == [1], "a number, though it was captured as text"
        error = await error_of(test)
        assert "the row 2 of legacy, as captured, does not fit its declaration" in error
        assert "note" in error
        assert "skip the message" in error


@pytest.mark.parametrize("becomes", ["gone", "elsewhere"])
async def test_a_table_that_is_dropped_or_renamed_leaves_its_messages(database_url: str, becomes: str) -> None:
    await run_sql(database_url, MAKE)
    stage = staged(Legacy)
    async with stage.open(database_url) as test:
        await drain(test)
        await run_sql(database_url, insert(1))
        if becomes == "gone":
            await run_sql(database_url, insert(2), "drop table legacy")
        else:
            await run_sql(database_url, "alter table legacy rename to elsewhere")
            await run_sql(database_url, "insert into elsewhere (number, note) values (2, '2')")
        await drain(test)
        assert (numbers(stage), await error_of(test)) == ([1, 2], "")
    with pytest.raises(SchemaMismatch, match="Table legacy does not exist"):
        async with staged(Legacy).open(database_url):
            pass


async def test_releases_that_know_a_table_differently_hand_over_what_the_other_wrote(database_url: str) -> None:
    """Whichever of them has the outbox gets all, as rows of the table that it knows."""
    older, newer = staged(Thing, on=("insert", "update")), staged(WiderThing, on=("insert", "update"))
    async with older.open(database_url) as first:
        await drain(first)
        await older.insert(first, Thing(note="a", extra="x"))
        async with newer.open(database_url, clock=first.clock) as second:
            (thing,) = await older.insert(first, Thing(note="b", extra="y"))
            await newer.insert(second, WiderThing(note="c", size=9))
            await drain(first)
            rows: list[Any] = [one.row for one in older.got]
            assert [(row.note, row.extra) for row in rows] == [("a", "x"), ("b", "y"), ("c", None)]
            assert not any(hasattr(row, "size") for row in rows)
            await older.patch(first, Thing, thing, note="d")
            await first.relay.finish()
            await drain(second, DAY)
            await newer.insert(second, WiderThing(note="e"))
            await drain(second)
            rows = [one.row for one in newer.got]
            assert [(row.note, row.extra, row.size, row.color) for row in rows] == [
                ("d", "y", 3, None),
                ("e", None, 3, None),
            ]
            previous: Any = newer.got[0].previous
            assert (previous.note, previous.size, previous.id) == ("b", 3, thing)
            assert await error_of(second) == ""


class Keyed(Table, source="legacy", key="number", managed=False):
    number: int
    note: str = ""


@pytest.mark.parametrize("index", ["", "create index legacy_number on legacy (number)"])
async def test_rows_that_nothing_tells_apart_are_not_read(database_url: str, index: str) -> None:
    await run_sql(
        database_url,
        "create table legacy (number integer not null, note text not null)",
        *[index] * bool(index),
        "insert into legacy values " + ", ".join(f"(1, 'n{number}')" for number in range(9)),
    )
    stage = OutboxStage(Keyed)
    stage.outbox(Keyed, batch=2)
    with pytest.raises(DeclarationError, match="several rows of legacy may have the same"):
        async with stage.open(database_url):
            pass
    async with Stage().open(database_url) as test:
        assert await test.engine.store.outboxes.list() == [], "and nothing is left of it"
    from_now_on = OutboxStage(Keyed)
    from_now_on.outbox(Keyed, "later", start="end")
    async with from_now_on.open(database_url) as test:
        await run_sql(database_url, "insert into legacy values (1, 'a'), (1, 'b')")
        await drain(test)
        assert from_now_on.texts() == ["a", "b"]
    await run_sql(database_url, "delete from legacy", "create unique index legacy_one on legacy (number)")
    async with stage.open(database_url, clock=test.clock) as test:
        await run_sql(database_url, "insert into legacy values (1, 'c')")
        await drain(test)
        assert stage.texts() == ["c"]
