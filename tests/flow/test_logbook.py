"""The logbook: written seldom, never by idle processes, whole after a stop, and no reason for a function to fail."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from stage.feed import write

from penstock import ActionCtx, App, MutationCtx, Snooze, Table, sync
from penstock.calls.run import engine
from penstock.clock import SystemClock
from penstock.errors import ApplicationError
from penstock.observe.logbook import LogEvent, Numbers
from penstock.testing import TestApp, TestClock

app = App()
pool = app.workpool("lines")
log = logging.getLogger("shop")
HOUR = timedelta(hours=1)
EVERY = timedelta(seconds=5)


class Note(Table, name="note_of_logbook"):
    text: str


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@app.mutation
async def note(ctx: MutationCtx, text: str) -> None:
    await ctx.db.insert(Note(text=text))
    log.warning("noted %s", text)


@app.action
async def flood(ctx: ActionCtx, lines: int) -> None:
    log.error("the cause")
    for number in range(lines):
        log.info("line %d", number)
    log.info("x" * 1_000_000)
    log.info("NUL \0, half an emoji \ud83d")
    log.info("%d", "no number")
    log.info("%s", Odd())
    logging.getLogger(f"odd \0 \ud83d {'y' * 1000}").warning("by an odd logger")
    logging.getLogger("shop").handle(logging.makeLogRecord({"msg": "made elsewhere", "levelno": 20}))


@app.internal_action
async def fail(ctx: ActionCtx, how: str) -> None:
    if how == "snooze":
        raise Snooze(HOUR)
    raise ApplicationError("sold out") if how == "application" else ValueError("x" * 5000)


@app.internal_action
def in_a_thread(ctx: sync.ActionCtx, name: str) -> None:
    log.warning("thread %s", name)


@dataclass
class Parcel:
    name: str


@app.internal_action(batch=10, of=Parcel)
async def many(ctx: ActionCtx, calls: list[Parcel]) -> list[None]:
    log.warning("a batch of %d", len(calls))
    return [None] * len(calls)


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "shop")
    monkeypatch.setattr(logging, "raiseExceptions", False)  # of lines whose arguments do not fit
    caplog.handler.setLevel(100)


async def numbers(backend: TestApp, since: timedelta = HOUR) -> Numbers:
    return await backend.engine.store.logbook.sums(backend.clock.now() - since)


async def events(backend: TestApp, **where: Any) -> list[LogEvent]:
    return [*reversed(await backend.engine.store.logbook.events(9999, **where))]


@asynccontextmanager
async def writes_of(backend: TestApp, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """The number of events of each write to the logbook."""
    seen, logbook = list[int](), backend.engine.store.logbook
    plain = logbook.write

    async def written(now: Any, found: Numbers, logged: Any) -> None:
        seen.append(len(logged))
        await plain(now, found, logged)

    monkeypatch.setattr(logbook, "write", written)
    yield seen


async def settle(backend: TestApp, by: timedelta = EVERY) -> None:
    """Move the clock, and let the writer act."""
    backend.clock.advance(by)
    for _ in range(50):
        await SystemClock().sleep(0)


async def test_a_process_writes_once_in_five_seconds_and_an_idle_one_never(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestApp(app, sqlite_url) as backend, writes_of(backend, monkeypatch) as writes:
        await settle(backend)
        writes.clear()  # that of the tables which were made
        for _ in range(5):
            await settle(backend)
        assert writes == []
        for _ in range(9):
            await backend.run_mutation(note, "a")
        assert writes == []
        await settle(backend)
        assert len(writes) == 1
        for _ in range(5):
            await settle(backend)
        assert len(writes) == 1
        assert (await numbers(backend))[f"function {note.name}"]["success"] == 9


async def test_a_stop_writes_what_is_left_and_a_kill_loses_one_interval(database_url: str) -> None:
    clock = TestClock()
    async with TestApp(app, database_url, clock=clock) as first:
        await first.run_mutation(note, "a")
    second = TestApp(app, database_url, clock=clock)
    await second.__aenter__()
    await second.run_mutation(note, "b")
    await second.engine.write_logbook()
    await second.run_mutation(note, "c")
    await second.kill()
    async with TestApp(app, database_url, clock=clock) as third:
        assert (await numbers(third))[f"function {note.name}"]["success"] == 2
        assert {one.facts["message"] for one in await events(third, event="shop")} == {"noted a", "noted b"}


async def test_a_database_that_refuses_the_write_stops_nothing_and_loses_no_number(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestApp(app, database_url) as backend:
        store, told = backend.engine.store, list[str]()
        monkeypatch.setattr(engine, "log_event", lambda name, *_, **__: told.append(name))
        meter = "penstock.meter" if store.dialect.schemas else "penstock_meter"
        await write(store, f"alter table {meter} rename to away")
        for number in range(30):
            await backend.run_mutation(note, str(number))
            if number % 10 == 5:
                assert await backend.engine.write_logbook() is False
        away = "penstock.away" if store.dialect.schemas else "away"
        await write(store, f"alter table {away} rename to {meter.rpartition('.')[2]}")
        assert await backend.engine.write_logbook() is True
        assert (await numbers(backend))[f"function {note.name}"]["success"] == 30
        assert told == ["logbook.not_written"]

        async def stuck(*_: Any) -> None:
            raise RuntimeError("of the driver")

        monkeypatch.setattr(store.logbook, "write", stuck)
        await backend.run_mutation(note, "last")
    # and the stop raises nothing


async def test_floods_and_odd_lines_are_bounded_and_hide_no_error(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])  # pytest cannot report half an emoji
    async with TestApp(app, database_url) as backend:
        await backend.run_action(flood, lines=3_000)
        await backend.engine.write_logbook()
        found = await events(backend, function="flood")
        texts = [one.facts["message"] for one in found]
        assert 10 < len(found) <= 400
        assert "the cause" in texts, "no flood hides it"
        assert max(map(len, texts)) == 2000
        assert "by an odd logger" in texts
        assert texts.index("line 2999") < texts.index("%d") < texts.index("%s")
        assert any("half an emoji" in one for one in texts)
        assert "made elsewhere" not in texts  # its record came from another process
        for _ in range(3):
            with pytest.raises(ValueError, match="xxx"):
                await backend.run_action(fail, how="plain")
        await backend.engine.write_logbook()
        assert all(len(one.facts["error"]) <= 300 for one in await events(backend, level=1, event="function.failed"))


async def test_many_names_are_written_in_turn_and_none_is_lost(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        for how in ("application", "plain"):
            with pytest.raises((ApplicationError, ValueError)):
                await backend.run_action(fail, how=how)
        for number in range(1200):
            backend.engine.journal.book.add(f"function f{number}", "success")
        sizes = []
        while await backend.engine.write_logbook():
            sizes.append(len(await numbers(backend)))
        assert sizes[-1] == 1201
        assert len(sizes) >= 2
        found = (await numbers(backend))[f"function {fail.name}"]
        assert (found["error"], found["fault"]) == (2, 1), "what is raised on purpose is no fault"


async def test_lines_bear_their_jobs_and_go_to_the_logbook_of_their_backend(database_url: str, tmp_path: Path) -> None:
    async with TestApp(app, database_url) as backend, TestApp(app, f"sqlite:///{tmp_path / 'other.db'}") as other:
        await other.run_mutation(note, "elsewhere")
        ids = [await pool.enqueue(backend, many, name=name) for name in "abc"]
        thread = await pool.enqueue(backend, in_a_thread, name="t")
        await backend.run_until_idle()
        for one in (backend, other):
            await one.engine.write_logbook()
        assert [one.facts["message"] for one in await events(other, event="shop")] == ["noted elsewhere"]
        for job in ids:
            (line,) = await events(backend, event="shop", words=[f" {job} "])
            assert line.facts["message"] == "a batch of 3"
        (line,) = await events(backend, event="shop", words=[f" {thread} "])
        assert (line.facts["message"], line.facts["job"], line.function) == ("thread t", thread, in_a_thread.name)
        assert len(await events(backend, event="shop")) == 2
