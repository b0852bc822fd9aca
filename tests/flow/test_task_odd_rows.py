"""Reactive tasks and rows of other programs: numbers, bytes and text that a store or Python has not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from stage.databases import run_sql, sql
from stage.stories import Crew, crew

from penstock import App, MutationTaskCtx, Retry, Table, TaskBatchCtx, TaskCtx

ONCE = Retry(max_attempts=1)
PRICES = (Decimal("19.99"), Decimal("0.1"), Decimal(3), Decimal("1234567.89"), Decimal("-0.07"))


class Price(Table, source="price", managed=False, key="id"):
    id: int  # type: ignore[assignment]  # its own key
    price: Decimal
    rate: Decimal | None = None


class Note(Table, source="note", managed=False, key="nr"):
    nr: int
    body: str = ""
    data: Any = None
    day: date | None = None


class Parcel(Table, name="odd_parcel"):
    tenant: str
    v: int
    price: Decimal = Decimal(0)


INSERT = "insert into odd_parcel (id, creation_time, tenant, v, price) values"
seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    seen.clear()


async def outcomes(one: Crew, app: App) -> dict[tuple[str, Any], str]:
    page = await app.tasks.records(one.backend)
    return {(record.task, record.key): str(record.state and record.state.value) for record in page.records}


# ----- numbers


async def test_a_decimal_is_the_same_however_it_is_read(database_url: str) -> None:
    """Also where the column of the other program holds floats, as those of SQLite do."""
    app = App()

    @app.reactive_task(Price, retry=ONCE, name="all")
    async def of_all(ctx: TaskCtx[Price]) -> None:
        assert ctx.watched_values["price"] == (await ctx.get_document()).price
        seen.append(("all", ctx.watched_values["price"]))

    @app.reactive_task(Price, filter=lambda price: price.price == Decimal("19.99"), retry=ONCE, name="some")
    async def of_some(ctx: MutationTaskCtx[Price]) -> None:
        seen.append(("some", (await ctx.get_document()).id))

    table = "create table price (id integer primary key, price decimal(10,2), rate {})"
    await run_sql(database_url, table.format("real" if database_url.startswith("sqlite") else "numeric"))
    async with crew(app, database_url) as one:
        values = ", ".join(f"({number}, {price}, 0.1)" for number, price in enumerate(PRICES, 1))
        await sql(one.backend, f"insert into price values {values}")
        await one.settle_down()
        assert sorted(seen) == sorted([*(("all", price) for price in PRICES), ("some", 1)])
        await app.tasks.reconcile(one.backend, "all")
        await sql(one.backend, "update price set price = 0.3 where id = 2")
        await one.settle_down()
        assert seen[len(PRICES) + 1 :] == [("all", Decimal("0.3"))], "the others have not changed"


async def test_what_python_reads_otherwise_than_it_is_captured_has_not_changed(database_url: str) -> None:
    app = App()

    @app.reactive_task(Note, watch=("body", "data"), retry=ONCE)
    async def read(ctx: TaskCtx[Note]) -> None:
        note = await ctx.get_document()
        seen.append((note.nr, note.body, note.data))

    wanted: list[tuple[int, str, Any]] = [(1, r"\x61", 0.0), (2, "", 0.12345678901234568)]
    if database_url.startswith("sqlite"):
        wanted += [(3, "a", None), (4, "", float("inf"))]
        rows = r"""(1, '\x61', '1e-400'), (2, '', '0.1234567890123456789'), (3, x'61', null), (4, '', '1e400')"""
        await run_sql(database_url, "create table note (nr integer primary key, body text, data, day)")
    else:
        rows = r"""(1, '\x61', '1e-400'), (2, '', '0.1234567890123456789')"""
        await run_sql(database_url, "create table note (nr integer primary key, body text, data jsonb, day date)")
    async with crew(app, database_url) as one:
        await sql(one.backend, f"insert into note (nr, body, data) values {rows}")
        await one.settle_down()
        assert sorted(seen, key=str) == wanted
        assert set((await outcomes(one, app)).values()) == {"success"}
        explained = await app.tasks.explain(one.backend, "read", 1)
        assert "Nothing that is watched has changed since." in explained.reasons


# ----- rows that cannot be read


async def test_a_row_that_does_not_fit_its_declaration_is_explained_and_keeps_no_other(database_url: str) -> None:
    app = App()

    @app.reactive_task(Price, watch=("rate",), retry=ONCE, batch=9)
    async def together(ctx: TaskBatchCtx[Price]) -> None:
        seen.extend(row.id for row in (await ctx.get_documents()).values())

    await run_sql(database_url, "create table price (id integer primary key, price numeric, rate numeric)")
    async with crew(app, database_url) as one:
        told = await app.tasks.explain(one.backend, "together", 1)
        assert "There is no such row" in told.reasons[0]
        await sql(one.backend, "insert into price values (1, 1, 1), (2, null, 1), (3, 3, 1)")
        told = await app.tasks.explain(one.backend, "together", 2)
        assert "It was not run: no change of the row has been planned for." in told.reasons
        await one.settle_down()
        assert sorted(seen) == [1, 3]
        told = await app.tasks.explain(one.backend, "together", 2)
        assert "failed" in told.reasons[0]
        assert "does not fit its declaration" in told.reasons[1]
        assert "The row cannot be read now." in str(told)


# ----- the row as it was


async def test_previous_is_a_whole_row_or_none(database_url: str) -> None:
    app = App()

    @app.reactive_task(Parcel, watch=("v",), on=("enter", "change", "leave", "delete"), filter=lambda p: p.v > 0)
    async def told(ctx: TaskCtx[Parcel]) -> None:
        seen.append((ctx.change, None if ctx.previous is None else (ctx.previous.tenant, ctx.previous.v)))

    @app.reactive_task(Parcel, watch=("v",), on=("enter", "delete"), filter=lambda p: p.price < 9, name="inexact")
    async def also_told(ctx: TaskCtx[Parcel]) -> None:
        if ctx.change == "delete":
            seen.append(("inexact", None if ctx.previous is None else ctx.previous.tenant))

    @app.reactive_task(Parcel, filter=lambda p: p.price < 9)
    async def not_told(ctx: TaskCtx[Parcel]) -> None:
        assert ctx.previous is None

    async with crew(app, database_url) as one:
        await sql(one.backend, f"{INSERT} {', '.join(_parcel(number, f't{number}') for number in range(4))}")
        await one.settle_down()
        seen.clear()
        await sql(one.backend, "update odd_parcel set v = 2 where tenant = 't0'")
        await sql(one.backend, "update odd_parcel set v = 0 where tenant = 't1'")
        await sql(one.backend, "delete from odd_parcel where tenant = 't2'")
        await one.settle_down()
        told_of = [("change", ("t0", 1)), ("delete", ("t2", 1)), ("inexact", "t2"), ("leave", ("t1", 1))]
        assert sorted(seen) == told_of
        seen.clear()
        if database_url.startswith("sqlite"):
            await _without_triggers(one, "delete from odd_parcel")
            for task in ("told", "inexact", "not_told"):
                await app.tasks.reconcile(one.backend, task)
        else:
            await sql(one.backend, "truncate odd_parcel")
        await one.settle_down()
        assert sorted(seen) == [
            ("delete", ("t0", 2)), ("delete", ("t3", 1)), ("inexact", "t0"), ("inexact", "t1"), ("inexact", "t3"),
        ]  # fmt: skip
        assert "failed" not in (await outcomes(one, app)).values()


async def test_a_column_more_is_no_change_for_who_captures_whole_rows(database_url: str) -> None:
    class Thin(Table, source="note", managed=False, key="nr"):
        nr: int
        body: str = ""

    thin, wide = App(), App()
    for app, table in ((thin, Thin), (wide, Note)):

        async def hear(ctx: TaskCtx[Any]) -> None:
            seen.append((ctx.change, ctx.doc_id, None if ctx.previous is None else ctx.previous.body))

        app.reactive_task(table, watch=("body",), on=("enter", "change", "delete"), name="hears")(hear)
    await run_sql(database_url, "create table note (nr integer primary key, body text, data text, day date)")
    async with crew(thin, database_url) as one:
        await sql(one.backend, "insert into note (nr, body) values (1, 'a'), (2, 'b')")
        await one.settle_down()
    seen.clear()
    async with crew(wide, database_url) as two:
        await wide.tasks.reconcile(two.backend, "hears")
        await two.settle_down()
        assert seen == []
        await sql(two.backend, "delete from note where nr = 1")
        await two.settle_down()
        assert seen == [("delete", 1, "a")]


def _parcel(number: int, tenant: str) -> str:
    return f"('odd_parcel_{number:026}', '2026-01-01T00:00:00.000000Z', '{tenant}', 1, '1.5')"


async def _without_triggers(one: Crew, *statements: str) -> None:
    """Write a row so that nothing of it is captured."""
    made = await sql(
        one.backend, "select name, sql from sqlite_master where type = 'trigger' and name like '_penstock_change%'"
    )
    drops = [f"drop trigger {name}" for name, _ in made]
    await sql(one.backend, *drops, *statements, *(statement for _, statement in made))


# ----- explain


async def test_explain_does_not_take_an_audit_for_a_reason(database_url: str) -> None:
    app = App()

    @app.reactive_task(Parcel, name="audited")
    async def audited(ctx: MutationTaskCtx[Parcel]) -> None:
        seen.append(ctx.doc_id)

    async with crew(app, database_url) as one:
        row = _parcel(1, "a")
        await sql(one.backend, f"{INSERT} {row}")
        key = row[2:].partition("'")[0]
        told = await app.tasks.explain(one.backend, "audited", key)
        assert "All rows of the task are being looked at: 0 so far." in told.reasons
        await one.settle_down()
        one.clock.advance(timedelta(hours=1))
        await one.planner.tick()
        (status,) = await app.tasks.list(one.backend)
        assert status.reconciling is not None
        assert status.reconciling.audit
        told = await app.tasks.explain(one.backend, "audited", key)
        assert not any("looked at" in reason and "All rows" in reason for reason in told.reasons)
