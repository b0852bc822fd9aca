"""Whatever a query asks of whatever table, it gives what Python finds among all rows; see `stage.livetables`."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID

import pytest
from stage.examples import examples
from stage.livetables import SORTS, Made, Plan, Sort, make_plan, make_table, run_plan
from stage.stories import tell_in

from penstock import App, MutationCtx, NotUnique, QueryCtx, Range, UniqueViolation, ValueInvalid
from penstock.clock import Random, random_of
from penstock.testing import TestApp

VERBS = ["collect", "take", "first", "unique", "break", "count", "sum", "min", "max", "groups", "pages"]
SUMMED = {"integer", "choice", "real", "decimal", "long", "span"}
UNORDERED = {"boolean", "bytes", "uuid", "json"}
ROWS, PLANS = 40, 200
ENDS: dict[str, list[Any]] = {  # values besides those of `stage.livetables`
    "text": [
        " ",
        "\x01\x7f\u2028",
        "\uffee",
        "\U0010ffff",
        "e\N{COMBINING ACUTE ACCENT}",
        "'; drop table made0; --",
        "%s",
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


def own_table(dice: Random, name: str) -> Made:
    """A table of penstock's own, without rules."""
    while (made := make_table(dice, name, "")).created or hasattr(made.table, "rules"):
        """Another one is made."""
    more = {name: ENDS.get(kind_of(sort), []) for name, sort in made.sorts.items()}
    return made._replace(
        sorts={name: sort._replace(values=sort.values + more[name]) for name, sort in made.sorts.items()}
    )


def kind_of(sort: Sort) -> str:
    return next(name for name, one in SORTS.items() if one.sqlite is sort.sqlite)


def row_of(dice: Random, made: Made) -> Any:
    return made.table(
        **{
            name: None if made.optional[name] and dice.random() < 0.3 else dice.choice(sort.values)
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
    found.sort(key=lambda row: ([place(getattr(row, name)) for name in index], row.id))
    if plan.filtered is not None:
        found = [row for row in found if len(repr(getattr(row, plan.filtered))) % 2 == 0]
    return found if plan.direction == "asc" else found[::-1]


def wanted_of(plan: Plan, rows: list[Any]) -> Any:
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
        refused = plan.filtered is not None
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


@pytest.mark.both_stores
@pytest.mark.parametrize("seed", range(examples(10)))
async def test_a_query_gives_what_python_finds_among_all_rows(database_url: str, seed: int) -> None:
    dice = random_of(seed)
    tables = [own_table(dice, f"made{number}") for number in range(3)]
    app = App(tables=[made.table for made in tables])
    write, read, _ = tell_in(app)

    async def fill(ctx: MutationCtx) -> None:
        for made in tables:
            for _ in range(ROWS):
                try:
                    await ctx.db.insert(row_of(dice, made))
                except UniqueViolation:
                    """There is one with these values."""

    async def look(ctx: QueryCtx) -> None:
        everything = {made.table: await ctx.db.query(made.table).collect() for made in tables}
        for _ in range(PLANS):
            plan = make_plan(dice, tables, dice.choice(VERBS))
            wanted = wanted_of(plan, rows_of(plan, everything[plan.made.table]))
            try:
                found = await run_plan(ctx, plan, None)
            except (NotUnique, ValueInvalid) as error:
                found = type(error)
            if plan.verb == "pages":
                found = [page.page for page in found]
            assert alike(found, wanted), f"seed {seed}: {plan} of {plan.made.said}"

    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)
        await backend.run_query(read, look)
