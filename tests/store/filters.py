"""Rows and filters at random, and what Python and both databases say of each pair."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Annotated, Any, Literal
from uuid import UUID

import asyncpg
from pydantic import BaseModel, Field

from penstock import Table
from penstock.reactive.evaluate import holds, read_each, row_values, same
from penstock.reactive.expression import Condition, Expression, Not
from penstock.reactive.standins import Operand, Row, Site, condition_of, term_of
from penstock.reactive.tracing import Watch
from penstock.schema.table import TableDefinition, definition_of
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.conditions import ConditionSql, WatchSql, condition_sql, watch_sql
from penstock.store.sql.ddl import create_table
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.statements import TableStatements
from penstock.store.sql.values import decode_stored_values
from penstock.store.sqlite.dialect import SQLITE, number_or_text
from penstock.store.sqlite.functions import register_functions


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
    price: Annotated[Decimal, Field(max_digits=2001)] | None = None
    cost: Decimal = Decimal(0)
    uuid: UUID | None = None
    part: Part | None = None
    data: Any = None


class Owned(Table, source="owned", key="id", managed=False):
    """The same in a table of another program, which may hold anything."""

    id: str  # type: ignore[assignment]  # its own key
    text: str | None = None
    other: str | None = None
    status: str | None = None
    number: int | None = None
    second: int | None = None
    real: float | None = None
    ratio: float | None = None
    flag: bool | None = None
    blob: bytes | None = None
    at: datetime | None = None
    until: datetime | None = None
    day: date | None = None
    span: timedelta | None = None
    price: Decimal | None = None
    cost: Decimal | None = None
    uuid: UUID | None = None
    part: Any = None
    data: Any = None


DEFINITION = definition_of(Thing)
OWNED = definition_of(Owned)

TEXTS = ["", "a", "A", "b", "ab", "abc", "a%", "a_b", "$1", "$$", "%s", "'", "''", '"', "\\", "\\'", "é", "e\u0301",
    "ž", "Z", "ß", "😀",
         "\uffff", "\n", "a\n", " a", "a ", "0", "10", "9", "1e2", "null", "paid", "true", "x'00'", "--", "\x7f",
         "/*", "?1", "{0}", "\t",
         "é\u0301😀", "2026-01-01", "[1]"]  # fmt: skip
INTEGERS = [0, 1, -1, 2, 3, 5, 7, 100, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63 - 2, -(2**63), 2**62]
REALS = [0.0, -0.0, 1.0, -1.5, 0.1, 0.2, 0.3, 0.30000000000000004, 2.0, 5.0, 1e15, 1e16, 2.0**53, 1e30, 1e31, 1e-30,
    1e-31, 1e300,
         -1e300, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 9.223372036854775807e18, float("inf"),
         float("-inf"),
         0.1 + 0.7, 1 / 3, 123456789.123456789]  # fmt: skip
DECIMALS = list(
    map(Decimal, ["0", "-0", "1", "1.0", "1.00", "0.1", "0.10000000000000000001", "1E+2", "100", "1E-7", "-3.50",
    "2", "-0.1",
                  "1E+400", "-1E+400", "1E-400", "9" * 40, "1E+1000", "1E-1000", "0E-5", "12.5"])
)  # fmt: skip
DATETIMES = [
    datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), datetime(2026, 1, 1, 1,
    tzinfo=UTC),
    datetime(2025, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC),
    datetime(9999, 12, 31, tzinfo=UTC), datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC), datetime(1582, 10,
    10, tzinfo=UTC),
]  # fmt: skip
DATES = [date(2026, 1, 1), date(2025, 12, 31), date.min, date.max, date(1970, 1, 1), date(2024, 2, 29), date(999, 1, 1)]
SPANS = [timedelta(0), timedelta(hours=1), timedelta(microseconds=-1), timedelta(microseconds=1),
    timedelta(days=400), timedelta(days=394), timedelta(days=-755), timedelta(days=30),
         timedelta(days=100_000_000), timedelta(days=-100_000_000), timedelta(days=1), timedelta(days=366,
         seconds=1)]  # fmt: skip
UUIDS = [UUID(int=0), UUID(int=2**128 - 1), UUID(int=2**127), UUID("0a1b2c3d-0000-7000-8000-0123456789ab")]
BLOBS = [b"", b"\0", b"\xff", b"a", b"'", b"\xff\xff", b"a\0b"]
NUMBERS = [  # of JSON, which refuses a float that PostgreSQL would give back as an integer
    0,
    1,
    2,
    3,
    -1,
    1.0,
    0.5,
    2.5,
    0.1,
    10**16,
    2**53 + 1,
    5e-324,
    2**63 - 1,
    0.30000000000000004,
    1e-7,
]
KEYS = ["a", "b", "a b", "é", "$", "0", "%", "'", "length", "A", "?", "{x}", "a.b", "[0]"]
PATTERNS = [
    "a", "^a", "a$", "^$", "", ".", "^.$", "^..$", r"\d", r"^\w+$", r"\W", r"\s", "[a-c]", "[^a-c]", "a|b",
    "^(?:a|b)+$", r"\$", r"\.", "%",
    r"^[^\n]*$", "é", "[é-ž]", "(a*)*b", "a{2}", "a{0,2}$", r"[\]\[\\-]", "😀", "'", "()", "^(|a)$", r"\n", "[$%]",
    r"\D$", r"[^\d]", r"\\",
    r"^\S*$", "^[ -~]*$", "a?b?c?$", r"\{0\}", r"\*", "(^a|b$)", "[\x01-\x1f]", "^.{3}$", "[😀-😂]", r"[\w$]$",
]  # fmt: skip
METHODS = ["startswith", "endswith", "contains"]
ORDERS = ["==", "!=", "<", "<=", ">", ">="]


class Dice:
    """Makes rows and conditions at random, mostly of values that meet each other."""

    def __init__(self, random: Any, definition: TableDefinition = DEFINITION) -> None:
        self.random = random
        self.site = Site("Test", definition)
        self.row: Any = Row(self.site)

    # ----- rows

    def thing(self) -> Thing:
        """A row."""
        maybe = self._maybe
        return Thing(
            text=maybe(self.text), other=maybe(self.text), status=self._one(["new", "paid", "done"]),
            number=maybe(self.integer), second=self.integer(), real=maybe(self.real), ratio=self.real(),
            flag=maybe(lambda: self._one([True, False])), blob=maybe(lambda: self._one(BLOBS)), at=maybe(self.time),
            until=maybe(self.time), day=maybe(lambda: self._one(DATES)), span=maybe(self.span),
            price=maybe(self.decimal),
            cost=self.amount(), uuid=maybe(lambda: self._one(UUIDS)), part=maybe(self.part), data=self.json(),
        )  # fmt: skip

    def _one(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(choices)

    def _maybe(self, make: Any) -> Any:
        return None if self.random.random() < 0.2 else make()

    def text(self) -> Any:
        if self.random.random() < 0.7:
            return str(self._one(TEXTS))
        letters = [self._one(["a", "b", "0", " ", "é", "$", "\n", "\u2028", "\ud7ff", "\ue000"]) for _ in range(3)]
        return "".join(letters[: self.random.randint(0, 3)]) + chr(
            self.random.randint(0x10000, 0x10FFFF)
        ) * self.random.randint(0, 1)

    def integer(self) -> int:
        return int(self._one(INTEGERS)) if self.random.random() < 0.7 else self.random.randint(-9, 9)

    def real(self) -> Any:
        found = float(self._one(REALS)) if self.random.random() < 0.7 else self.random.uniform(-10, 10)
        return found + 0.0  # no minus zero, which columns of SQLite refuse

    def decimal(self) -> Decimal:
        if self.random.random() < 0.7:
            return Decimal(self._one(DECIMALS))
        return Decimal(self.random.randint(-300, 300)).scaleb(-self.random.randint(0, 2))

    def amount(self) -> Decimal:
        """A decimal of no more digits than SQLite's numbers keep."""
        return next(one for one in iter(self.decimal, None) if isinstance(number_or_text(one), float))

    def time(self) -> Any:
        if self.random.random() < 0.7:
            return self._one(DATETIMES)
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.random.randint(-(10**10), 10**10))

    def span(self) -> Any:
        return self._one(SPANS)

    def part(self) -> Part:
        return Part(
            city=self._maybe(self.text),
            size=self._one(REALS[:16]) + 0.0,
            lines=[self.text() for _ in range(self.random.randint(0, 3))],
        )

    def scalar(self) -> Any:
        if self.random.random() < 0.4:
            return self._one(["a", "b", 1, 2, 2.5, True, None])
        make = self._one(
            [lambda: None, lambda: True, lambda: False, self.text, self.text, lambda: self._one(NUMBERS), self.number]
        )
        return make()

    def number(self) -> Any:
        return self._one([self.random.randint(-3, 3), self.random.uniform(-3, 3), self._one(NUMBERS)])

    def json(self, depth: int = 0) -> Any:
        chance = self.random.random()
        if depth > 2 or chance < (0.15 if depth == 0 else 0.5):
            return self.scalar()
        if chance < 0.25:
            return {"a": [self.scalar() for _ in range(self.random.randint(0, 4))], "b": self.scalar()}
        if chance < 0.6:
            return [self.json(depth + 1) for _ in range(self.random.randint(0, 3))]
        return {self._key(): self.json(depth + 1) for _ in range(self.random.randint(0, 3))}

    def _key(self) -> Any:
        return str(self._one(KEYS[:2] if self.random.random() < 0.7 else KEYS))

    # ----- terms

    def path(self) -> Any:
        if self.random.random() < 0.3:
            part = self.row.part
            return self._one(
                [lambda: part.city, lambda: part.size, lambda: part.lines, lambda: part.lines[0], lambda: part]
            )()
        found = self.row.data
        for _ in range(self._one([0, 1, 1, 1, 2])):
            found = found[self._key() if self.random.random() < 0.6 else self.random.randint(-2, 2)]
        return found

    def field(self, *names: str) -> Any:
        return getattr(self.row, self._one(names))

    def texts(self) -> Any:
        return self.field("text", "other")

    def integers(self, depth: int = 0) -> Any:
        chance = self.random.random()
        if chance < 0.3 and depth < 2:
            return computed(
                self.integers(depth + 1), self._one("+-*"), self.integer() if chance < 0.15 else self.integers(2)
            )
        if chance < 0.5:
            return self._one([self.texts, lambda: self.field("blob"), self.path])().length()
        return self.field("number", "second")

    def reals(self, depth: int = 0) -> Any:
        if self.random.random() < 0.4 and depth < 2:
            other = self._one(
                [lambda: self._one([0.0, 0.1, 2.0, -3.5, 1e30]), lambda: self.integers(1), lambda: self.reals(2)]
            )()
            return computed(self.reals(depth + 1), self._one("+-*"), other)
        return self.field("real", "ratio")

    def decimals(self, depth: int = 0) -> Any:
        if self.random.random() < 0.4 and depth < 2:
            other = self._one(
                [self.decimal, lambda: self.field("number", "second"), lambda: self.decimals(2), lambda: 3]
            )()
            return computed(self.decimals(depth + 1), self._one("+-*"), other)
        return self.field("price", "cost")

    def times(self) -> Any:
        if self.random.random() < 0.4:
            return computed(self.field("at", "until"), self._one("+-"), self._one([self.span, lambda: self.row.span])())
        return self.field("at", "until")

    def spans(self) -> Any:
        chance = self.random.random()
        if chance < 0.3:
            return self.row.at - self.row.until
        return computed(self.row.span, self._one("+-"), self.span()) if chance < 0.6 else self.row.span

    # ----- conditions

    def condition(self, depth: int = 0) -> Condition:
        """A condition."""
        return condition_of(self.clause(depth), self.site)

    def clause(self, depth: int = 0) -> Any:
        chance = self.random.random()
        if depth < 3 and chance < 0.3:
            left, right = self.clause(depth + 1), self.clause(depth + 1)
            return left & right if chance < 0.15 else left | right
        if depth < 3 and chance < 0.4:
            return ~self.clause(depth + 1)
        return self.leaf()

    def leaf(self) -> Any:
        """A condition that is not made of others."""
        chance = self.random.random()
        return self._plain_leaf() if chance < 0.5 else self._text_leaf() if chance < 0.7 else self._json_leaf()

    def _plain_leaf(self) -> Any:
        kinds = [
            (self.texts, self.text), (lambda: self.row.status, lambda: self._one(["new", "paid", "done"])),
            (self.integers, self.integer), (self.integers, self.reals), (self.reals, self.real), (self.times,
            self.time),
            (lambda: self.row.blob, lambda: self._one(BLOBS)), (lambda: self.row.day, lambda: self._one(DATES)),
            (self.spans, self.span),
            (self.decimals, self.decimal), (self.decimals, self.integers), (lambda: self.row.uuid,
            lambda: self._one(UUIDS)),
        ]  # fmt: skip
        term, value = self._one(kinds)
        chance = self.random.random()
        if chance < 0.6:
            other = term() if self.random.random() < 0.3 else value()
            return compared(term(), self._one(ORDERS), other)
        if chance < 0.8:
            options = [None if self.random.random() < 0.1 else value() for _ in range(3)]
            return term().is_none() if any(isinstance(one, Operand) for one in options) else term().in_(options)
        flag = self.row.flag
        flags = [lambda: flag, lambda: flag == True, lambda: flag == False, lambda: flag == None]  # noqa: E711, E712
        return term().is_none() if chance < 0.9 else self._one(flags)()

    def _text_leaf(self) -> Any:
        found = self.texts() if self.random.random() < 0.6 else self.path()
        if self.random.random() < 0.5:
            return found.matches(self._one(PATTERNS))
        return getattr(found, self._one(METHODS))(self.text())

    def _json_leaf(self) -> Any:
        chance = self.random.random()
        if chance < 0.3:
            return compared(self.path(), self._one(ORDERS), self._one([self.text, self.number])())
        if chance < 0.5:
            field = self._one(["text", "number", "flag"])
            other = self._one([self.json, self.scalar, self.path, lambda: getattr(self.row, field)])()
            return compared(self.path(), self._one(ORDERS[:2]), other)
        if chance < 0.6:
            return self.path().in_([self.scalar() for _ in range(3)])
        if chance < 0.8:
            return self.path().has(self.scalar())
        return self.path() if chance < 0.9 else self.path().is_none()

    def watch(self) -> Watch:
        """One to three terms or conditions."""
        some = [self.watched() for _ in range(self.random.randint(1, 3))]
        return Watch(tuple(map(str, some)), tuple(some))

    def watched(self) -> Expression:
        """A term or a condition that a watch may name."""
        made = self._one(
            [self.texts, self.integers, self.reals, self.decimals, self.times, self.spans, self.path,
            lambda: self.field("flag", "blob"),
             lambda: self.field("day", "uuid", "part", "data"), self.clause]
        )()  # fmt: skip
        return term_of(made) or condition_of(made, self.site)


def computed(left: Any, operator: str, right: Any) -> Any:
    return left + right if operator == "+" else left - right if operator == "-" else left * right


def compared(left: Any, operator: str, right: Any) -> Any:
    return {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}[operator](left, right)


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


def changes(rows: Sequence[Table], watch: Watch) -> list[bool]:
    """What Python says of each pair of row objects."""
    found = [read_each(watch.expressions, row_values(DEFINITION, row, DEFINITION.positions)) for row in rows]
    return [not same(before, after) for before in found for after in found]


def of_stored(dialect: Dialect, definition: TableDefinition, rows: Sequence[Any], condition: Condition) -> list[bool]:
    """What Python says of rows as the driver gives them."""
    names = [column.name for column in definition.columns]
    found = [decode_stored_values(dialect, definition, dict(zip(names, row, strict=True)), names) for row in rows]
    return [holds(condition, values) for values in found]


def with_opposites(conditions: Sequence[Condition]) -> list[Condition]:
    return [one for condition in conditions for one in (condition, Not(condition))]


class LiteThings:
    """A table in SQLite: a connection of penstock's, and one of another program."""

    def __init__(self, path: str, definition: TableDefinition = DEFINITION, created: str = "") -> None:
        self.path = path
        self.definition = definition
        with closing(self.connect()) as connection:
            for sql in [created] if created else create_table(definition, SQLITE):
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
        return self.load(parameters(SQLITE, rows))

    def load(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Store values as they are; gives them as the driver does."""
        statements = TableStatements(self.definition, SQLITE)
        with closing(self.connect()) as connection:
            connection.execute(f"delete from {self.definition.name}")
            connection.execute("begin")
            connection.executemany(statements.load().sql, rows)
            connection.execute("commit")
            return connection.execute(f"select {statements.columns} from {self.definition.name} order by id").fetchall()

    def select(self, conditions: Sequence[Condition], *, own: bool) -> list[Said]:
        with closing(self.connect(own=own)) as connection:
            said = [condition_sql(one, self.definition, SQLITE, "r", own=own) for one in conditions]
            return _selected(said, self.definition.name, lambda sql: connection.execute(sql).fetchall())

    def pairs(self, watches: Sequence[Watch]) -> list[tuple[WatchSql, list[bool]]]:
        """Whether each pair of rows differs in what is watched, to a connection of another program."""
        said = [watch_sql(one, self.definition, SQLITE, "{row}") for one in watches]
        with closing(self.connect(own=False)) as connection:
            return _paired(said, connection.execute(_pairs(said, self.definition.name, "is not")).fetchall())

    def fire(self, conditions: Sequence[Condition]) -> list[Said]:
        """Have triggers tell, on a connection of another program."""
        said = [condition_sql(one, self.definition, SQLITE, "new") for one in conditions]
        with closing(self.connect(own=False)) as connection:
            connection.execute("delete from matched")
            for number, one in enumerate(said):
                connection.execute(
                    f"create trigger t{number} after update on {self.definition.name} when {one.sql} "
                    f"begin insert into matched values ({number}, new.id); end"
                )
            connection.execute(f"update {self.definition.name} set second = second")
            found = set(connection.execute("select condition, id from matched").fetchall())
            keys = [key for (key,) in connection.execute(f"select id from {self.definition.name} order by id")]
            for number in range(len(said)):
                connection.execute(f"drop trigger t{number}")
        return [Said(one, tuple((number, key) in found for key in keys)) for number, one in enumerate(said)]


class PostgresThings:
    """A table in PostgreSQL, on one connection."""

    def __init__(self, url: str, definition: TableDefinition = DEFINITION, created: str = "") -> None:
        self.definition = definition
        self._runner = asyncio.Runner()
        self.connection = self.run(asyncpg.connect(url, statement_cache_size=0))
        for sql in [created] if created else create_table(definition, POSTGRES):
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
        self.run(self.connection.execute(f"truncate {self.definition.name}"))
        statement = TableStatements(self.definition, POSTGRES).load()
        self.run(self.connection.executemany(statement.sql, parameters(POSTGRES, rows)))
        return self.fetch()

    def fetch(self) -> list[Any]:
        """The rows as the driver gives them."""
        columns = TableStatements(self.definition, POSTGRES).columns
        found = self.run(self.connection.fetch(f"select {columns} from {self.definition.name} order by id"))
        return [tuple(row) for row in found]

    def select(self, conditions: Sequence[Condition], *, own: bool = False) -> list[Said]:
        said = [condition_sql(one, self.definition, POSTGRES, "r", own=own) for one in conditions]
        return _transposed(
            said, [tuple(row) for row in self.run(self.connection.fetch(_select(said, self.definition.name)))]
        )

    def pairs(self, watches: Sequence[Watch]) -> list[tuple[WatchSql, list[bool]]]:
        """Whether each pair of rows differs in what is watched."""
        said = [watch_sql(one, self.definition, POSTGRES, "{row}") for one in watches]
        return _paired(
            said,
            [
                tuple(row)
                for row in self.run(self.connection.fetch(_pairs(said, self.definition.name, "is distinct from")))
            ],
        )

    def fire(self, conditions: Sequence[Condition]) -> list[Said]:
        """Have triggers tell."""
        said = [condition_sql(one, self.definition, POSTGRES, "new") for one in conditions]
        triggers = [
            f"create trigger t{number} after update on {self.definition.name} for each row when {one.sql} "
            f"execute function note('{number}')"
            for number, one in enumerate(said)
        ]
        self.run(self.connection.execute("truncate matched"))
        self.run(self.connection.execute(";".join(triggers)))
        self.run(self.connection.execute(f"update {self.definition.name} set second = second"))
        found = {tuple(row) for row in self.run(self.connection.fetch("select condition, id from matched"))}
        keys = [
            row["id"] for row in self.run(self.connection.fetch(f"select id from {self.definition.name} order by id"))
        ]
        self.run(
            self.connection.execute(
                ";".join(f"drop trigger t{number} on {self.definition.name}" for number in range(len(said)))
            )
        )
        return [Said(one, tuple((number, key) in found for key in keys)) for number, one in enumerate(said)]


def _select(said: Sequence[ConditionSql], table: str) -> str:
    columns = ", ".join(f"coalesce({one.sql}, false) as c{number}" for number, one in enumerate(said))
    return f"select {columns} from {table} as r order by id"


def _pairs(said: Sequence[WatchSql], table: str, differs: str) -> str:
    columns = ", ".join(f"{changed(one, differs)} as c{number}" for number, one in enumerate(said))
    return f"select {columns} from {table} as old, {table} as new order by old.id, new.id"


def changed(sql: WatchSql, differs: str) -> str:
    """Whether something watched differs between the rows ``old`` and ``new``."""
    parts = (f"{one.replace('{row}', 'old')} {differs} {one.replace('{row}', 'new')}" for one in sql.expressions)
    return f"({' or '.join(parts)})"


def _paired(said: Sequence[WatchSql], rows: Sequence[Any]) -> list[tuple[WatchSql, list[bool]]]:
    return [(one, [bool(row[number]) for row in rows]) for number, one in enumerate(said)]


def _selected(said: Sequence[ConditionSql], table: str, fetch: Any) -> list[Said]:
    return _transposed(said, fetch(_select(said, table)))


def _transposed(said: Sequence[ConditionSql], rows: Sequence[Any]) -> list[Said]:
    return [Said(one, tuple(bool(row[number]) for row in rows)) for number, one in enumerate(said)]
