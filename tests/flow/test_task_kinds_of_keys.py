"""Looking at all rows goes on after keys of any kind: empty and odd texts, bytes, times, several columns."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from stage.outboxes import run_sql
from stage.reactive import Stage, task_row

from penstock import Table
from penstock.services import reconciler

ODD_TEXTS = ("", " ", "  ", "0", "a", "A", "á", "z", "\\", "'", '"', "%", "_", "[]", "null", "ﬀ", "🂡", "a\nb", "aa")
MIDNIGHT = datetime(2030, 1, 1, tzinfo=UTC)


class Texts(Table, source="odd", key="key", managed=False):
    key: str


class Numbers(Table, source="odd", key="key", managed=False):
    key: int


class Floats(Table, source="odd", key="key", managed=False):
    key: float


class Uuids(Table, source="odd", key="key", managed=False):
    key: UUID


class Bytes(Table, source="odd", key="key", managed=False):
    key: bytes


class Dates(Table, source="odd", key="key", managed=False):
    key: date


class Times(Table, source="odd", key="key", managed=False):
    key: datetime


class Bools(Table, source="odd", key="key", managed=False):
    key: bool


class Pairs(Table, source="odd", key=("text", "number"), managed=False):
    text: str
    number: int


class Triples(Table, source="odd", key=("day", "data", "text"), managed=False):
    day: date
    data: bytes
    text: str


# The table, the type of its key on both stores, and its keys in Python.
KINDS: dict[str, tuple[type[Table], str, str, list[Any]]] = {
    "text": (Texts, "text", "text", list(ODD_TEXTS)),
    "integer": (Numbers, "integer", "bigint", [0, -1, 1, 9, 10, -(2**63), 2**63 - 1, 2**53 + 1]),
    "float": (Floats, "real", "double precision", [0.0, -1.5, 0.1, 1e300, -1e-300, 5e-324, 2.0**53]),
    "uuid": (Uuids, "text", "uuid", [UUID(int=0), UUID(int=1), UUID(int=2**127), UUID(int=2**128 - 1)]),
    "bytes": (Bytes, "blob", "bytea", [b"", b"\0", b"\0\0", b"a", b"\\x61", b"\xff", bytes(range(256))]),
    "date": (Dates, "text", "date", [date(1, 1, 1), date(1969, 12, 31), date(2030, 1, 1), date(9999, 12, 31)]),
    "time": (Times, "text", "timestamptz", [MIDNIGHT + timedelta(microseconds=step) for step in (0, 1, 10, 10**12)]),
    "bool": (Bools, "boolean", "boolean", [False, True]),
}


def literal(value: Any, *, postgres: bool) -> str:
    """A value as SQL."""
    match value:
        case bytes():
            return f"'\\x{value.hex()}'::bytea" if postgres else f"x'{value.hex()}'"
        case bool():
            return str(value).lower()
        case float():
            return repr(value) + ("::float8" if postgres else "")
        case int():
            return f"({value})" if value > -(2**63) else f"({value + 1} - 1)"
        case datetime():
            return f"'{value.isoformat(timespec='microseconds')}'"
        case _:
            return "'" + str(value).replace("'", "''") + "'"


async def look_at_all(url: str, table: type[Table], create: str, rows: list[str], monkeypatch: Any) -> list[Any]:
    """For which rows it ran that were there before the task, looked at one at a time; each piece by another planner."""
    monkeypatch.setattr(reconciler, "_AT_ONCE", 1)
    await run_sql(url, create, *(f"insert into odd values ({row})" for row in rows))
    stage = Stage()
    stage.task(table)
    async with stage.open(url) as test:
        for _ in range(3 * len(rows) + 5):
            planner = test.make_service("planner")  # it knows of the piece before it only what is stored
            await planner.tick()
            await planner.finish()
            if (await task_row(test)).reconciling is None:
                break
        assert (await task_row(test)).reconciling is None
        await test.run_until_idle()
    return stage.ids()


@pytest.mark.parametrize("kind", KINDS)
async def test_f21_it_goes_on_after_keys_of_any_kind(
    database_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, lite, server, keys = KINDS[kind]
    postgres = database_url.startswith("postgres")
    create = f"create table odd (key {server if postgres else lite} primary key)"
    rows = [literal(key, postgres=postgres) for key in keys]
    ran = await look_at_all(database_url, table, create, rows, monkeypatch)
    assert sorted(ran) == sorted(keys), "each once"


async def test_f21_it_goes_on_after_keys_of_two_columns(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = list(itertools.product(("", "a", "á", "b"), (-1, 0, 1)))
    create = "create table odd (text text, number bigint, primary key (text, number))"
    ran = await look_at_all(database_url, Pairs, create, [f"'{text}', {number}" for text, number in keys], monkeypatch)
    assert sorted(ran) == sorted(keys), "each once"


async def test_f21_it_goes_on_after_keys_of_columns_of_several_kinds(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres = database_url.startswith("postgres")
    keys = list(itertools.product((date(1, 1, 1), date(2030, 1, 1)), (b"", b"\0", b"\xff"), ("", "a")))
    kinds = ("date", "bytea", "text") if postgres else ("text", "blob", "text")
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(("day", "data", "text"), kinds, strict=True))
    create = f"create table odd ({columns}, primary key (day, data, text))"
    rows = [", ".join(literal(value, postgres=postgres) for value in key) for key in keys]
    ran = await look_at_all(database_url, Triples, create, rows, monkeypatch)
    assert sorted(ran) == sorted(keys), "each once"
