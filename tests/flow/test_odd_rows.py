"""Rows whose keys, order or names are odd, or whose values are spelled otherwise where they are written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import new_class
from typing import Any

import asyncpg
import pytest
from stage.databases import run_sql
from stage.outboxes import OutboxStage, drain, outbox_row
from stage.stories import Stage, settle

from penstock import App, Config, ConfigError, IdInvalid, JobState, MutationCtx, Table, TaskFilter
from penstock.testing import TestApp


def declared(name: str, key: Any, kind: type) -> type[Table]:
    """A table of another program, of which `mark` has a type."""
    body = {"__annotations__": {"number": int, "note": str, "mark": kind}, "__module__": __name__}
    words = {"source": "odd", "key": key, "managed": False}
    table: type[Table] = new_class(name, (Table,), words, lambda space: space.update(body))
    return table


Marked, Measured = declared("Marked", "number", bytes), declared("Measured", "number", float)
ByMark, ByBoth = declared("ByMark", "mark", bytes), declared("ByBoth", ("mark", "number"), bytes)
ByMeasure, ByLength = declared("ByMeasure", "mark", float), declared("ByLength", "mark", timedelta)
BYTES = ("", "00", "01ff", "5c7836", "6162", "61ff", "ff61", "ffff")
FLOATS = ("-Infinity", "-1e308", "-1", "0", "0.1", "1e308", "Infinity")


ORDERS: dict[str, tuple[type[Table], dict[str, Any], str, str]] = {  # with a unique key, and a type on SQLite
    "order": (Marked, {"order_by": "mark"}, "number", "blob"),
    "key": (ByMark, {}, "mark", "text"),
    "both": (ByBoth, {}, "mark, number", "binary(16)"),
    "any type": (ByMark, {}, "mark", ""),
}


def stored_bytes(lite: bool, digits: str) -> str:
    return f"x'{digits}'" if lite else f"'\\x{digits}'"


def stored_float(lite: bool, text: str) -> str:
    return text.replace("Infinity", "9e999") if lite else f"'{text}'"


async def fill(url: str, kind: str, values: list[str], *more: str) -> None:
    """A table of another program, its rows in another order than that of their values."""
    await run_sql(
        url,
        f"create table odd (number integer not null, note text not null, mark {kind} not null)",
        *(f"insert into odd values ({n}, 'n{n}', {value})" for n, value in reversed([*enumerate(values)])),
        *more,
    )


async def pieces(test: TestApp, count: int) -> None:
    """Hand over that many pieces."""
    await test.relay.tick()
    for _ in range(count):
        await test.relay.outboxes[0].tick()


@pytest.mark.both_stores
@pytest.mark.parametrize("ordered", ORDERS)
async def test_an_outbox_passes_bytes(database_url: str, ordered: str) -> None:
    table, options, unique, kind = ORDERS[ordered]
    url, lite = database_url, database_url.startswith("sqlite")
    values = [stored_bytes(lite, digits) for digits in BYTES]
    await fill(url, kind if lite else "bytea", values, f"create unique index odd_key on odd ({unique})")
    stage = OutboxStage(table)
    stage.outbox(table, batch=2, **options)
    async with stage.open(url) as test:
        await pieces(test, 2)
        assert stage.texts() == ["n0", "n1", "n2", "n3"]
        if ordered == "order":  # one moves back, and one that was handed over moves on
            await run_sql(url, f"update odd set mark = {stored_bytes(lite, '00')} where number = 6")
            await run_sql(url, f"update odd set mark = {stored_bytes(lite, 'fe')} where number = 2")
        await pieces(test, len(BYTES))
        assert stage.texts() == (["n4", "n5", "n7", "n6"] if ordered == "order" else ["n4", "n5", "n6", "n7"])
        assert (await outbox_row(test)).backfill is None


@pytest.mark.parametrize("table", [Measured, ByMeasure])
async def test_an_outbox_passes_infinities(database_url: str, table: type[Table]) -> None:
    lite = database_url.startswith("sqlite")
    twice = 1 if table is ByMeasure else 2
    texts = FLOATS if lite else (*FLOATS, "NaN")
    values = [stored_float(lite, text) for text in texts for _ in range(twice)]
    unique = f"create unique index odd_key on odd ({'mark' if table is ByMeasure else 'number'})"
    await fill(database_url, "real" if lite else "float8", values, unique)
    stage = OutboxStage(table)
    order: dict[str, Any] = {"order_by": "mark"} if table is Measured else {}
    stage.outbox(table, batch=1, **order)
    async with stage.open(database_url) as test:
        await pieces(test, 3)
        moved = len(values) - 1
        if table is Measured:
            await run_sql(database_url, f"update odd set mark = {values[0]} where number = {moved}")
            await run_sql(database_url, f"update odd set mark = {values[-1]} where number = 0")
        await drain(test)
        assert stage.texts() == [f"n{n}" for n in range(len(values))], "the one that moved back comes last"


# ----- tasks


@pytest.mark.parametrize("table", [ByMark, ByMeasure])
async def test_a_row_is_called_by_its_key_as_it_is_shown(database_url: str, table: type[Table]) -> None:
    lite = database_url.startswith("sqlite")
    keys: list[Any] = [bytes.fromhex(one) for one in BYTES] if table is ByMark else [float(one) for one in FLOATS]
    kind = ("binary(16)", "bytea") if table is ByMark else ("real", "float8")
    stored = [stored_bytes(lite, one) for one in BYTES]
    values = stored if table is ByMark else [stored_float(lite, one) for one in FLOATS]
    await fill(database_url, f"{kind[not lite]} primary key", values)
    stage = OutboxStage(table)
    stage.task(table)
    async with stage.open(database_url) as test:
        await settle(test)
        tasks = stage.app.tasks
        shown = [record.key for record in (await tasks.records(test)).records]
        assert len(shown) == len(keys)
        for key in (*shown, *keys):
            told = await tasks.explain(test, "react", key)
            assert told.exists, key
            assert told.record is not None, key
            found = (await tasks.records(test, TaskFilter(key=key))).records
            assert [record.key for record in found] == [told.record.key]
        if table is ByMark:
            assert (await tasks.explain(test, "react", "\\xff00")).exists is False
            with pytest.raises(IdInvalid):
                await tasks.explain(test, "react", "\\xno hex")
    nobody = App()
    async with nobody.open(database_url) as backend:  # knows nothing of the table
        for key in shown:
            if isinstance(key, str):
                found = (await nobody.tasks.records(backend, TaskFilter(key=key))).records
                assert [record.key for record in found] == [key]


# ----- values that are spelled otherwise, and odd names


HUGE = 5000  # digits; Python reads ints of up to 4300


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
        f"create table odd (number integer default 0, mark {column} primary key, note text not null)",
        f"insert into odd (mark, note) values {values}",
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


ODD_NAMES = ("a{b}", "{0}", "%s", "%(p1)s", ":name", "?1", "$1", "$$", "$penstock$", 'say "hi"', "it's", "b\\c")
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
