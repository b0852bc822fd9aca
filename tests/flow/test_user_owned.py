"""Tables that some other program owns: read and written by their own keys, in their own columns."""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import asyncpg
import pytest
from pydantic import Field
from stage.stories import tell_in

from penstock import (
    App,
    ConstraintViolation,
    CursorInvalid,
    DeclarationError,
    Id,
    IdInvalid,
    Index,
    LimitExceeded,
    MutationCtx,
    PenstockError,
    QueryCtx,
    RowInvalid,
    RowNotFound,
    SchemaMismatch,
    Table,
    UniqueViolation,
    ValueInvalid,
    gt,
    gte,
    lt,
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

SQLITE_TABLES = """
create table countries (code text primary key, name text not null);
create table orders (
    order_id integer primary key,
    customer text not null check (customer <> ''),
    status text not null default 'open',
    price numeric default 9.5,
    placed_at text default '2030-01-01 12:00:00',
    updated_at text,
    creation_time text,
    note text unique,
    country text references countries (code)
);
create index orders_by_customer on orders (customer, price);
create table legacy (id integer primary key, parent integer references legacy (id), name varchar(20));
create table coded (code text primary key, id integer);
create table leaf (leaf_id integer primary key, legacy integer references legacy (id) on delete cascade);
"""
POSTGRES_TABLES = """
create table countries (code varchar(2) primary key, name varchar(20) not null);
create table orders (
    order_id serial primary key,
    customer varchar(20) not null check (customer <> ''),
    status text not null default 'open',
    price numeric(10, 2) default 9.5,
    placed_at timestamp default '2030-01-01 12:00:00',
    updated_at timestamptz,
    creation_time timestamp,
    note text unique,
    country varchar(2) references countries (code)
);
create index orders_by_customer on orders (customer, price);
create table legacy (id bigint primary key, parent bigint references legacy (id), name varchar(20));
create table coded (code text primary key, id integer);
create table leaf (leaf_id bigint primary key, legacy bigint references legacy (id) on delete cascade);
"""

Execute = Callable[[str], Awaitable[list[Any]]]


@pytest.fixture
def execute(database_url: str) -> Execute:
    """Runs SQL as the other program does."""

    async def on_sqlite(sql: str) -> list[Any]:
        connection = sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            connection.execute("pragma foreign_keys = on")
            if sql.lstrip().startswith("create"):
                connection.executescript(sql)
                return []
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    async def on_postgres(sql: str) -> list[Any]:
        connection = await asyncpg.connect(database_url)
        try:
            if sql.lstrip().startswith("create"):
                await connection.execute(sql)
                return []
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    return on_sqlite if database_url.startswith("sqlite") else on_postgres


@pytest.fixture
def tables(database_url: str) -> str:
    """The other program's tables, as SQL."""
    return SQLITE_TABLES if database_url.startswith("sqlite") else POSTGRES_TABLES


@app.mutation
async def annotate(ctx: MutationCtx, order: Id[Order], note: str) -> Order:
    """Take an id of another program's table."""
    return await ctx.db.patch(Order, order, note=note)


async def test_rows_of_another_program_are_read_by_their_own_keys(
    database_url: str, execute: Execute, tables: str
) -> None:
    await execute(tables)
    await execute("insert into countries values ('CZ', 'Česko')")
    await execute("insert into orders (customer, price, updated_at) values ('Ada', 1.25, '2030-01-01 13:00:00+01:00')")
    async with TestApp(app, database_url) as backend:

        async def look(ctx: QueryCtx) -> None:
            order = await ctx.db.get(Order, Id("1"))
            assert order is not None
            assert (order.id, order.order_id, order.customer, order.status) == ("1", 1, "Ada", Status.OPEN)
            assert (order.price, order.placed_at, order.updated_at) == (Decimal("1.25"), NOON, NOON)
            assert order.placed_at is not None
            assert order.placed_at.tzinfo is not None
            assert order.creation_time is None
            assert await ctx.db.get(Order, Id("2")) is None
            country = await ctx.db.get(Country, Id("CZ"))
            assert country is not None
            assert (country.id, country.name) == ("CZ", "Česko")
            wrong: Any
            for wrong in ("", "x", "1.5", "1 or 1=1", "0x1", None, 1.5, True, [], b"1", "9" * 5000):
                with pytest.raises((IdInvalid, ValueInvalid)):
                    await ctx.db.get(Order, wrong)
            for text in ("a\0", "\ud800"):
                with pytest.raises((IdInvalid, ValueInvalid)):
                    await ctx.db.get(Country, Id(text))

        await backend.run_query(read, look)
        assert (await backend.run_mutation(annotate, Id("1"), "seen")).note == "seen"
        assert await execute("select note from orders") == [("seen",)]


async def test_what_is_left_out_is_filled_by_the_others_defaults(
    database_url: str, execute: Execute, tables: str
) -> None:
    await execute(tables)
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            first = await ctx.db.insert(Order(customer="Ada"))
            second = await ctx.db.insert(Order(customer="Eve", price=Decimal("2.50"), status=Status.PAID))
            assert (first, second) == ("1", "2")
            order = await ctx.db.get(Order, first)
            assert order is not None
            assert (order.order_id, order.price, order.placed_at) == (1, Decimal("9.5"), NOON)
            given = await ctx.db.insert(Order(order_id=70, customer="Bob"))
            assert given == "70"
            elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
            late = await ctx.db.insert(Order(customer="Zoe", placed_at=elsewhere, updated_at=elsewhere))
            stored = await ctx.db.get(Order, late)
            assert stored is not None
            assert (stored.placed_at, stored.updated_at) == (NOON, NOON)

        await backend.run_mutation(write, story)
        rows = await execute("select customer, status from orders order by order_id limit 2")
        assert rows == [("Ada", "open"), ("Eve", "paid")]


async def test_rows_are_changed_in_place_and_keep_what_was_not_declared(
    database_url: str, execute: Execute, tables: str
) -> None:
    await execute(tables)
    await execute("insert into countries values ('CZ', 'Česko')")
    await execute("insert into orders (customer, country) values ('Ada', 'CZ'), ('Eve', 'CZ'), ('Bob', null)")
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            ada, eve, bob = Id[Order]("1"), Id[Order]("2"), Id[Order]("3")
            patched = await ctx.db.patch(Order, ada, price=Decimal("3.75"), creation_time=NOON)
            assert (patched.price, patched.placed_at, patched.creation_time) == (Decimal("3.75"), NOON, NOON)
            assert patched == await ctx.db.get(Order, ada)
            replaced = await ctx.db.replace(Order, eve, Order(customer="Eva", note="new"))
            assert (replaced.customer, replaced.price, replaced.placed_at) == ("Eva", None, None)
            await ctx.db.replace(Order, eve, Order(order_id=2, customer="Eva", note="new"))
            with pytest.raises(ValueInvalid, match="order_id cannot be changed"):
                await ctx.db.replace(Order, eve, Order(order_id=3, customer="x"))
            with pytest.raises(ValueInvalid, match="order_id cannot be changed"):
                await ctx.db.patch(Order, eve, order_id=5)
            with pytest.raises(ValueInvalid):
                await ctx.db.patch(Order, eve, unknown=5)
            with pytest.raises(ValueInvalid):
                await ctx.db.patch(Order, eve, status="lost")
            await ctx.db.delete(Order, bob)
            assert await ctx.db.get(Order, bob) is None
            for call in (ctx.db.delete(Order, bob), ctx.db.patch(Order, bob, note="x")):
                with pytest.raises(RowNotFound):
                    await call

        await backend.run_mutation(write, story)
        assert await execute("select customer, country from orders order by order_id") == [("Ada", "CZ"), ("Eva", "CZ")]


async def test_what_the_table_refuses_can_be_caught_and_the_mutation_goes_on(
    database_url: str, execute: Execute, tables: str
) -> None:
    await execute(tables)
    await execute("insert into orders (customer, note) values ('Ada', 'a'), ('Eve', 'b')")
    await execute("insert into legacy values (1, null, 'x')")
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            eve = Id[Order]("2")
            attempts: list[tuple[Callable[[], Awaitable[Any]], type[PenstockError]]] = [
                (lambda: ctx.db.insert(Order(customer="x", note="a")), UniqueViolation),
                (lambda: ctx.db.insert(Order(order_id=1, customer="x")), UniqueViolation),
                (lambda: ctx.db.patch(Order, eve, note="a"), UniqueViolation),
                (lambda: ctx.db.replace(Order, eve, Order(customer="x", note="a")), UniqueViolation),
                (lambda: ctx.db.insert(Order(customer="")), ConstraintViolation),
                (lambda: ctx.db.patch(Order, eve, customer=""), ConstraintViolation),
                (lambda: ctx.db.insert(Legacy(id=2, parent=99)), ConstraintViolation),
                (lambda: ctx.db.patch(Legacy, Id("1"), parent=99), ConstraintViolation),
            ]
            for call, error in attempts:
                with pytest.raises(error):
                    await call()
            child = await ctx.db.insert(Legacy(id=2, parent=1))
            with pytest.raises(ConstraintViolation):
                await ctx.db.delete(Legacy, Id("1"))
            assert await ctx.db.get(Legacy, child) is not None
            await ctx.db.insert(Order(customer="Zoe"))

        await backend.run_mutation(write, story)
        rows = await execute("select customer, note from orders order by order_id")
        assert rows == [("Ada", "a"), ("Eve", "b"), ("Zoe", None)]


async def test_a_row_that_was_refused_for_its_size_is_not_there(
    database_url: str, execute: Execute, tables: str
) -> None:
    await execute(tables)
    async with TestApp(app, database_url, max_row_bytes=1000) as backend:

        async def story(ctx: MutationCtx) -> None:
            kept = await ctx.db.insert(Order(customer="Ada"))
            with pytest.raises(LimitExceeded):
                await ctx.db.insert(Order(customer="Eve", note="x" * 1000))
            with pytest.raises(LimitExceeded):
                await ctx.db.patch(Order, kept, note="x" * 1000)

        await backend.run_mutation(write, story)
        assert await execute("select customer, note from orders") == [("Ada", None)]


async def test_rows_that_do_not_fit_name_themselves(database_url: str, execute: Execute, tables: str) -> None:
    await execute(tables)
    await execute("insert into orders (customer, status) values ('Ada', 'open'), ('Eve', 'lost')")
    await execute("insert into legacy values (5, null, null)")
    async with TestApp(app, database_url) as backend:

        async def look(ctx: MutationCtx) -> None:
            for call in (
                ctx.db.get(Order, Id("2")), ctx.db.query(Order).collect(), ctx.db.patch(Order, Id("2"), note="x"),
            ):  # fmt: skip
                with pytest.raises(RowInvalid, match="Table orders: the row 2 does not fit its declaration"):
                    await call
            with pytest.raises(RowInvalid, match="Table legacy: the row 5 does not fit"):
                await ctx.db.query(Legacy).first()
            assert [row.customer for row in await ctx.db.query(Order).take(1)] == ["Ada"]
            await ctx.db.delete(Order, Id("2"))

        await backend.run_mutation(write, look)
        assert await execute("select customer from orders") == [("Ada",)]


async def test_sqlite_holds_anything_and_what_does_not_fit_is_named(sqlite_url: str) -> None:
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    connection.executescript(SQLITE_TABLES)
    wrong = ["price = 'cheap'", "placed_at = 'yesterday'", "placed_at = 5", "customer = x'ff'", "status = 7"]
    for number, change in enumerate(wrong, 1):
        connection.execute(f"insert into orders (order_id, customer) values ({number}, 'x')")
        connection.execute(f"update orders set {change} where order_id = {number}")
    connection.execute("insert into orders (order_id, customer, price, placed_at) values (91, 'x', 7, '2030-01-01')")
    connection.close()
    async with TestApp(app, sqlite_url) as backend:

        async def look(ctx: QueryCtx) -> None:
            for number in range(1, len(wrong) + 1):
                with pytest.raises(RowInvalid, match=f"the row {number} does not fit"):
                    await ctx.db.get(Order, Id(str(number)))
            whole = await ctx.db.get(Order, Id("91"))
            assert whole is not None
            assert (whole.price, whole.placed_at) == (Decimal(7), datetime(2030, 1, 1, tzinfo=UTC))

        await backend.run_query(read, look)


async def test_a_decimal_survives_a_numeric_column_of_sqlite(sqlite_url: str) -> None:
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    connection.executescript(SQLITE_TABLES)
    connection.close()
    async with TestApp(app, sqlite_url) as backend:
        rows = [Order(customer="x", price=Decimal("0.1")), Order(customer="x", price=Decimal("0.2"))]
        await backend.run_mutation(write, lambda ctx: ctx.db.insert_many(rows))
        stored = await backend.run_query(read, lambda ctx: ctx.db.query(Order).collect())
        assert [row.price for row in stored] == [Decimal("0.1"), Decimal("0.2")]
        assert await backend.run_query(read, lambda ctx: ctx.db.query(Order).sum("price")) == Decimal("0.3")


async def test_what_a_write_changes_elsewhere_is_seen(database_url: str, execute: Execute, tables: str) -> None:
    await execute(tables)
    await execute("insert into legacy values (1, null, 'x')")
    await execute("insert into leaf values (7, 1)")
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            assert await ctx.db.get(Leaf, Id("7")) is not None
            await ctx.db.delete(Legacy, Id("1"))
            assert await ctx.db.get(Leaf, Id("7")) is None
            assert await ctx.db.query(Leaf).collect() == []

        await backend.run_mutation(write, story)


async def test_a_key_named_id_and_a_column_named_id_stay_what_they_are(
    database_url: str, execute: Execute, tables: str
) -> None:
    await execute(tables)
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            legacy = await ctx.db.insert(Legacy(id=7, name="a"))
            row = await ctx.db.get(Legacy, legacy)
            assert row is not None
            assert (legacy, row.id) == ("7", 7)
            assert (await ctx.db.patch(Legacy, row.id, name="b")).name == "b"
            same = await ctx.db.replace(Legacy, legacy, row)
            assert same.name == "a"
            coded = await ctx.db.insert(Coded(code="x", id=5))
            found = await ctx.db.get(Coded, coded)
            assert found is not None
            assert (coded, found.code, found.id) == ("x", "x", 5)
            assert (await ctx.db.replace(Coded, coded, found)).id == 5
            assert len({row, found, await ctx.db.get(Legacy, legacy)}) == 2

        await backend.run_mutation(write, story)
        assert await execute("select code, id from coded") == [("x", 5)]
        assert await execute("select id, name from legacy") == [(7, "a")]


async def test_queries_and_pages_go_through_the_declared_index(
    database_url: str, execute: Execute, tables: str
) -> None:
    await execute(tables)
    async with TestApp(app, database_url) as backend:
        prices = [Decimal(10), Decimal("9.5"), Decimal("9.5"), Decimal(-1)]
        orders = [Order(customer=customer, price=price) for price in prices for customer in ("Ada", "Eve")]
        await backend.run_mutation(write, lambda ctx: ctx.db.insert_many(orders))

        async def look(ctx: QueryCtx) -> None:
            query = ctx.db.query(Order).with_index(Order.by_customer, customer="Ada")
            assert [row.price for row in await query.collect()] == sorted(prices)
            assert [row.price for row in await query.order("desc").collect()] == sorted(prices, reverse=True)
            assert await query.sum("price") == sum(prices)
            assert (await query.min("price"), await query.max("price")) == (Decimal(-1), Decimal(10))
            assert await query.group_by("price").count() == {Decimal(-1): 1, Decimal("9.5"): 2, Decimal(10): 1}
            dear = ctx.db.query(Order).with_index(Order.by_customer, customer="Ada", price=gte(Decimal("9.5")))
            assert await dear.count() == 3
            seen: list[Order] = []
            page = await query.paginate(num_items=1)
            while not page.is_done:
                seen += page.page
                page = await query.paginate(cursor=page.continue_cursor, num_items=1)
            assert seen + page.page == await query.collect()
            with pytest.raises(CursorInvalid):
                await ctx.db.query(Order).paginate(cursor=page.continue_cursor)
            assert [row.order_id for row in await ctx.db.query(Order).order("desc").take(2)] == [8, 7]

        await backend.run_query(read, look)


async def test_a_table_lies_in_a_schema_on_postgres(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(POSTGRES_TABLES)
    await connection.execute('create schema shop; create table shop."group" ("order" int primary key, "select" text)')

    class Group(Table, source="shop.group", key="order", managed=False):
        order: int
        select: str | None = None

        by_select = Index("select")

    local = App(tables=[Group])

    async def run(ctx: MutationCtx, story: Any) -> Any:
        return await story(ctx)

    in_schema = local.internal_mutation(run)

    async with TestApp(local, postgres_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            group = await ctx.db.insert(Group(order=5, select="a"))
            await ctx.db.patch(Group, group, select="b")
            assert await ctx.db.query(Group).with_index(Group.by_select, select="b").count() == 1
            await ctx.db.insert(Group(order=6))
            await ctx.db.delete(Group, Id("6"))

        await backend.run_mutation(in_schema, story)
    assert [tuple(row) for row in await connection.fetch('select * from shop."group"')] == [(5, "b")]
    await connection.close()


async def test_sqlite_has_no_schemas(sqlite_url: str) -> None:
    class Group(Table, source="shop.group", key="order", managed=False):
        order: int

    with pytest.raises(DeclarationError, match="SQLite has no schemas"):
        async with TestApp(App(tables=[Group]), sqlite_url):
            pass


async def test_a_table_that_is_not_there_is_missed_at_the_start(database_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="orders"):
        async with TestApp(app, database_url):
            pass


async def test_columns_of_narrower_types_refuse_what_does_not_fit(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(POSTGRES_TABLES)
    async with TestApp(app, postgres_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            order = await ctx.db.insert(Order(customer="Ada", price=Decimal("1.005")))
            row = await ctx.db.get(Order, order)
            assert row is not None
            assert row.price == Decimal("1.01"), "the row is as the table took it"
            for call in (
                lambda: ctx.db.insert(Order(customer="x" * 21)),
                lambda: ctx.db.patch(Order, order, customer="x" * 21),
                lambda: ctx.db.insert(Order(customer="x", price=Decimal(10**9))),
                lambda: ctx.db.insert(Order(order_id=2**31, customer="x")),
                lambda: ctx.db.insert(Country(code="CZE", name="x")),
                lambda: ctx.db.get(Order, Id(str(2**31))),
                lambda: ctx.db.query(Order).with_index(Order.by_customer, customer="a\0").collect(),
            ):
                with pytest.raises(ValueInvalid):
                    await call()
            await ctx.db.insert(Order(customer="Eve"))

        await backend.run_mutation(write, story)
    rows = await connection.fetch("select customer from orders")
    assert [row["customer"] for row in rows] == ["Ada", "Eve"]
    await connection.close()


async def test_a_bound_keeps_its_fraction_over_a_column_of_exact_numbers(
    database_url: str, execute: Execute, tables: str
) -> None:
    class Measured(Table, source="measured", key="id", managed=False):
        id: int  # type: ignore[assignment]  # it hides Table.id, which is the id as text
        parent: float | None = None

        by_parent = Index("parent")

    measuring = App(tables=[Measured])
    _, read_measured, _ = tell_in(measuring)
    await execute(tables + "create table measured (id integer primary key, parent numeric);")
    await execute("insert into measured (id, parent) values (1, 1), (2, 2)")
    async with TestApp(measuring, database_url) as backend:

        async def look(ctx: QueryCtx) -> None:
            for bound, wanted in ((gte(1.5), [2]), (lte(1.5), [1]), (lt(1e300), [1, 2]), (gt(float("inf")), [])):
                found = await ctx.db.query(Measured).with_index(Measured.by_parent, parent=bound).collect()
                assert [row.__dict__["id"] for row in found] == wanted, bound

        await backend.run_query(read_measured, look)


async def test_a_trigger_may_change_or_drop_a_row(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(POSTGRES_TABLES)
    await connection.execute(
        """
        create function tidy() returns trigger language plpgsql as $$ begin
            if new.customer = 'Drop' then return null; end if;
            if new.customer = 'Stop' then raise exception 'stopped'; end if;
            new.customer := upper(new.customer);
            return new;
        end $$;
        create trigger tidy before insert or update on orders for each row execute function tidy();
        """
    )
    async with TestApp(app, postgres_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            order = await ctx.db.insert(Order(customer="Ada"))
            row = await ctx.db.get(Order, order)
            assert row is not None
            assert row.customer == "ADA"
            assert (await ctx.db.patch(Order, order, customer="Eve")).customer == "EVE"
            for customer in ("Drop", "Stop"):
                with pytest.raises(PenstockError):
                    await ctx.db.insert(Order(customer=customer))
                with pytest.raises(PenstockError):
                    await ctx.db.patch(Order, order, customer=customer)
            same = await ctx.db.get(Order, order)
            assert same is not None
            assert same.customer == "EVE"

        await backend.run_mutation(write, story)
    assert [row["customer"] for row in await connection.fetch("select customer from orders")] == ["EVE"]
    await connection.close()


def test_dates_are_dates() -> None:
    """A column of dates is declared as one; a moment is not a day."""

    class Day(Table, source="days", key="day", managed=False):
        day: date

    with pytest.raises(ValueError, match="should be a valid date"):
        Day(day=NOON)


async def test_a_replaced_row_keeps_the_formulas_of_the_database(database_url: str, execute: Execute) -> None:
    class Sized(Table, source="sized", key="k", managed=False):
        k: int
        pieces: int
        total: int | None = None

    await execute(
        "create table sized (k bigint primary key, pieces bigint, total bigint generated always as (pieces * 2) stored)"
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
