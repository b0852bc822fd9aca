"""Tables that change while messages of their outboxes wait: columns, types, and tables that go, or get another name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, aside, drain, error_of, outbox_row, run_sql
from stage.told import events

from penstock import Retry, Table
from penstock.errors import SchemaMismatch

MAKE = "create table legacy (number integer primary key, note text, at timestamp)"
DAY = timedelta(days=1)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Legacy(Table, source="legacy", key="number", managed=False):
    number: int
    note: str


class Titled(Table, source="legacy", key="number", managed=False):
    number: int
    title: str


class Counted(Table, source="legacy", key="number", managed=False):
    number: int
    note: int


class More(Table, source="legacy", key="number", managed=False):
    number: int
    note: str
    more: int = 7


class Less(Table, source="legacy", key="number", managed=False):
    number: int


class Timed(Table, source="legacy", key="number", managed=False):
    number: int
    at: datetime | None = None


class Paired(Table, source="paired", key=("tenant", "number"), managed=False):
    tenant: int
    number: int
    note: str


class Thing(Table, name="thing"):
    note: str
    extra: str | None = None


class WiderThing(Table, name="thing"):
    note: str
    extra: str | None = None
    size: int = 3
    color: str | None = None


class NarrowThing(Table, name="thing"):
    note: str


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


# ----- columns


async def test_a_column_that_is_new_has_its_default_in_messages_from_before(database_url: str) -> None:
    await waiting(database_url, "alter table legacy add column more integer")
    stage = staged(More, on=("insert", "update"))
    async with stage.open(database_url) as test:
        await run_sql(database_url, "insert into legacy (number, note, more) values (3, 'three', 4)")
        await drain(test, DAY)
        assert [(one.row.note, one.row.more) for one in stage.got if one.row] == [("1", 7), ("2", 7), ("three", 4)]


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


@pytest.mark.parametrize("on", [("insert",), ("insert", "update")])
async def test_a_captured_column_that_is_renamed_or_dropped_under_a_running_program(
    database_url: str, on: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL cannot capture what is written then, and says so; SQLite renames it in triggers, and drops nothing."""
    postgres = database_url.startswith("postgres")
    await run_sql(database_url, MAKE)
    stage = staged(Legacy, on_failure="park", on=on)
    async with stage.open(database_url) as test:
        await drain(test)
        await run_sql(database_url, insert(1))
        if postgres:
            await run_sql(database_url, "alter table legacy drop column note")
            await run_sql(database_url, "insert into legacy (number) values (2)")
        else:
            await run_sql(database_url, "alter table legacy rename column note to title")
            await run_sql(database_url, "insert into legacy (number, title) values (2, '2')")
        await drain(test)
        assert numbers(stage) == ([1] if postgres else [1, 2])
        assert ("ChangesLost: changes of table legacy" in await error_of(test)) is postgres
        assert [one["key"] for one in events(caplog, "outbox.halted")] == ([None] if postgres else [])
    with pytest.raises(SchemaMismatch, match="legacy has no column note"):
        async with staged(Legacy).open(database_url):
            pass


# ----- types


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


async def test_rows_of_other_programs_are_as_queries_give_them(database_url: str) -> None:
    await run_sql(database_url, MAKE)
    stage = OutboxStage(Timed)
    stage.outbox(Timed)
    stage.outbox(Timed, "part", fields=("at",))
    async with stage.open(database_url) as test:
        await drain(test)
        await run_sql(database_url, "insert into legacy (number, at) values (7, '2030-01-01 12:00:00')")
        await drain(test)
        found = sorted((one.outbox, one.row.id, one.row.at) for one in stage.got if one.row)
        assert found == [("part", "7", NOON), ("send", "7", NOON)]


@pytest.mark.parametrize("fields", [None, ("note",), ("number", "note")])
async def test_a_row_with_a_key_of_several_columns_has_its_id_however_much_is_sent_of_it(
    database_url: str, fields: Any
) -> None:
    await run_sql(
        database_url,
        "create table paired (tenant integer, number integer, note text not null, primary key (tenant, number))",
        "insert into paired values (1, 2, 'a')",
    )
    stage = OutboxStage(Paired)
    stage.outbox(Paired, on=("insert", "update"), fields=fields)
    async with stage.open(database_url) as test:
        await drain(test)
        await run_sql(database_url, "update paired set note = 'b'")
        await drain(test)
        assert [(one.row.id, one.row.note) for one in stage.got if one.row] == [((1, 2), "a"), ((1, 2), "b")]


# ----- tables


async def test_a_table_that_is_made_anew_halts_its_outbox_until_somebody_looks(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await waiting(database_url, "drop table legacy", MAKE, insert(3))
    stage = staged(Legacy)
    async with stage.open(database_url) as test:
        await run_sql(database_url, insert(4))
        await drain(test, DAY)
        assert numbers(stage) == [1, 2], "what was captured of the old one"
        assert "ChangesLost" in await error_of(test)
        (told,) = events(caplog, "outbox.halted")
        assert (told["outbox"], told["key"]) == ("send", None)
        trouble = (await outbox_row(test)).trouble
        assert trouble is not None
        await stage.app.outboxes.skip(test, "send", trouble.seq, "the third was sent by hand")
        await drain(test, DAY)
        assert numbers(stage) == [1, 2, 4]


async def test_a_table_that_is_dropped_leaves_its_messages(database_url: str) -> None:
    await run_sql(database_url, MAKE)
    stage = staged(Legacy)
    async with stage.open(database_url) as test:
        await drain(test)
        await run_sql(database_url, insert(1), insert(2))
        await run_sql(database_url, "drop table legacy")
        await drain(test)
        assert (numbers(stage), await error_of(test)) == ([1, 2], "")
    with pytest.raises(SchemaMismatch, match="Table legacy does not exist"):
        async with staged(Legacy).open(database_url):
            pass


async def test_a_table_that_is_renamed_is_captured_on_until_its_program_starts_anew(database_url: str) -> None:
    await run_sql(database_url, MAKE)
    stage = staged(Legacy)
    async with stage.open(database_url) as test:
        await drain(test)
        await run_sql(database_url, insert(1), "alter table legacy rename to elsewhere")
        await run_sql(database_url, "insert into elsewhere (number, note) values (2, '2')")
        await drain(test)
        assert (numbers(stage), await error_of(test)) == ([1, 2], "")
    with pytest.raises(SchemaMismatch, match="Table legacy does not exist"):
        async with staged(Legacy).open(database_url):
            pass


# ----- a program's own tables


@pytest.mark.parametrize("table", [WiderThing, NarrowThing])
async def test_releases_that_know_a_table_differently_hand_over_what_the_other_wrote(
    database_url: str, table: Any
) -> None:
    """Whichever of them has the outbox gets all, as rows of the table that it knows."""
    older, newer = staged(Thing, on=("insert", "update")), staged(table, on=("insert", "update"))
    async with older.open(database_url) as first:
        await drain(first)
        await older.insert(first, Thing(note="a", extra="x"))
        async with newer.open(database_url, clock=first.clock) as second:
            await older.insert(first, Thing(note="b", extra="y"))
            await newer.insert(second, table(note="c"))
            await drain(first)
            rows: list[Any] = [one.row for one in older.got]
            assert [row.note for row in rows] == ["a", "b", "c"]
            assert [row.extra for row in rows][:1] == ["x"]
            assert not any(hasattr(row, "size") for row in rows)
            await older.insert(first, Thing(note="d"))
            await first.relay.finish()
            await drain(second, DAY)
            await newer.insert(second, table(note="e"))
            await drain(second)
            rows = [one.row for one in newer.got]
            assert [row.note for row in rows] == ["d", "e"]
            assert [hasattr(row, "extra") for row in rows] == [table is WiderThing] * 2
            assert await error_of(second) == ""


async def test_a_release_with_more_columns_hands_over_what_waited_for_the_one_before(database_url: str) -> None:
    older, newer = staged(Thing, on=("insert", "update")), staged(WiderThing, on=("insert", "update"))
    async with older.open(database_url) as first:
        await drain(first)
        (thing,) = await older.insert(first, Thing(note="a", extra="x"))
        await older.patch(first, Thing, thing, note="b")
    async with newer.open(database_url, clock=first.clock) as second:
        await drain(second, DAY)
        rows: list[Any] = [one.row for one in newer.got]
        assert [(row.note, row.extra, row.size, row.color) for row in rows] == [
            ("a", "x", 3, None),
            ("b", "x", 3, None),
        ]
        previous: Any = newer.got[1].previous
        assert (previous.note, previous.size, previous.id) == ("a", 3, thing)


# ----- what is refused


async def test_a_key_of_which_several_rows_may_have_the_same_is_refused(database_url: str) -> None:
    await run_sql(database_url, "create table legacy (number integer, note text not null unique)")
    with pytest.raises(SchemaMismatch, match="number"):
        async with staged(Legacy).open(database_url):
            pass
