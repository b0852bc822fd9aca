"""Rows and filters at random, and what Python and both databases say of each pair."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import asyncpg
from hypothesis import strategies as st
from pydantic import BaseModel

from penstock import Table
from penstock.reactive.evaluate import holds, row_values
from penstock.reactive.expression import Condition, Not
from penstock.reactive.standins import Clause, Operand, Row, Site, condition_of
from penstock.schema.table import TableDefinition, definition_of
from penstock.store.conditions import ConditionSql, condition_sql
from penstock.store.ddl import create_table
from penstock.store.dialect import Dialect
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.sqlite.functions import register_functions
from penstock.store.statements import TableStatements
from penstock.store.values import stored_values


class Part(BaseModel):
    city: str | None = None
    size: float = 0
    lines: list[str] = []


class Thing(Table):
    """A column or two of each kind."""

    text: str | None = None
    other: str | None = None
    status: Literal["new", "paid", "done"] = "new"
    number: int | None = None
    second: int = 0
    real: float | None = None
    ratio: float = 0.0
    flag: bool | None = None
    blob: bytes | None = None
    at: datetime | None = None
    until: datetime | None = None
    day: date | None = None
    span: timedelta | None = None
    price: Decimal | None = None
    cost: Decimal = Decimal(0)
    uuid: UUID | None = None
    part: Part | None = None
    data: Any = None


DEFINITION = definition_of(Thing)
SITE = Site("Test", DEFINITION)

TEXTS = st.sampled_from(
    ["", "a", "A", "b", "ab", "abc", "a%", "a_b", "$1", "$$", "%s", "'", "''", '"', "\\", "\\'", "é", "e\u0301", "ž", "Z", "ß",
     "😀", "\uffff", "\n", "a\n", " a", "a ", "0", "10", "9", "null", "paid", "x'00'", "--", "\x7f", "/*", "?1", "{0}", "\t"]
) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)  # fmt: skip
INTEGERS = st.sampled_from([0, 1, -1, 2, 7, 100, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]) | st.integers(-9, 9)
REALS = st.sampled_from(
    [0.0, -0.0, 1.0, -1.5, 0.1, 0.2, 0.30000000000000004, 1e15, 1e16, 2.0**53, 1e30, 1e31, 1e-30, 1e-31, 1e300, -1e300,
     5e-324, 1.7976931348623157e308, 9.223372036854775807e18, float("inf"), float("-inf")]
) | st.floats(allow_nan=False, allow_infinity=False)  # fmt: skip
DECIMALS = st.sampled_from(
    list(map(Decimal, ["0", "-0", "1", "1.0", "1.00", "0.1", "1E+2", "100", "1E-7", "-3.50", "1E+400", "1E-400", "9" * 40]))
) | st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-999, max_value=999)  # fmt: skip
DATETIMES = st.sampled_from(
    [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
     datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
) | st.datetimes(timezones=st.just(UTC), min_value=datetime(2025, 12, 1), max_value=datetime(2026, 2, 1))  # fmt: skip
DATES = st.sampled_from([date(2026, 1, 1), date.min, date.max, date(1970, 1, 1)]) | st.dates()
SPANS = st.sampled_from(
    [timedelta(0), timedelta(hours=1), timedelta(microseconds=-1), timedelta(days=400), timedelta(days=100_000_000), timedelta(days=30)]
) | st.timedeltas(min_value=timedelta(days=-3), max_value=timedelta(days=3))  # fmt: skip
UUIDS = st.sampled_from([UUID(int=0), UUID(int=2**128 - 1), UUID(int=2**127)]) | st.uuids()
BLOBS = st.sampled_from([b"", b"\0", b"\xff", b"a", b"'"]) | st.binary(max_size=3)
JSON_NUMBERS = (
    st.sampled_from([0, 1, 2, -1, 1.0, 0.5, 2.5, 0.1, 1e16, 2**53 + 1, 1e300, -1e300, 5e-324, 2**63 - 1, 0.30000000000000004])
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
)
JSON_SCALARS = st.none() | st.booleans() | TEXTS | JSON_NUMBERS
KEYS = st.sampled_from(["a", "b", "a b", "é", "$", "0", "%", "'", "length", "A"])
JSON = st.recursive(
    JSON_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
PATTERNS = st.sampled_from(
    ["a", "^a", "a$", "^$", "", ".", "^.$", "^..$", r"\d", r"^\w+$", r"\W", r"\s", "[a-c]", "[^a-c]", "a|b", "^(?:a|b)+$", r"\$", r"\.", "%",
     "^[^\\n]*$", "é", "[é-ž]", "(a*)*b", "a{2}", "a{0,2}$", r"[\]\[\\-]", "😀", "'", "()", "^(|a)$", r"\n", "[$%]", r"\D$", "[^\\d]"]
)  # fmt: skip
PARTS = st.builds(Part, city=st.none() | TEXTS, size=st.floats(allow_nan=False, allow_infinity=False), lines=st.lists(TEXTS, max_size=3))


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 4).flatmap(lambda chance: st.none() if chance == 0 else values)


ROWS: st.SearchStrategy[Thing] = st.builds(
    Thing,
    text=optional(TEXTS),
    other=optional(TEXTS),
    status=st.sampled_from(["new", "paid", "done"]),
    number=optional(INTEGERS),
    second=INTEGERS,
    real=optional(REALS),
    ratio=REALS,
    flag=optional(st.booleans()),
    blob=optional(BLOBS),
    at=optional(DATETIMES),
    until=optional(DATETIMES),
    day=optional(DATES),
    span=optional(SPANS),
    price=optional(DECIMALS),
    cost=DECIMALS,
    uuid=optional(UUIDS),
    part=optional(PARTS),
    data=JSON,
)

ROW = Row(SITE)


def fields(*names: str) -> st.SearchStrategy[Operand]:
    """Stand-ins are made when they are asked for, as they cannot be elements: nothing may compare them."""
    return st.sampled_from(names).map(lambda name: getattr(ROW, name))


def paths() -> st.SearchStrategy[Operand]:
    steps = st.lists(KEYS | st.integers(-2, 2), max_size=3)

    def walk(given: list[Any], found: Any = None) -> Any:
        found = ROW.data if found is None else found
        for step in given:
            found = found[step]
        return found

    return steps.map(walk) | st.sampled_from(
        [(), ("city",), ("size",), ("lines",), ("lines", 0)]
    ).map(lambda given: walk(list(given), ROW.part))


def texts() -> st.SearchStrategy[Operand]:
    return fields("text", "other")


def lengths() -> st.SearchStrategy[Operand]:
    return (texts() | fields("blob") | paths()).map(lambda one: one.length())


def integers() -> st.SearchStrategy[Operand]:
    plain = fields("number", "second") | lengths()
    both = st.tuples(plain, st.sampled_from("+-*"), plain | INTEGERS)
    return plain | both.map(computed) | st.tuples(both.map(computed), st.sampled_from("+-*"), plain).map(computed)


def reals() -> st.SearchStrategy[Operand]:
    plain = fields("real", "ratio")
    modest = st.sampled_from([0.0, 0.1, 2.0, -3.5, 1e30])
    once = st.tuples(plain, st.sampled_from("+-*"), plain | integers_plain() | modest).map(computed)
    return plain | once | st.tuples(once, st.sampled_from("+-*"), plain).map(computed)


def integers_plain() -> st.SearchStrategy[Operand]:
    return fields("number", "second") | st.builds(lambda: ROW.number * ROW.second)


def decimals() -> st.SearchStrategy[Operand]:
    plain = fields("price", "cost")
    once = st.tuples(plain, st.sampled_from("+-*"), plain | fields("number") | st.sampled_from([Decimal("0.5"), 3]))
    return plain | once.map(computed) | st.tuples(once.map(computed), st.sampled_from("+-*"), plain).map(computed)


def times() -> st.SearchStrategy[Operand]:
    plain = fields("at", "until")
    once = st.tuples(plain, st.sampled_from("+-"), fields("span") | SPANS).map(computed)
    return plain | once


def spans() -> st.SearchStrategy[Operand]:
    between = st.tuples(fields("at"), st.just("-"), fields("until", "at")).map(computed)
    return fields("span") | between | st.tuples(fields("span"), st.sampled_from("+-"), SPANS).map(computed)


def computed(given: tuple[Any, str, Any]) -> Any:
    left, operator, right = given
    return left + right if operator == "+" else left - right if operator == "-" else left * right


def compared(given: tuple[Any, str, Any]) -> Any:
    left, operator, right = given
    return {
        "==": lambda: left == right,
        "!=": lambda: left != right,
        "<": lambda: left < right,
        "<=": lambda: left <= right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
    }[operator]()


ORDERS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
EQUALITIES = st.sampled_from(["==", "!="])


def comparisons(terms: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    within = st.tuples(terms, st.lists(values | st.none(), min_size=1, max_size=3)).map(lambda pair: pair[0].in_(pair[1]))
    return st.tuples(terms, ORDERS, values | terms).map(compared) | within | terms.map(lambda one: one.is_none())


def json_comparisons() -> st.SearchStrategy[Any]:
    ordered = st.tuples(paths(), ORDERS, TEXTS | JSON_NUMBERS)
    equal = st.tuples(paths(), EQUALITIES, JSON | paths() | fields("text", "number", "flag"))
    within = st.tuples(paths(), st.lists(JSON_SCALARS, min_size=1, max_size=3)).map(lambda pair: pair[0].in_(pair[1]))
    has = st.tuples(paths(), JSON_SCALARS).map(lambda pair: pair[0].has(pair[1]))
    return ordered.map(compared) | equal.map(compared) | within | has | paths() | paths().map(lambda one: one.is_none())


def text_tests() -> st.SearchStrategy[Any]:
    found = texts() | paths()
    tests = st.tuples(found, st.sampled_from(["startswith", "endswith", "contains"]), TEXTS)
    return tests.map(lambda one: getattr(one[0], one[1])(one[2])) | st.tuples(found, PATTERNS).map(
        lambda pair: pair[0].matches(pair[1])
    )


LEAVES: st.SearchStrategy[Any] = st.one_of(
    comparisons(texts(), TEXTS),
    comparisons(fields("status"), st.sampled_from(["new", "paid", "done"])),
    comparisons(integers(), INTEGERS),
    st.tuples(integers(), ORDERS, reals()).map(compared),
    comparisons(reals(), REALS),
    st.tuples(fields("flag"), EQUALITIES, st.booleans() | st.none()).map(compared),
    fields("flag"),
    comparisons(fields("blob"), BLOBS),
    comparisons(times(), DATETIMES),
    comparisons(fields("day"), DATES),
    comparisons(spans(), SPANS),
    comparisons(decimals(), DECIMALS),
    st.tuples(decimals(), ORDERS, integers()).map(compared),
    comparisons(fields("uuid"), UUIDS),
    json_comparisons(),
    text_tests(),
)
CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    LEAVES,
    lambda inner: st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1])
    | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
    | inner.map(lambda one: ~one),
    max_leaves=4,
).map(lambda value: condition_of(SITE, value))


# ----- what each of them says


@dataclass(frozen=True)
class Said:
    """What a database says of each row: row by row, condition by condition."""

    sql: ConditionSql
    rows: tuple[bool, ...]


def ids(count: int) -> list[str]:
    return [f"thing_{number:026d}" for number in range(count)]


def parameters(dialect: Dialect, rows: Sequence[Table]) -> list[list[Any]]:
    statements = TableStatements(DEFINITION, dialect)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        statements.encode(DEFINITION.encode_row(row, key, now)) for key, row in zip(ids(len(rows)), rows, strict=True)
    ]


def expected(rows: Sequence[Table], conditions: Sequence[Condition]) -> list[list[bool]]:
    """What Python says of row objects."""
    found = [row_values(DEFINITION, row, DEFINITION.positions) for row in rows]
    return [[holds(condition, values) for values in found] for condition in conditions]


def of_stored(dialect: Dialect, definition: TableDefinition, rows: Sequence[Any], condition: Condition) -> list[bool]:
    """What Python says of rows as the driver gives them."""
    names = [column.name for column in definition.columns]
    found = [stored_values(dialect, definition, dict(zip(names, row, strict=True)), names) for row in rows]
    return [holds(condition, values) for values in found]


def with_opposites(conditions: Sequence[Condition]) -> list[Condition]:
    return [one for condition in conditions for one in (condition, Not(condition))]


class LiteThings:
    """The table in SQLite: a connection of penstock's, and one of another program."""

    def __init__(self, path: str) -> None:
        self.path = path
        with closing(self.connect()) as connection:
            for sql in create_table(DEFINITION, SQLITE):
                connection.execute(sql)
            connection.execute("create table matched (condition integer, id text)")

    def connect(self, *, own: bool = True) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("pragma synchronous = off")
        if own:
            register_functions(connection)
        return connection

    def store(self, rows: Sequence[Table]) -> list[Any]:
        """Store rows; gives them as the driver does."""
        statements = TableStatements(DEFINITION, SQLITE)
        with closing(self.connect()) as connection:
            connection.execute("delete from thing")
            connection.execute("begin")
            connection.executemany(statements.load().sql, parameters(SQLITE, rows))
            connection.execute("commit")
            return connection.execute(f"select {statements.columns} from thing order by id").fetchall()

    def select(self, conditions: Sequence[Condition], *, own: bool) -> list[Said]:
        with closing(self.connect(own=own)) as connection:
            said = [condition_sql(one, DEFINITION, SQLITE, "r", own=own) for one in conditions]
            return _selected(said, lambda sql: connection.execute(sql).fetchall())

    def fire(self, conditions: Sequence[Condition]) -> list[Said]:
        """Have triggers tell, on a connection of another program."""
        said = [condition_sql(one, DEFINITION, SQLITE, "new") for one in conditions]
        with closing(self.connect(own=False)) as connection:
            connection.execute("delete from matched")
            for number, one in enumerate(said):
                connection.execute(
                    f"create trigger t{number} after update on thing when {one.sql} "
                    f"begin insert into matched values ({number}, new.id); end"
                )
            connection.execute("update thing set second = second")
            found = set(connection.execute("select condition, id from matched").fetchall())
            keys = [key for (key,) in connection.execute("select id from thing order by id")]
            for number in range(len(said)):
                connection.execute(f"drop trigger t{number}")
        return [Said(one, tuple((number, key) in found for key in keys)) for number, one in enumerate(said)]


class PostgresThings:
    """The table in PostgreSQL, on one connection."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.connection = self.run(asyncpg.connect(url, statement_cache_size=0))
        for sql in create_table(DEFINITION, POSTGRES):
            self.run(self.connection.execute(sql))
        self.run(self.connection.execute("create table matched (condition integer, id text)"))
        self.run(
            self.connection.execute(
                "create function note() returns trigger language plpgsql as "
                "$$ begin insert into matched values (tg_argv[0]::integer, new.id); return null; end $$"
            )
        )
        self.run(self.connection.execute("set time zone 'Asia/Kathmandu'"))  # that of whoever writes

    def run(self, work: Any) -> Any:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self.connection.close())
        self._runner.close()

    def store(self, rows: Sequence[Table]) -> list[Any]:
        """Store rows; gives them as the driver does."""
        statements = TableStatements(DEFINITION, POSTGRES)
        self.run(self.connection.execute("truncate thing"))
        self.run(self.connection.executemany(statements.load().sql, parameters(POSTGRES, rows)))
        found = self.run(self.connection.fetch(f"select {statements.columns} from thing order by id"))
        return [tuple(row) for row in found]

    def select(self, conditions: Sequence[Condition], *, own: bool = False) -> list[Said]:
        said = [condition_sql(one, DEFINITION, POSTGRES, "r", own=own) for one in conditions]
        return _transposed(said, [tuple(row) for row in self.run(self.connection.fetch(_select(said)))])

    def fire(self, conditions: Sequence[Condition]) -> list[Said]:
        """Have triggers tell."""
        said = [condition_sql(one, DEFINITION, POSTGRES, "new") for one in conditions]
        triggers = [
            f"create trigger t{number} after update on thing for each row when {one.sql} execute function note('{number}')"
            for number, one in enumerate(said)
        ]
        self.run(self.connection.execute("truncate matched"))
        self.run(self.connection.execute(";".join(triggers)))
        self.run(self.connection.execute("update thing set second = second"))
        found = {tuple(row) for row in self.run(self.connection.fetch("select condition, id from matched"))}
        keys = [row["id"] for row in self.run(self.connection.fetch("select id from thing order by id"))]
        self.run(self.connection.execute(";".join(f"drop trigger t{number} on thing" for number in range(len(said)))))
        return [Said(one, tuple((number, key) in found for key in keys)) for number, one in enumerate(said)]


def _select(said: Sequence[ConditionSql]) -> str:
    columns = ", ".join(f"coalesce({one.sql}, false) as c{number}" for number, one in enumerate(said))
    return f"select {columns} from thing as r order by id"


def _selected(said: Sequence[ConditionSql], fetch: Any) -> list[Said]:
    return _transposed(said, fetch(_select(said)))


def _transposed(said: Sequence[ConditionSql], rows: Sequence[Any]) -> list[Said]:
    return [Said(one, tuple(bool(row[number]) for row in rows)) for number, one in enumerate(said)]


__all__ = ["Clause", "LiteThings", "PostgresThings"]
