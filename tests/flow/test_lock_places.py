"""Locks through PgBouncer, where no connection is anybody's own; and around actions in processes of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flow import process_actions
from stage import ledger
from stage.pgbouncer import pgbouncer
from stage.processes import processes
from stage.waits import until

from penstock import ActionCtx, App, Backend, ContextError, LockLost, LockTaken
from penstock.store.nouns.locks import LockRow
from penstock.store.session import Statement
from penstock.testing import TestClock

AT_ONCE, LONG = timedelta(0), timedelta(seconds=30)
LEASE = timedelta(seconds=15)

app = OPENED = App()


@app.action
async def crunch(ctx: ActionCtx, begun: str) -> None:
    """Let another process compute while the lock is held here."""
    async with ctx.with_lock("k", wait=AT_ONCE):
        await ctx.run_action(process_actions.hang, begun=begun)


@app.action
async def add_up(ctx: ActionCtx) -> tuple[int, int]:
    """The number under which something was computed, and in which process."""
    async with ctx.with_lock("k", wait=LONG) as lock:
        return lock.fence, await ctx.run_action(process_actions.process_id)


@pytest.fixture(params=["with a direct connection", "alone"])
def settings(request: pytest.FixtureRequest, postgres_url: str) -> dict[str, Any]:
    """Settings of a program that knows, or does not know, where the server itself is."""
    return {"direct_database": postgres_url} if request.param != "alone" else {}


@asynccontextmanager
async def two(url: str, clock: TestClock | None = None, **settings: Any) -> AsyncIterator[tuple[Backend, Backend]]:
    """Two backends on one database, as two processes have them."""
    async with (
        ledger.app.open(url, clock=clock, **settings) as one,
        ledger.app.open(url, clock=clock, **settings) as other,
    ):
        yield one, other


async def row_of(backend: Backend, key: str = "k") -> LockRow | None:
    """The lock as the database has it; None if it is free."""
    session = await backend.engine.store.begin_read()
    try:
        rows = await backend.engine.store.locks.list(session, 10)
    finally:
        await session.rollback()
    return next((row for row in rows if row.key == key), None)


async def renewed(backend: Backend, clock: TestClock) -> None:
    """Let a third of a lease pass, and wait until the lock is renewed."""
    before = await row_of(backend)
    assert before is not None

    async def is_renewed() -> bool:
        row = await row_of(backend)
        return row is not None and row.expires_at > before.expires_at

    clock.advance(LEASE / 3)
    await until(is_renewed)


# ----- through PgBouncer


async def test_one_at_a_time_holds_a_lock_through_a_pooler(pooled_url: str, settings: dict[str, Any]) -> None:
    async with two(pooled_url, **settings) as (one, other):
        async with one.with_lock("k") as lock:
            with pytest.raises(LockTaken):
                async with other.with_lock("k", wait=AT_ONCE):
                    raise AssertionError
            await one.run_mutation(ledger.enter_under_lock, what="locked", key="k", fence=lock.fence)
        async with other.with_lock("k", wait=AT_ONCE) as later:
            assert later.fence > lock.fence
            with pytest.raises(LockLost):
                await one.run_mutation(ledger.enter_under_lock, what="locked", key="k", fence=lock.fence)
        assert await one.run_query(ledger.entries, what="locked") == [lock.fence]
        assert await row_of(one) is None


async def test_those_who_wait_through_a_pooler_get_it_one_after_another(
    pooled_url: str, settings: dict[str, Any]
) -> None:
    inside, fences = 0, list[int]()

    async def hold(backend: Backend) -> None:
        nonlocal inside
        async with backend.with_lock("k", wait=LONG) as lock:
            inside += 1
            assert inside == 1
            fences.append(lock.fence)
            await backend.run_mutation(ledger.enter_under_lock, what="x", key="k", fence=lock.fence)
            inside -= 1

    async with two(pooled_url, **settings) as both:
        await asyncio.gather(*(hold(both[number % 2]) for number in range(12)))
        assert fences == sorted(set(fences))
        assert sorted(await both[0].run_query(ledger.entries, what="x")) == fences


async def test_a_lock_outlives_a_pooler_that_is_restarted(postgres_url: str) -> None:
    clock = TestClock()
    with pgbouncer(postgres_url) as own:
        await own.start()
        async with two(own.url, clock) as (one, other):
            async with one.with_lock("k", on_lost="signal") as lock:
                for _ in range(4):
                    await own.restart()
                    await renewed(other, clock)
                lock.check()
                with pytest.raises(LockTaken):
                    async with other.with_lock("k", wait=AT_ONCE):
                        raise AssertionError
            assert await row_of(other) is None


async def test_the_lock_of_a_process_that_is_killed_is_free_behind_a_pooler_too(pooled_url: str) -> None:
    async with ledger.app.open(pooled_url) as backend:
        with processes(1, "lock", pooled_url, "k", "1") as (first,):
            before = await row_of(backend)
            assert before is not None
            await asyncio.to_thread(first.kill)
            async with backend.with_lock("k", wait=LONG) as lock:
                assert lock.fence > before.fence


# ----- around processes


async def test_a_lock_is_renewed_while_a_process_computes_under_it(database_url: str, tmp_path: Path) -> None:
    clock, begun = TestClock(), tmp_path / "begun"
    async with (
        app.open(database_url, clock=clock, processes=1) as backend,
        app.open(database_url, clock=clock) as other,
    ):
        computing = asyncio.create_task(backend.run_action(crunch, begun=str(begun)))
        await until(lambda: told(begun))
        for _ in range(6):  # twice its lease
            await renewed(other, clock)
        with pytest.raises(LockTaken):
            async with other.with_lock("k", wait=AT_ONCE):
                raise AssertionError
        computing.cancel()
        await asyncio.gather(computing, return_exceptions=True)
        await until(lambda: gone(int(begun.read_text("ascii"))))
        assert await row_of(other) is None


async def test_a_process_that_computes_under_a_lock_that_is_lost_is_ended(database_url: str, tmp_path: Path) -> None:
    clock, begun = TestClock(), tmp_path / "begun"
    async with app.open(database_url, clock=clock, processes=1) as backend:
        computing = asyncio.create_task(backend.run_action(crunch, begun=str(begun)))
        await until(lambda: told(begun))
        await take_away(backend)
        clock.advance(LEASE / 3)
        with pytest.raises(LockLost):
            await computing
        await until(lambda: gone(int(begun.read_text("ascii"))))


async def test_several_processes_compute_one_after_another_under_a_lock(database_url: str) -> None:
    async with app.open(database_url, processes=2) as backend:
        found = await asyncio.gather(*(backend.run_action(add_up) for _ in range(4)))
        assert len({fence for fence, _ in found}) == 4
        assert os.getpid() not in {process for _, process in found}
        assert await row_of(backend) is None


async def test_a_process_takes_no_lock_itself_and_says_where_to(database_url: str) -> None:
    async with process_actions.app.open(database_url, processes=1) as backend:
        with pytest.raises(ContextError, match=r"ctx\.with_lock does not exist in an action with runtime=\"process\""):
            await backend.run_action(process_actions.reach_out, what="with_lock")


async def told(file: Path) -> bool:
    return await asyncio.to_thread(lambda: file.exists() and bool(file.read_text("ascii")))


async def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


async def take_away(backend: Backend) -> None:
    """Delete the lock, as somebody does by hand."""
    table = "penstock_lock" if backend.engine.store.dialect.name == "sqlite" else "penstock.lock"
    session = await backend.engine.store.begin_write()
    try:
        await session.execute(Statement(f"delete from {table} where key = 'k'"))
        await session.commit()
    finally:
        await session.rollback()
