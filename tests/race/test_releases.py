"""Two releases of one program that start at once, and declare the same otherwise: one of them stands, and captures."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from stage.databases import run_sql
from stage.needs import LONG
from stage.outboxes import OutboxStage, drain, outbox_row
from stage.stories import Stage, settle, task_row

from penstock import Index, Table
from penstock.api.outbox.declared import DeclaredOutbox
from penstock.store.nouns.interests import InterestRow
from penstock.testing import TestApp

MAKE = "create table noted (number integer primary key, note text not null)"
OF_OUTBOXES = ("interests.add", "outboxes.capture", "interests.replace")
OF_TASKS = ("interests.declare", "tasks.declare", "interests.keep_declared")
CASES = [(True, (1, 1)), (False, (1, 1)), (True, (1, 2)), (False, (2, 1))]  # whether it is known, and the versions
ENDS = [(0, 1), (1, 0)]


class Noted(Table, source="noted", key=("number",), managed=False):
    number: int
    note: str


@dataclass
class Start:
    """A release that starts, and stops once where it is about to ask its store for something."""

    test: TestApp
    verb: str
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        noun, name = self.verb.split(".")
        owner = getattr(self.test.engine.store, noun)
        asked = getattr(owner, name)

        async def held(*args: Any) -> Any:
            self.reached.set()
            await self.go_on.wait()
            return await asked(*args)

        setattr(owner, name, held)
        self.task = asyncio.ensure_future(self.test.__aenter__())

    async def stop(self) -> None:
        """Let it come to the place, or to its end if it asks for nothing of the kind."""
        reached = asyncio.ensure_future(self.reached.wait())
        await asyncio.wait([self.task, reached], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()

    async def end(self) -> None:
        """Let it go on to its end."""
        self.go_on.set()
        await self.task


class Rows:
    """Rows that are written one after another, each with a number of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.written = 0

    async def write(self) -> None:
        await run_sql(self.url, f"insert into noted values ({self.written}, '{self.written}')")
        self.written += 1


async def both(
    stack: AsyncExitStack, rows: Rows, stages: Sequence[Stage], verbs: Sequence[str], end: Sequence[int]
) -> list[TestApp]:
    """Start two releases: each goes to its place, then one goes to its end, and then the other; rows come between."""
    starts: list[Start] = []
    for stage, verb in zip(stages, verbs, strict=True):
        starts.append(Start(stage.open(rows.url), verb))
        await starts[-1].stop()
        await rows.write()
    for one in (starts[number] for number in end):
        await one.end()
        stack.push_async_exit(one.test.__aexit__)
        await rows.write()
    return [one.test for one in starts]


async def captured(test: TestApp, name: str) -> InterestRow:
    """The only interest of a name."""
    (found,) = [row for row in await test.engine.store.interests.list() if row.interest.name == name]
    return found


@pytest.mark.parametrize(("known", "versions"), CASES)
@pytest.mark.parametrize("end", ENDS)
async def test_each_row_comes_once_whatever_two_releases_of_an_outbox_do_at_once(
    database_url: str, versions: tuple[int, int], end: tuple[int, int], *, known: bool
) -> None:
    await run_sql(database_url, MAKE)
    rows = Rows(database_url)
    pairs = list(itertools.product(OF_OUTBOXES, OF_OUTBOXES))
    quarter = 2 * end[0] + (versions == (1, 1))  # other cases try the others
    for number, verbs in enumerate(pairs if LONG else pairs[quarter::4]):
        name, before = f"o{number}", OutboxStage(Noted)
        stages = OutboxStage(Noted), OutboxStage(Noted)
        before.outbox(Noted, name, on=("insert", "delete"))
        stages[0].outbox(Noted, name, version=versions[0])
        stages[1].outbox(Noted, name, version=versions[1], on=("insert", "update"))
        if known:
            async with before.open(database_url) as test:
                await drain(test)
        async with AsyncExitStack() as stack:
            tests = await both(stack, rows, stages, verbs, end)
            interest, row = await captured(tests[0], f"outbox:{name}"), await outbox_row(tests[0], name)
            assert (interest.state, interest.id in row.interests, row.ready) == ("ok", True, True), verbs
            stands = 1 if "change" in interest.interest.kinds else 0
            assert row.plan == declared(stages[stands], name).plan(), verbs
            assert versions[stands] == max(versions), verbs
            for test in tests:
                await drain(test)
        got = [int(text) for stage in (before, *stages) for text in stage.texts()]
        assert sorted(got) == list(range(rows.written)), verbs


def declared(stage: Stage, name: str) -> DeclaredOutbox:
    found = stage.app.outboxes.find(name)
    assert found is not None
    return found


@pytest.mark.parametrize("verbs", list(itertools.product(OF_TASKS, OF_TASKS))[:: 1 if LONG else 2], ids=str)
@pytest.mark.parametrize(("known", "versions"), CASES[::3])
@pytest.mark.parametrize("end", ENDS)
async def test_each_row_is_run_whatever_two_releases_of_a_task_do_at_once(
    database_url: str, verbs: tuple[str, str], versions: tuple[int, int], end: tuple[int, int], *, known: bool
) -> None:
    await run_sql(database_url, MAKE)
    rows = Rows(database_url)
    before, stages = Stage(Noted), (Stage(Noted), Stage(Noted))
    before.task(Noted, filter=lambda row: row.number >= 0)
    stages[0].task(Noted, version=versions[0], watch=("note",))
    stages[1].task(Noted, version=versions[1], watch=("note",), filter=lambda row: row.number > -1)
    if known:
        async with before.open(database_url) as test:
            await settle(test)
    async with AsyncExitStack() as stack:
        tests = await both(stack, rows, stages, verbs, end)
        interest, row = await captured(tests[0], "task:react"), await task_row(tests[0])
        assert (interest.state, row.interests) == ("ok", (interest.id,))
        assert interest.interest.digest == row.plan.spec.interest
        assert row.plan.version == max(versions)
        for test in tests:
            await settle(test)
    assert {number for stage in (before, *stages) for number in stage.ids()} == set(range(rows.written))


class Item(Table):
    note: str = ""
    value: int = 0

    by_value = Index("value")


def release(**options: Any) -> OutboxStage:
    stage = OutboxStage(Item)
    stage.outbox(Item, **options)
    return stage


def once(patch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], Awaitable[Any]], *, after: bool) -> Any:
    """Have something happen the first time that a store is asked, before or after it has; set when it has happened."""
    asked, happened = getattr(owner, name), asyncio.Event()

    async def ask(*args: Any) -> Any:
        found = await asked(*args) if after else None
        if not happened.is_set():
            happened.set()
            await act()
        return found if after else await asked(*args)

    patch.setattr(owner, name, ask)
    return happened
