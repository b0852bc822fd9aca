"""Outboxes of one table of items, with rows that are there before them or come afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from stage.outboxes import OutboxStage, drain, failing, text_of
from stage.stories import Stage

from penstock import Index, Retry, Table
from penstock.app import Backend
from penstock.testing import TestApp

TEN = timedelta(seconds=10)
SOON = Retry.fixed(TEN, max_attempts=3, jitter=0)
ONCE = Retry.fixed(TEN, max_attempts=1, jitter=0)
POLICIES = ("halt", "halt_key", "park")


class Item(Table):
    note: str = ""
    lane: str | None = "a"
    value: int = 0
    other: int = 0

    by_value = Index("value")
    by_both = Index("value", "other")


FILTERS: dict[str, Callable[[Any], Any]] = {
    "exact": lambda row: row.value > 0,
    "wide": lambda row: row.note.matches("^y"),  # which SQLite cannot say
}


def broken() -> Exception:
    return ValueError("no")


def of(*notes: str) -> list[Item]:
    return [Item(note=note) for note in notes]


def valued(count: int) -> list[Item]:
    return [Item(note=str(value), value=value) for value in range(count)]


def staged(*fails: str, **options: Any) -> OutboxStage:
    """An outbox of items; some of them fail."""
    stage = OutboxStage(Item)
    stage.outbox(Item, **{"retry": SOON, **options})
    stage.fails = failing(broken, *fails)
    return stage


def several(outboxes: dict[str, dict[str, Any]], *fails: str, **options: Any) -> OutboxStage:
    """Outboxes with these names and options, and some that all of them have."""
    stage = OutboxStage(Item)
    for name, own in outboxes.items():
        stage.outbox(Item, name, **{"retry": SOON, **options, **own})
    stage.fails = failing(broken, *fails)
    return stage


@asynccontextmanager
async def begun(stage: OutboxStage, url: str, *notes: str) -> AsyncIterator[TestApp]:
    """The app of outboxes that have begun; then these items are written, and handed over."""
    async with stage.open(url) as test:
        await drain(test)
        await stage.insert(test, *of(*notes))
        await drain(test)
        yield test


async def handed(stage: OutboxStage, test: Backend) -> dict[str, list[str]]:
    """What each outbox has handed over so far, or a mutation has written of it."""
    found = await stage.by_outbox(test)
    for one in stage.got:
        found.setdefault(one.outbox, []).append(text_of(one))
    return found


async def rows_before(url: str, *rows: Item) -> list[Any]:
    stage = Stage(Item)
    async with stage.open(url) as test:
        return await stage.insert(test, *rows)


async def pieces(test: TestApp, count: int = 1) -> None:
    await test.relay.tick()
    for _ in range(count):
        await test.relay.outboxes[0].tick()
