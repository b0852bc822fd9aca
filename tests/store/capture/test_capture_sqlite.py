"""What SQLite alone can do to a table that is captured: programs of others, values of any type, REPLACE."""

from __future__ import annotations

import math
import sqlite3
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import pytest
from pydantic import Field
from stage.feed import NOW, opened, write

from penstock.changes.change import CapturedChange
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.clock import random_of
from penstock.errors import DeclarationError
from penstock.schema.index import Index
from penstock.schema.table import Table, definition_of
from penstock.store.open import sqlite_path
from penstock.store.push.migrate import push
from penstock.store.store import Store

ORDERS = "create table orders (id integer primary key, status text, amount, note text)"
PAID = Interest(name="paid", table="orders", key=["id"], matches="{row}.status = 'paid'", after=["amount"])
ALL = Interest(name="all", table="orders", key=["id"], before=["amount"], after=["amount"])


@asynccontextmanager
async def captured(
    url: str, *interests: Interest, table: str = ORDERS
) -> AsyncIterator[tuple[Store, sqlite3.Connection]]:
    """A store with a table that is captured, and a connection of another program, with nothing of penstock's."""
    async with opened(url) as store:
        other = sqlite3.connect(sqlite_path(url), isolation_level=None, timeout=10)
        try:
            other.executescript(table)
            await store.interests.declare(interests, NOW)
            yield store, other
        finally:
            other.close()


async def changes(store: Store) -> list[CapturedChange]:
    return (await store.changes.read(BEGINNING, 1000)).changes


async def kinds(store: Store) -> list[tuple[str, Any]]:
    return [(one.kind, one.key_values()[0] if one.key else None) for one in await changes(store)]


# ----- ways to write


async def test_another_program_is_captured_without_penstocks_functions(sqlite_url: str) -> None:
    async with captured(sqlite_url, PAID) as (store, other):
        other.execute("insert into orders values (1, 'paid', 5, null), (2, 'open', 1, null)")
        assert other.execute("select last_insert_rowid(), changes()").fetchone() == (2, 2), "it sees no difference"
        other.execute("update orders set amount = 6")
        other.execute("insert into orders values (1, 'paid', 8, '') on conflict (id) do update set amount = 9")
        other.execute("delete from orders")
        assert await kinds(store) == [("enter", 1), ("change", 1), ("change", 1), ("delete", 1)]
        assert [one.values("after") for one in await changes(store)] == [{"amount": n} for n in (5, 6, 9)] + [{}]


VALUES = (
    None,
    7,
    -(2**63),
    2**63 - 1,
    0.1,
    0.1 + 0.2,
    sys.float_info.max,
    -sys.float_info.max,
    sys.float_info.min,
    5e-324,
    2.0**53 + 2,
    1e300,
    -1.5e-300,
    3.0,
    "",
    "plain",
    'quo"te \\ back\x01\x1f\n\t☃\U0001f600',
    "a\x00b",
)
ODD = {b"\x00\xff": "\\x00ff", float("inf"): "Infinity", float("-inf"): "-Infinity", b"": "\\x"}


async def test_values_of_any_type_can_be_captured(sqlite_url: str) -> None:
    dice = random_of(7)
    drawn = [struct.unpack("d", dice.randbytes(8))[0] for _ in range(2000)]
    values = [*VALUES, *(value for value in drawn if math.isfinite(value))]
    insert = "insert into orders (amount) values (?)"
    async with captured(sqlite_url, ALL) as (store, other):
        other.execute("begin")
        other.executemany(insert, [(value,) for value in values])
        other.execute("commit")
        batch = await store.changes.read(BEGINNING, len(values))
        found = [one.values("after")["amount"] for one in batch.changes]
        assert [float(value) if isinstance(value, type(found[4])) else value for value in found] == values
        other.executemany(insert, [(value,) for value in ODD])
        other.execute("insert into orders (amount) values (cast(x'61ff62' as text))")
        *odd, _not_unicode = (await store.changes.read(batch.position, 9)).changes
        assert [one.values("after")["amount"] for one in odd] == list(ODD.values())


class Case(NamedTuple):
    """What other programs do to a table, and the kinds and keys that are told of it."""

    statements: tuple[str, ...]
    told: list[tuple[str, str]]
    table: str = ORDERS
    interest: Interest = ALL


CASES = {
    "of a row that REPLACE takes away no trigger tells": Case(
        (
            "create unique index by_note on orders (note)",
            "insert into orders (id, note) values (1, 'a')",
            "insert or replace into orders (id, note) values (1, 'b')",
            "replace into orders (id, note) values (2, 'b')",
        ),
        [("enter", "[1]"), ("enter", "[1]"), ("enter", "[2]")],
    ),
    "but if the writer asks for it": Case(
        (
            "create unique index by_note on orders (note)",
            "insert into orders (id, note) values (2, 'b')",
            "pragma recursive_triggers = on",
            "replace into orders (id, note) values (3, 'b')",
        ),
        [("enter", "[2]"), ("delete", "[2]"), ("enter", "[3]")],
    ),
    "a table without rowid, and a key of many columns": Case(
        (
            "insert into orders values ('x', x'01', 1)",
            "update orders set amount = 2",
            "update orders set b = x'02'",
        ),
        [(kind, f'["x","\\u005cx0{n}"]') for kind, n in (("enter", 1), ("change", 1), ("delete", 1), ("enter", 2))],
        "create table orders (a text, b blob, amount, primary key (a, b)) without rowid",
        Interest(name="all", table="orders", key=["a", "b"]),
    ),
    **{
        f"a condition holds {sql}": Case(
            (f"insert into orders (id, note) values (1, {sql})",),
            [("enter", "[1]")],
            interest=replace(ALL, matches=f"{{row}}.note is {sql}", watches=[f"{{row}}.id < {sql}"]),
        )
        for sql in ("x'ff'", "x''", "x'00'", "'it''s {0}'", "'\u2603'", "'a\x01'")
    },
}


async def test_whatever_other_programs_do_is_told(sqlite_url: str) -> None:
    async with captured(sqlite_url) as (store, other):
        for name, case in CASES.items():
            other.executescript(
                "pragma foreign_keys = off; pragma recursive_triggers = off;"
                "drop table if exists orders; drop table if exists person"
            )
            other.executescript(case.table)
            (number,) = await store.interests.declare([case.interest], NOW)
            for statement in case.statements:
                other.execute(statement)
            found = [(one.kind, one.key) for one in (await store.changes.read(BEGINNING, 1000, [number])).changes]
            assert found == case.told, name
            await store.interests.drop([number])


class Invoice(Table):
    price: Decimal = Field(max_digits=40)
    tax: Decimal | None = Field(default=None, max_digits=40)
    note: str = ""


class Billed(Table):
    by_price = Index("price")
    price: Decimal = Field(max_digits=40)


INVOICE = (
    "insert into invoice (id, creation_time, price, tax, note) values (?, '2030-01-01T00:00:00.000000Z', ?, ?, '')"
)
EVERYTHING = Interest(
    name="everything",
    table="invoice",
    key=["id"],
    before=["id", "creation_time", "price", "tax", "note"],
    after=["id", "creation_time", "price", "tax", "note"],
)


async def test_another_program_writes_decimals_without_penstocks_collation(sqlite_url: str) -> None:
    async with captured(sqlite_url) as (store, other):
        await push(store, [definition_of(Invoice), definition_of(Billed)])
        for interest in (
            EVERYTHING,
            replace(EVERYTHING, watches=["1"], exact=False),
            replace(EVERYTHING, matches="(+{row}.price collate binary) <> ''"),
            replace(EVERYTHING, key=["id", "price"]),
        ):
            (number,) = await store.interests.declare([interest], NOW)
            other.execute(INVOICE, ("a", "1.50", None))
            other.execute("update invoice set tax = '1.0'")
            other.execute("update invoice set tax = '1.0', note = ''")
            other.execute("update invoice set tax = '1.00'")
            other.execute("insert into invoice select 'b', creation_time, '2', tax, note from invoice where true")
            other.execute("delete from invoice")
            told = (await store.changes.read(BEGINNING, 1000, [number])).changes
            assert [(one.kind, one.key_values()[0], one.values("after").get("tax")) for one in told] == [
                ("enter", "a", None),
                ("change", "a", "1.0"),
                ("change", "a", "1.00"),
                ("enter", "b", "1.00"),
                ("delete", "a", None),
                ("delete", "b", None),
            ], interest
            await store.interests.drop([number])
        insert = "insert into billed (id, creation_time, price) values ('a', '2030-01-01T00:00:00.000000Z', '1')"
        with pytest.raises(sqlite3.OperationalError, match="no such collation sequence: penstock_decimal"):
            other.execute(insert)
        billed = Interest(name="billed", table="billed", key=["id"], after=["price"])
        (number,) = await store.interests.declare([billed], NOW)
        await write(store, insert)
        (one,) = (await store.changes.read(BEGINNING, 9, [number])).changes
        assert (one.kind, one.key) == ("enter", '["a"]'), "penstock can"


async def test_what_other_programs_have_not_is_refused(sqlite_url: str) -> None:
    async with captured(sqlite_url) as (store, other):
        await push(store, [definition_of(Invoice)])
        other.execute("create virtual table words using fts5(word)")
        for interest, message in (
            (replace(ALL, matches="{row}.note regexp '^a'"), r"\w"),
            (replace(ALL, watches=["penstock_wide_integer({row}.amount, 0)"]), r"\w"),
            (Interest(name="words", table="words", key=["word"]), r"\w"),
            (replace(EVERYTHING, matches="{row}.price > '1'"), "no such collation sequence"),
            (replace(EVERYTHING, watches=["{row}.price"]), "no such collation sequence"),
        ):
            with pytest.raises(DeclarationError, match=message):
                await store.interests.declare([interest], NOW)
        assert await store.interests.list() == []


class Narrow(Table, name="parcel"):
    state: Literal["packed"]


class Wide(Table, name="parcel"):
    state: Literal["packed", "sent"]


async def test_a_table_that_a_push_writes_anew_keeps_its_triggers(sqlite_url: str) -> None:
    async with captured(sqlite_url) as (store, other):
        await push(store, [definition_of(Narrow)])
        await store.interests.declare([Interest(name="parcels", table="parcel", key=["id"], after=["state"])], NOW)
        insert = "insert into parcel (id, creation_time, state) values (?, '2030-01-01T00:00:00.000000Z', ?)"
        other.execute(insert, ("a", "packed"))
        plan = await push(store, [definition_of(Wide)])
        assert any("drop table" in statement.lower() for statement in plan.sql)
        assert [row.state for row in await store.interests.list()] == ["ok"]
        other.execute(insert, ("b", "sent"))
        assert await kinds(store) == [("enter", "a"), ("enter", "b")], "nothing is told of the rows that were copied"


async def test_a_new_column_is_noticed_where_every_column_counts(sqlite_url: str) -> None:
    some = Interest(name="some", table="orders", key=["id"], watches=["{row}.amount"])
    async with captured(sqlite_url, ALL, some) as (store, other):
        other.execute("alter table orders add column colour text")
        assert [row.state for row in await store.interests.list()] == ["altered", "ok"]
        await store.interests.declare([ALL], NOW)
        other.execute("insert into orders (id) values (1)")
        other.execute("update orders set colour = 'red'")
        told = await kinds(store)
        assert told == [("lost", None), ("enter", 1), ("enter", 1), ("change", 1)], "the column may have been written"
