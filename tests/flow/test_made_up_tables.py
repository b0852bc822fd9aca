"""Whatever is asked of whatever table, or written to it, is what Python makes of its rows; see `flow.livetables`."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from flow.livetables import SORTS, Made, Plan, Sort, key_of, make_plan, make_table, run_plan, scan_of
from stage.databases import HOSTILE, run_sql
from stage.needs import examples
from stage.stories import tell_in

from penstock import (
    App,
    MutationCtx,
    NotUnique,
    PaginationOptions,
    QueryCtx,
    Range,
    RowNotFound,
    UniqueViolation,
    UsageError,
    ValueInvalid,
    public,
)
from penstock.clock import Random, random_of
from penstock.identity.caller import SYSTEM, Caller
from penstock.identity.identity import Identity
from penstock.schema.table import definition_of
from penstock.testing import TestApp

VERBS = ["collect", "take", "first", "unique", "break", "count", "sum", "min", "max", "groups", "pages"]
SUMMED = {"integer", "choice", "real", "decimal", "long", "span"}
UNORDERED = {"boolean", "bytes", "uuid", "json"}
ROWS, PLANS = 40, 120
ENDS: dict[str, list[Any]] = {  # values besides those of `flow.livetables`
    "text": [
        *HOSTILE,
        " ",
        "\x01\x7f\u2028",
        "\uffee",
        "\U0010ffff",
        "e\N{COMBINING ACUTE ACCENT}",
        "'; drop table made0; --",
    ],
    "integer": [-(2**63), 2**63 - 1, 2**53 + 1],
    "real": [5e-324, 1e-300, float("inf")],
    "bytes": [b"\0\xff", b"\xff" * 100],
    "time": [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
    "day": [date.min, date.max],
    "span": [timedelta(days=-(10**7)), timedelta(microseconds=-1), timedelta(days=10**7)],
    "decimal": [Decimal("-0"), Decimal("1E+20"), Decimal("1.500")],
    "long": [Decimal(10) ** 39, Decimal("1E-39"), Decimal("-0"), Decimal("1.500")],
    "uuid": [UUID(int=2**128 - 1), UUID(int=2**127)],
}


def table_of(dice: Random, name: str) -> Made:
    """A table of penstock's own, or of another program."""
    while True:
        made = make_table(dice, name, "sqlite")
        kinds = {column: kind_of(sort) for column, sort in made.sorts.items()}
        if not (made.created and "long" in kinds.values()):
            more = {column: sort.values + ENDS.get(kinds[column], []) for column, sort in made.sorts.items()}
            return made._replace(
                sorts={column: sort._replace(values=more[column]) for column, sort in made.sorts.items()}
            )


def created(made: Made, lite: bool) -> str:
    """How another program makes its table, with the usual types."""
    columns = [f"{name} {(sort.sqlite if lite else sort.postgres)[0]}" for name, sort in made.sorts.items()]
    name = made.table.__name__.lower()
    return f"create table {name} ({', '.join(columns)}, primary key ({', '.join(keys_of(made)[::-1])}))"


def keys_of(made: Made) -> list[str]:
    return [name for name in made.sorts if name.startswith("k")]


def kind_of(sort: Sort) -> str:
    return next(name for name, one in SORTS.items() if one.sqlite is sort.sqlite)


def row_of(dice: Random, made: Made) -> Any:
    return made.table(
        **{
            name: None if made.optional.get(name) and dice.random() < 0.3 else dice.choice(sort.values)
            for name, sort in made.sorts.items()
        }
    )


def place(value: Any) -> Any:
    """Where a value stands in an order, NULL first."""
    value = value.value if isinstance(value, enum.Enum) else value
    return (value is not None, 0 if value is None else value)


def lies_in(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Range):
        return bool(value == wanted)
    if value is None:
        return False
    if wanted.lower is not None and (place(value), wanted.lower[1]) < (place(wanted.lower[0]), True):
        return False
    return wanted.upper is None or (place(value), not wanted.upper[1]) <= (place(wanted.upper[0]), False)


def rows_of(plan: Plan, everything: Sequence[Any]) -> list[Any]:
    """The rows of a plan in its order."""
    index = () if plan.through is None else plan.through.columns
    found = [row for row in everything if all(lies_in(getattr(row, name), one) for name, one in plan.where.items())]
    names = [*index, *(keys_of(plan.made) or ["id"])]
    found.sort(key=lambda row: [place(getattr(row, name)) for name in names])
    if plan.filtered is not None:
        found = [row for row in found if len(repr(getattr(row, plan.filtered))) % 2 == 0]
    return found if plan.direction == "asc" else found[::-1]


def wanted_of(plan: Plan, rows: list[Any], *, asks_python: bool) -> Any:
    """What a plan gives, or the class of the error that it raises."""
    values = [value for row in rows if (value := getattr(row, plan.column)) is not None]
    kind = kind_of(plan.made.sorts[plan.column])
    answers: dict[str, Callable[[], Any]] = {
        "collect": lambda: rows,
        "take": lambda: rows[: plan.size],
        "break": lambda: rows[: max(plan.size, 1)],
        "first": lambda: rows[0] if rows else None,
        "unique": lambda: NotUnique if len(rows) > 1 else rows[0] if rows else None,
        "count": lambda: len(rows),
        "pages": lambda: [rows[: max(plan.size, 1)], rows[max(plan.size, 1) :][: max(plan.size, 1)]],
        "sum": lambda: sum_of(kind, values),
        "min": lambda: min(values, key=place, default=None),
        "max": lambda: max(values, key=place, default=None),
        "groups": lambda: groups_of(plan, rows),
    }
    if plan.verb in {"sum", "min", "max", "groups"}:
        refused = plan.filtered is not None or asks_python
        refused |= plan.verb == "sum" and kind not in SUMMED
        refused |= (plan.verb in {"min", "max"} or (plan.verb == "groups" and not plan.size % 2)) and (
            kind in UNORDERED
        )
        if refused:
            return ValueInvalid
    return answers[plan.verb]()


def sum_of(kind: str, values: list[Any]) -> Any:
    if kind in {"decimal", "long"}:
        with localcontext(prec=100):
            return sum(values, Decimal(0))
    return sum(values, SORTS[kind].values[1] * 0)


def groups_of(plan: Plan, rows: list[Any]) -> Any:
    left = () if plan.through is None else plan.through.columns[len(plan.where) :]
    if not left or any(isinstance(one, Range) for one in plan.where.values()):
        return ValueInvalid
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(getattr(row, left[0]), []).append(row)
    if plan.size % 2:
        return {value: len(some) for value, some in groups.items()}
    columns = {
        value: [one for row in some if (one := getattr(row, plan.column)) is not None] for value, some in groups.items()
    }
    return {value: max(some, key=place, default=None) for value, some in columns.items()}


def alike(found: Any, wanted: Any) -> bool:
    if isinstance(found, float):
        return math.isclose(found, wanted)
    return bool(found == wanted) and type(found) is type(wanted)


async def made_app(url: str, tables: list[Made]) -> tuple[App, Any]:
    """An app over tables, and what runs parts of a test in it."""
    await run_sql(url, *(created(made, url.startswith("sqlite")) for made in tables if made.created))
    app = App(tables=[made.table for made in tables])
    return app, tell_in(app)


def rule_of(made: Made, caller: Caller) -> Any:
    """The rule by which a caller sees rows of a table, if there is one."""
    rules = definition_of(made.table).rules
    return None if rules is None or caller.is_system else rules.read


def asks_python(made: Made, rule: Any) -> bool:
    """Whether SQL cannot say a rule."""
    column = inspect.getclosurevars(rule).nonlocals["column"]
    return "repr" in rule.__code__.co_names or kind_of(made.sorts[column]) == "json"


async def check_ends(scan: Any, dice: Random, rows: list[Any]) -> None:
    """A page from any row to any other one."""
    first, last = sorted(dice.choices(range(len(rows) + 1), k=2))
    if first < last:
        start, end = [(await scan.paginate(num_items=n)).continue_cursor if n else None for n in (first, last)]
        page = await scan.paginate(PaginationOptions(cursor=start, end_cursor=end))
        assert page.page == rows[first:last], scan


async def look(ctx: QueryCtx, dice: Random, tables: list[Made], known: list[list[Any]], caller: Caller) -> None:
    """Ask for rows of tables, each known with all its rows."""
    for _ in range(PLANS):
        plan = make_plan(dice, tables, dice.choice(VERBS))
        rule, everything = rule_of(plan.made, caller), known[tables.index(plan.made)]
        seen = [row for row in everything if rule is None or rule(row, caller.identity)]
        wanted = wanted_of(plan, rows_of(plan, seen), asks_python=rule is not None and asks_python(plan.made, rule))
        try:
            found = await run_plan(ctx, plan, None)
        except (NotUnique, ValueInvalid, UsageError) as error:
            found = NotUnique if isinstance(error, NotUnique) else ValueInvalid
        if plan.verb == "pages":
            ends = [page.is_done for page in found]
            found = [page.page for page in found]
            if plan.filtered is None and rule is None:
                count, size = len(rows_of(plan, seen)), max(plan.size, 1)
                assert ends == [count <= size, count <= 2 * size], plan
                await check_ends(scan_of(ctx, plan), dice, rows_of(plan, seen))
        assert alike(found, wanted), f"{plan} of {plan.made.said} for {caller}"
        for row in everything[:2]:
            one = await ctx.db.get(plan.made.table, key_of(plan.made, row))
            assert one == (row if row in seen else None)


@pytest.mark.both_stores
@pytest.mark.parametrize("seed", range(examples(20)))
async def test_a_query_gives_each_caller_what_python_finds_among_all_rows(database_url: str, seed: int) -> None:
    dice = random_of(seed)
    tables = [table_of(dice, f"made{number}") for number in range(3)]
    app, (write, read, _) = await made_app(database_url, tables)

    @app.query(access=public)
    async def asked(ctx: QueryCtx, story: Any) -> None:
        await story(ctx)

    async def fill(ctx: MutationCtx) -> None:
        for made in tables * ROWS:
            with suppress(UniqueViolation):
                await ctx.db.insert(row_of(dice, made))

    async def rows(ctx: QueryCtx) -> list[list[Any]]:
        return [await ctx.db.query(made.table).collect() for made in tables]

    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)
        known = await backend.run_query(read, rows)
        await backend.run_query(read, partial(look, dice=dice, tables=tables, known=known, caller=SYSTEM))
        for identity in (None, Identity(subject="ada", issuer="test")):
            story = partial(look, dice=dice, tables=tables, known=known, caller=Caller(identity))
            await backend.with_identity(identity).run_query(asked, story)


# ----- writes


STEPS = 150
Row = dict[str, Any]
Rows = dict[Any, Row]


class Model:
    """A table, its rows as they should be, and the verbs that change both."""

    def __init__(self, dice: Random, made: Made) -> None:
        self.dice, self.made, self.rows = dice, made, Rows()
        self.gone: list[Any] = []
        self.verbs: list[Callable[[MutationCtx], Any]] = [self.insert, self.patch, self.replace, self.delete]
        keys = keys_of(made)
        self.unique = {tuple(index.columns): index.name for index in made.table.__indexes__ if index.unique}
        self.unique |= {tuple(keys): "the key"} if keys else {}

    def fields(self, row: Any) -> Row:
        return {name: getattr(row, name) for name in self.made.sorts}

    def some_key(self) -> Any:
        """The key of a row, or of one that is gone."""
        return self.dice.choice([*self.rows, *self.rows, *self.gone[-2:]] or [None])

    def taken(self, fields: Row, key: Any) -> list[Any]:
        """What is unique and another row has it."""
        found = list[Any]()
        for columns, name in self.unique.items():
            values = [fields[column] for column in columns]
            others = [[row[column] for column in columns] for other, row in self.rows.items() if other != key]
            if None not in values and values in others:
                found.append(name)
        return found

    async def refused(self, call: Awaitable[Any], taken: list[Any]) -> None:
        with pytest.raises(UniqueViolation) as caught:
            await call
        assert caught.value.facts["table"] == definition_of(self.made.table).name
        several = sum(index.unique for index in self.made.table.__indexes__) > 1  # and which of them, no store says
        named = [None, *taken] if several else taken
        assert self.made.created or caught.value.facts["index"] in named

    async def insert(self, ctx: MutationCtx) -> None:
        row = row_of(self.dice, self.made)
        if taken := self.taken(self.fields(row), None):
            await self.refused(ctx.db.insert(row), taken)
            return
        key = await ctx.db.insert(row)
        assert key not in self.rows
        self.rows[key] = self.fields(row)
        if not self.made.created:
            stored: Any = await ctx.db.get(self.made.table, key)
            assert stored.creation_time == ctx.now()

    async def patch(self, ctx: MutationCtx) -> None:
        fields = self.fields(row_of(self.dice, self.made))
        names = self.dice.sample([*fields], k=self.dice.randint(1, len(fields)))
        await self.change(ctx, self.some_key(), {name: fields[name] for name in names}, replaces=False)

    async def replace(self, ctx: MutationCtx) -> None:
        key, fields = self.some_key(), self.fields(row_of(self.dice, self.made))
        if self.dice.random() < 0.8:
            fields |= {name: self.rows[key][name] for name in keys_of(self.made) if key in self.rows}
        await self.change(ctx, key, fields, replaces=True)

    async def change(self, ctx: MutationCtx, key: Any, changes: Row, *, replaces: bool) -> None:
        """Patch or replace a row."""
        table: Any = self.made.table
        if key is None:
            return
        call = ctx.db.replace(table, key, table(**changes)) if replaces else ctx.db.patch(table, key, **changes)
        before = self.rows.get(key)
        moves = any(
            name in changes and (not replaces or not before or changes[name] != before[name])
            for name in keys_of(self.made)
        )
        if before is None or moves:
            with pytest.raises((RowNotFound, ValueInvalid) if moves else RowNotFound):
                await call
        elif taken := self.taken(before | changes, key):
            await self.refused(call, taken)
        else:
            row = await call
            self.rows[key] = before | changes
            assert (row.id, self.fields(row)) == (key, self.rows[key])

    async def delete(self, ctx: MutationCtx) -> None:
        key = self.some_key()
        if key is None:
            return
        if key not in self.rows:
            with pytest.raises(RowNotFound):
                await ctx.db.delete(self.made.table, key)
            return
        await ctx.db.delete(self.made.table, key)
        self.gone.append(key)
        del self.rows[key]

    async def check(self, ctx: Any) -> None:
        found = {row.id: self.fields(row) for row in await ctx.db.query(self.made.table).collect()}
        assert found == self.rows
        for key in [*self.rows][:3]:
            assert self.fields(await ctx.db.get(self.made.table, key)) == self.rows[key]
        for key in self.gone[-3:]:
            assert (await ctx.db.get(self.made.table, key) is None) is (key not in self.rows)


@pytest.mark.both_stores
@pytest.mark.parametrize("seed", range(examples(20)))
async def test_a_table_has_the_rows_that_were_written(database_url: str, seed: int) -> None:
    dice = random_of(seed)
    models = [Model(dice, table_of(dice, f"made{number}")) for number in range(3)]
    app, (write, read, _) = await made_app(database_url, [model.made for model in models])

    async def steps(ctx: MutationCtx) -> None:
        for _ in range(STEPS):
            model = dice.choice(models)
            await dice.choice([model.insert, *model.verbs])(ctx)
            if dice.random() < 0.1:
                await model.check(ctx)

    async def look(ctx: QueryCtx) -> None:
        for model in models:
            await model.check(ctx)

    async with TestApp(app, database_url) as backend:
        for _ in range(2):
            await backend.run_mutation(write, steps)
            await backend.run_query(read, look)
