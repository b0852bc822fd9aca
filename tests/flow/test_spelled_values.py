"""Values of tables that SQLAlchemy or Django own: each program finds, reads and refuses the rows of the other."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import new_class
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from stage.outboxes import OutboxStage, drain, run_sql
from stage.reactive import Stage, settle

from penstock import Index, MutationCtx, PaginationOptions, UniqueViolation, UserTable, gt, gte, lt, lte
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores


class Size(enum.Enum):
    small = "small"
    tall = "tall"
    vast = "vast"
    wide = "wide"


DAY = datetime(2026, 1, 1, 10)  # noqa: DTZ001 - columns without a zone hold UTC
UUIDS = [UUID(f"{place}5a5d745-fe69-4e71-ba16-38291f5814ee") for place in "15af"]
TIMES = [DAY, DAY + timedelta(milliseconds=500), DAY + timedelta(seconds=1, microseconds=5), DAY + timedelta(days=1)]
CASES: dict[str, tuple[Any, Any, Sequence[Any]]] = {  # the owner's type, the annotation, and values in their order
    "uuid": (sa.Uuid, UUID, UUIDS),
    "datetime": (sa.DateTime, datetime, TIMES),
    "datetime with zone": (sa.DateTime(timezone=True), datetime, [one.replace(tzinfo=UTC) for one in TIMES]),
    "date": (sa.Date, date, [date(2026, 1, day) for day in range(1, 5)]),
    "boolean": (sa.Boolean, bool, [False, True]),
    "numeric": (sa.Numeric(12, 2), Decimal, [*map(Decimal, ("-1.50", "0.00", "5.10", "1234567.89"))]),
    "integer": (sa.BigInteger, int, [-(2**62), 0, 7, 2**62]),
    "float": (sa.Double, float, [-1.5, 0.0, 0.1, 1e300]),
    "text": (sa.Text, str, ["", "12", "1e5", "ü'"]),
    "bytes": (sa.LargeBinary, bytes, [b"", b"\0", b"a", b"\xff"]),
    "enum": (sa.Enum(Size), Size, [*Size]),
    "enum as text": (sa.Enum(Size, native_enum=False), Size, [*Size]),
}


class Owner:
    """A program that owns two tables: the values are the key of one, and unique in the other."""

    def __init__(self, url: str, kind: Any, annotation: Any) -> None:
        self.engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        described, number = sa.MetaData(), sa.Column("n", sa.Integer, primary_key=True, autoincrement=False)
        self.keyed = sa.Table("keyed", described, sa.Column("v", kind, primary_key=True), sa.Column("n", sa.Integer))
        self.item = sa.Table("item", described, number, sa.Column("v", kind, unique=True, nullable=False))
        described.create_all(self.engine)
        self.classes = [declared(name, key, annotation) for name, key in (("keyed", "v"), ("item", "n"))]

    def do(self, statement: Any) -> list[Any]:
        with self.engine.begin() as connection:
            found = connection.execute(statement)
            return [(n, ours(v)) for n, v in found] if found.returns_rows else []

    def add(self, number: int, value: Any) -> None:
        for table in (self.keyed, self.item):
            self.do(table.insert().values(n=number, v=value))

    def find(self, value: Any) -> list[list[Any]]:
        """The rows with a value in each table."""
        return [self.do(sa.select(table.c.n, table.c.v).where(table.c.v == value)) for table in (self.keyed, self.item)]


def declared(name: str, key: str, annotation: Any) -> Any:
    body: dict[str, Any] = {"__annotations__": {"n": int, "v": annotation}, "__module__": __name__}
    if annotation is not Any:
        body["by_v"] = Index("v")
    words = {"source": name, "key": key, "managed": False}
    return new_class(name.title(), (UserTable,), words, lambda space: space.update(body))


def ours(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


@pytest.mark.parametrize("case", CASES)
async def test_each_program_finds_the_rows_of_the_other(database_url: str, case: str) -> None:
    kind, annotation, values = CASES[case]
    owner, mine = Owner(database_url, kind, annotation), [*map(ours, values)]
    keyed, item = owner.classes
    stage = OutboxStage(keyed, item)
    stage.task(keyed, filter=lambda row: row.n >= 0)
    stage.outbox(keyed)
    try:
        for number, value in enumerate(values[:2]):
            owner.add(number, value)
        async with stage.open(database_url) as test:
            await look(stage, test, owner.classes, mine[:2])
            for number, value in [*enumerate(mine)][2:]:
                await stage.insert(test, keyed(n=number, v=value), item(n=number, v=value))
            await look(stage, test, owner.classes, mine)
            for number, value in enumerate(values):
                assert owner.find(value) == [[(number, ours(value))]] * 2
            for table in owner.classes:
                with pytest.raises(UniqueViolation):
                    await stage.insert(test, table(n=9, v=mine[0]))
            with pytest.raises(IntegrityError):
                await asyncio.to_thread(owner.add, 9, values[-1])  # a writer on this event loop may have the lock
            await settle(test)
            assert {one.doc_id for one in stage.taken()} == {*mine}
            await drain(test)
            assert {one.row.v for one in stage.got if one.row is not None} == {*mine}
            await stage.patch(test, keyed, mine[0], n=7)
            assert owner.find(values[0])[0] == [(7, mine[0])]
            await stage.delete(test, keyed, mine[0])
            await stage.delete(test, item, 0)
            assert owner.find(values[0]) == [[], []]
            await stage.patch(test, item, 1, v=mine[0])
            assert owner.find(values[0])[1] == [(1, mine[0])]
    finally:
        owner.engine.dispose()


async def look(stage: Stage, test: TestApp, tables: Sequence[Any], values: Sequence[Any]) -> None:
    """Find rows, whose numbers are the places of their values, on every road."""
    numbers = [*range(len(values))]

    async def by(ctx: MutationCtx, table: Any, **given: Any) -> list[int]:
        return [row.n for row in await ctx.db.query(table).with_index(table.by_v, **given).collect()]

    async def paged(ctx: MutationCtx, table: Any, cursor: str | None = None) -> list[int]:
        options = PaginationOptions(num_items=1, cursor=cursor)
        page = await ctx.db.query(table).with_index(table.by_v).paginate(options)
        found = [row.n for row in page.page]
        return found if page.is_done else found + await paged(ctx, table, page.continue_cursor)

    async def filtered(ctx: MutationCtx, table: Any, value: Any) -> list[int]:
        return [row.n for row in await ctx.db.query(table).filter(lambda row: row.v == value).collect()]

    async def step(ctx: MutationCtx) -> None:
        for table, keys in zip(tables, (values, numbers), strict=True):
            assert await by(ctx, table) == await paged(ctx, table) == numbers
            for number, value in enumerate(values):
                one: Any = await ctx.db.get(table, keys[number])
                assert (one.n, one.v) == (number, value)
                assert await by(ctx, table, v=value) == await filtered(ctx, table, value) == [number]
                assert await by(ctx, table, v=gte(value)) == numbers[number:]
                assert await by(ctx, table, v=gt(value)) == numbers[number + 1 :]
                assert await by(ctx, table, v=lte(value)) == numbers[: number + 1]
                assert await by(ctx, table, v=lt(value)) == numbers[:number]

    await stage.do(test, step)


@pytest.mark.parametrize("kind", ["DATETIME", "datetime"])
async def test_times_with_fewer_digits_behind_the_seconds_are_found(sqlite_url: str, kind: str) -> None:
    """As the database's own CURRENT_TIMESTAMP writes them."""
    table = declared("item", "n", datetime)
    forms = ["10:00:00", "10:00:00.000000", "10:00:00.5", "10:00:00.500", "10:00:00.500000", "10:00:01"]
    listed = ", ".join(f"({number}, '2026-01-01 {form}')" for number, form in enumerate(forms))
    await run_sql(
        sqlite_url, f"create table item (n integer primary key, v {kind})", f"insert into item values {listed}"
    )
    stage = Stage(table)
    async with stage.open(sqlite_url) as test:

        async def step(ctx: MutationCtx) -> None:
            for value, first, last in ((TIMES[0], 0, 2), (TIMES[1], 2, 5), (DAY + timedelta(seconds=1), 5, 6)):
                for given, found in (
                    (ours(value), range(first, last)),
                    (gt(ours(value)), range(last, 6)),
                    (lt(ours(value)), range(first)),
                ):
                    rows = await ctx.db.query(table).with_index(table.by_v, v=given).collect()
                    assert [row.n for row in rows] == [*found]

        await stage.do(test, step)
