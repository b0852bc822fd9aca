"""Values that Python or a column's type cannot hold: each road names the table, the row and the column.

No other row waits for such a row, and no task or outbox stops in silence.
"""

from __future__ import annotations

import asyncio
import enum
import re
from collections.abc import Awaitable, Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from stage.databases import run_sql, sql

from penstock import (
    ActionCtx,
    App,
    Id,
    Index,
    MutationCtx,
    PaginationOptions,
    QueryCtx,
    Retry,
    RowInvalid,
    TaskBatchCtx,
    TaskCtx,
    TaskFilter,
    UserTable,
)
from penstock.testing import TestApp

ONCE = Retry(max_attempts=1)
COLUMNS = {  # with the types that SQLite has none of
    "moment": "timestamptz",
    "local": "timestamp",
    "day": "date",
    "span": "interval",
    "amount": "numeric",
    "flag": "boolean",
    "token": "uuid",
    "count": "bigint",
    "ratio": "double precision",
    "name": "text",
    "level": "text",
    "data": "jsonb",
}
POSTGRES = [
    ("moment", "'0044-03-15 BC'"),
    ("moment", "'9999-12-31 23:59:59-12'"),
    ("local", "'0044-03-15 BC'"),
    ("day", "'10000-01-01'"),
    ("span", "'3000000 years'"),
    ("level", "'none'"),
]
SQLITE = [
    ("moment", "'soon'"),
    ("moment", "5"),
    ("local", "'-0044-03-15T00:00:00'"),
    ("day", "'10000-01-01'"),
    ("day", "1.5"),
    ("span", "'long'"),
    ("amount", "'much'"),
    ("amount", "'NaN'"),
    ("flag", "'no'"),
    ("token", "'x'"),
    ("count", "'x'"),
    ("ratio", "'x'"),
    ("name", "5"),
    ("name", "cast(x'ff' as text)"),
    ("level", "'none'"),
    ("level", "3"),
    ("data", "'{'"),
    ("data", "'[1]'"),
]


class Level(enum.Enum):
    LOW = "low"


class Odd(UserTable, source="odd", key="id", managed=False):
    id: int
    moment: datetime | None = None
    local: datetime | None = None
    day: date | None = None
    span: timedelta | None = None
    amount: Decimal | None = None
    flag: bool | None = None
    token: UUID | None = None
    count: int | None = None
    ratio: float | None = None
    name: str | None = None
    level: Level | None = None
    data: dict[str, int] | None = None

    by_id = Index("id")


Road = Callable[[Any], Awaitable[Any]]


async def page(ctx: QueryCtx) -> Any:
    return await ctx.db.query(Odd).paginate(PaginationOptions(num_items=5))


async def stop_early(ctx: QueryCtx) -> Any:
    return [row.id async for row in ctx.db.query(Odd)]


READS: list[Road] = [
    lambda ctx: ctx.db.query(Odd).collect(),
    lambda ctx: ctx.db.query(Odd).order("desc").first(),
    lambda ctx: ctx.db.query(Odd).with_index(Odd.by_id, id=2).unique(),
    lambda ctx: ctx.db.get(Odd, "2"),
    page,
    stop_early,
]
WRITES: list[Road] = [lambda ctx: ctx.db.patch(Odd, "2", count=3)]


def database(url: str) -> list[tuple[str, str]]:
    return SQLITE if url.startswith("sqlite") else POSTGRES


def create(url: str) -> str:
    types = (f"{name} {'' if url.startswith('sqlite') else kind}" for name, kind in COLUMNS.items())
    return f"create table odd (id integer primary key, {', '.join(types)})"


def names(error: object, column: str) -> bool:
    said = str(error)
    return "RowInvalid" in f"{type(error).__name__} {said}" and {"odd", "2", column} <= set(re.findall(r"\w+", said))


async def test_each_road_names_the_row_and_the_column(database_url: str) -> None:
    app, roads, wrong = App(), [*READS, *WRITES], []

    @app.internal_query
    async def read(ctx: QueryCtx, road: int) -> Any:
        await roads[road](ctx)

    @app.internal_mutation
    async def write(ctx: MutationCtx, road: int) -> Any:
        with pytest.raises(RowInvalid):
            await roads[road](ctx)
        await ctx.db.insert(Odd(id=3))  # the transaction goes on
        await ctx.db.delete(Odd, Id[Odd]("3"))
        await roads[road](ctx)

    @app.internal_query
    async def plain(ctx: QueryCtx, column: str) -> Any:
        return await ctx.sql(f"select id, {column} from odd order by id")

    await run_sql(database_url, create(database_url), "insert into odd (id) values (1), (2)")
    async with TestApp(app, database_url) as test:
        for column, literal in database(database_url):
            await sql(test, "delete from odd where id = 2", f"insert into odd (id, {column}) values (2, {literal})")
            for road in range(len(roads)):
                call = test.run_query(read, road=road) if road < len(READS) else test.run_mutation(write, road=road)
                error: object = (await asyncio.gather(call, return_exceptions=True))[0]
                if not names(error, column):
                    wrong.append((column, literal, road, type(error).__name__, str(error)[:300]))
                if "Python cannot represent" not in str(error):
                    continue
                with pytest.raises(RowInvalid, match=f"column {column}"):
                    await test.run_query(plain, column=column)
    assert wrong == []


async def test_tasks_and_outboxes_go_on_and_name_the_row(database_url: str) -> None:
    """Rows that are older than the program, and rows that are captured."""
    app, done = App(), set[tuple[str, int]]()

    @app.reactive_task(Odd, watch=("moment", "day", "span", "amount", "data"), retry=ONCE, name="task")
    async def task(ctx: TaskCtx[Odd]) -> None:
        done.add(("task", (await ctx.get_document()).id))

    @app.reactive_task(Odd, filter=lambda row: row.id > 0, retry=ONCE, batch=7, name="batch")
    async def batch(ctx: TaskBatchCtx[Odd]) -> None:
        done.update(("batch", row.id) for row in (await ctx.get_documents()).values())

    @app.outbox(Odd, name="out", on_failure="park", retry=ONCE)
    async def out(ctx: ActionCtx, row: Odd) -> None:
        done.add(("out", row.id))

    odd = dict(enumerate(database(database_url), 101))
    good = {*range(1, 101, 9)}
    rows = [f"insert into odd (id) values ({number})" for number in good]
    rows += [f"insert into odd (id, {column}) values ({number}, {value})" for number, (column, value) in odd.items()]
    await run_sql(database_url, create(database_url), *rows[::2])
    async with TestApp(app, database_url) as test:
        await test.run_until_idle(raise_errors=False)
        await sql(test, *rows[1::2])
        await test.run_until_idle(raise_errors=False)
        assert done >= {(name, number) for name in ("task", "batch", "out") for number in good}
        records = (await app.tasks.records(test, TaskFilter(state="failed"), limit=200)).records
        told = [(record.task, str(record.key), str(record.error)) for record in records]
        messages = (await app.outboxes.messages(test, "out", limit=200)).messages
        told += [("out", str(one.key), str(one.error)) for one in messages]
    wrong = []
    for number, (column, value) in odd.items():
        for name in ("task", "batch", "out"):
            errors = [error for task, key, error in told if (task, key) == (name, str(number))]
            good_error = any("RowInvalid" in e and "odd" in e and column in e and str(number) in e for e in errors)
            if not good_error and (name, number) not in done:
                wrong.append((name, number, column, value, errors))
    assert wrong == []
