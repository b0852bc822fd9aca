"""Values of tables that SQLAlchemy or Django own: each program finds, reads and refuses the rows of the other."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import new_class
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from stage.reactive import Stage, settle

from penstock import Id, Index, MutationCtx, PaginationOptions, Table, UniqueViolation, UserTable, gte, lt
from penstock.testing import TestApp


class Size(enum.Enum):
    small = "small"
    tall = "tall"
    vast = "vast"
    wide = "wide"


DAY = datetime(2026, 1, 1, 10)
UUIDS = [UUID(f"{place}5a5d745-fe69-4e71-ba16-38291f5814ee") for place in "15af"]
TIMES = [DAY, DAY + timedelta(milliseconds=500), DAY + timedelta(seconds=1, microseconds=5), DAY + timedelta(days=1)]
CASES: dict[str, tuple[Any, Any, list[Any]]] = {  # the owner's type, the annotation, and values in their order
    "uuid": (sa.Uuid, UUID, UUIDS),
    "uuid as text": (sa.Uuid(as_uuid=False), UUID, UUIDS),
    "datetime": (sa.DateTime, datetime, TIMES),
    "datetime with zone": (sa.DateTime(timezone=True), datetime, [one.replace(tzinfo=UTC) for one in TIMES]),
    "timestamp": (sa.TIMESTAMP, datetime, TIMES),
    "date": (sa.Date, date, [date(2026, 1, day) for day in range(1, 5)]),
    "boolean": (sa.Boolean, bool, [False, True]),
    "numeric": (sa.Numeric(12, 2), Decimal, [*map(Decimal, ("-1.50", "0.00", "5.10", "1234567.89"))]),
    "integer": (sa.BigInteger, int, [-(2**62), 0, 7, 2**62]),
    "float": (sa.Double, float, [-1.5, 0.0, 0.1, 1e300]),
    "text": (sa.Text, str, ["", "a", "é", "ü'"]),
    "string": (sa.String(9), str, ["", "12", "1e5", "x"]),
    "bytes": (sa.LargeBinary, bytes, [b"", b"\0", b"a", b"\xff"]),
    "enum": (sa.Enum(Size), Size, [*Size]),
    "enum as text": (sa.Enum(Size, native_enum=False), Size, [*Size]),
}


class Owner:
    """A program that owns two tables: one by its key, one with an index."""

    def __init__(self, url: str, kind: Any, annotation: Any) -> None:
        self.engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        described = sa.MetaData()
        self.keyed = sa.Table("keyed", described, sa.Column("v", kind, primary_key=True), sa.Column("n", sa.Integer))
        key = sa.Column("n", sa.Integer, primary_key=True, autoincrement=False)
        self.item = sa.Table("item", described, key, sa.Column("v", kind, unique=True))
        described.create_all(self.engine)
        self.tables = [_table(name, annotation) for name in ("keyed", "item")]

    def do(self, statement: Any) -> list[Any]:
        with self.engine.begin() as connection:
            found = connection.execute(statement)
            return [tuple(row) for row in found] if found.returns_rows else []

    def add(self, *rows: tuple[int, Any]) -> None:
        for table in (self.keyed, self.item):
            for number, value in rows:
                self.do(table.insert().values(n=number, v=value))

    def find(self, value: Any) -> list[list[Any]]:
        """The rows with a value in each table."""
        return [self.do(sa.select(table.c.n, table.c.v).where(table.c.v == value)) for table in (self.keyed, self.item)]


def _table(name: str, annotation: Any) -> type[Table]:
    fields = {"n": int, "v": annotation, "by_v": Index("v")}
    body = {"__annotations__": {"n": int, "v": annotation}, "__module__": __name__, "by_v": fields["by_v"]}
    words = {"source": name, "key": "v" if name == "keyed" else "n", "managed": False, "live": True}
    return new_class(name.title(), (UserTable,), words, lambda space: space.update(body))


def ours(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def seen(owner: Owner, number: int, value: Any) -> None:
    """The owner finds a row by its value, and reads it back."""
    for table, rows in zip(("keyed", "item"), owner.find(value), strict=True):
        assert [(n, ours(v)) for n, v in rows] == [(number, ours(value) if not isinstance(v, str) else v) for n, v in rows]
        assert [n for n, _ in rows] == [number], table


@pytest.mark.parametrize("case", CASES)
async def test_each_program_finds_the_rows_of_the_other(database_url: str, case: str) -> None:
    kind, annotation, values = CASES[case]
    text_form = str if case == "uuid as text" else lambda value: value
    owner = Owner(database_url, kind, annotation)
    keyed, item = owner.tables
    stage = Stage(*owner.tables)
    stage.task(keyed, filter=lambda row: row.n >= 0)
    try:
        owner.add(*((number, text_form(value)) for number, value in enumerate(values[:2])))
        async with stage.open(database_url) as test:
            await _look(stage, test, keyed, item, values[:2])
            if values[2:]:
                added = [(number, ours(value)) for number, value in enumerate(values) if number > 1]
                for table in (keyed, item):
                    await stage.insert(test, *(table(n=number, v=value) for number, value in added))
                await _look(stage, test, keyed, item, values)
                for number, value in enumerate(values):
                    seen(owner, number, text_form(value))
                with pytest.raises(IntegrityError):
                    owner.add((9, text_form(values[2])))
            for table in (keyed, item):
                with pytest.raises(UniqueViolation):
                    await stage.insert(test, table(n=9, v=ours(values[0])))
            await settle(test)
            assert {one.doc_id for one in stage.taken()} == {*map(ours, values)}
            await stage.patch(test, keyed, ours(values[0]), n=7)
            assert [n for n, _ in owner.find(text_form(values[0]))[0]] == [7]
            await stage.delete(test, keyed, ours(values[0]))
            await stage.delete(test, item, 0)
            assert owner.find(text_form(values[0])) == [[], []]
            await stage.patch(test, item, 1, v=ours(values[0]))
            assert [n for n, _ in owner.find(text_form(values[0]))[1]] == [1]
    finally:
        owner.engine.dispose()


async def _look(stage: Stage, test: TestApp, keyed: Any, item: Any, values: list[Any]) -> None:
    """Find rows on every road."""
    told = list(enumerate(map(ours, values)))
    numbers = [number for number, _ in told]

    async def step(ctx: MutationCtx) -> None:
        for table in (keyed, item):
            rows = await ctx.db.query(table).with_index(table.by_v).collect()
            assert [(row.n, row.v) for row in rows] == told
            for place, (number, value) in enumerate(told):
                one = await ctx.db.get(table, value if table is keyed else number)
                assert one is not None
                assert (one.n, one.v) == (number, value)

                async def by(**given: Any) -> list[int]:
                    return [row.n for row in await ctx.db.query(table).with_index(table.by_v, **given).collect()]

                assert await by(v=value) == [number]
                assert await by(v=gte(value)) == numbers[place:]
                assert await by(v=lt(value)) == numbers[:place]
                found = await ctx.db.query(table).filter(lambda row: row.v == value).collect()
                assert [row.n for row in found] == [number]
            paged, cursor = list[int](), None
            while True:
                page = await ctx.db.query(table).with_index(table.by_v).paginate(PaginationOptions(num_items=1, cursor=cursor))
                paged += [row.n for row in page.page]
                if page.is_done:
                    break
                cursor = page.continue_cursor
            assert paged == numbers

    await stage.do(test, step)
