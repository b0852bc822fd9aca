"""Amounts that other SQLite tools read, order, index and write, and the ones that have too many digits for that."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import Field
from stage.stories import Stage, settle

from penstock import Index, MutationCtx, Table, ValueInvalid, gte
from penstock.store.open import sqlite_path

AMOUNTS = ["9.99", "10", "-0.1", "0.3", "123456789012.345", "999999999999999", "0.00001", "1E+20", "-5", "0"]


class Sale(Table, live=False):
    price: Decimal
    note: str = ""

    by_price = Index("price")


class Transfer(Table):
    amount: Decimal = Field(max_digits=40)
    fee: Annotated[Decimal, Field(max_digits=16)] | None = None


def tool(url: str) -> sqlite3.Connection:
    """A connection that knows nothing of penstock."""
    return sqlite3.connect(sqlite_path(url), isolation_level=None)


async def test_any_tool_reads_orders_indexes_and_writes_amounts(sqlite_url: str) -> None:
    stage = Stage(Sale)
    stage.task(Sale, filter=lambda row: row.price >= Decimal("9.98"), watch=("price",))
    async with stage.open(sqlite_url) as test:
        await stage.insert(test, *(Sale(price=Decimal(amount)) for amount in AMOUNTS))
        with closing(tool(sqlite_url)) as other:
            ordered = [str(price) for (price,) in other.execute("select price from sale order by price")]
            assert [Decimal(price) for price in ordered] == sorted(map(Decimal, AMOUNTS))
            assert other.execute("select price from sale where price = 9.99").fetchall() == [(9.99,)]
            assert other.execute("select max(price) from sale where price < 1e15").fetchone() == (999999999999999.0,)
            other.execute("create index of_theirs on sale (price, note)")
            for number, price in enumerate(("19.90", "'0.30'", "7")):
                row = f"('{number}', '2030-01-01T00:00:00.000000Z', {price}, 'theirs')"
                other.execute(f"insert into sale (id, creation_time, price, note) values {row}")
            other.execute("update sale set price = 9.98 where price = 9.99")
            with pytest.raises(sqlite3.IntegrityError):
                other.execute("update sale set price = 'much'")
            other.execute("vacuum")

        async def look(ctx: MutationCtx) -> list[Decimal]:
            rows = await ctx.db.query(Sale).with_index(Sale.by_price).collect()
            theirs = [*AMOUNTS[1:], "9.98", "19.9", "0.3", "7"]
            assert [row.price for row in rows] == sorted(map(Decimal, theirs))
            assert await ctx.db.query(Sale).sum("price") == sum(map(Decimal, theirs))
            assert await ctx.db.query(Sale).with_index(Sale.by_price, price=Decimal("0.30")).count() == 2
            return [
                row.price for row in await ctx.db.query(Sale).with_index(Sale.by_price, price=gte(Decimal(7))).collect()
            ]

        found = await stage.do(test, look)
        await settle(test)
        assert sorted(ran.values["price"] for ran in stage.taken()) == found[1:]
        assert list(map(str, found)) == [
            "7", "9.98", "10", "19.9", "123456789012.345", "999999999999999", "1E+20",
        ]  # fmt: skip


async def test_amounts_of_more_digits_are_refused_unless_they_are_declared(sqlite_url: str) -> None:
    stage = Stage(Sale, Transfer)
    async with stage.open(sqlite_url) as test:

        async def look(ctx: MutationCtx) -> None:
            for text in ("0.10000000000000001", "1E+400", "-1E-400"):
                amount = Decimal(text)
                with pytest.raises(ValueInvalid, match=r"^sale\.price: .* more digits .* Field\(max_digits=40\)"):
                    await ctx.db.insert(Sale(price=amount))
                with pytest.raises(ValueInvalid, match=r"more digits"):
                    await ctx.db.query(Sale).with_index(Sale.by_price, price=amount).collect()
                assert await ctx.db.query(Sale).filter(partial(is_of, amount)).collect() == []
            declared = Transfer(amount=Decimal("0.10000000000000001"), fee=Decimal("12345678901234.56"))
            row = await ctx.db.get(Transfer, await ctx.db.insert(declared))
            assert row is not None
            assert (row.amount, row.fee) == (declared.amount, declared.fee)

        await stage.do(test, look)


def is_of(amount: Decimal, row: Any) -> Any:
    return row.price == amount
