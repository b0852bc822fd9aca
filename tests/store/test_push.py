"""The schema push on real databases: what it changes by itself, what it refuses, and what it leaves alone."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import Field
from stage.databases import closing, push

from penstock import Index, Table
from penstock.errors import DataError, SchemaMismatch
from penstock.schema.table import definition_of
from penstock.store.push import migrate
from penstock.store.push.migrate import load_migrations
from penstock.store.sql.statements import TableStatements
from penstock.store.store import Store

pytest_plugins = ("store.push_fixtures",)

Sql = Callable[[str], Awaitable[list[tuple[Any, ...]]]]


class Booking(Table):
    customer: str
    phone: str | None = None
    status: Literal["pending", "paid", "gone"] = "pending"

    by_customer = Index("customer", "phone")


async def refused(store: Store, *tables: type[Table]) -> list[dict[str, Any]]:
    """The problems of a push that must not succeed, nor change anything."""
    before = await store.catalog.read_tables([definition_of(table).name for table in tables])
    with pytest.raises(SchemaMismatch) as caught:
        await push(store, *tables)
    assert await store.catalog.read_tables([definition_of(table).name for table in tables]) == before
    problems: list[dict[str, Any]] = caught.value.facts["problems"]
    for problem in problems:
        assert problem["what"] in str(caught.value)
        assert problem["fix"] in str(caught.value)
    return problems


async def insert(sql: Sql, number: int, table: str = "booking", **values: Any) -> None:
    """A row of a table, as another program would write it."""
    row = {"id": f"x{number}", "creation_time": "2026-01-01T00:00:00.000000Z", **values}
    names = ", ".join(f'"{name}"' for name in row)
    listed = ", ".join("null" if value is None else f"'{value}'" for value in row.values())
    await sql(f'insert into "{table}" ({names}) values ({listed})')


async def settled(store: Store, *tables: type[Table]) -> None:
    """The database fits: another push has nothing to do."""
    assert (await push(store, *tables, apply=False)).empty


# ----- an empty database


async def test_a_plan_prints_everything_and_writes_nothing(
    store: Store, tmp_path: Path, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with closing(store):
        plan = await push(store, Booking, apply=False)
        name, migration = plan.migrations[0]
        assert (name, len(plan.migrations)) == ("0001_initial", len(load_migrations(store.dialect.name)))
        assert "running_job" in migration
        assert plan.sql[0].startswith('create table "booking"')
        assert plan.sql[1].startswith('create index "booking_by_customer"')
        assert not os.listdir(tmp_path)  # noqa: PTH208 - nothing else runs
        assert await store.catalog.read_tables(["booking"]) == {}
        assert await store.catalog.list_migrations() == set()
        assert not (await push(store, Booking)).empty
        assert (await store.catalog.read_tables(["booking"]))["booking"].kind == "table"
        assert await sql('select count(*) from "booking"') == [(0,)]
        monkeypatch.setattr(type(store.catalog), "lock", None)
        assert (await push(store, Booking)).empty, "and a second one takes no lock"


async def test_names_that_sql_uses_itself(store: Store, sql: Sql) -> None:
    class Order(Table):
        select: Literal["from", "where's"]
        user: str | None = None
        group: int = 0
        table = Index("select", "group")
        unique = Index("user", unique=True)

    class User(Table):
        order: str

    class Longer(Table, name="order"):
        select: Literal["from", "where's", 'in"to', "back\\slash", "%s $1 ?1 :x", "čtvrtek"]
        user: str = "it's"
        group: int | None = None
        limit: int = -1
        table = Index("group", "limit")
        unique = Index("user", "limit", unique=True)

    async with closing(store):
        await push(store, Order, User)
        await settled(store, Order, User)
        await insert(sql, 1, "order", select="where''s", user="a", group=1)
        await push(store, Longer, User)
        await settled(store, Longer, User)
        assert await sql('select "select", "user", "group", "limit" from "order"') == [("where's", "a", 1, -1)]


# ----- columns


class Kinds(Table, name="booking"):
    customer: str
    text: str = "it's \\ a (test, čau /* date */ collate nocase) --"
    number: int = -(2**63)
    real: float = -1e-300
    endless: float = float("inf")
    done: bool = True
    raw: bytes = b"\x00'\xff"
    at: datetime = datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    day: date = date(2024, 2, 29)
    span: timedelta = timedelta(days=-3, microseconds=1)
    price: Decimal = Decimal("-12.3400")
    token: UUID = UUID(int=7)
    data: dict[str, Any] = {"a": ["'", None]}  # noqa: RUF012 - pydantic copies it
    tags: list[str] = Field(default_factory=list)
    status: Literal["a'b", "c"] = "a'b"
    level: Literal[1, -2] = -2
    note: str | None = "noted"
    later: str | None = Field(default_factory=lambda: "never asked for")


async def test_new_columns_fill_old_rows_with_their_defaults(store: Store, sql: Sql) -> None:
    class Before(Table, name="booking"):
        customer: str

    async with closing(store):
        await push(store, Before)
        await insert(sql, 1, customer="a")
        await push(store, Kinds)
        await settled(store, Kinds)
        definition = definition_of(Kinds)
        statements = TableStatements(definition, store.dialect)
        await store.open()
        session = await store.begin_read()
        rows = await session.fetch(statements.get(), ["x1"])
        await session.rollback()
        fields = statements.decode_fields(rows)[0]
        expected = Kinds(customer="a").model_dump() | {"later": None}
        assert {name: fields[name] for name in expected} == expected
        await insert(sql, 2, customer="as the previous version inserts")
        assert (await push(store, Before)).empty


async def test_a_new_table_with_the_columns_of_one_that_is_gone_is_asked_about(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids begin with the name of their table, so a renamed class keeps it; and a new table may just look like it."""

    class Visit(Booking):
        """The class by its new name."""

    class Named(Booking, name="booking"): ...

    class Longer(Booking):
        nights: int = 1

    async with closing(store):
        await push(store, Booking)
        (note,) = (await push(store, Visit, apply=False)).notes
        assert note.startswith("visit is new, and booking, which nobody declares, has the same columns. Did you")
        assert 'declare Visit with name="booking", and its rows stay' in note
        for others in ([Named], [Longer], [Booking, Visit]):
            assert (await push(store, *others, apply=False)).notes == ()
        await push(store, Visit)
        assert caplog.text.count("schema.noted") == 1
        assert (await push(store, Visit)).notes == ()


# ----- rows that stand against a push


class Tighter(Table, name="booking"):
    customer: str
    phone: str
    status: Literal["pending", "paid"] = "pending"
    seats: int = 1

    by_customer = Index("customer", unique=True)
    by_phone = Index("phone", "status", unique=True)


class WithEmail(Table, name="booking"):
    customer: str
    phone: str
    email: str
    token: str = Field(default_factory=lambda: "made anew")
    status: Literal["pending", "paid"] = "pending"
    seats: int = 1

    by_customer = Index("customer", unique=True)
    by_seats = Index("seats", unique=True)


class AsNumber(Table, name="booking"):
    customer: int
    phone: date | None = None
    status: Literal["pending", "paid", "gone"] = "pending"


class Wider(Table, name="booking"):
    customer: str
    phone: Literal["112", "it's"] | None = None
    status: str
    seats: int = 1


async def test_all_that_stands_against_a_push_is_counted_at_once_and_nothing_is_changed(store: Store, sql: Sql) -> None:
    class Guest(Table):
        name: str

    class GuestWithAge(Table, name="guest"):
        name: str
        age: int
        extra: str | None = None

    class New(Table):
        text: str

    def told(problems: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [(one["table"], one.get("index") or one["column"], one["rows"]) for one in problems]

    async with closing(store):
        await push(store, Booking, Guest)
        await insert(sql, 1, "guest", name="a")
        for number, (customer, phone) in enumerate([("a", 1), ("a", 1), ("b", 2), ("b", None), ("b", None), ("c", 3)]):
            await insert(sql, number, customer=customer, status="paid" if number else "gone", phone=phone)
        assert told(await refused(store, AsNumber)) == [("booking", "customer", 6), ("booking", "phone", 4)]
        assert told(await refused(store, Tighter)) == [
            ("booking", "phone", 2),
            ("booking", "status", 1),
            ("booking", "by_customer", 5),
        ]
        assert told(await refused(store, WithEmail, GuestWithAge, New)) == [
            ("booking", "phone", 2),
            ("booking", "email", 6),
            ("booking", "token", 6),
            ("booking", "status", 1),
            ("booking", "by_customer", 5),
            ("booking", "by_seats", 6),
            ("guest", "age", 1),
        ]
        with pytest.raises(SchemaMismatch):
            await push(store, WithEmail, GuestWithAge, New, apply=False)
        await sql("delete from booking")
        await push(store, WithEmail)
        await settled(store, WithEmail)
        with pytest.raises(Exception, match=r"(?i)null"):
            await insert(sql, 1, customer="a", status="paid", phone="1", seats=1, token="t")


async def test_a_table_is_tightened_once_its_rows_allow_it_and_loosened_again(store: Store, sql: Sql) -> None:
    class Otherwise(Table, name="booking"):
        customer: str
        phone: str | None = None
        status: Literal["gone", "paid", "pending"] = "pending"
        by_customer = Index("customer", "phone")

    async with closing(store):
        await push(store, Booking)
        assert (await push(store, Otherwise)).empty, "the order of choices says nothing"
        await insert(sql, 1, customer="a", status="gone", phone="1")
        await insert(sql, 2, customer="b", status="paid")
        with pytest.raises(Exception, match=r"(?i)check"):
            await insert(sql, 3, customer="c", status="late")
        await sql("update booking set status = 'paid', phone = case id when 'x1' then '112' else 'it''s' end")
        await push(store, Tighter)
        await settled(store, Tighter)
        stored = (await store.catalog.read_tables(["booking"]))["booking"]
        assert {name: index.unique for name, index in stored.indexes.items()} == {
            "booking_by_customer": True,
            "booking_by_phone": True,
        }
        for wrong, match in (
            ({"status": "gone", "phone": "5"}, r"(?i)check"),
            ({"status": "paid"}, r"(?i)null"),
            ({"customer": "a", "status": "paid", "phone": "6"}, r"(?i)unique"),
        ):
            with pytest.raises(Exception, match=match):
                await insert(sql, 3, **({"customer": "c", "seats": "1"} | wrong))
        await sql("drop index booking_by_customer")
        await push(store, Wider)
        await settled(store, Wider)
        await insert(sql, 3, customer="a", status="anything", phone="it''s", seats=1)
        await insert(sql, 4, customer="d", status="anything", seats=1)
        with pytest.raises(Exception, match=r"(?i)check"):
            await insert(sql, 5, customer="e", status="paid", phone="113", seats=1)
        assert await sql("select id, phone from booking order by id") == [
            ("x1", "112"), ("x2", "it's"), ("x3", "it's"), ("x4", None),
        ]  # fmt: skip


# ----- tables of other programs


class Invoice(Table, source="invoice", key="Number", managed=False):
    Number: int
    total: float


async def test_a_table_of_another_program_must_be_there_and_is_never_changed(store: Store, sql: Sql) -> None:
    async with closing(store):
        (problem,) = await refused(store, Invoice)
        assert "does not exist" in problem["what"]
        await sql('create table invoice ("Number" integer, note text)')
        (problem,) = await refused(store, Invoice)
        assert (problem["table"], problem["column"]) == ("invoice", "total")
        await sql("alter table invoice add column total real")
        assert (await push(store, Invoice)).sql == ()
        await sql("drop table invoice")
        await sql('create view invoice as select 1 as "Number", 2.0 as total')
        await settled(store, Invoice)


# ----- penstock's own migrations


async def test_migrations_are_applied_once_in_order_and_a_broken_one_leaves_no_trace(
    store: Store, monkeypatch: pytest.MonkeyPatch, sql: Sql
) -> None:
    async with closing(store):
        shipped = migrate.load_migrations(store.dialect.name)
        later = ("9001_second", "create table penstock_second (id integer);\n-- done\n")
        broken = (
            "9002_third",
            "create table penstock_third (id integer);\ninsert into penstock_third values (1/0, 2);\n",
        )
        await push(store, Booking)
        monkeypatch.setattr(migrate, "load_migrations", lambda _store: [*shipped, later])
        assert [name for name, _sql in (await push(store, Booking)).migrations] == ["9001_second"]
        monkeypatch.setattr(migrate, "load_migrations", lambda _store: [*shipped, later, broken])
        with pytest.raises(DataError):
            await push(store, Booking)
        assert await store.catalog.list_migrations() == {*(name for name, _sql in shipped), "9001_second"}
        assert await store.catalog.read_tables(["penstock_third"]) == {}
        monkeypatch.setattr(migrate, "load_migrations", lambda _store: shipped)  # the previous version, started again
        assert (await push(store, Booking)).empty
        assert await sql("select count(*) from penstock_second") == [(0,)]
