"""Reactive tasks over tables of other programs, with keys of any kind and of several columns: rows known by tuples."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from stage.databases import (
    EMPTY,
    HOSTILE,
    MOMENTS,
    ONE,
    ORDERS,
    RATES,
    TENANTS,
    TWO,
    Moment,
    Order,
    Rate,
    Side,
    Tenant,
    prepare,
    sql,
)

from penstock import (
    App,
    CursorInvalid,
    IdInvalid,
    MutationTaskCtx,
    Retry,
    SyncMutationTaskCtx,
    SyncTaskCtx,
    Table,
    TaskBatchCtx,
    TaskCtx,
    TaskFilter,
)
from penstock.jobs.states import JobState
from penstock.schema.table import definition_of
from penstock.services import reconciler
from penstock.testing import TestApp, TestClock

_seeds = itertools.count()
ONCE = Retry(max_attempts=1)
handled: list[tuple[str, Any, str, Any]] = []

app = App()
care = App()
sums = App()
kinds = App()


@pytest.fixture(autouse=True)
def nothing_handled() -> Any:
    handled.clear()
    yield
    handled.clear()


@app.reactive_task(Order, filter=lambda o: o.amount > 0, watch=("amount",), on=("enter", "change", "leave", "delete"))
async def act(ctx: TaskCtx[Order]) -> None:
    if ctx.change in {"leave", "delete"}:
        assert ctx.previous is not None
        handled.append(("act", ctx.doc_id, ctx.change, ctx.previous.amount))
        return
    row = await ctx.get_document(fields=("amount",))
    assert (row.tenant, row.number) == ctx.doc_id
    handled.append(("act", ctx.doc_id, ctx.change, row.amount))
    await ctx.mark_completed()


@app.reactive_task(Order, watch=("amount",), retry=ONCE)
async def write(ctx: MutationTaskCtx[Order]) -> None:
    row = await ctx.get_document()
    handled.append(("write", ctx.doc_id, ctx.change, row.amount))
    await ctx.db.patch(Order, ctx.doc_id, note=f"{row.tenant} {row.number}")


@app.reactive_task(Order, watch=("amount",), retry=ONCE)
def act_in_thread(ctx: SyncTaskCtx[Order]) -> None:
    handled.append(("act_in_thread", ctx.doc_id, ctx.change, ctx.get_document().amount))


@app.reactive_task(Order, watch=("amount",), retry=ONCE)
def write_in_thread(ctx: SyncMutationTaskCtx[Order]) -> None:
    handled.append(("write_in_thread", ctx.doc_id, ctx.change, ctx.get_document().amount))


@app.reactive_task(Order, watch=("amount",), retry=ONCE, batch=3)
async def act_together(ctx: TaskBatchCtx[Order]) -> None:
    rows = await ctx.get_documents()
    handled.extend(("act_together", run.doc_id, run.change, rows[run].amount) for run in ctx.runs if run in rows)


@app.reactive_task(Tenant, retry=ONCE)
async def of_tenant(ctx: TaskCtx[Tenant]) -> None:
    handled.append(("of_tenant", ctx.doc_id, ctx.change, (await ctx.get_document()).name))


NAMES = ("act", "write", "act_in_thread", "write_in_thread", "act_together")


def _opened(app: App, url: str) -> TestApp:
    """A backend; of several on one database each makes ids of its own."""
    return TestApp(app, url, clock=TestClock(seed=next(_seeds)))


def taken(*names: str) -> list[tuple[Any, ...]]:
    """What was handled since it was last asked, by these tasks. Mutations run again after conflicts."""
    found = [one for one in handled if not names or one[0] in names]
    acted = [one for one in found if not one[0].startswith("write")]
    handled.clear()
    return sorted([*acted, *(set(found) - set(acted))], key=repr)


async def test_rows_run_in_all_kinds_of_handlers_whoever_writes_them(database_url: str) -> None:
    await prepare(database_url, ORDERS, TENANTS, "insert into orders values (7, 'old', 1, null)")
    async with _opened(app, database_url) as test:
        await test.run_until_idle()
        assert taken() == sorted(((name, (7, "old"), "reconcile", 1) for name in NAMES), key=repr)
        rows = {(7, "a"): 1, (7, "b"): 2, (8, "a"): 3, (71, "a"): 4} | {(-1, number): 5 for number in HOSTILE}
        values = ", ".join(
            f"({tenant}, '{number.replace(chr(39), chr(39) * 2)}', {amount}, null)"
            for (tenant, number), amount in rows.items()
        )
        await sql(test, f"insert into orders values {values}", "insert into tenants values (7, 'seven')")
        await test.run_until_idle()
        expected = [(name, key, "enter", amount) for name in NAMES for key, amount in rows.items()]
        assert taken() == sorted([*expected, ("of_tenant", 7, "enter", "seven")], key=repr)
        notes = await sql(test, "select tenant, number, note from orders")
        assert all(note == f"{tenant} {number}" for tenant, number, note in notes)
        test.assert_task_ran(act, (7, "a"), times=1, change="enter")
        test.assert_task_ran(act, [8, "a"], times=1)
        with pytest.raises(AssertionError):
            test.assert_task_ran(act, (8, "b"))
        for key in rows:
            record = await app.tasks.find(test, "act", key)
            assert record is not None
            assert record.key == list(key)
            assert await app.tasks.find(test, "act", record.key) == record
            assert await app.tasks.find(test, "act", json.dumps(key)) == record


async def test_each_change_of_a_row_is_told_with_the_row_before(database_url: str) -> None:
    await prepare(database_url, ORDERS, TENANTS)
    async with _opened(app, database_url) as test:
        await test.run_until_idle()
        story: list[tuple[str, list[tuple[tuple[int, str], str, int]]]] = [
            ("insert into orders values (7, 'a', 1, null)", [((7, "a"), "enter", 1)]),
            ("insert into orders values (7, 'b', 1, null)", [((7, "b"), "enter", 1)]),
            ("update orders set amount = 2 where number = 'b'", [((7, "b"), "change", 2)]),
            ("update orders set note = 'x'", []),
            ("update orders set amount = 0 where number = 'a'", [((7, "a"), "leave", 1)]),
            ("update orders set tenant = 9 where number = 'b'", [((7, "b"), "delete", 2), ((9, "b"), "enter", 2)]),
            ("update orders set number = 'c' where tenant = 9", [((9, "b"), "delete", 2), ((9, "c"), "enter", 2)]),
            (
                "update orders set tenant = 8, number = 'd' where tenant = 9",
                [((8, "d"), "enter", 2), ((9, "c"), "delete", 2)],
            ),
            ("delete from orders", [((8, "d"), "delete", 2)]),
        ]
        for statement, expected in story:
            await sql(test, statement)
            await test.run_until_idle()
            assert taken("act") == [("act", *one) for one in expected], statement


async def test_keys_of_other_columns_make_other_rows(database_url: str) -> None:
    """A program that knew a table by other columns learns of these; what was kept of rows by the others is over."""
    await prepare(database_url, "create table orders (tenant integer, number text, amount integer, note text)")

    class ByTenant(Table, source="orders", key="tenant", managed=False):
        tenant: int
        amount: int = 0

    class ByNumber(Table, source="orders", key="number", managed=False):
        number: str
        amount: int = 0

    async def by_tenant(ctx: TaskCtx[Any]) -> None:
        await seen(ctx)

    async def by_number(ctx: TaskCtx[Any]) -> None:
        await seen(ctx)

    new = App()
    async with _opened(EMPTY, database_url) as test:
        await sql(test, "insert into orders values (7, 'a', 1, null)")
    for table, handler, key in ((ByTenant, by_tenant, 7), (ByNumber, by_number, "a")):
        old, name = App(), f"a task {handler.__name__}"
        old.reactive_task(table, watch=("amount",), retry=ONCE, name=name)(cast("Any", handler))
        new.reactive_task(Order, watch=("amount",), retry=ONCE, name=name)(cast("Any", handler))
        async with _opened(old, database_url) as test:
            await test.run_until_idle()
            assert [one[1] for one in handled] == [key]
        handled.clear()
    async with _opened(new, database_url) as test:
        await test.run_until_idle()
        assert [one[1] for one in handled] == [(7, "a")] * 2
        records = await new.tasks.records(test)
        assert {(one.task, str(one.key), one.gone) for one in records.records} == {
            ("a task by_tenant", "7", "deleted"),
            ("a task by_tenant", "[7, 'a']", None),
            ("a task by_number", "a", "deleted"),
            ("a task by_number", "[7, 'a']", None),
        }


# ----- kinds of columns


@kinds.reactive_task(Rate, watch=("rate",), retry=ONCE)
async def of_rate(ctx: TaskCtx[Rate]) -> None:
    handled.append(("of_rate", ctx.doc_id, ctx.change, (await ctx.get_document()).rate))


@kinds.reactive_task(Moment, watch=("id",), retry=ONCE)
async def of_moment(ctx: MutationTaskCtx[Moment]) -> None:
    handled.append(("of_moment", ctx.doc_id, ctx.change, (await ctx.get_document()).id))


@kinds.reactive_task(Order, watch=("amount",), retry=ONCE)
async def of_order(ctx: TaskCtx[Order]) -> None:
    handled.append(("of_order", ctx.doc_id, ctx.change, (await ctx.get_document()).amount))


@pytest.mark.both_stores
async def test_f21_keys_of_all_kinds(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are reconciled in pieces of two, and their records too."""
    monkeypatch.setattr(reconciler, "_AT_ONCE", 2)
    await prepare(database_url, RATES, MOMENTS, ORDERS)
    writers = App(tables=[Rate, Moment, Order])
    when = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    rates = [
        Rate(fund=fund, day=date(2030, 1, day), side=side, rate=Decimal(day))
        for fund in (ONE, TWO)
        for day in (1, 2)
        for side in Side
    ]
    moments = [
        Moment(at=when + timedelta(microseconds=step), raw=raw, worth=Decimal("1.25"), id=len(raw))
        for step in (0, 1, 2)
        for raw in (b"", b"\0", b"\xff\xfe")
    ]
    orders = [Order(tenant=tenant, number=number, amount=5) for tenant in (0, -(2**31)) for number in HOSTILE]

    async def store(test: TestApp, rows: Iterable[Table]) -> None:
        async def work(transaction: Any) -> None:
            statements = {type(row): transaction.statements.of(type(row), definition_of(type(row))) for row in rows}
            for row in rows:
                one = statements[type(row)]
                names = tuple(one.definition.positions)
                await transaction.execute(one.insert(names), one.encode(one.definition.encode_row(row, "", when)))

        await test.runner.write(work)

    async with _opened(writers, database_url) as test:
        await store(test, [*rates[::2], *moments[::2], *orders[::2]])
    async with _opened(kinds, database_url) as test:
        await test.run_until_idle()
        await store(test, [*rates[1::2], *moments[1::2], *orders[1::2]])
        await test.run_until_idle()
        assert {(one[1], one[3]) for one in handled if one[0] == "of_rate"} == {
            ((one.fund, one.day, one.side), one.rate) for one in rates
        }
        assert {(one[1], one[3]) for one in handled if one[0] == "of_moment"} == {
            ((one.at, one.raw, one.worth), one.id) for one in moments
        }
        assert {one[1] for one in handled if one[0] == "of_order"} == {(one.tenant, one.number) for one in orders}
        assert len(handled) == len(rates) + len(moments) + len(orders), "each once"
        for name, row in (("of_rate", (TWO, date(2030, 1, 2), Side.SELL)), ("of_moment", (when, b"\xff\xfe", "1.25"))):
            found = await kinds.tasks.explain(test, name, row)
            assert found.exists is True
            assert found.record is not None
            again = await kinds.tasks.find(test, name, found.record.key)
            assert again == found.record, "as it is told it can be asked for"
        handled.clear()
        test.clock.advance(timedelta(hours=1, minutes=1))
        for _ in range(40):
            test.clock.advance(timedelta(seconds=2))
            await test.run_until_idle()
        assert handled == [], "a later look finds all as it is kept"
        where = TaskFilter(task="of_moment", table=Moment, rows=lambda one: one.raw != b"")
        listed, after = [], None
        while True:
            page = await kinds.tasks.records(test, where, limit=2, after=after)
            listed += page.records
            if (after := page.next) is None:
                break
        assert len({str(one.key) for one in listed}) == len(listed) == 6


# ----- looking at all rows


@sums.reactive_task(Order, watch=("amount",), retry=ONCE, on=("enter", "change", "delete"))
async def seen(ctx: TaskCtx[Any]) -> None:
    handled.append(("seen", ctx.doc_id, ctx.change, None))


async def test_a_column_without_a_value_in_the_key_hides_no_other_row(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "_AT_ONCE", 2)
    await prepare(
        database_url,
        "create table orders (tenant integer, number text, amount integer, note text, unique (tenant, number))",
        "insert into orders (tenant, number) values (null, 'a'), (null, 'b'), (1, null), (1, null), (1, 'a'), (1, 'b')",
        "insert into orders (tenant, number) values (2, null), (2, 'a'), (null, null), (3, 'a')",
    )
    async with _opened(sums, database_url) as test:
        await test.run_until_idle()
        assert sorted(one[1] for one in handled) == [(1, "a"), (1, "b"), (2, "a"), (3, "a")]


async def test_a_renamed_key_column_stops_no_writer_and_is_made_good_with_the_new_declaration(
    database_url: str,
) -> None:
    await prepare(database_url, ORDERS)
    async with _opened(sums, database_url) as test:
        await sql(test, "insert into orders values (7, 'a', 1, null)")
        await test.run_until_idle()
        await sql(test, "alter table orders rename column tenant to client")
        if not database_url.startswith("sqlite"):  # where triggers are renamed with the column
            await sql(test, "insert into orders values (8, 'a', 1, null)")
    handled.clear()

    class Renamed(Table, source="orders", key=("client", "number"), managed=False):
        client: int
        number: str
        amount: int = 0

    new = App()
    new.reactive_task(
        Renamed, watch=("amount",), retry=ONCE, on=("enter", "change", "delete"), name=f"{__name__}:seen"
    )(cast("Any", seen))
    async with _opened(new, database_url) as test:
        await sql(test, "insert into orders values (9, 'a', 1, null)")
        await test.run_until_idle()
        keys = {(9, "a")} if database_url.startswith("sqlite") else {(8, "a"), (9, "a")}
        assert {one[1] for one in handled} == keys, "those that were handled are known by their keys"


# ----- looking after rows


@care.reactive_task(Order, filter=lambda o: o.amount > 0, watch=("amount",), retry=ONCE)
async def fails(ctx: TaskCtx[Order]) -> None:
    handled.append(("fails", ctx.doc_id, ctx.change, None))
    if ctx.change != "manual":
        raise ConnectionError(f"no way for {ctx.doc_id}")


async def test_rows_are_found_explained_and_retried_by_their_tuples(database_url: str) -> None:
    await prepare(database_url, ORDERS)
    async with _opened(care, database_url) as test:
        rows = [(tenant, number) for tenant in (7, 8) for number in "abcd"]
        values = ", ".join(f"({tenant}, '{number}', 1, null)" for tenant, number in rows)
        await sql(test, f"insert into orders values {values}")
        await test.run_until_idle(raise_errors=False)
        handled.clear()
        record = await care.tasks.find(test, "fails", (7, "b"))
        assert record is not None
        assert (record.key, record.state) == ([7, "b"], JobState.FAILED)
        assert await care.tasks.find(test, "fails", (7, "z")) is None
        explained = await care.tasks.explain(test, "fails", (7, "b"))
        assert explained.matches is True
        assert 'row [7, "b"]' in str(explained)
        assert await care.tasks.retry(test, TaskFilter(task="fails", key=(7, "b"))) == 1
        await test.run_until_idle(raise_errors=False)
        assert handled == [("fails", (7, "b"), "manual", None)]
        assert await care.tasks.count(test, TaskFilter(key='[8, "c"]')) == {"failed": 1}
        where = TaskFilter(task="fails", table=Order, rows=lambda o: o.number >= "b")
        listed, after = [], None
        while True:
            page = await care.tasks.records(test, where, limit=2, after=after)
            listed += [tuple(one.key) for one in page.records]
            if (after := page.next) is None:
                break
        assert listed == [key for key in rows if key[1] != "a"], "by the whole key"
        assert await care.tasks.delete(test, TaskFilter(task="fails", key=[8, "d"])) == 1
        assert await care.tasks.find(test, "fails", (8, "d")) is None
        wrong: Any
        for wrong in (7, "7", "b", (7,), (7, 7), (7, "a", "b"), "[7]", '{"tenant": 7}', (None, "a")):
            with pytest.raises(IdInvalid):
                await care.tasks.find(test, "fails", wrong)
        for wrong in ("7", "[7]", '"[7]"', '["x", "a"]', '"[]"', '"{}"', "{}", "x"):
            with pytest.raises(CursorInvalid):
                await care.tasks.records(test, where, after=wrong)


async def test_who_does_not_declare_the_table_finds_its_rows_too(database_url: str) -> None:
    await prepare(database_url, ORDERS)
    async with _opened(care, database_url) as test:
        await sql(test, "insert into orders values (7, 'ä \"''', 1, null)")
        await test.run_until_idle(raise_errors=False)
    async with EMPTY.open(database_url) as backend:
        for key in ((7, "ä \"'"), [7, "ä \"'"], json.dumps([7, "ä \"'"])):
            found = await EMPTY.tasks.explain(backend, "fails", key)
            assert found.exists is None
            assert found.record is not None
            assert found.key == [7, "ä \"'"]
        with pytest.raises(IdInvalid):
            await EMPTY.tasks.find(backend, "fails", "7")
