"""A watched query runs again if and only if a row that it read has changed, whoever changed it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import Field
from stage.outboxes import run_sql, sql
from stage.reactive import Stage
from stage.watching import settle, watched

from penstock import Id, Index, QueryCtx, Table
from penstock.clock import Random, random_of
from penstock.live.view import View
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp
from penstock.transaction.segments import Range

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Thing(Table):
    name: str
    rank: int | None = None
    price: Decimal = Field(default=Decimal(0), max_digits=40)
    cost: Decimal = Decimal(0)
    at: datetime = _NOW
    day: date = date(2026, 1, 1)
    done: bool = False
    weight: float = 0.0
    code: UUID = UUID(int=0)
    note: str = ""

    by_name = Index("name", "rank")
    by_price = Index("price", "name")
    by_cost = Index("name", "cost")
    by_at = Index("done", "at")
    by_day = Index("day", "weight")
    by_code = Index("code", "rank", "price")


_VALUES: dict[str, list[Any]] = {
    "name": ["", "a", "B", "b", "ä", "aa", "z\U0001f600", "ab c", "A"],
    "rank": [None, -5, 0, 1, 2**40, 7],
    "price": [Decimal(text) for text in ("0", "-1.5", "1.50", "1.5000000000000001", "9999999999999999.99", "0.1")],
    "cost": [Decimal(text) for text in ("0", "-1.5", "1.50", "0.1", "1e10", "123456.789")],
    "at": [_NOW + timedelta(microseconds=step) for step in (0, 1, 10**9, -(10**12), 10**6)],
    "day": [date(1999, 12, 31), date(2026, 1, 1), date(2026, 1, 2)],
    "done": [False, True],
    "weight": [0.0, 1.5, -2.25, 1e300, 0.1],
    "code": [UUID(int=0), UUID(int=1), UUID(int=2**127)],
}


def _index(choice: Random) -> Index:
    return choice.choice([Thing.by_name, Thing.by_price, Thing.by_cost, Thing.by_at, Thing.by_day, Thing.by_code])


def _query(choice: Random) -> _Query:
    index = _index(choice)
    columns = index.columns[: choice.randint(0, len(index.columns))]
    found: dict[str, Any] = {name: choice.choice(_VALUES[name]) for name in columns}
    if columns and choice.random() < 0.6:
        values = [value for value in _VALUES[columns[-1]] if value is not None]
        low, high = sorted(choice.choices(values, k=2))
        lower = (low, choice.random() < 0.5) if choice.random() < 0.7 else None
        upper = (high, choice.random() < 0.5) if choice.random() < 0.7 or lower is None else None
        found[columns[-1]] = Range(lower, upper)
    return _Query(index, found, choice.choice(["asc", "desc"]), choice.choice([None, None, 1, 2, 5]))


def _lies_in(fields: dict[str, Any] | None, where: dict[str, Any]) -> bool:
    if fields is None:
        return False
    for name, wanted in where.items():
        value = fields[name]
        if not isinstance(wanted, Range):
            if value != wanted:
                return False
            continue
        if value is None:
            return False
        if wanted.lower is not None and (value < wanted.lower[0] or (value == wanted.lower[0] and not wanted.lower[1])):
            return False
        if wanted.upper is not None and (value > wanted.upper[0] or (value == wanted.upper[0] and not wanted.upper[1])):
            return False
    return True


Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _Query:
    """A range of an index: all its rows are read, or the first ones."""

    index: Index
    where: dict[str, Any]
    direction: Literal["asc", "desc"]
    count: int | None

    def place(self, key: str, fields: dict[str, Any]) -> tuple[Any, ...]:
        values = [fields[name] for name in self.index.columns]
        return ([(value is not None, 0 if value is None else value) for value in values], key)

    def concern(self, found: list[str], before: Rows, after: Rows) -> tuple[bool, bool]:
        """Whether changes concern who has found these rows, and whether they may.

        What was read ends at a value of the first column that is not given.
        """
        changed = [key for key in before.keys() | after.keys() if repr(before.get(key)) != repr(after.get(key))]
        sides = [(key, side[key]) for key in changed for side in (before, after) if _lies_in(side.get(key), self.where)]
        if self.count is None or len(found) < self.count:
            return bool(sides), bool(sides)
        last, sign = self.place(found[-1], before[found[-1]]), operator.le if self.direction == "asc" else operator.ge
        places = [self.place(*side) for side in sides]
        depth = 1 + sum(not isinstance(value, Range) for value in self.where.values())
        loosely = any(sign(one[0][:depth], last[0][:depth]) for one in places)
        return any(sign(one, last) for one in places), loosely


def taken(view: View) -> dict[int, Any]:
    """The answers that a client gets next."""
    found = view.step()
    return {} if found is None else {number: one.result for number, one in found.answers.items()}


class Things(Stage):
    """Queries of random ranges, and writers of three kinds."""

    def __init__(self, choice: Random) -> None:
        super().__init__(Thing)
        self.choice = choice
        self.queries = [_query(choice) for _ in range(40)]

        @self.app.query
        async def things(ctx: QueryCtx, number: int) -> list[str]:
            asked = self.queries[number]
            scan = ctx.db.query(Thing).with_index(asked.index, **asked.where).order(asked.direction)
            return [row.id for row in await (scan.collect() if asked.count is None else scan.take(asked.count))]

        @self.app.query
        async def everything(ctx: QueryCtx) -> Rows:
            return {
                row.id: {name: getattr(row, name) for name in (*_VALUES, "note")}
                for row in await ctx.db.query(Thing).collect()
            }

        self.things, self.everything = things, everything

    def fields(self) -> dict[str, Any]:
        return {name: self.choice.choice(values) for name, values in _VALUES.items()}

    async def write(self, test: TestApp, keys: list[str]) -> tuple[str, str]:
        """Write a row or some; how, and the key of the one."""
        how = self.choice.choice(["insert", "patch", "patch", "delete", "update", "copy", "note", "twice"])
        key, fields = self.choice.choice(keys), self.fields()
        name = self.choice.choice(list(fields))
        if how == "insert":
            await self.insert(test, Thing(**fields), Thing(**self.fields()))
        elif how == "patch":
            await self.patch(test, Thing, key, **{name: fields[name]})
        elif how == "delete":
            await self.delete(test, Thing, key)
        elif how == "update":
            await sql(
                test,
                "update thing set rank = coalesce(rank, 0) + 1, weight = weight / 2 where rank is null or rank = 0",
            )
        elif how == "copy":
            await sql(test, f"update thing set name = 'b', price = (select max(price) from thing) where id = '{key}'")
        elif how == "note":  # in no index, but a part of each answer
            await self.patch(test, Thing, key, note=str(self.choice.random()))
        elif how == "twice":
            await sql(test, f"update thing set name = 'a' where id = '{key}'", f"delete from thing where id = '{key}'")
        return how, key


@pytest.mark.parametrize("seed", range(2))
async def test_queries_run_again_if_and_only_if_a_row_in_their_range_has_changed(database_url: str, seed: int) -> None:
    stage, sqlite = Things(random_of(seed)), database_url.startswith("sqlite")
    async with stage.open(database_url) as test:
        await stage.insert(test, *(Thing(**stage.fields()) for _ in range(20)))
        live = LiveQueries(test.runner, stage.app.definitions())
        views = [live.view(), live.view()]
        for number in range(len(stage.queries)):
            for view in views[: 1 + number % 2]:
                view.add(number, stage.things, {"number": number})
        entries = list(views[0].queries.values())
        await settle(live)
        await settle(live)  # the table is captured from now on
        seen: list[dict[int, Any]] = [taken(view) for view in views]
        rows = await test.run_query(stage.everything)
        for step in range(20):
            runs = [entry.runs for entry in entries]
            found = [await test.run_query(stage.things, number=number) for number in range(len(entries))]
            (how, key), before = await stage.write(test, list(rows)), rows
            await settle(live)
            rows = await test.run_query(stage.everything)
            for number, asked in enumerate(stage.queries):
                entry, said = entries[number], (seed, step, how, asked)
                assert entry.answer is not None
                result = await test.run_query(stage.things, number=number)
                assert entry.answer.result == result, said
                ran, (must, may) = entry.runs > runs[number], asked.concern(found[number], before, rows)
                assert ran or not must, ("stale", *said)
                written = sqlite and _lies_in(rows.get(key), asked.where)  # perhaps the same again
                assert may or written or not ran or how == "twice", ("ran in vain", *said, entry.causes[-1])
            for one, view in zip(seen, views, strict=True):
                news = taken(view)
                assert all(one[number] != result for number, result in news.items()), "nothing is given twice"
                one.update(news)
                assert one == {number: await test.run_query(stage.things, number=number) for number in one}


async def test_a_row_that_is_read_by_its_key_concerns_its_reader_and_no_other_row_does(database_url: str) -> None:
    class Line(Table, source="line", key=("tenant", "number"), managed=False, live=True):
        tenant: int
        number: int
        amount: int = 0

    stage = Stage(Thing, Line)

    @stage.app.query
    async def thing(ctx: QueryCtx, thing: Id[Thing]) -> bool:
        return await ctx.db.get(Thing, thing) is not None

    @stage.app.query
    async def line(ctx: QueryCtx, tenant: int, number: int) -> bool:
        return await ctx.db.get(Line, (tenant, number)) is not None

    columns = "tenant bigint not null, number bigint not null, amount bigint not null, primary key (tenant, number)"
    rows = "insert into line values (7, 1, 0), (7, 2, 0), (8, 1, 0)"
    await run_sql(database_url, f"create table line ({columns})", rows)
    async with stage.open(database_url) as test:
        live = LiveQueries(test.runner, stage.app.definitions())
        one, other = await stage.insert(test, Thing(name="a"), Thing(name="b"))
        entries = [watched(live, thing, thing=one)]
        entries += [watched(live, line, tenant=tenant, number=number) for tenant, number in ((7, 1), (9, 9))]
        await settle(live)
        await settle(live)  # the tables are captured from now on
        for change, concerned in (
            (stage.patch(test, Thing, one, rank=5), [True, False, False]),
            (stage.patch(test, Thing, other, rank=5), [False, False, False]),
            (stage.delete(test, Thing, one), [True, False, False]),
            (sql(test, "update line set amount = 1 where tenant = 7 and number = 1"), [False, True, False]),
            (sql(test, "update line set amount = 1 where number = 2 or tenant = 8"), [False, False, False]),
            (stage.insert(test, Line(tenant=9, number=9)), [False, False, True]),
        ):
            before = [entry.runs for entry in entries]
            await change
            await settle(live)
            assert [entry.runs > runs for entry, runs in zip(entries, before, strict=True)] == concerned
