"""Where a reader of a table's rows stands: SQLite has values of any type in any column, and each is found again.

Owns what a place and a key in the change feed say of a value. What outboxes and tasks make of it, others test.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from stage.feed import NOW, opened

from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.store.nouns.interests import Source
from penstock.store.open import sqlite_path
from penstock.store.session import Row
from penstock.store.store import Store

DECLARED = (
    "",
    "text",
    "blob",
    "binary(16)",
    "varbinary(16)",
    "real",
    "integer",
    "point",
    "numeric",
    "text collate nocase",
)
UNREADABLE = ("cast(x'ff61' as text)", "cast(x'61ff' as text)", "cast(x'eda080' as text)", "cast(x'7b22ff' as text)")
LIKE_OTHERS = (
    "x''", "x'61'", "x'ff61'", "x'01ff'", "x'5c783631'", "''", "'a'", "'\\x'", "'\\x61'", "'\\xff61'", "'\\xno hex'",
    "'\\y'", "'\\\\x61'", "'\\x6' || char(0) || '1'", "'\\' || char(0)", "'Infinity'", "'-Infinity'", "'Infinity '",
    "'Infinity' || char(0)", "'NaN'", "'{\"text\":\"61\"}'", "'[1]'", "'\"'", "'null'", "char(65533)", "9e999",
    "-9e999", "0.1", "1e308", "-1e308", "5e-324", "7", "-7", "7.5", "9223372036854775807", "-9223372036854775808",
)  # fmt: skip


@asynccontextmanager
async def table(
    url: str, columns: str, rows: Sequence[str], **interest: Any
) -> AsyncIterator[tuple[Store, Source, sqlite3.Connection]]:
    """A table with rows, of which changes are captured; how its rows are read, and another program's connection."""
    async with opened(url) as store:
        other = sqlite3.connect(sqlite_path(url), isolation_level=None, timeout=10)
        try:
            other.execute(f"create table odd ({columns})")
            other.execute(f"insert into odd values {', '.join(f'({row})' for row in rows)}")
            (number,) = await store.interests.declare([Interest(name="odd", table="odd", **interest)], NOW)
            source = await store.interests.source(number)
            assert source is not None
            yield store, source, other
        finally:
            other.close()


async def walked(store: Store, source: Source, most: int, size: int = 1) -> list[Row]:
    """The rows of a table, read a page at a time; no more than one too many."""
    found, place = list[Row](), None
    session = await store.begin_read()
    try:
        while len(found) <= most:
            asked = (source.first, [size]) if place is None else (source.following, [place, size])
            rows = await session.fetch(*asked)
            if not rows:
                break
            found += rows
            place = rows[-1][3]
    finally:
        await session.rollback()
    return found


async def asked(store: Store, *question: Any) -> list[Any]:
    session = await store.begin_read()
    try:
        return [row[0] for row in await session.fetch(question[0], question[1:])]
    finally:
        await session.rollback()


@pytest.mark.parametrize("declared", DECLARED)
async def test_every_value_of_an_order_is_passed_once(sqlite_url: str, declared: str) -> None:
    rows = [f"{number}, {value}" for number, value in enumerate([*LIKE_OTHERS, *UNREADABLE] * 2)]
    columns = f"number integer primary key, mark {declared} not null"
    odd = {"key": ("number",), "order": ("mark",), "after": ("number",)}
    async with table(sqlite_url, columns, rows, **odd) as (store, source, other):
        expected = [row[0] for row in other.execute("select number from odd order by mark, number")]
        for size in (1, 7):
            found = await walked(store, source, len(rows), size)
            assert [json.loads(row[0])[0] for row in found] == expected


@pytest.mark.parametrize("declared", DECLARED)
async def test_every_key_is_told_from_others_and_finds_its_row(sqlite_url: str, declared: str) -> None:
    columns = f"number integer, mark {declared} not null"
    rows = [f"{number}, {value}" for number, value in enumerate([*LIKE_OTHERS, *UNREADABLE])]
    odd = {"key": ("mark",), "after": ("number",)}
    async with table(sqlite_url, columns, rows, **odd) as (store, source, other):
        if "nocase" not in declared:
            other.execute("create unique index odd_mark on odd (mark)")
        expected = [row[0] for row in other.execute("select number from odd order by mark")]
        found = await walked(store, source, len(rows))
        assert [json.loads(row[1])["number"] for row in found] == expected
        readable = [row for row in found if row[3] == row[0]]
        assert {json.loads(row[1])["number"] for row in readable} == {*range(len(LIKE_OTHERS))}
        assert len({row[0] for row in readable}) == len(LIKE_OTHERS)
        for key, after, *_ in readable:
            assert await asked(store, source.among, f"[{key}]") == [key], after
            assert await asked(store, source.keys, f"[{key}]") == [key], after


async def test_keys_of_several_columns_are_walked_and_found(sqlite_url: str) -> None:
    values = ("x'61'", "'\\x61'", "'a'", "9e999", "'Infinity'", "-9e999", "1", "x''")
    pairs = [f"{n}, {one}, {two}" for n, (one, two) in enumerate(itertools.product(values, values))]
    columns = "number integer, one binary(4), two, primary key (one, two)"
    odd = {"key": ("one", "two"), "after": ("number",)}
    async with table(sqlite_url, columns, pairs, **odd) as (store, source, other):
        expected = [row[0] for row in other.execute("select number from odd order by one, two")]
        found = await walked(store, source, len(pairs))
        assert [json.loads(row[1])["number"] for row in found] == expected
        keys = [row[0] for row in found]
        assert sorted(await asked(store, source.among, f"[{','.join(keys)}]")) == sorted(keys)


@pytest.mark.parametrize("declared", ["", "binary(16)", "real", "text"])
async def test_captured_rows_are_compared_with_places_as_what_they_were(sqlite_url: str, declared: str) -> None:
    """But for text that was no UTF-8: where that was, nobody knows, and it counts as behind every place."""
    rows = [f"{number}, {value}" for number, value in enumerate([*LIKE_OTHERS, *UNREADABLE])]
    columns = f"number integer primary key, mark {declared} not null"
    odd = {"key": ("number",), "order": ("mark",), "before": ("number", "mark"), "after": ("number",)}
    unknown = {*range(len(LIKE_OTHERS), len(rows)), LIKE_OTHERS.index("char(65533)")}
    async with table(sqlite_url, columns, rows, **odd) as (store, source, other):
        found = await walked(store, source, len(rows))
        other.execute("delete from odd")
        gone = (await store.changes.read(BEGINNING, 999)).changes
        before = [one.before or "" for one in sorted(gone, key=lambda one: one.key_values())]
        passed = set[int]()
        for key, _after, _before, place in found:
            passed.add(json.loads(key)[0])
            assert {*await asked(store, source.passed, f"[{','.join(before)}]", place)} == passed - unknown
