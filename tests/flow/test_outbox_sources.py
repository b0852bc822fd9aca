"""Outboxes of tables that another program owns: their keys, and what becomes of changes that cannot be captured."""

from __future__ import annotations

from datetime import timedelta

import pytest
from stage.outboxes import OutboxStage, drain, outbox_row, run_sql, states
from stage.reactive import Stage

from penstock import DeclarationError, Table


class Legacy(Table, source="legacy", key="number", managed=False):
    number: int
    note: str = ""


async def test_a_table_of_another_program_with_an_integer_key(database_url: str) -> None:
    await run_sql(
        database_url,
        "create table legacy (number integer primary key, note text not null)",
        "insert into legacy values (2, 'two'), (10, 'ten'), (1, 'one')",
    )
    stage = OutboxStage(Legacy)
    stage.outbox(Legacy, on=("insert", "update", "delete"))
    async with stage.open(database_url) as test:
        await run_sql(database_url, "insert into legacy values (3, 'three')")
        await drain(test)
        assert stage.texts() == ["one", "two", "ten", "three"]
        await run_sql(
            database_url, "update legacy set note = 'TWO' where number = 2", "delete from legacy where number = 10"
        )
        await run_sql(database_url, "update legacy set number = 20 where number = 2")
        await drain(test)
        assert [(one.kind, one.key) for one in stage.got][:2] == [("update", "2"), ("delete", "10")]


async def test_a_view_is_refused(database_url: str) -> None:
    await run_sql(database_url, "create view legacy as select 1 as number, 'x' as note")
    stage = OutboxStage(Legacy)
    stage.outbox(Legacy)
    with pytest.raises(DeclarationError, match="view"):
        async with stage.open(database_url):
            pass


@pytest.mark.parametrize("index", ["", "create index legacy_number on legacy (number)"])
async def test_rows_that_nothing_tells_apart_are_not_read(database_url: str, index: str) -> None:
    await run_sql(
        database_url,
        "create table legacy (number integer not null, note text not null)",
        *[index] * bool(index),
        "insert into legacy values " + ", ".join(f"(1, 'n{number}')" for number in range(9)),
    )
    stage = OutboxStage(Legacy)
    stage.outbox(Legacy, batch=2)
    with pytest.raises(DeclarationError, match="several rows of legacy may have the same"):
        async with stage.open(database_url):
            pass
    async with Stage().open(database_url) as test:
        assert await test.engine.store.outboxes.list() == [], "and nothing is left of it"
    from_now_on = OutboxStage(Legacy)
    from_now_on.outbox(Legacy, "later", start="end")
    async with from_now_on.open(database_url) as test:
        await run_sql(database_url, "insert into legacy values (1, 'a'), (1, 'b')")
        await drain(test)
        assert from_now_on.texts() == ["a", "b"]
    await run_sql(database_url, "delete from legacy", "create unique index legacy_one on legacy (number)")
    async with stage.open(database_url, clock=test.clock) as test:
        await run_sql(database_url, "insert into legacy values (1, 'c')")
        await drain(test)
        assert stage.texts() == ["c"]


async def test_rows_whose_key_may_be_null_are_not_read(database_url: str) -> None:
    await run_sql(
        database_url,
        "create table legacy (number integer unique, note text not null)",
        "insert into legacy values (1, 'a'), (null, 'b'), (null, 'c')",
    )
    stage = OutboxStage(Legacy)
    stage.outbox(Legacy)
    with pytest.raises(DeclarationError, match="several rows of legacy may have the same"):
        async with stage.open(database_url):
            pass


@pytest.mark.parametrize("policy", ["halt", "halt_key", "park"])
async def test_what_could_not_be_captured_halts_whatever_the_policy(database_url: str, policy: str) -> None:
    await run_sql(database_url, "create table legacy (number integer primary key, note text not null)")
    stage = OutboxStage(Legacy)
    stage.outbox(Legacy, on_failure=policy)
    async with stage.open(database_url) as test:
        await drain(test)
        await run_sql(database_url, "insert into legacy values (1, 'a')")
        if test.engine.store.dialect.schemas:
            await run_sql(database_url, "drop function penstock.change_1_insert() cascade")
        else:
            await run_sql(database_url, "drop trigger _penstock_change_1_insert")
        await run_sql(database_url, "insert into legacy values (2, 'b')")
    async with stage.open(database_url, clock=test.clock) as test:  # makes it anew, and tells
        await run_sql(database_url, "insert into legacy values (3, 'c')")
        await drain(test)
        assert stage.texts() == ["a"]
        trouble = (await outbox_row(test)).trouble
        assert trouble is not None
        assert (trouble.halted, trouble.retry_at) == (True, None)
        assert "ChangesLost" in trouble.error
        await drain(test, timedelta(days=1))
        assert (stage.texts(), await states(test)) == ([], [])
        assert await test.engine.store.outboxes.skip("send", trouble.seq)
        await drain(test, timedelta(seconds=2))
        assert stage.texts() == ["c"]


async def test_columns_come_and_go_while_messages_wait(database_url: str) -> None:
    await run_sql(database_url, "create table legacy (number integer primary key, note text not null, extra text)")
    stage = OutboxStage(Legacy)
    stage.outbox(Legacy)
    async with stage.open(database_url) as test:
        await drain(test)
        await run_sql(database_url, "insert into legacy values (1, 'a', 'x')")
        await run_sql(database_url, "alter table legacy drop column extra")
        await run_sql(database_url, "insert into legacy values (2, 'b')")
        await run_sql(database_url, "alter table legacy add column more integer default 7")
        await run_sql(database_url, "insert into legacy values (3, 'c', 1)")
        await drain(test)
        assert stage.texts() == ["a", "b", "c"]
