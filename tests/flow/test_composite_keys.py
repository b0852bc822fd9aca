"""Tables of other programs whose keys have several columns: read and written by tuples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from stage.databases import (
    EMPTY,
    MOMENTS,
    ONE,
    ORDERS,
    RATES,
    TENANTS,
    TURNED,
    TWO,
    Moment,
    Order,
    Rate,
    Side,
    Tenant,
    Turned,
    an_id,
    prepare,
    sql,
)
from stage.stories import tell_in

from penstock import (
    App,
    Id,
    IdInvalid,
    MutationCtx,
    QueryCtx,
    RowInvalid,
    SchemaMismatch,
    Table,
    ValueInvalid,
)
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

app = App()
write, read, _ = tell_in(app)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[TestApp]:
    """A backend over all the tables."""
    await prepare(url, ORDERS, TURNED, TENANTS, RATES, MOMENTS)
    async with TestApp(app, url) as backend:
        yield backend


# ----- declarations that reach the database


async def test_rows_are_read_and_written_by_tuples_in_the_order_of_the_declaration(database_url: str) -> None:
    async with opened(database_url) as backend:
        await sql(
            backend,
            "insert into orders values (7, 'a', 1, null), (7, 'b', 2, null), (8, 'a', 3, null)",
            "insert into turned select * from orders",
            "insert into tenants values (7, 'seven')",
        )

        async def look(ctx: QueryCtx) -> None:
            found = await ctx.db.get(Order, (7, "a"))
            assert found is not None
            assert (found.id, found.tenant, found.number, found.amount) == (an_id(7, "a"), 7, "a", 1)
            assert await ctx.db.get(Order, found.id) == found
            assert await ctx.db.get(Order, (8, "b")) is None
            turned = await ctx.db.get(Turned, ("a", 8))
            assert turned is not None
            assert (turned.id, turned.amount) == (an_id("a", 8), 3)

        async def change(ctx: MutationCtx) -> None:
            await ctx.db.patch(Order, (7, "b"), amount=9)
            await ctx.db.delete(Order, (8, "a"))
            await ctx.db.delete(Tenant, Id("7"))

        await backend.run_query(read, look)
        await backend.run_mutation(write, change)
        rows = await sql(backend, "select tenant, number, amount from orders order by 1, 2")
        assert [tuple(row) for row in rows] == [(7, "a", 1), (7, "b", 9)]
        assert not await sql(backend, "select * from tenants")


async def test_what_is_no_key_is_refused_with_what_is_wrong(database_url: str) -> None:
    async with opened(database_url) as backend:

        async def look(ctx: QueryCtx) -> None:
            wrong: Any
            for wrong in ("7", (), (7, "a", 1), None, {"tenant": 7}, Id("orders_1")):
                with pytest.raises(IdInvalid, match=r"whose key is \(tenant, number\)") as raised:
                    await ctx.db.get(Order, wrong)
                assert raised.value.fix == "Pass a tuple of these 2 values, in this order."
            for wrong in ((7, None), (7, 8), (True, "a"), (1.5, "a"), ("x", "a"), ([7], "a")):
                with pytest.raises(IdInvalid, match=r"is no (tenant|number), which is (integer|text)"):
                    await ctx.db.get(Order, wrong)
            for wrong in ((2**64, "a"), (7, "a\0")):
                with pytest.raises((IdInvalid, ValueInvalid)):
                    await ctx.db.get(Order, wrong)
            with pytest.raises(IdInvalid):
                await ctx.db.get(Tenant, (7,))  # of one column it is no tuple

        await backend.run_query(read, look)


async def test_keys_of_all_kinds_come_back_as_they_went(database_url: str) -> None:
    async with opened(database_url) as backend:
        when = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)

        async def story(ctx: MutationCtx) -> None:
            rate = await ctx.db.insert(Rate(fund=TWO, day=date(2030, 1, 1), side=Side.SELL, rate=Decimal("1.5")))
            assert rate == an_id(TWO, date(2030, 1, 1), Side.SELL)
            assert await ctx.db.get(Rate, (ONE, date(2030, 1, 1), Side.SELL)) is None
            for given in (rate, (str(TWO), "2030-01-01", "sell"), [TWO, date(2030, 1, 1), "sell"]):
                found = await ctx.db.get(Rate, tuple(given))
                assert found is not None
                assert (found.id, found.rate) == (rate, Decimal("1.5"))
            moment = await ctx.db.insert(Moment(at=when, raw=b"\0\xff", worth=Decimal("10.50"), id=3))
            assert moment == an_id(when, b"\0\xff", Decimal("10.50"))
            as_json, in_the_feed = (
                (when.isoformat(), "AP8=", "10.5"),
                ("2030-01-02T03:04:05.000678", "\\x00ff", "10.50"),
            )
            for key in (moment, as_json, in_the_feed):
                row = await ctx.db.get(Moment, key)
                assert row is not None
                assert (row.id, row.raw) == (3, b"\0\xff")
            changed = await ctx.db.patch(Moment, moment, id=4)
            assert (changed.id, changed.at) == (4, when)
            await ctx.db.delete(Moment, moment)
            await ctx.db.patch(Rate, rate, rate=None)

        await backend.run_mutation(write, story)
        assert not await sql(backend, "select * from moments")


async def test_what_a_key_lacks_is_filled_by_the_others_defaults(database_url: str) -> None:
    number = "integer not null default 1" if database_url.startswith("sqlite") else "serial"
    await prepare(database_url, f"create table lines (tenant integer, number {number}, primary key (tenant, number))")

    class Numbered(Table, source="lines", key=("tenant", "number"), managed=False):
        tenant: int
        number: int | None = None

    write_lines, _, _ = tell_in(lines := App(tables=[Numbered]))
    async with TestApp(lines, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            row_id = await ctx.db.insert(Numbered(tenant=7))
            row = await ctx.db.get(Numbered, row_id)
            assert row is not None
            assert (row_id, row.number) == (an_id(7, 1), 1)

        await backend.run_mutation(write_lines, story)


# ----- tables that do not fit


def an_app(key: Any) -> App:
    """An app over orders with another key."""
    fields = {"__annotations__": {"tenant": int, "number": str, "amount": int}, "__module__": __name__}
    return App(tables=[type("Order", (Table,), fields, source="orders", key=key, managed=False)])


async def refusal(url: str, made: App) -> str:
    """Why an app is not opened; empty if it is."""
    try:
        async with made.open(url):
            return ""
    except SchemaMismatch as error:
        return str(error)


async def test_a_key_that_the_database_does_not_keep_unique_is_refused(database_url: str) -> None:
    await prepare(database_url, ORDERS)
    assert await refusal(database_url, an_app(("tenant", "number"))) == ""
    assert await refusal(database_url, an_app(("number", "tenant"))) == "", "in any order"
    assert await refusal(database_url, an_app(("amount", "number", "tenant"))) == "", "with more columns than needed"
    for key in ("tenant", ("tenant", "amount")):
        why = await refusal(database_url, an_app(key))
        assert "as the key of orders, but several rows may have the same" in why
        assert "are (tenant, number)" in why
    async with EMPTY.open(database_url) as backend:
        await sql(backend, "create unique index half on orders (tenant, amount) where amount > 0")
        await sql(backend, "create unique index worked_out on orders (tenant, (amount + 1))")
    assert await refusal(database_url, an_app(("tenant", "amount"))), "not of all rows"
    async with EMPTY.open(database_url) as backend:
        await sql(backend, "create unique index whole on orders (amount desc, tenant)")
        assert await refusal(database_url, an_app(("tenant", "amount"))) == "", "a unique index is a key as well"
        await sql(backend, "alter table orders rename column number to nr")
    assert "orders has no column number" in await refusal(database_url, an_app(("tenant", "number")))


async def test_a_row_without_a_whole_key_does_not_fit(database_url: str) -> None:
    await prepare(database_url, "create table orders (tenant integer, number text, amount integer, note text)")
    bare = App(tables=[Order])
    _, read_here, _ = tell_in(bare)
    async with TestApp(bare, database_url) as backend:
        await sql(backend, "insert into orders values (7, null, 1, null), (7, 'a', 1, null)")

        async def look(ctx: QueryCtx) -> None:
            assert await ctx.db.get(Order, (7, "a")) is not None, "the declared key counts where there is none"
            with pytest.raises(RowInvalid, match=r"the row \(7, None\) does not fit"):
                await ctx.db.query(Order).collect()

        await backend.run_query(read_here, look)
