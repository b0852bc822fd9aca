"""Rows whose values are spelled in another way where they are written than where they are read, or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from stage.outboxes import OutboxStage, drain, run_sql
from stage.reactive import Stage, settle

from penstock import App, Config, ConfigError, JobState, MutationCtx, Table

HUGE = 5000  # digits; Python reads ints of up to 4300


class ByMeasure(Table, source="odd", key="mark", managed=False):
    note: str
    mark: float


class ByLength(Table, source="odd", key="mark", managed=False):
    note: str
    mark: timedelta


class Priced(Table, source="odd", key="number", managed=False):
    number: int
    note: str
    price: Decimal


async def set_for_all(url: str, *settings: str) -> None:
    """Give a database settings that each of its sessions begins with."""
    connection = await asyncpg.connect(url)
    try:
        name = await connection.fetchval("select quote_ident(current_database())")
        for setting in settings:
            await connection.execute(f"alter database {name} set {setting}")
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        (ByMeasure, "double precision", "(0.1, 'a'), (0.1::float8 + 0.2::float8, 'b')"),
        (ByLength, "interval", "('1 year', 'a'), ('1 day 2 hours', 'b')"),
    ],
)
async def test_a_key_is_one_row_where_the_server_spells_it_otherwise(
    postgres_url: str, table: type[Table], column: str, values: str
) -> None:
    await set_for_all(postgres_url, "extra_float_digits = 0", "intervalstyle = 'iso_8601'")
    await run_sql(
        postgres_url,
        f"create table odd (mark {column} primary key, note text not null)",
        f"insert into odd values {values}",
    )
    stage = Stage(table)
    stage.task(table, filter=lambda row: row.note != "")
    async with stage.open(postgres_url) as test:
        await settle(test)
        await run_sql(postgres_url, "update odd set note = note || '!'")
        await settle(test)
        records = (await stage.app.tasks.records(test)).records
        assert len(records) == 2
        assert not any(one.gone for one in records)


async def test_a_number_of_more_digits_than_python_reads_keeps_no_other_row(postgres_url: str) -> None:
    await run_sql(postgres_url, "create table odd (number integer primary key, note text not null, price numeric)")
    stage = OutboxStage(Priced)
    stage.outbox(Priced, partition_by="note", on_failure="park", filter=lambda row: row.price > 1)
    stage.task(Priced, filter=lambda row: row.price > 1)
    async with stage.open(postgres_url) as test:
        await run_sql(postgres_url, f"insert into odd values (1, 'a', 10), (2, 'b', 1e{HUGE}), (3, 'c', 10)")
        await drain(test)
        await settle(test)
        assert {"a", "c"} <= set(stage.texts())
        records = (await stage.app.tasks.records(test)).records
        assert [one.state for one in records] == [JobState.SUCCESS] * 3


async def test_a_file_whose_text_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma encoding = 'UTF-16le'")
        connection.execute("create table odd (name text primary key)")
        connection.commit()
    with pytest.raises(ConfigError, match="keeps its text as UTF-16le"):
        async with App().open(config=Config(database=f"sqlite:///{file}")):
            pass


ODD_NAMES = (
    "a{b}",
    "{}",
    "{0}",
    "%s",
    "%(p1)s",
    ":name",
    "?",
    "?1",
    "$1",
    "$$",
    "$penstock$",
    'say "hi"',
    "it's",
    "b\\c",
)
ODD_TABLE = 'odd {t} {} %s %(p1)s :name ? $1 $$ $penstock$ "o" it\'s b\\c'


class Odd(Table, source=ODD_TABLE, key="number", managed=False):
    number: int
    note: str
    price: Decimal | None = None


async def test_names_full_of_marks_are_names_everywhere(database_url: str) -> None:
    """Columns that others have put before ours, and the name of the table."""
    quoted = ['"' + name.replace('"', '""') + '"' for name in (ODD_TABLE, *ODD_NAMES)]
    table, others = quoted[0], ", ".join(f"{name} text" for name in quoted[1:])
    await run_sql(
        database_url,
        f"create table {table} ({others}, number integer primary key, note text not null, price numeric)",
        f"insert into {table} (number, note, price) values (1, 'a', 1.5)",
    )
    stage = OutboxStage(Odd)
    stage.outbox(Odd)
    stage.task(Odd, filter=lambda row: row.note != "", watch=("note",))
    async with stage.open(database_url) as test:
        await stage.insert(test, Odd(number=2, note="b", price=Decimal(2)), Odd(number=3, note="c"))
        await run_sql(database_url, f"update {table} set {quoted[1]} = 'x', note = note || '!' where number = 1")

        await stage.patch(test, Odd, 2, note="B")
        await stage.delete(test, Odd, 3)

        async def step(ctx: MutationCtx) -> list[Any]:
            rows = await ctx.db.query(Odd).filter(lambda row: row.note != "{}").collect()
            return [*rows, await ctx.db.query(Odd).sum("price"), await ctx.db.query(Odd).count()]

        *rows, total, count = await stage.do(test, step)
        assert ([row.note for row in rows], total, count) == (["a!", "B"], Decimal("3.5"), 2)
        await drain(test)
        await settle(test)
        assert {*stage.texts()} == {"a!", "b", "c"}
        assert {(ran.doc_id, ran.values["note"]) for ran in stage.taken()} == {(1, "a!"), (2, "B")}
