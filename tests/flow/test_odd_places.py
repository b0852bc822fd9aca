"""Outboxes and tasks of rows whose keys, or order, are bytes or infinities: each comes once."""

from __future__ import annotations

from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain, outbox_row, run_sql
from stage.reactive import settle

from penstock import App, IdInvalid, Table, TaskFilter
from penstock.testing import TestApp

BYTES = ("", "00", "01ff", "5c7836", "6162", "61ff", "ff61", "ffff")
FLOATS = ("-Infinity", "-1e308", "-1", "0", "0.1", "1e308", "Infinity")


class Marked(Table, source="odd", key="number", managed=False):
    number: int
    note: str
    mark: bytes


class ByMark(Table, source="odd", key="mark", managed=False):
    number: int
    note: str
    mark: bytes


class ByBoth(Table, source="odd", key=("mark", "number"), managed=False):
    number: int
    note: str
    mark: bytes


class Measured(Table, source="odd", key="number", managed=False):
    number: int
    note: str
    mark: float


class ByMeasure(Table, source="odd", key="mark", managed=False):
    number: int
    note: str
    mark: float


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
