"""Tables that some other program owns: read and written by their own keys, in their own columns."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from pydantic import Field
from stage.databases import run_sql, sql
from stage.stories import tell_in

from penstock import (
    App,
    ConstraintViolation,
    DeclarationError,
    Id,
    IdInvalid,
    Index,
    LimitExceeded,
    MutationCtx,
    PenstockError,
    QueryCtx,
    SchemaMismatch,
    Table,
    UniqueViolation,
    ValueInvalid,
    gt,
    lte,
)
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Status(enum.Enum):
    OPEN = "open"
    PAID = "paid"


class Order(Table, source="orders", key="order_id", managed=False):
    order_id: int | None = None
    customer: str
    status: Status = Status.OPEN
    price: Decimal | None = None
    placed_at: datetime | None = None
    updated_at: datetime | None = None
    creation_time: datetime | None = None  # type: ignore[assignment]  # it hides Table.creation_time
    note: str | None = None

    by_customer = Index("customer", "price")


class Country(Table, source="countries", key="code", managed=False):
    code: str
    name: str


class Legacy(Table, source="legacy", key="id", managed=False):
    id: int  # type: ignore[assignment]  # it hides Table.id, which is the id as text
    parent: int | None = None
    name: str = Field(default="x", max_length=20)


class Coded(Table, source="coded", key="code", managed=False):
    code: str
    id: int  # type: ignore[assignment]  # a column of its own, that is no key


class Leaf(Table, source="leaf", key="leaf_id", managed=False):
    leaf_id: int
    legacy: int


app = App()
write, read, _ = tell_in(app)


TIDY = """
create function tidy() returns trigger language plpgsql as $$ begin
    if new.customer = 'Drop' then return null; end if;
    if new.customer = 'Stop' then raise exception 'stopped'; end if;
    new.customer := upper(new.customer);
    return new;
end $$;
"""
TIDIED = "create trigger tidy before insert or update on orders for each row execute function tidy()"


TABLES = """
create table countries (code varchar(2) primary key, name varchar(20) not null);
create table orders (
    order_id {serial} primary key,
    customer varchar(20) not null check (customer <> ''),
    status text not null default 'open',
    price numeric(10, 2) default 9.5,
    placed_at {timestamp} default '2030-01-01 12:00:00',
    updated_at {timestamptz},
    creation_time {timestamp},
    note text unique,
    country varchar(2) references countries (code)
);
create index orders_by_customer on orders (customer, price);
create table legacy (id {bigint} primary key, parent bigint references legacy (id), name varchar(20));
create table coded (code text primary key, id integer);
create table leaf (leaf_id {bigint} primary key, legacy bigint references legacy (id) on delete cascade);
"""
LITE = {"serial": "integer", "bigint": "integer", "timestamp": "text", "timestamptz": "text"}


def tables(url: str) -> list[str]:
    """The other program's tables, as SQL."""
    whole = TABLES.format_map(LITE if url.startswith("sqlite") else {name: name for name in LITE})
    return [one for one in whole.split(";") if one.strip()]


@app.mutation
async def annotate(ctx: MutationCtx, order: Id[Order], note: str) -> Order:
    """Take an id of another program's table."""
    return await ctx.db.patch(Order, order, note=note)


async def test_rows_of_another_program_are_read_and_written_by_their_own_keys(database_url: str) -> None:
    await run_sql(
        database_url,
        *tables(database_url),
        "insert into countries values ('CZ', 'Česko')",
        "insert into orders (customer, price, updated_at, country) values "
        "('Ada', 1.25, '2030-01-01 13:00:00+01:00', 'CZ'), ('Eve', null, null, 'CZ')",
    )
    ada, eve = Id[Order]("1"), Id[Order]("2")
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            order: Any = await ctx.db.get(Order, ada)
            assert (order.id, order.order_id, order.customer, order.status) == ("1", 1, "Ada", Status.OPEN)
            assert (order.price, order.placed_at, order.updated_at) == (Decimal("1.25"), NOON, NOON)
            country: Any = await ctx.db.get(Country, Id("CZ"))
            assert (country.id, country.name) == ("CZ", "Česko")
            wrong: Any
            for wrong in ("", "1.5", "1 or 1=1", "0x1", None, 1.5, True, [], b"1", "9" * 5000):
                with pytest.raises((IdInvalid, ValueInvalid)):
                    await ctx.db.get(Order, wrong)
            with pytest.raises((IdInvalid, ValueInvalid)):
                await ctx.db.get(Country, Id("a\0"))

            patched = await ctx.db.patch(Order, ada, price=Decimal("3.75"), creation_time=NOON)
            assert (patched.price, patched.placed_at, patched.creation_time) == (Decimal("3.75"), NOON, NOON)
            replaced = await ctx.db.replace(Order, eve, Order(customer="Eva", note="new"))
            assert (replaced.customer, replaced.price, replaced.placed_at) == ("Eva", None, None)
            with pytest.raises(ValueInvalid, match="order_id cannot be changed"):
                await ctx.db.replace(Order, eve, Order(order_id=3, customer="x"))

            elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
            new = await ctx.db.insert(Order(customer="Zoe", status=Status.PAID, updated_at=elsewhere))
            filled: Any = await ctx.db.get(Order, new)
            assert (new, filled.order_id, filled.price, filled.placed_at) == ("3", 3, Decimal("9.5"), NOON)
            assert filled.updated_at == NOON
            assert await ctx.db.insert(Order(order_id=70, customer="Bob")) == "70"

        await backend.run_mutation(write, story)
        assert (await backend.run_mutation(annotate, ada, "seen")).note == "seen"
        rows = await sql(backend, "select customer, status, country from orders order by order_id")
        assert [*map(tuple, rows)] == [
            ("Ada", "open", "CZ"), ("Eva", "open", "CZ"), ("Zoe", "paid", None), ("Bob", "open", None),
        ], "what was not declared is kept"  # fmt: skip


async def test_what_the_table_refuses_can_be_caught_and_the_mutation_goes_on(database_url: str) -> None:
    await run_sql(
        database_url,
        *tables(database_url),
        "insert into orders (customer, note) values ('Ada', 'a'), ('Eve', 'b')",
        "insert into legacy values (1, null, 'x')",
    )
    async with TestApp(app, database_url, max_row_bytes=1000) as backend:

        async def story(ctx: MutationCtx) -> None:
            eve = Id[Order]("2")
            attempts: list[tuple[Callable[[], Awaitable[Any]], type[PenstockError]]] = [
                (lambda: ctx.db.insert(Order(customer="x", note="a")), UniqueViolation),
                (lambda: ctx.db.patch(Order, eve, note="a"), UniqueViolation),
                (lambda: ctx.db.insert(Order(customer="")), ConstraintViolation),
                (lambda: ctx.db.insert(Legacy(id=2, parent=99)), ConstraintViolation),
                (lambda: ctx.db.insert(Order(customer="x", note="x" * 1000)), LimitExceeded),
            ]
            for call, error in attempts:
                with pytest.raises(error):
                    await call()
            child = await ctx.db.insert(Legacy(id=2, parent=1))
            with pytest.raises(ConstraintViolation):
                await ctx.db.delete(Legacy, Id("1"))
            leaf = await ctx.db.insert(Leaf(leaf_id=7, legacy=2))
            assert await ctx.db.get(Leaf, leaf) is not None
            await ctx.db.delete(Legacy, child)
            assert await ctx.db.get(Leaf, leaf) is None, "what a write changes elsewhere is seen"
            assert await ctx.db.query(Leaf).collect() == []
            await ctx.db.insert(Order(customer="Zoe"))

        await backend.run_mutation(write, story)
        rows = await sql(backend, "select customer, note from orders order by order_id")
        assert [*map(tuple, rows)] == [("Ada", "a"), ("Eve", "b"), ("Zoe", None)]


async def test_a_key_named_id_and_a_column_named_id_stay_what_they_are(database_url: str) -> None:
    await run_sql(database_url, *tables(database_url))
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            legacy = await ctx.db.insert(Legacy(id=7, name="a"))
            row: Any = await ctx.db.get(Legacy, legacy)
            assert (legacy, row.id) == ("7", 7)
            assert (await ctx.db.patch(Legacy, row.id, name="b")).name == "b"
            await ctx.db.replace(Legacy, legacy, row)
            coded = await ctx.db.insert(Coded(code="x", id=5))
            found: Any = await ctx.db.get(Coded, coded)
            assert (coded, found.code, found.id) == ("x", "x", 5)
            assert (await ctx.db.replace(Coded, coded, found)).id == 5
            assert len({row, found, await ctx.db.get(Legacy, legacy)}) == 2

        await backend.run_mutation(write, story)
        assert [*map(tuple, await sql(backend, "select code, id from coded"))] == [("x", 5)]
        assert [*map(tuple, await sql(backend, "select id, name from legacy"))] == [(7, "a")]


async def test_a_table_lies_in_a_schema_on_postgres(postgres_url: str) -> None:
    class Group(Table, source="shop.group", key="order", managed=False):
        order: int
        select: str | None = None

        by_select = Index("select")

    make = 'create table shop."group" ("order" int primary key, "select" text)'
    await run_sql(postgres_url, "create schema shop", make)
    local = App(tables=[Group])
    write_group, _, _ = tell_in(local)
    async with TestApp(local, postgres_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            group = await ctx.db.insert(Group(order=5, select="a"))
            await ctx.db.patch(Group, group, select="b")
            assert await ctx.db.query(Group).with_index(Group.by_select, select="b").count() == 1
            await ctx.db.delete(Group, await ctx.db.insert(Group(order=6)))

        await backend.run_mutation(write_group, story)
        assert [*map(tuple, await sql(backend, 'select * from shop."group"'))] == [(5, "b")]


async def test_a_table_that_cannot_be_there_is_missed_at_the_start(sqlite_url: str) -> None:
    class Group(Table, source="shop.group", key="order", managed=False):
        order: int

    with pytest.raises(DeclarationError, match="SQLite has no schemas"):
        async with TestApp(App(tables=[Group]), sqlite_url):
            pass
    with pytest.raises(SchemaMismatch, match="orders"):
        async with TestApp(app, sqlite_url):
            pass


async def test_narrower_types_and_triggers_refuse_change_and_drop_rows(postgres_url: str) -> None:
    await run_sql(postgres_url, *tables(postgres_url), TIDY, TIDIED)
    async with TestApp(app, postgres_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            order = await ctx.db.insert(Order(customer="Ada", price=Decimal("1.005")))
            row: Any = await ctx.db.get(Order, order)
            assert (row.customer, row.price) == ("ADA", Decimal("1.01")), "the row is as the table took it"
            assert (await ctx.db.patch(Order, order, customer="Eve")).customer == "EVE"
            for call in (
                lambda: ctx.db.insert(Order(customer="x" * 21)),
                lambda: ctx.db.insert(Order(customer="x", price=Decimal(10**9))),
                lambda: ctx.db.insert(Order(order_id=2**31, customer="x")),
                lambda: ctx.db.get(Order, Id(str(2**31))),
                lambda: ctx.db.query(Order).with_index(Order.by_customer, customer="a\0").collect(),
            ):
                with pytest.raises(ValueInvalid):
                    await call()
            for customer in ("Drop", "Stop"):
                with pytest.raises(PenstockError):
                    await ctx.db.insert(Order(customer=customer))
                with pytest.raises(PenstockError):
                    await ctx.db.patch(Order, order, customer=customer)
            await ctx.db.insert(Order(customer="Zoe"))

        await backend.run_mutation(write, story)
        rows = await sql(backend, "select customer from orders order by customer")
        assert [*map(tuple, rows)] == [("EVE",), ("ZOE",)]


async def test_a_float_is_found_and_compared_exactly_over_a_column_of_exact_numbers(database_url: str) -> None:
    class Measured(Table, source="measured", key="number", managed=False):
        number: int
        price: float | None = None

        by_price = Index("price")

    measuring = App(tables=[Measured])
    write_measured, read_measured, _ = tell_in(measuring)
    await run_sql(
        database_url,
        "create table measured (number integer primary key, price numeric)",
        "insert into measured values (1, 1), (2, 2), (3, 0.1)",
    )
    bounds: list[tuple[Any, list[int]]] = [(lte(1.5), [3, 1]), (gt(float("inf")), []), (0.1, [3]), (gt(0.1), [1, 2])]
    async with TestApp(measuring, database_url) as backend:

        async def look(ctx: QueryCtx) -> None:
            for bound, wanted in bounds:
                found = await ctx.db.query(Measured).with_index(Measured.by_price, price=bound).collect()
                assert [row.number for row in found] == wanted, bound

        await backend.run_query(read_measured, look)
        await backend.run_mutation(write_measured, lambda ctx: ctx.db.insert(Measured(number=4, price=0.2)))
        (stored,) = await sql(backend, "select cast(price as text) from measured where number = 4")
        assert tuple(stored) == ("0.2",)


async def test_a_replaced_row_keeps_the_formulas_of_the_database(database_url: str) -> None:
    class Sized(Table, source="sized", key="k", managed=False):
        k: int
        pieces: int
        total: int | None = None

    await run_sql(
        database_url,
        "create table sized (k integer primary key, pieces int, total bigint generated always as (pieces * 2) stored)",
    )
    own = App(tables=[Sized])
    write, _, _ = tell_in(own)

    async def story(ctx: MutationCtx) -> None:
        key = await ctx.db.insert(Sized(k=1, pieces=2))
        row = await ctx.db.replace(Sized, key, Sized(k=1, pieces=3))
        assert (row.pieces, row.total) == (3, 6)
        assert (await ctx.db.replace(Sized, key, row)).total == 6

    async with TestApp(own, database_url) as test:
        await test.run_mutation(write, story)
