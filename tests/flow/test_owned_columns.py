"""Columns of tables that other programs own: values come back, or a start says no, and each finds the other's rows.

A value goes by plain SQL into the table, through `ctx.db` into Python and back, and by plain SQL out again.
"""

from __future__ import annotations

import asyncio
import enum
import re
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from types import new_class
from typing import Any, Literal
from uuid import UUID

import asyncpg
import pytest
import sqlalchemy as sa
from pydantic import BaseModel, SecretStr, create_model
from sqlalchemy.exc import IntegrityError
from stage.databases import run_sql
from stage.outboxes import OutboxStage, drain
from stage.stories import Stage, settle, tell_in

from penstock import (
    App,
    Id,
    Index,
    MutationCtx,
    PaginationOptions,
    PenstockError,
    SchemaMismatch,
    Table,
    UniqueViolation,
    UserTable,
    gt,
    gte,
    lt,
    lte,
)
from penstock.clock import SystemClock
from penstock.config import load_config
from penstock.schema.table import definition_of
from penstock.store.open import make_store
from penstock.store.postgres.capture import SPELLED
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.spelling import PostgresFeedSpelling
from penstock.store.push.migrate import push
from penstock.store.sql.values import row_reader
from penstock.testing import TestApp


class Money(BaseModel):
    amount: Decimal
    currency: str


ANNOTATIONS: dict[str, Any] = {
    **{one.__name__: one for one in (str, int, float, bool, bytes, datetime, date, timedelta, Decimal, UUID, time)},
    "dict[str, Any]": dict[str, Any],
    "Any": Any,
    "Money": Money,
    "Literal": Literal["calm", "a", 7],
    "IPv4Address": IPv4Address,
    "IPv4Network": IPv4Network,
    "SecretStr": SecretStr,
    "tuple[str, ...]": tuple[str, ...],
    "list[list[int]]": list[list[int]],
    "set[str]": set[str],
    "list[Any]": list[Any],
    "list[dict[str, Any]]": list[dict[str, Any]],
    **{
        f"list[{one.__name__}]": list[one]  # type: ignore[valid-type]  # made at run time
        for one in (str, int, float, bool, bytes, datetime, date, timedelta, Decimal, UUID, time)
    },
}
LAST, COPY = 16, 1000  # keys: of the row with NULL, and between a row and its copy
# Types that hold texts or JSON of any kind: whether other annotations read them is up to the values.
CONTAINERS = {
    **{kind: {"str"} for kind in ("text", "character varying", "bpchar", "short", "json", "jsonb")},
    **{f"{kind}[]": {"list[str]", "tuple[str, ...]"} for kind in ("text", "character varying", "bpchar", "short")},
    "tags": {"list[str]", "tuple[str, ...]"},
}
MADE = """
create type mood as enum ('calm', 'keen');
create type spot as (x numeric, name text);
create type spans as range (subtype = interval);
create domain short as varchar(9) check (value <> '');
create domain price as numeric(22, 2);
create domain tags as text[];
create domain host as inet;
"""
# The first value is an ordinary one, which every annotation that is taken has to read.
VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "bytea": [r"\x00ff61", ""],
    "smallint": ["7", "-32768"],
    "integer": ["7", "-2147483648"],
    "bigint": ["7", "9223372036854775807", "9007199254740993"],
    "numeric": ["7", "1.50", "0.12345678901234567890123", "NaN", "1e40"],
    "price": ["7", "1.50", "12345678901234567890.99"],
    "real": ["7.5", "0.1", "NaN", "-0"],
    "double precision": ["7.5", "0.1", "Infinity", "-0"],
    "date": ["2030-01-02", "infinity", "0044-03-15 BC"],
    "timestamp without time zone": ["2030-01-02 03:04:05.678901", "infinity", "2030-01-02"],
    "timestamp with time zone": ["2030-01-02 03:04:05.6789+01", "-infinity", "2030-01-02"],
    "time without time zone": ["09:30", "23:59:59.999999", "24:00"],
    "time with time zone": ["09:30+02", "09:30:00.5-11:30"],
    "interval": ["1 day 02:03:04.5", "1 mon", "-1 year 2 days", "400 days", "-00:00:01"],
    "uuid": ["0a1b2c3d-0000-7000-8000-0123456789ab"],
    "json": ['{"amount": "1.50", "currency": "EUR"}', '["a"]', '"a"'],
    "jsonb": ['{"amount": "1.50", "currency": "EUR"}', '["a"]', '"a"', "1e400"],
    "text": ["a", "é 'x'", ""],
    "character varying": ["a", "é 'x'", ""],
    "short": ["a", "b b"],
    "bpchar": ["a", "b  "],
    "name": ["a", "b b"],
    '"char"': ["a", ""],
    "mood": ["calm", "keen"],
    "inet": ["10.0.0.1", "10.0.0.1/8", "::1", "fe80::1/64"],
    "host": ["10.0.0.1", "10.0.0.0/8"],
    "cidr": ["10.0.0.0/8", "::/0"],
    '"bit"': ["1"],
    "bit varying": ["1011", ""],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["1234.5", "-3"],
    "point": ["(1,2.5)"],
    "pg_lsn": ["16/B374D848"],
    "pg_snapshot": ["10:20:10,14"],
    "xml": ["<a>b</a>"],
    "tsvector": ["'a':1 'b':2"],
    "tsquery": ["'a' & 'b'"],
    "spot": ["(1.50,a)"],
    "tags": ["{a,b}", "{}"],
    "spans": ['["01:00:00","02:00:00")'],
}
GUESSES = ["1", "a", "{}", "[1,5)", "[2030-01-01,2030-01-02)", "{[1,5)}", "{[2030-01-01,2030-01-02)}", "sum"]
GUESSES += ["pg_class", "english", "sum(integer)", "+(integer,integer)", "simple", "pg_catalog", "postgres"]
_TYPES = """
select format_type(t.oid, -1) from pg_type t join pg_namespace n on n.oid = t.typnamespace
left join pg_type i on i.oid = t.typelem and i.typarray = t.oid
where n.nspname in ('pg_catalog', 'public') and t.typisdefined and coalesce(i.typtype, t.typtype) <> 'p'
and t.typtype <> 'p' and (coalesce(i.typtype, t.typtype) <> 'c' or coalesce(i.typname, t.typname) = 'spot')
order by t.oid
"""


Pairs = Mapping[tuple[str, str], Any]  # a class of a table for a type and an annotation


def declare(source: str, annotation: Any) -> Any:
    """A class of a table whose column `c` has an annotation."""
    arguments = {"source": source, "key": "k", "managed": False}
    return create_model("T", __base__=Table, __cls_kwargs__=arguments, k=(int, ...), c=(annotation | None, None))


async def offered(url: str, sources: Mapping[str, str]) -> tuple[set[tuple[str, str]], dict[tuple[str, str], Any]]:
    """The pairs of a type and an annotation that a start takes, and the refused ones with what it says."""
    store, taken, refused = make_store(load_config({"database": url}), SystemClock()), set[Any](), dict[Any, Any]()
    kinds = {source: kind for kind, source in sources.items()}
    await store.open()
    for word, annotation in ANNOTATIONS.items():
        tables = [definition_of(declare(source, annotation)) for source in kinds]
        try:
            await push(store, tables, apply=False)
        except SchemaMismatch as error:
            refused |= {(kinds[one["table"]], word): one for one in error.facts["problems"]}
        taken |= {(kind, word) for kind in sources if (kind, word) not in refused}
    await store.close()
    return taken, refused


async def there_and_back(pairs: Pairs, url: str) -> tuple[list[str], dict[tuple[str, str], dict[int, Any]]]:
    """Copy each row by `ctx.db`, and write it in place; what changes, and what was read or why it cannot be."""
    wrong, seen = list[str](), dict[tuple[str, str], dict[int, Any]]()
    app = App(tables=[*pairs.values()])
    write, _, _ = tell_in(app)

    async def story(pair: tuple[str, str], table: Any, ctx: MutationCtx) -> None:
        found = seen.setdefault(pair, {})
        for key in range(1, LAST + 1):
            try:
                if (row := await ctx.db.get(table, Id(str(key)))) is None:
                    continue
                await ctx.db.insert(table(k=key + COPY, c=row.c))
                await ctx.db.patch(table, row.id, c=row.c)
                back: Any = await ctx.db.get(table, Id(str(key + COPY)))
                found[key] = row
            except PenstockError as error:
                found[key] = error
                continue
            if back.c != row.c and row.c == row.c:
                wrong.append(f"{pair}: {row.c!r} comes back as {back.c!r}")

    async with TestApp(app, url) as backend:
        for pair, table in pairs.items():
            await backend.run_mutation(write, partial(story, pair, table))
    return wrong, seen


# ----- PostgreSQL


async def fill(connection: Any) -> dict[str, str]:
    """A table of each type, with values of it; their names by types."""
    await connection.execute(MADE)
    names = dict[str, str]()
    for (kind,) in await connection.fetch(_TYPES):
        number, item = len(names), str(kind).removesuffix("[]")
        values = [one for one in VALUES.get(item, GUESSES) if await is_one(connection, item, one)]
        if kind != item and values:
            listed = [f"array[{', '.join(f'{quoted(one)}::{item}' for one in some)}]" for some in (values[:1], values)]
            literals = [*listed, "'{}'", f"array[null, {quoted(values[0])}::{item}]"]
        else:
            literals = list(map(quoted, values))
        names[kind] = f"t{number}"
        await connection.execute(f"create table t{number} (k bigint primary key, c {kind}, was {kind})")
        for key, literal in enumerate(literals, 1):
            await connection.execute(f"insert into t{number} values ({key}, {literal}::{kind})")
        await connection.execute(f"insert into t{number} values ({LAST}); update t{number} set was = c")
    return names


async def is_one(connection: Any, kind: str, value: str) -> bool:
    with suppress(asyncpg.PostgresError):
        await connection.execute(f"select {quoted(value)}::{kind}")
        return True
    return False


def quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@pytest.mark.long
async def test_each_type_of_postgresql_comes_back_or_is_refused_with_the_annotation_that_fits(
    postgres_url: str,
) -> None:
    connection = await asyncpg.connect(postgres_url)
    sources = await fill(connection)
    taken, refused = await offered(postgres_url, sources)
    for (kind, _), problem in refused.items():
        assert problem["column"] == "c"
        assert kind in problem["what"]
        if found := re.fullmatch(r"Annotate it (.+) \| None\.", problem["fix"]):
            assert (kind, found[1]) in taken, problem
        else:
            assert not any(one == kind for one, _ in taken), problem
    pairs = {pair: declare(f"p{number}", ANNOTATIONS[pair[1]]) for number, pair in enumerate(sorted(taken))}
    for pair, table in pairs.items():
        name = definition_of(table).name
        await connection.execute(
            f"create table {name} as table {sources[pair[0]]}; alter table {name} add primary key (k)"
        )
    wrong, seen = await there_and_back(pairs, postgres_url)
    for (kind, word), table in pairs.items():
        first = seen[kind, word].get(1)
        if isinstance(first, PenstockError) and word in CONTAINERS.get(kind, {word}) and word != "list[list[int]]":
            wrong.append(f"{kind} as {word}: {first}")
        name = definition_of(table).name
        by_value = kind.removesuffix("[]") in {"numeric", "price", "interval"}
        text = "::jsonb::text" if kind == "json" else "::text"
        alike = "t.c = o.was" if by_value else f"t.c{text} = o.was{text}"
        rows = await connection.fetch(
            f"select t.c::text, o.was::text from {name} t join {name} o on o.k = t.k % {COPY}"
            f" where not coalesce({alike}, t.c is null and o.was is null)"
        )
        wrong += [f"{kind} as {word}: {row['was']} became {row['c']}" for row in rows]
        wrong += [f"{kind} as {word}: {line}" async for line in fed_otherwise(connection, table, seen[kind, word])]
    await connection.close()
    assert not wrong, "\n".join(wrong)


async def fed_otherwise(connection: Any, table: Any, seen: Mapping[int, Any]) -> AsyncIterator[str]:
    """Rows that the change feed gives otherwise than `ctx.db` does."""
    definition = definition_of(table)
    (stored,) = (
        await connection.fetch(
            "select format_type(atttypid, -1) from pg_attribute where attname = 'c' and "
            f"attrelid = '{definition.name}'::regclass"
        )
    )[0]
    spelled = PostgresFeedSpelling({"k": "bigint", "c": stored}).json_object("r", ["k", "c"])
    for beginnings, setting in SPELLED.items():  # as the functions of triggers have it
        await connection.execute(f"set {setting}" if stored.startswith(beginnings) else "select 1")
    read = row_reader(POSTGRES, definition)
    for key, text in await connection.fetch(f"select k, {spelled} from {definition.name} r where k <= {LAST}"):
        if not isinstance(mine := seen[key], PenstockError):
            row: Any = definition.make_rows([read(text)])[0]
            if row != mine and repr(mine.c) != "nan" and stored not in {"real", "price[]"}:  # JSON has fewer digits
                yield f"{mine.c!r} is captured as {row.c!r}"


# ----- SQLite

DECLARED = {  # types as programs declare them, with a value that they mean
    "": "'a'",
    "any": "'a'",
    "blob": "x'00ff'",
    "binary(16)": "x'00ff'",
    "text": "'a'",
    "varchar(9)": "'x 7'",
    "nvarchar(9)": "'x007'",
    "clob": "'aaaa'",
    "char(36)": "'0a1b2c3d-0000-7000-8000-0123456789ab'",
    "int": "7",
    "integer": "9223372036854775807",
    "unsigned big int": "7",
    "tinyint(1)": "1",
    "real": "7.5",
    "double precision": "0.1",
    "float": "7.5",
    "numeric": "1.5",
    "decimal(12, 2)": "1.5",
    "boolean": "1",
    "bool": "0",
    "date": "'2030-01-02'",
    "datetime": "'2030-01-02 03:04:05.678901'",
    "timestamp": "'2030-01-02 03:04:05.678901'",
    "time": "'09:30:00'",
    "interval": "7000000",
    "uuid": "'0a1b2c3d-0000-7000-8000-0123456789ab'",
    "json": """'{"amount":"1.50","currency":"EUR"}'""",
    "string": "'a'",
}


async def test_each_declared_type_of_sqlite_comes_back_or_is_refused_with_the_annotation_that_fits(
    sqlite_url: str,
) -> None:
    sources = {kind: f"t{number}" for number, kind in enumerate(DECLARED)}
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as connection:

        def create(name: str, kind: str) -> None:
            value = DECLARED[kind]
            connection.execute(f"create table {name} (k integer primary key, c {kind}, was {kind})")
            connection.execute(f"insert into {name} values (1, {value}, {value}), ({LAST}, null, null)")

        for kind, name in sources.items():
            create(name, kind)
        taken, refused = await offered(sqlite_url, sources)
        pairs = {pair: declare(f"p{number}", ANNOTATIONS[pair[1]]) for number, pair in enumerate(sorted(taken))}
        for (kind, _), table in pairs.items():
            create(definition_of(table).name, kind)
        wrong, seen = await there_and_back(pairs, sqlite_url)
        for pair, table in pairs.items():
            name = definition_of(table).name
            rows = connection.execute(
                f"select quote(o.was), quote(t.c) from {name} t join {name} o on o.k = t.k % {COPY}"
                " where t.c is not o.was or typeof(t.c) <> typeof(o.was)"
            )
            wrong += [f"{pair}: {was} became {found}" for was, found in rows]
    for (kind, word), problem in refused.items():
        found = re.fullmatch(r"Annotate it (.+) \| None\.", problem["fix"])
        assert found, problem
        assert isinstance(seen[kind, found[1]][1], Table), (kind, word, problem)  # columns of SQLite hold values of all
    assert not wrong, "\n".join(wrong)


# ----- tables that SQLAlchemy or Django own


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
        self.classes = [owned_class(name, key, annotation) for name, key in (("keyed", "v"), ("item", "n"))]

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


def owned_class(name: str, key: str, annotation: Any) -> Any:
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
    table = owned_class("item", "n", datetime)
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
