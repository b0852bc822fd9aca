"""Best practices that are seen while a program runs: each broken one is told once, with its place."""

# Programs that tell the time by themselves are the subject here.
# ruff: noqa: DTZ003, DTZ011, TID251

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import logging
import os
import random
import re
import secrets
import time
import uuid
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from penstock import (
    ActionCtx,
    App,
    Id,
    Index,
    JobId,
    MutationCtx,
    QueryCtx,
    Table,
    public,
    signed_in,
    sync,
)
from penstock.errors import PracticeBroken
from penstock.testing import Finding, TestApp

NOW = timedelta(0)
app = App()
pool = app.workpool("letters")


class Letter(Table):
    number: int
    group: int
    by_group = Index("group")


@app.internal_mutation
async def fill(ctx: MutationCtx, group: int, count: int) -> None:
    await ctx.db.insert_many([Letter(number=number, group=group) for number in range(count)])


# ----- reading: lines that are told are marked with the code of their rule


@app.internal_query
async def reads(ctx: QueryCtx) -> int:
    letters = ctx.db.query(Letter)
    found = [
        await letters.collect(),  # PEN003
        await letters.with_index(Letter.by_group, group=0).collect(),
        await letters.filter(lambda one: one.number == 150).take(1),  # PEN002
        await letters.filter(lambda one: one.number % 50 == 0).take(3),
        [one async for one in letters.filter(lambda one: one.number == 3)],  # PEN002
        (await letters.filter(lambda one: one.number == 3).paginate(num_items=5)).page,
        await letters.collect(),  # penstock: ignore[PEN003] a test of comments
        await letters.filter(lambda one: one.number == 3).collect(),  # penstock: ignore[PEN003, PEN002] another one
        await letters.order("desc")
        .filter(lambda one: one.number == 3)
        .collect(),  # penstock: ignore[PEN003, PEN002] on one of its lines
        await letters.collect(),  # penstock: ignore[PEN003]
    ]
    return sum(map(len, found))


@app.internal_query
def reads_in_thread(ctx: sync.QueryCtx) -> int:
    first = ctx.db.query(Letter).take(1)
    return len(first) + len(ctx.db.query(Letter).collect())  # PEN003


async def every_letter(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Letter).collect())  # PEN003


@app.internal_query
async def reads_elsewhere(ctx: QueryCtx) -> int:  # PEN003
    together = await asyncio.gather(ctx.db.query(Letter).collect())
    return len(together) + await every_letter(ctx)


# ----- time and chance


class Stamp(Table):
    at: datetime
    key: str


def stamp() -> float:
    return time.time()  # PEN014


@app.internal_mutation
async def takes_chances(ctx: MutationCtx) -> None:
    stamp()
    dt.datetime.now(UTC)  # PEN014
    datetime.utcnow()  # PEN014
    date.today()  # PEN014
    uuid.uuid4()  # PEN014
    random.choice("ab")  # PEN014
    secrets.token_hex()  # PEN014
    os.urandom(4)  # PEN014
    logging.getLogger("letters").warning("a library may ask")
    ctx.random.choice("ab")
    await asyncio.sleep(0)
    await ctx.db.insert(Stamp(at=ctx.now(), key=str(ctx.random.random())))


@app.internal_query
def takes_chances_in_thread(ctx: sync.QueryCtx) -> str:
    return str(datetime.now(UTC))  # PEN014


@app.internal_action
async def blocks(ctx: ActionCtx) -> None:
    time.sleep(0)  # noqa: ASYNC251 - what the test is about; PEN022
    await asyncio.to_thread(time.sleep, 0)


# ----- access, and public functions within


@app.mutation
async def open_to_all(ctx: MutationCtx) -> None:  # PEN006
    pass


@app.mutation  # penstock: ignore[PEN006] a test of comments
async def open_on_purpose(
    ctx: MutationCtx,
) -> None:
    pass


@app.query
async def asks(ctx: QueryCtx) -> None:
    await ctx.auth.get_user_identity()


@app.action
async def asks_within(ctx: ActionCtx) -> None:
    await ctx.run_query(asks)  # PEN008


@app.query(access=public)
async def meant(ctx: QueryCtx) -> None:
    pass


@app.mutation(access=signed_in)
async def schedules(ctx: MutationCtx) -> JobId[None]:
    await ctx.scheduler.run_after(NOW, add)
    await pool.enqueue(ctx, open_to_all)  # PEN008
    return await ctx.scheduler.run_after(NOW, open_to_all)  # PEN008


# ----- transactions of actions


@app.internal_mutation
async def add(ctx: MutationCtx) -> Id[Letter]:
    return await ctx.db.insert(Letter(number=1, group=5))


@app.internal_query
async def count(ctx: QueryCtx) -> int:
    return await ctx.db.query(Letter).count()


@app.internal_action
async def one_by_one(ctx: ActionCtx) -> None:
    await ctx.run_query(count)
    known = await ctx.run_query(count)  # PEN011
    await asyncio.sleep(0)
    if known:
        await ctx.run_mutation(add)
    try:
        known = await ctx.run_query(Id("gone"))  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001
        known = await ctx.run_query(count)
    await asyncio.gather(ctx.run_query(count), ctx.run_query(count))


@app.internal_action
def one_by_one_in_thread(ctx: sync.ActionCtx) -> None:
    ctx.run_query(count)
    ctx.run_mutation(add)  # PEN011
    os.getpid()
    ctx.run_query(count)


@app.internal_action
async def many(ctx: ActionCtx, times: int) -> None:
    for _ in range(times):
        await ctx.run_query(count)  # PEN012


async def count_later(ctx: ActionCtx) -> int:
    await asyncio.sleep(0)
    return await ctx.run_query(count)


@app.internal_action
async def many_beside(ctx: ActionCtx, times: int) -> list[int]:
    return await asyncio.gather(*(count_later(ctx) for _ in range(times)))


def marked(*functions: Any) -> list[tuple[str, int]]:
    """The rules and lines that are marked in functions."""
    found = []
    for function in functions:
        lines, begin = inspect.getsourcelines(getattr(function, "declared", function))
        found += [
            (code, begin + at) for at, text in enumerate(lines) for code in re.findall(r"(PEN\d+)\]?$", text.rstrip())
        ]
    return sorted(found)


def told(findings: Iterable[Finding]) -> list[tuple[str, int]]:
    return sorted((one.code, int(one.place.rpartition(":")[2])) for one in findings)


async def test_reads_that_grow_are_told_with_their_numbers(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(fill, 0, 1000)
        await backend.run_query(reads_in_thread)
        assert backend.practices == []
        await backend.run_mutation(fill, 1, 200)
        for _ in range(2):
            for function in (reads, reads_in_thread, reads_elsewhere):
                await backend.run_query(function)
        assert told(backend.practices) == marked(reads, reads_in_thread, every_letter, reads_elsewhere)
        first = backend.practices[0]
        assert first.function == "test_practices:reads"
        assert first.times >= 2  # an attempt that is repeated counts, too
        assert first.seen == "collect read 1,200 rows of Letter"
        seen = [one.seen for one in backend.practices if one.code == "PEN002"]
        assert seen[-1] == "a filter read 1,200 rows of Letter, and kept 2"


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")  # deprecated since Python 3.12
async def test_time_and_chance_are_told_in_transactions_of_the_program_only(caplog: pytest.LogCaptureFixture) -> None:
    before = time.time, datetime.now, datetime.__dict__["now"], random.random, os.urandom
    async with TestApp(app) as backend, TestApp(app, practices="off") as quiet:
        for one in (backend, quiet):
            await one.run_mutation(takes_chances)
            await one.run_query(takes_chances_in_thread)
            await one.run_action(blocks)
        stamp()
        assert told(backend.practices) == marked(stamp, takes_chances, takes_chances_in_thread, blocks)
        assert "datetime.now" in {one.seen.partition(" ")[0] for one in backend.practices}
        assert quiet.practices == []
    assert (time.time, datetime.now, datetime.__dict__["now"], random.random, os.urandom) == before
    records = [one for one in caplog.records if getattr(one, "event", "") == "practice.broken"]
    assert len(records) == len(backend.practices)
    facts = vars(records[0])["facts"]
    assert (facts["code"], facts["function"]) == ("PEN014", "test_practices:takes_chances")


async def test_access_and_public_functions_are_told() -> None:
    async with TestApp(app) as backend:
        ada = backend.with_identity(subject="ada")
        await backend.run_mutation(open_to_all)
        assert backend.practices == []  # the program itself calls
        await ada.run_mutation(open_to_all)
        await ada.run_mutation(open_on_purpose)
        await ada.run_query(asks)
        await ada.run_action(asks_within)
        await ada.run_query(meant)
        await ada.run_mutation(schedules)
        assert told(backend.practices) == marked(open_to_all, asks_within, schedules)


async def test_transactions_one_after_another_are_told() -> None:
    async with TestApp(app) as backend:
        await backend.run_action(one_by_one)
        await backend.run_action(one_by_one_in_thread)
        await backend.run_action(many, 10)
        assert told(backend.practices) == marked(one_by_one, one_by_one_in_thread)
        await backend.run_action(many, 11)
        assert told(backend.practices[2:]) == marked(many)
        assert "11 calls" in backend.practices[2].seen
        assert await backend.run_action(many_beside, 20) == [1] * 20


async def test_a_setting_makes_them_errors_or_turns_them_off() -> None:
    async with TestApp(app, practices="error, PEN006=log, PEN008=off") as backend:
        for _ in range(2):
            with pytest.raises(PracticeBroken, match=r"test_practices:takes_chances .*explain PEN014") as caught:
                await backend.run_mutation(takes_chances)
            assert caught.value.facts["rule"] == "PEN014"
            assert "test_practices.py:" in caught.value.facts["place"]
        ada = backend.with_identity(subject="ada")
        await ada.run_mutation(open_to_all)
        await ada.run_mutation(schedules)
        assert [one.code for one in backend.practices] == ["PEN014", "PEN006"]


async def test_only_development_watches_by_itself(sqlite_url: str) -> None:
    off: dict[str, Any] = {"dev": True, "practices": "off"}
    for settings, is_on in (({}, False), ({"dev": True}, True), (off, False)):
        async with app.open(sqlite_url, **settings) as backend:
            assert (backend.engine.practices is not None) is is_on, settings
