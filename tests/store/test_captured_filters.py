"""Filters and watches as interests of the change feed: what triggers tell of a row's life is what Python says of it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
from stage.feed import NOW, opened
from store.filters import DEFINITION, Dice, Thing, parameters

from penstock.changes.change import CapturedChange
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.clock import random_of
from penstock.reactive.evaluate import holds, read_each, row_values, same
from penstock.reactive.expression import Condition
from penstock.reactive.tracing import Watch, trace_filter, trace_watch
from penstock.store.open import sqlite_path
from penstock.store.push.migrate import push
from penstock.store.sql.conditions import condition_sql, watch_sql
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.statements import TableStatements
from penstock.store.sql.values import decode_captures
from penstock.store.store import Store

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS = ("{row}", "{row}.text", "$penstock$", "it's \\ {0} %s $1", "old.", "a\nb", "😀")
ROWS, CHANGES = 20, 150

Values = Mapping[str, Any]
Execute = Callable[[str, Sequence[Any]], Awaitable[Any]]

# Each with a watch; None watches the whole row.
CASES: dict[str, tuple[Callable[[Any], Any] | None, Any]] = {
    "everything": (None, None),
    "a text": (lambda row: row.status == "paid", ("text", "status")),
    "hostile texts": (lambda row: row.text.in_(TEXTS) | row.other.contains("{row}"), ("other",)),
    "a pattern": (lambda row: row.text.matches("^.?[a-z$]"), ("number", "text")),
    "no pattern": (lambda row: ~row.text.matches("a"), None),
    "a decimal": (lambda row: row.price > Decimal("0.10000000000000000001"), ("price", "cost")),
    "decimals": (lambda row: row.price * 2 >= row.cost, (lambda row: row.price + row.cost,)),
    "a point in time": (lambda row: row.at + timedelta(days=1) > NEW_YEAR, ("until", lambda row: row.until - row.at)),
    "a float": (lambda row: (row.real * 2 < row.ratio) | (row.real >= 1.7976931348623157e308), ("real", "ratio")),
    "bytes": (lambda row: (row.blob == b"\xff") | (row.blob.length() > 1), ("blob",)),
    "JSON": (lambda row: ~row.part.lines.has("a") & (row.part.city >= "a"), ("part.city", "data")),
    "numbers in JSON": (lambda row: row.part.size > 0.1, ("part.size", lambda row: row.data[0] == "a")),
    "what is not there": (lambda row: row.number.is_none() | (row.flag == True), ("flag", "uuid", "day", "span")),  # noqa: E712
}


@dataclass(frozen=True)
class Case:
    """A filter and a watch, and the interest made of them."""

    condition: Condition | None
    watch: Watch
    interest: Interest

    def kind(self, before: Values | None, after: Values | None) -> str | None:
        """What Python says of a write, if it is wanted."""
        kind = self._kind(before, after)
        return kind if kind in self.interest.kinds else None

    def _kind(self, before: Values | None, after: Values | None) -> str | None:
        was, is_now = self._means(before), self._means(after)
        if after is None or before is None:
            return "delete" if was else "enter" if is_now else None
        if was is not is_now:
            return "enter" if is_now else "leave"
        looks = (read_each(self.watch.expressions, values) for values in (before, after))
        return "change" if was and not same(*looks) else None

    def _means(self, values: Values | None) -> bool:
        return values is not None and (self.condition is None or holds(self.condition, values))

    def decided(self, change: CapturedChange, dialect: Dialect) -> str | None:
        """What a captured change is; if triggers tell of more than is meant, the reader asks Python."""
        return change.kind if self.interest.exact else self.kind(*self.sides(change, dialect))

    def sides(self, change: CapturedChange, dialect: Dialect) -> tuple[Values | None, Values | None]:
        """What was captured of the row before and after."""
        texts = {"before": change.before, "after": change.after}
        before, after = (
            None if text is None else decode_captures(dialect, DEFINITION, change.values(when), self.interest.before)
            for when, text in texts.items()
        )
        return before, after


def cases(dialect: Dialect) -> Iterator[Case]:
    for name, (function, watch) in CASES.items():
        condition = None if function is None else trace_filter(DEFINITION, function, name)
        asked = None if condition is None else condition_sql(condition, DEFINITION, dialect, "{row}")
        traced = trace_watch(DEFINITION, watch, name)
        told = watch_sql(traced, DEFINITION, dialect, "{row}")
        columns = tuple(dict.fromkeys((*(asked.columns if asked else ()), *told.columns)))
        interest = Interest(
            name=name,
            table=DEFINITION.name,
            key=["id"],
            matches=asked.sql if asked else None,
            watches=None if watch is None else told.expressions,
            before=columns,
            after=columns,
            # Any column differs if it is written in another way: a decimal as 1.0 or 1.00.
            exact=(asked is None or asked.exact) and watch is not None and told.exact,
        )
        yield Case(condition, traced, interest)
        if condition is not None:
            yield Case(
                condition, traced, replace(interest, name=f"{name}, moves", kinds=["enter", "leave"], watches=[])
            )


@asynccontextmanager
async def other_program(url: str) -> AsyncIterator[Execute]:
    """A connection with nothing of penstock's."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_path(url), isolation_level=None)) as lite:

            async def execute(sql: str, values: Sequence[Any]) -> None:
                lite.execute(sql, values)

            yield execute
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "set time zone 'Asia/Kathmandu'; set extra_float_digits = -3; set intervalstyle = iso_8601"
        )
        yield lambda sql, values: connection.execute(sql, *values)
    finally:
        await connection.close()


class Rows:
    """Rows at random, mostly of values that meet what is asked."""

    def __init__(self) -> None:
        self.random = random_of(11)
        self.dice = Dice(self.random)

    def thing(self) -> Thing:
        row = self.dice.thing()
        return self._with(row, text=self.random.choice(TEXTS)) if self.random.random() < 0.5 else row

    def changed(self, row: Thing) -> Thing:
        """Another row in its place, of which one to three columns differ."""
        other = self.thing()
        names = self.random.sample(list(Thing.model_fields), self.random.randint(1, 3))
        return self._with(row, **{name: getattr(other, name) for name in names})

    def _with(self, row: Thing, **changed: Any) -> Thing:
        return Thing(**{name: getattr(row, name) for name in Thing.model_fields} | changed)


async def test_triggers_tell_what_python_says(database_url: str) -> None:
    async with opened(database_url) as store:
        await push(store, [DEFINITION])
        await check(store, database_url)


async def check(store: Store, url: str) -> None:
    made, dialect = list(cases(store.dialect)), store.dialect
    numbers = await store.interests.declare([case.interest for case in made], NOW)
    wanted: dict[str, list[tuple[Any, ...]]] = {case.interest.name: [] for case in made}
    async for key, before, after in written(url, dialect):
        sides = [None if row is None else row_values(DEFINITION, row, DEFINITION.positions) for row in (before, after)]
        for case in made:
            kind = case.kind(*sides)
            wanted[case.interest.name] += [(kind, key, *sides)] if kind else []
    batch = await store.changes.read(BEGINNING, 100_000)
    assert batch.complete
    for number, case in zip(numbers, made, strict=True):
        own = [one for one in batch.changes if one.interest == number]
        found = [(case.decided(one, dialect), one.key_values()[0], *case.sides(one, dialect)) for one in own]
        compare([one for one in found if one[0]], wanted[case.interest.name], case)
    assert any(case.interest.exact for case in made), "or triggers have told of no kind by themselves"


async def written(url: str, dialect: Dialect) -> AsyncIterator[tuple[str, Thing | None, Thing | None]]:
    """Rows that another program inserts, updates and deletes; each as it was before and after."""
    statements, rows, names = TableStatements(DEFINITION, dialect), Rows(), tuple(DEFINITION.positions)
    things = [rows.thing() for _ in range(ROWS)]
    keys = [encoded[0] for encoded in parameters(dialect, things)]
    async with other_program(url) as execute:
        for key, thing, encoded in zip(keys, things, parameters(dialect, things), strict=True):
            await execute(statements.load().sql, encoded)
            yield key, None, thing
        for place in (number % ROWS for number in range(CHANGES)):
            before, after = things[place], rows.changed(things[place])
            things[place] = after
            await execute(statements.update(names).sql, [*parameters(dialect, things)[place], keys[place]])
            yield keys[place], before, after
        for key, thing in zip(keys, things, strict=True):
            await execute(statements.delete().sql, [key])
            yield key, thing, None


def compare(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]], case: Case) -> None:
    name = case.interest.name
    assert [one[:2] for one in found] == [one[:2] for one in wanted], name
    kinds = {kind for kind, *_ in found}
    common = {"enter", "change", "delete" if case.condition is None else "leave"}
    assert kinds >= common.intersection(case.interest.kinds), name
    columns = [column for column in case.interest.before if column in Thing.model_fields]
    for told, rows in zip(found, wanted, strict=True):
        for values, right in zip(told[2:], rows[2:], strict=True):
            for column in columns:
                assert values is right or same(values[column], right[column]), f"{name}: {column}"
