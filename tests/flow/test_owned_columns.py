"""Every type of column of other programs, declared with every kind of annotation: values come back, or a start says no.

A value goes by plain SQL into the table, through `ctx.db` into Python and back, and by plain SQL out again.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Literal
from uuid import UUID

import asyncpg
import pytest
from pydantic import BaseModel, SecretStr, create_model
from stage.stories import tell_in

from penstock import App, MutationCtx, PenstockError, SchemaMismatch, Table
from penstock.clock import SystemClock
from penstock.config import load_config
from penstock.schema.table import definition_of
from penstock.store.open import make_store
from penstock.store.push.migrate import push
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
# Types that hold texts or JSON of any kind: whether other annotations read them is up to the values.
CONTAINERS = {
    **dict.fromkeys(("text", "character varying", "bpchar", "short", "json", "jsonb"), {"str"}),
    **dict.fromkeys(("text[]", "character varying[]", "bpchar[]", "short[]", "tags"), {"list[str]", "tuple[str, ...]"}),
}
MADE = """
create type mood as enum ('calm', 'keen');
create type spot as (x numeric, name text);
create type spans as range (subtype = interval);
create domain short as varchar(9) check (value <> '');
create domain price as numeric(12, 2);
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
    "price": ["7", "1.50", "9999999999.99"],
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
    "line": ["{1,2,3}"],
    "lseg": ["[(1,2),(3,4)]"],
    "box": ["(3,4),(1,2)"],
    "path": ["[(1,2),(3,4)]", "((1,2),(3,4))"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "circle": ["<(1,2),3>"],
    "int2vector": ["1 2"],
    "oidvector": ["1 2"],
    "pg_lsn": ["16/B374D848"],
    "tid": ["(1,2)"],
    "txid_snapshot": ["10:20:10,14"],
    "pg_snapshot": ["10:20:10,14"],
    "jsonpath": ["$.a"],
    "xml": ["<a>b</a>"],
    "tsvector": ["'a':1 'b':2"],
    "tsquery": ["'a' & 'b'"],
    "aclitem": ["postgres=r/postgres"],
    "spot": ["(1.50,a)"],
    "tags": ["{a,b}", "{}"],
    "spans": ['["01:00:00","02:00:00")'],
}
GUESSES = ["1", "a", "{}", "[1,5)", "[2030-01-01,2030-01-02)", "{[1,5)}", "{[2030-01-01,2030-01-02)}", "sum", "pg_class"]
GUESSES += ["english", "sum(integer)", "+(integer,integer)", "simple", "pg_catalog", "postgres"]
_TYPES = """
select format_type(t.oid, -1) from pg_type t join pg_namespace n on n.oid = t.typnamespace
left join pg_type i on i.oid = t.typelem and i.typarray = t.oid
where n.nspname in ('pg_catalog', 'public') and t.typisdefined and coalesce(i.typtype, t.typtype) <> 'p'
and t.typtype <> 'p' and (coalesce(i.typtype, t.typtype) <> 'c' or coalesce(i.typname, t.typname) = 'spot') order by t.oid
"""


def declare(annotation: Any, sources: Iterable[str]) -> dict[str, Any]:
    """A class of a table for each source, whose column `c` has an annotation."""
    return {
        source: create_model(  # type: ignore[call-overload]  # made at run time
            f"T{number}",
            __base__=Table,
            __cls_kwargs__={"source": source, "key": "k", "managed": False},
            k=(int, ...),
            c=(annotation | None, None),
        )
        for number, source in enumerate(sources)
    }


async def refused(tables: Mapping[str, Any], url: str) -> dict[str, Any]:
    """The tables that a start refuses, with what it says of each."""
    store = make_store(load_config({"database": url}), SystemClock())
    await store.open()
    try:
        await push(store, [definition_of(one) for one in tables.values()], apply=False)
    except SchemaMismatch as error:
        return {one["table"]: one for one in error.facts["problems"]}
    finally:
        await store.close()
    return {}


async def there_and_back(tables: Mapping[str, Any], url: str) -> list[str]:
    """Copy each row by `ctx.db` and write it in place; what changes, and why an ordinary value cannot be read."""
    wrong = list[str]()
    app = App(tables=[*tables.values()])
    write, _, _ = tell_in(app)
    async with TestApp(app, url) as backend:
        for source, table in tables.items():

            async def story(ctx: MutationCtx, source: str = source, table: Any = table) -> None:
                for key in range(1, 17):
                    try:
                        if (row := await ctx.db.get(table, str(key))) is not None:
                            await ctx.db.insert(table(k=key + 1000, c=row.c))
                            await ctx.db.patch(table, row.id, c=row.c)
                            if (back := await ctx.db.get(table, str(key + 1000))).c != row.c and row.c == row.c:
                                wrong.append(f"{source}: {row.c!r} comes back as {back.c!r}")
                    except PenstockError as error:
                        if key == 1:
                            wrong.append(f"{source}: {error}")

            await backend.run_mutation(write, story)
    return wrong


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
            literals = [*listed, "'{}'", f"array[{listed[0]}, {listed[0]}]", f"array[null, {quoted(values[0])}::{item}]"]
        else:
            literals = list(map(quoted, values))
        names[kind] = f"t{number}"
        await connection.execute(f"create table t{number} (k bigint primary key, c {kind}, was {kind})")
        for key, literal in enumerate(literals, 1):
            await connection.execute(f"insert into t{number} values ({key}, {literal}::{kind})")
        await connection.execute(f"insert into t{number} values (16); update t{number} set was = c")
    return names


async def is_one(connection: Any, kind: str, value: str) -> bool:
    with suppress(asyncpg.PostgresError):
        await connection.execute(f"select {quoted(value)}::{kind}")
        return True
    return False


def quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


async def test_each_type_of_postgresql_comes_back_or_is_refused_with_the_annotation_that_fits(
    postgres_url: str,
) -> None:
    connection = await asyncpg.connect(postgres_url)
    names = await fill(connection)
    kinds = {name: kind for kind, name in names.items()}
    taken, wrong, fixes = set[tuple[str, str]](), list[str](), dict[str, str]()
    for word, annotation in ANNOTATIONS.items():
        tables = declare(annotation, kinds)
        problems = await refused(tables, postgres_url)
        for name, problem in problems.items():
            assert problem["column"] == "c", problem
            assert kinds[name] in problem["what"], problem
            fixes.setdefault(kinds[name], problem["fix"])
            assert fixes[kinds[name]] == problem["fix"]
        kept = {name: table for name, table in tables.items() if name not in problems}
        taken |= {(kinds[name], word) for name in kept}
        for line in await there_and_back(kept, postgres_url):
            kind = kinds[line.partition(":")[0]]
            is_up_to_values = " comes back as " not in line and (
                word not in CONTAINERS.get(kind, {word}) or word == "list[list[int]]"
            )
            wrong += [] if is_up_to_values else [f"{kind} as {word}: {line}"]
        for name in kept:
            kind = kinds[name]
            by_value = kind.removesuffix("[]") in {"numeric", "price", "interval"}
            alike = "c = was" if by_value else "c::jsonb = was::jsonb" if kind == "json" else "c::text = was::text"
            rows = await connection.fetch(
                f"select k, c::text, was::text from (select k, c, (select o.was from {name} o where o.k = t.k % 1000)"
                f" was from {name} t) t where not coalesce({alike}, c is null and was is null)"
            )
            wrong += [f"{kind} as {word}: {row['was']} became {row['c']}" for row in rows]
            await connection.execute(f"delete from {name} where k > 1000; update {name} set c = was")
    await connection.close()
    for kind, fix in fixes.items():
        if found := re.fullmatch(r"Annotate it (.+) \| None\.", fix):
            assert (kind, found[1]) in taken, (kind, fix)
        else:
            assert not any(one == kind for one, _ in taken), (kind, fix)
    assert not wrong, "\n".join(wrong)


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
    "datetime": "'2030-01-02T03:04:05.678901Z'",
    "timestamp": "'2030-01-02T03:04:05.678901Z'",
    "time": "'09:30:00'",
    "interval": "7000000",
    "uuid": "'0a1b2c3d-0000-7000-8000-0123456789ab'",
    "json": """'{"amount":"1.50","currency":"EUR"}'""",
    "string": "'a'",
}


async def test_each_declared_type_of_sqlite_comes_back_or_is_refused_with_the_annotation_that_fits(
    sqlite_url: str,
) -> None:
    kinds = {f"t{number}": kind for number, kind in enumerate(DECLARED)}
    wrong, taken, fixes = list[str](), set[tuple[str, str]](), dict[tuple[str, str], str]()
    unread = set[tuple[str, str]]()
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        for name, kind in kinds.items():
            connection.execute(f"create table {name} (k integer primary key, c {kind}, was {kind})")
            connection.execute(f"insert into {name} values (1, {DECLARED[kind]}, {DECLARED[kind]}), (16, null, null)")
        for word, annotation in ANNOTATIONS.items():
            tables = declare(annotation, kinds)
            problems = await refused(tables, sqlite_url)
            fixes |= {(kinds[name], word): problem["fix"] for name, problem in problems.items()}
            kept = {name: table for name, table in tables.items() if name not in problems}
            taken |= {(kinds[name], word) for name in kept}
            for line in await there_and_back(kept, sqlite_url):
                kind = kinds[line.partition(":")[0]]
                if " comes back as " in line:
                    wrong.append(f"{kind} as {word}: {line}")
                else:  # a column of SQLite holds values of all kinds, and a row says it
                    unread.add((kind, word))
            for name in kept:
                rows = connection.execute(
                    f"select quote(t.c), quote(o.was) from {name} t join {name} o on o.k = t.k % 1000"
                    f" where t.c is not o.was or typeof(t.c) <> typeof(o.was)"
                ).fetchall()
                wrong += [f"{kinds[name]} as {word}: {was} became {found}" for found, was in rows]
                connection.execute(f"delete from {name} where k > 1000")
                connection.execute(f"update {name} set c = was")
    for (kind, word), fix in fixes.items():
        found = re.fullmatch(r"Annotate it (.+) \| None\.", fix)
        assert found, fix
        assert (kind, found[1]) in taken - unread, (kind, word, fix)
    assert not wrong, "\n".join(wrong)
