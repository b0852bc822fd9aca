"""Who waits for whom on SQLite: threads, connections and turns are handed out so that nobody holds up the writers."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from programs import ledger
from race.test_workers import make_worker
from stage.needs import examples
from stage.waits import SOON

from penstock import App, MutationCtx, Table
from penstock.clock import SystemClock, random_of
from penstock.config import Config
from penstock.errors import DatabaseBusy, Overloaded, UniqueViolation
from penstock.store.session import Statement
from penstock.store.sqlite.connection import run_in_thread
from penstock.store.sqlite.contention import begin_write

ENDLESS = Statement(
    "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n", bounded=False
)


# ----- other programs


class RarelyFree:
    """A file, and its clock, that another program leaves free for a moment every 5 ms: as long as a disk takes."""

    def __init__(self, seed: int, free: float, slice_: float) -> None:
        self._random, self._free, self._slice = random_of(seed), free, slice_
        self._now = self._turn = self._random.random() * 0.005
        self.random = self._random.random

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait, and then for a turn of the processor, which others use too."""
        self._now += seconds + self._random.random() * self._slice

    def execute(self, _sql: str) -> None:
        self._now += 5e-6
        if self._now % 0.005 > self._free:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error


@pytest.mark.parametrize("slice_", [0.0, 0.004], ids=["quiet", "busy"])
async def test_whoever_starts_beside_a_program_that_writes_without_a_pause_gets_its_turn(slice_: float) -> None:
    """The file is free for 20 µs of 5 ms. A start takes many turns: for the schema, and for all that is declared."""
    waits = list[float]()
    for seed in range(examples(200)):
        file: Any = RarelyFree(seed, 20e-6, slice_)
        begun = file.monotonic()
        await begin_write(file, file, Config().database_wait)
        waits.append(file.monotonic() - begun)
    assert max(waits) < Config().database_wait / 4


# ----- threads


@pytest.mark.parametrize("ends", ["its caller goes away", "its time is up"])
async def test_work_in_a_thread_that_ends_never_begins_or_is_waited_for(ends: str) -> None:
    seconds, begun, go_on = 0.05 if ends == "its time is up" else None, threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()

    with ThreadPoolExecutor(1) as executor, contextlib.closing(sqlite3.connect(":memory:")) as connection:
        executor.submit(go_on.wait)
        waiting = asyncio.create_task(run_in_thread(executor, connection, work, seconds))
        await asyncio.wait([waiting], timeout=0)
        if seconds is None:
            waiting.cancel()
        try:
            async with asyncio.timeout(SOON):
                with pytest.raises(asyncio.CancelledError if seconds is None else Overloaded):
                    await asyncio.shield(waiting)
        finally:
            go_on.set()
        go_on = threading.Event()
        assert not begun.is_set()
        under_way = asyncio.create_task(run_in_thread(executor, connection, work, seconds))
        await asyncio.to_thread(begun.wait)
        for _ in range(2):  # the second cancel comes while the work that was interrupted is still in its thread
            await asyncio.wait([under_way], timeout=0.05)
            under_way.cancel()
        await asyncio.wait([under_way], timeout=0.05)
        assert not under_way.done()
        go_on.set()
        await asyncio.gather(under_way, return_exceptions=True)
        assert under_way.cancelled()


async def test_a_statement_that_takes_too_long_is_stopped_beside_others_that_wait(sqlite_url: str) -> None:
    async with ledger.app.open(sqlite_url, max_connections=2, statement_timeout=0.5) as backend:
        for _ in range(3):
            session = await backend.engine.store.begin_read()
            with pytest.raises(DatabaseBusy, match="took too long"):
                await session.fetch(ENDLESS)
            await session.rollback()


# ----- connections


async def test_a_worker_does_not_wait_for_the_connections_of_calls(sqlite_url: str) -> None:
    async with ledger.app.open(sqlite_url, max_connections=1) as backend:
        await backend.scheduler.run_after(timedelta(0), ledger.enter, what="x")
        worker = make_worker(backend)
        session = await backend.engine.store.begin_read()
        async with asyncio.timeout(SOON):
            await worker.tick()
            await worker.wait_for_jobs()
        await session.rollback()
        assert await backend.run_query(ledger.entries, what="x") == [0]
        await worker.finish()


# ----- turns


async def test_whoever_enqueues_beside_others_shares_their_commits(sqlite_url: str) -> None:
    async with ledger.app.open(sqlite_url) as backend:
        store: Any = backend.engine.store
        await ledger.crew.enqueue(backend, ledger.enter, what="first")

        async def each() -> None:
            for number in range(20):
                await ledger.crew.enqueue(backend, ledger.enter, what=f"{number}")

        before = store._writer._commits
        await asyncio.gather(*(each() for _ in range(50)))
        assert (await backend.job_counts())["ready"] == 1001
        assert store._writer._commits - before <= 1000 // 10


async def test_whoever_is_cancelled_before_its_commit_leaves_no_transaction_open(sqlite_url: str) -> None:
    """It has written, and given its turn away: what it wrote is kept, and the write lock is free again."""

    async with ledger.app.open(sqlite_url) as backend:
        store: Any = backend.engine.store
        task = asyncio.create_task(ledger.crew.enqueue(backend, ledger.enter, what="x"))
        while not store._writer._open:
            await SystemClock().sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not store._writer.connection.in_transaction
        assert (await backend.job_counts())["ready"] == 1
        with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), timeout=0)) as other:
            other.execute("begin immediate")


@pytest.mark.parametrize("how", ["nothing", "raises", "writes", "is late", "is late beside another", "is refused"])
async def test_whoever_hears_that_a_call_has_failed_finds_the_write_lock_free(sqlite_url: str, how: str) -> None:
    """It may write by a connection of its own, on the same event loop."""

    class Ticket(Table):
        title: str

    app, limit = App(tables=[Ticket]), asyncio.timeout(None)

    @app.internal_mutation
    async def enter(ctx: MutationCtx, how: str) -> None:
        if how not in {"nothing", "raises"}:
            await ctx.db.insert(Ticket(title=how))
        if how in {"raises", "writes"}:
            raise ValueError(how)
        if how.startswith("is late"):
            limit.reschedule(0)
            await asyncio.Event().wait()

    async with app.open(sqlite_url) as backend:
        other = asyncio.create_task(backend.run_mutation(enter, how="other")) if "beside" in how else None
        store: Any = backend.engine.store
        while other and not store._writer._open:
            await SystemClock().sleep(0)
        with contextlib.suppress(ValueError, TimeoutError, UniqueViolation):
            if how == "is refused":
                job = backend.job_calls.new_job(enter, {"how": "other"}, backend.engine.clock.now())
                for _ in range(2):
                    await store.jobs.enqueue_alone(job, backend.engine.clock.now())
            async with limit:
                await backend.run_mutation(enter, how=how)
        with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), timeout=0)) as mine:
            mine.execute("begin immediate")
            assert mine.execute("select count(*) from ticket").fetchone() == (int("beside" in how),)
        if other:
            await other
