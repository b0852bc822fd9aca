"""Changes are sent late, and with others; whatever reads in between finds what a list in Python has."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg
import pytest
from stage.needs import examples

from penstock import App, DataError, Id, Index, MutationCtx, QueryCtx, Table, gte
from penstock.clock import Random, random_of
from penstock.testing import TestApp

app = App()
crew = app.workpool("crew")
STORIES = 40
NUMBERS = itertools.count()
VERBS = [
    "insert",
    "insert",
    "patch",
    "move",
    "delete",
    "herd",
    "name",
    "from",
    "heavy",
    "all",
    "get",
    "inner",
    "undone",
]
TEXTS = ["", "a", "a'b", "\\", "\\'", "é", "e\u0301", "💶", "$1", "a\nb", ";--", "A"]


class Sheep(Table):
    herd: int
    name: str | None
    number: int
    weight: float = 0.0

    by_herd = Index("herd", "name", "number")
    by_weight = Index("weight")


class Odd(Table):
    day: date | None = None
    at: datetime | None = None
    number: Decimal | None = None
    weight: float | None = None
    data: bytes | None = None
    count: int | None = None

    by_day, by_at, by_number = Index("day"), Index("at"), Index("number")
    by_weight, by_data, by_count = Index("weight"), Index("data"), Index("count")


ODD: dict[str, list[Any]] = {
    "day": [date.min, date.max, date(1, 1, 2), date(9999, 12, 30), date(2000, 2, 29)],
    "at": [datetime(year, 1, 2, 3, tzinfo=UTC) for year in (1, 2, 1969, 9998, 9999)],
    "number": [Decimal(text) for text in ("0", "-1E+5", "1E-20", "123456789012.345")],
    "weight": [0.0, -1.5, 5e-324, 1.7976931348623157e308],
    "data": [b"", b"\x00\xff", b"'\\"],
    "count": [0, -(2**63), 2**63 - 1],
}  # fmt: skip


@app.internal_mutation
async def write_odd(ctx: MutationCtx, name: str, number: int, patch: bool) -> Id[Odd]:
    value: dict[str, Any] = {name: ODD[name][number]}
    if not patch:
        return await ctx.db.insert(Odd(**value))
    row = await ctx.db.insert(Odd())
    await ctx.db.get(Odd, row)
    await ctx.db.patch(Odd, row, **value)
    return row


@app.internal_query
async def find_odd(ctx: QueryCtx, name: str, number: int) -> list[Id[Odd]]:
    index: Any = getattr(Odd, f"by_{name}")
    ranged: Any = ctx.db.query(Odd).with_index(index, **{name: ODD[name][number]})
    return [row.id async for row in ranged]


class Step(NamedTuple):
    """What one call of a ctx does."""

    verb: str
    herd: int
    name: str | None
    number: int  # of each one there is
    weight: float


def story(dice: Random) -> list[Step]:
    return [
        Step(
            dice.choice(VERBS),
            dice.randint(0, 3),
            dice.choice([None, *TEXTS]),
            next(NUMBERS),
            dice.choice([0.0, 1.5, 1e300]),
        )
        for _ in range(dice.randint(1, 8))
    ]


class Flock:
    """The rows as they should be, in the order in which they came."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []

    def of(self, herd: int) -> list[list[Any]]:
        """Those of a herd, in the order of its index."""
        own = [row for row in self.rows if row[0] == herd]
        return sorted(own, key=lambda row: (row[1] is not None, (row[1] or "").encode(), row[2]))

    def do(self, step: Step) -> Any:
        verb, herd, name, number, weight = step
        first = next(iter(self.of(herd)), None)
        if verb == "insert":
            self.rows.append([herd, name, number, weight])
        elif verb in {"patch", "inner"} and first:
            first[3] = weight
        elif verb == "move" and first:
            first[:2] = [(herd + 1) % 4, name]
        elif verb == "delete" and first:
            self.rows.remove(first)
        elif verb in {"herd", "get"}:
            return [[*row] for row in self.of(herd)][: 1 if verb == "get" else None]
        elif verb == "name":
            return [[*row] for row in self.of(herd) if row[1] == name]
        elif verb == "from":
            return [[*row] for row in self.of(herd) if row[1] is not None and row[1].encode() >= (name or "").encode()]
        elif verb == "heavy":
            return sum(row[3] == weight for row in self.rows)
        elif verb == "all":
            return sorted(([*row] for row in self.rows), key=repr)
        return None


async def do(ctx: MutationCtx, step: Step) -> Any:
    verb, herd, name, number, weight = step
    sheep, by = ctx.db.query(Sheep), Sheep.by_herd
    ranges = {
        "herd": sheep.with_index(by, herd=herd),
        "name": sheep.with_index(by, herd=herd, name=name),
        "from": sheep.with_index(by, herd=herd, name=gte(name or "")),
        "all": sheep,
    }
    found: Any = [] if verb == "get" else None
    if verb in ranges:
        found = [values(row) for row in await ranges[verb].collect()]
    elif verb == "heavy":
        found = await sheep.with_index(Sheep.by_weight, weight=weight).count()
    elif verb == "insert":
        await ctx.db.insert(Sheep(herd=herd, name=name, number=number, weight=weight))
    elif row := await ranges["herd"].first():
        found = await change(ctx, step, row.id)
    return sorted(found, key=repr) if verb == "all" else found


async def change(ctx: MutationCtx, step: Step, first: Id[Sheep]) -> Any:
    verb, herd, name, _, weight = step
    if verb == "patch":
        await ctx.db.patch(Sheep, first, weight=weight)
    elif verb == "move":
        await ctx.db.patch(Sheep, first, herd=(herd + 1) % 4, name=name)
    elif verb == "delete":
        await ctx.db.delete(Sheep, first)
    elif verb == "get":
        return [values(await ctx.db.get(Sheep, first))]
    elif verb == "inner":
        await ctx.run_mutation(weigh, first, weight)
    elif verb == "undone":
        with pytest.raises(ZeroDivisionError):
            await ctx.run_mutation(weigh, first, weight, fails=True)
    return None


def values(row: Any) -> list[Any]:
    return [row.herd, row.name, row.number, row.weight]


@app.internal_mutation
async def weigh(ctx: MutationCtx, row_id: Id[Sheep], weight: float, fails: bool = False) -> None:
    await ctx.db.patch(Sheep, row_id, weight=weight + fails)
    if fails:
        await ctx.db.delete(Sheep, row_id)
        raise ZeroDivisionError


@app.mutation
async def name_all(ctx: MutationCtx, names: list[str]) -> list[str]:
    """Insert and rename sheep, without a look in between."""
    ids = [await ctx.db.insert(Sheep(herd=9, name=name, number=number)) for number, name in enumerate(names)]
    for row_id, name in zip(ids, reversed(names), strict=True):
        await ctx.db.patch(Sheep, row_id, name=name)
    return [row.name or "" for row in await ctx.db.query(Sheep).collect()]


@app.mutation
async def live(ctx: MutationCtx, number: int) -> list[Any]:
    """Do the steps of a story; what they found."""
    return [await do(ctx, step) for step in stories[number]]


stories: list[list[Step]] = []


@pytest.mark.both_stores
@pytest.mark.parametrize("seed", range(examples(15)))
async def test_what_is_kept_back_is_seen_by_all_that_reads_it(database_url: str, seed: int) -> None:
    dice, flock = random_of(seed), Flock()
    stories[:] = [story(dice) for _ in range(STORIES)]
    alone, shared = range(STORIES // 2), range(STORIES // 2, STORIES)
    async with TestApp(app, database_url) as backend:
        found = [await backend.run_mutation(live, number) for number in alone]
        jobs = await crew.enqueue_batch(backend, live, [{"number": number} for number in shared])
        await backend.run_until_idle()
        found += [(await backend.job(job)).result for job in jobs]  # type: ignore[union-attr]  # it is there
    for number, steps in enumerate(stories):
        assert found[number] == [flock.do(step) for step in steps], steps


@pytest.mark.both_stores
async def test_whatever_is_written_is_spelled_and_comes_back(database_url: str) -> None:
    """Texts that would end a literal, whether or not a backslash escapes in the server's own literals."""
    parts = ["'", "\\", "''", "\\'", ";", "--", "$1", "$$", "e'", "\n", "\x01", "💶", "); drop table sheep; select ("]
    dice = random_of(7)
    names = [*parts, *("".join(dice.choices(parts, k=dice.randint(2, 6))) for _ in range(100))]
    for times, setting in enumerate(("on", "off"), 1):
        if database_url.startswith("postgres"):
            with psycopg.connect(database_url, autocommit=True) as admin:
                admin.execute(f"alter database {admin.info.dbname} set standard_conforming_strings = {setting}")
        async with TestApp(app, database_url) as backend:
            assert sorted(await backend.run_mutation(name_all, names)) == sorted(names * times)


@pytest.mark.both_stores
async def test_a_value_that_was_written_is_found_by_an_equal_one(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for name, values in ODD.items():
            for number in range(len(values)):
                rows = [await backend.run_mutation(write_odd, name, number, patch) for patch in (False, True)]
                assert await backend.run_query(find_odd, name, number) == rows, (name, values[number])


@pytest.mark.both_stores
async def test_a_change_that_a_trigger_of_ones_own_refuses_leaves_nothing(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        assert await backend.run_mutation(name_all, ["a"]) == ["a"]
        if database_url.startswith("postgres"):
            with psycopg.connect(database_url, autocommit=True) as admin:
                admin.execute("create function no() returns trigger language plpgsql as "
                              "'begin raise exception ''not today''; end'")  # fmt: skip
                admin.execute("create trigger no before update on sheep for each row execute function no()")
        else:
            with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as lite:
                lite.execute("create trigger no before update on sheep begin select raise(abort, 'not today'); end")
        stories[:] = [
            [Step("insert", 3, "b", 1, 0.0)],
            [Step("insert", 9, "c", 1, 0.0), Step("patch", 9, None, 0, 1.0)],
        ]
        await backend.run_mutation(live, 0)
        with pytest.raises(DataError, match="not today"):
            await backend.run_mutation(live, 1)
        stories[:] = [[Step("all", 0, None, 0, 0.0)]]
        assert [row[1] for row in (await backend.run_mutation(live, 0))[0]] == ["b", "a"]
