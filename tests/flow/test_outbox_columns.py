"""An outbox that names fields of any kind is told of each change of them, on managed and on user-owned tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import Field
from stage.databases import run_sql

from penstock import ActionCtx, App, MutationCtx, Table
from penstock.testing import TestApp

FIELDS = ["long", "short", "words", "data", "raw", "at", "wait", "flag"]


@dataclass
class Sample:
    """A value of each kind, another one, and the type of its column elsewhere."""

    before: Any
    after: Any
    postgres: str


SAMPLES = {
    "long": Sample(Decimal("1.00000000000000001"), Decimal("1.00000000000000002"), "numeric"),
    "short": Sample(Decimal("1.5"), Decimal("1.6"), "numeric"),
    "words": Sample("a", "A", "text"),
    "data": Sample({"x": [1]}, {"x": [2]}, "json"),
    "raw": Sample(b"\x00", b"\x01", "bytea"),
    "at": Sample(
        datetime.fromisoformat("2030-01-01T00:00Z"), datetime.fromisoformat("2030-01-01T00:01Z"), "timestamptz"
    ),
    "wait": Sample(timedelta(days=1), timedelta(days=2), "interval"),
    "flag": Sample(True, False, "boolean"),
}


class Managed(Table):
    long: Decimal = Field(max_digits=40)
    short: Decimal
    words: str
    data: dict[str, list[int]]
    raw: bytes
    at: datetime
    wait: timedelta
    flag: bool
    other: int = 0


async def told_of(database_url: str, table: Any, row: Any, fields: list[str]) -> list[str]:
    """The fields whose change an outbox of all of them has told."""
    app, told = App(tables=[table]), list[Any]()

    @app.outbox(table, name="watcher", fields=fields, on=("update",))
    async def watcher(ctx: ActionCtx, values: Any) -> None:
        told.append(values)

    @app.internal_mutation
    async def insert(ctx: MutationCtx) -> Any:
        return await ctx.db.insert(row)

    @app.internal_mutation
    async def patch(ctx: MutationCtx, row_id: Any, name: str) -> None:
        await ctx.db.patch(table, row_id, **{name: SAMPLES[name].after if name in SAMPLES else 7})

    found = []
    async with TestApp(app, database_url) as test:
        row_id = await test.run_mutation(insert)
        for name in ("other", *fields):
            await test.run_mutation(patch, row_id, name)
            await test.run_until_idle()
            found += [name] if told else []
            told.clear()
    return found


@pytest.mark.both_stores
async def test_each_field_of_a_managed_table_is_watched(database_url: str) -> None:
    row = Managed(**{name: SAMPLES[name].before for name in FIELDS})
    assert await told_of(database_url, Managed, row, FIELDS) == FIELDS


@pytest.mark.both_stores
async def test_each_field_of_a_user_owned_table_is_watched(database_url: str) -> None:
    class Theirs(Table, source="theirs", key="nr", managed=False):
        nr: int
        words: str
        data: dict[str, list[int]]
        raw: bytes
        flag: bool
        other: int = 0

    fields = ["words", "data", "raw", "flag"]
    postgres = database_url.startswith("postgres")
    columns = [f"{name} {SAMPLES[name].postgres if postgres else ''} not null" for name in fields]
    await run_sql(database_url, f"create table theirs (nr integer primary key, {', '.join(columns)}, other integer)")
    row = Theirs(nr=1, **{name: SAMPLES[name].before for name in fields})
    assert await told_of(database_url, Theirs, row, fields) == fields
