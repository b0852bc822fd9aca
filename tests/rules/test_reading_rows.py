"""Rows become values of classes by the names of their columns and the annotations of fields."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from penstock.jobs.job import NO_OPTIONS, Options
from penstock.store.sqlite.access import SqliteAccess

ACCESS = SqliteAccess(None, None, None)  # type: ignore[arg-type]  # it converts values only
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Text:
    said: str

    @classmethod
    def parse(cls, text: str) -> Text:
        return cls(text.upper())


@dataclass(frozen=True)
class Plan:
    name: str
    paused: bool


@dataclass(frozen=True)
class Kept:
    id: UUID
    plan: Plan
    at: datetime
    until: datetime | None
    numbers: tuple[int, ...]
    text: Text | None
    options: Options
    length: int = 0
    more: str = "none"


def rows(sql: str) -> list[sqlite3.Row]:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    return connection.execute(sql).fetchall()


def test_a_field_is_the_column_of_its_name() -> None:
    found = rows(
        f"select 'x' as text, '[1, 2]' as numbers, null as until, '2026-11-29T12:00:00.000000Z' as at, 1 as paused, "
        f"'p' as name, x'{UUID(int=7).hex}' as id, null as options, 9 as unknown"
    )
    assert ACCESS.read(Kept, found, length=lambda row: len(row["name"])) == [
        Kept(UUID(int=7), Plan("p", paused=True), NOON, None, (1, 2), Text("X"), NO_OPTIONS, 1, "none")
    ]


def test_rows_of_none_give_nothing() -> None:
    assert ACCESS.read(Plan, []) == []


def test_the_order_of_columns_does_not_matter() -> None:
    for sql in ("select 'p' as name, 0 as paused", "select 0 as paused, 'p' as name"):
        assert ACCESS.read(Plan, rows(sql)) == [Plan("p", paused=False)]
