"""Locks: held for the time of a block by one holder at a time, in actions and programs, with a number that rises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from stage.servers import pgbouncer
from stage.waits import SOON

from penstock import (
    ActionCtx,
    App,
    Backend,
    ContextError,
    Id,
    Lock,
    LockLost,
    LockTaken,
    MutationCtx,
    QueryCtx,
    Table,
    ValueInvalid,
)
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx
from penstock.store.nouns.locks import LockRow
from penstock.testing import TestApp, TestClock

app = OPENED = App()

AT_ONCE = timedelta(0)
LEASE = timedelta(seconds=15)


class Entry(Table):
    text: str
    fence: int = 0


@app.mutation
async def write(ctx: MutationCtx, text: str, key: str = "", fence: int = 0) -> Id[Entry]:
    if fence:
        await ctx.check_fence(key, fence)
    return await ctx.db.insert(Entry(text=text, fence=fence))


@app.mutation
def write_in_thread(ctx: SyncMutationCtx, text: str, key: str, fence: int) -> Id[Entry]:
    ctx.check_fence(key, fence)
    return ctx.db.insert(Entry(text=text, fence=fence))


@app.query
async def written(ctx: QueryCtx) -> list[str]:
    return [entry.text async for entry in ctx.db.query(Entry)]


@app.action
async def work(ctx: ActionCtx, text: str, key: str = "k") -> int:
    """Looks, does something, and writes, as no two may at once."""
    async with ctx.with_lock(key, wait=timedelta(seconds=30)) as lock:
        before = await ctx.run_query(written)
        await ctx.run_mutation(write, f"{text} {len(before)}", key, lock.fence)
        return lock.fence


@app.action
def work_in_thread(ctx: SyncActionCtx, text: str) -> tuple[int, bool, bool]:
    with ctx.with_lock("k") as lock:
        ctx.run_mutation(write_in_thread, text, "k", lock.fence)
        lock.check()
        return lock.fence, lock.lost, lock.wait_lost(0)


@app.internal_mutation
async def locking(ctx: MutationCtx) -> None:
    ctx.with_lock("k", wait=AT_ONCE)  # type: ignore[attr-defined]  # which it refuses


@app.action
async def hold_on(ctx: ActionCtx) -> None:
    async with ctx.with_lock("k") as lock:
        fences.append(lock.fence)
        await ctx.wait_cancelled()


@app.action
def lose_in_thread(ctx: SyncActionCtx) -> None:
    with ctx.with_lock("k") as lock:
        assert not lock.lost
        clocks.pop().advance(LEASE)
        assert lock.lost


@app.mutation
async def check(ctx: MutationCtx, fence: Any) -> None:
    await ctx.check_fence("k", fence)


clocks: list[TestClock] = []
fences: list[int] = []  # of the locks that `hold_on` has taken


@asynccontextmanager
async def two(url: str, **settings: Any) -> AsyncIterator[tuple[Backend, Backend, TestClock]]:
    """Two backends on one database, as two processes have them, with one clock that the test moves."""
    clock = TestClock()
    async with app.open(url, clock=clock, **settings) as first, app.open(url, clock=clock, **settings) as second:
        yield first, second, clock


async def held(backend: Backend) -> list[LockRow]:
    """The locks in the database."""
    session = await backend.engine.store.begin_read()
    try:
        return await backend.engine.store.locks.list(session, 10)
    finally:
        await session.rollback()


async def is_free(backend: Backend, key: str = "k") -> bool:
    try:
        async with backend.with_lock(key, wait=AT_ONCE):
            return True
    except LockTaken:
        return False


async def test_one_at_a_time_holds_a_lock(database_url: str) -> None:
    async with two(database_url) as (first, second, _):
        async with first.with_lock("k") as lock:
            assert (lock.key, lock.lost) == ("k", False)
            lock.check()
            with pytest.raises(LockTaken) as refused:
                async with second.with_lock("k", wait=AT_ONCE):
                    raise AssertionError
            assert "with_lock" not in str(refused.value)
            facts = refused.value.facts
            assert (facts["key"], facts["fence"]) == ("k", lock.fence)
            assert facts["until"] == first.engine.clock.now() + LEASE
            assert ":" in facts["holder"]
            async with second.with_lock("other", wait=AT_ONCE) as other:
                assert other.fence > lock.fence
        async with second.with_lock("k", wait=AT_ONCE) as next_one:
            assert next_one.fence > other.fence
        assert await held(first) == []


def test_a_program_that_does_not_await_holds_a_lock(database_url: str) -> None:
    numbers: list[int] = []
    inside = threading.Lock()
    with app.sync.open(database_url) as backend, ThreadPoolExecutor(3) as threads:

        def use(_: int) -> None:
            with backend.with_lock("k", wait=timedelta(seconds=30)) as lock:
                assert inside.acquire(blocking=False)
                numbers.append(lock.fence)
                inside.release()

        list(threads.map(use, range(15)))
        assert len(numbers) == 15
        assert numbers == sorted(set(numbers))
        with backend.with_lock("k"), pytest.raises(ContextError, match="is held here already"):
            backend.with_lock("k").__enter__()


async def test_actions_take_turns_and_name_themselves(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        numbers = await asyncio.gather(*(backend.run_action(work, f"a{number}") for number in range(8)))
        assert len(set(numbers)) == 8
        texts = await backend.run_query(written)
        assert [text.split()[1] for text in texts] == [str(number) for number in range(8)]
        fence, lost, wait = await backend.run_action(work_in_thread, "sync")
        assert (fence > 0, lost, wait) == (True, False, False)
        assert (await backend.run_query(written))[8:] == ["sync"]
        assert await held(backend) == []

        task = asyncio.create_task(backend.run_action(hold_on))
        while not fences:  # the row is seen before its taker hears of it
            await backend.engine.machine.sleep(0.001)
        [found] = await held(backend)
        assert (found.fence, found.holder.rsplit(" ", 1)[1]) == (fences.pop(), hold_on.name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await held(backend) == []
        with pytest.raises(ContextError, match="A transaction takes no locks"):
            await backend.run_mutation(locking)


async def test_what_can_be_no_lock_is_refused(database_url: str) -> None:
    no_keys: list[Any] = ["", "a" * 201, "a\nb", "\ud800", 100, None]
    no_options: list[dict[str, Any]] = [
        {"wait": timedelta(seconds=-1)}, {"wait": 3}, {"wait": timedelta(days=400)},
        {"lease": timedelta(0)}, {"lease": timedelta(days=2)}, {"on_lost": "raise"}, {"on_lost": []},
    ]  # fmt: skip
    async with two(database_url) as (first, second, _):
        for key in no_keys:
            with pytest.raises(ValueInvalid, match="The key of a lock is a text of 1 to 200 printable characters"):
                first.with_lock(key)
        for options in no_options:
            with pytest.raises(ValueInvalid, match=f"with_lock: {next(iter(options))}"):
                first.with_lock("k", **options)
        for fence in (0, 2**63, True, "1"):
            with pytest.raises(ValueInvalid, match="A fence is a lock's fencing token"):
                await first.run_mutation(check, fence)
        for key in ("a" * 200, "účet 💶", "'; drop table lock; --"):
            async with first.with_lock(key) as lock:
                assert [row.key for row in await held(second)] == [key] == [lock.key]
                assert not await is_free(second, key)
        block = first.with_lock("k")
        async with block:
            with pytest.raises(ContextError, match="entered twice"):
                await block.__aenter__()
            with pytest.raises(ContextError, match="cannot be held twice"):
                await first.with_lock("k").__aenter__()
        assert await held(second) == []


async def test_it_is_given_back_when_the_block_raises_or_is_cancelled_or_its_backend_closes(database_url: str) -> None:
    async with two(database_url) as (first, second, clock):
        with pytest.raises(ZeroDivisionError):
            async with first.with_lock("k"):
                raise ZeroDivisionError
        assert await is_free(second)
        task, lock = await hold(first)
        waiter = asyncio.create_task(enter(second))
        await wanted(first)
        for _ in range(3):  # while it does so, too
            task.cancel()
            await first.engine.machine.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await waiter > lock.fence
        assert clock.monotonic() == 0.0, "somebody told it, as time does not pass here"
        async with app.open(database_url) as closing:
            task, _ = await hold(closing)
        with pytest.raises(LockLost, match="the backend is being closed"):
            await task
        assert await is_free(second)


async def test_those_who_wait_in_one_process_get_it_in_order_or_leave_nothing(database_url: str) -> None:
    async with two(database_url) as (first, second, clock):
        task, lock = await hold(first)
        order: list[int] = []

        async def use(number: int) -> None:
            async with second.with_lock("k", wait=timedelta(seconds=2 if number == 8 else 30)):
                order.append(number)

        waiters = [asyncio.create_task(use(number)) for number in range(9)]
        await wanted(first)
        for waiter in waiters[1::3]:
            waiter.cancel()
        await asyncio.gather(*waiters[1::3], return_exceptions=True)
        while not waiters[8].done():
            await second.engine.machine.sleep(0.001)
            clock.advance(timedelta(milliseconds=50))
        with pytest.raises(LockTaken, match="was not free within 2 seconds") as refused:
            await waiters[8]
        assert refused.value.facts["fence"] == lock.fence
        assert clock.monotonic() >= 2
        task.cancel()
        await asyncio.gather(task, *waiters, return_exceptions=True)
        assert order == [0, 2, 3, 5, 6]
        assert await is_free(second)
        assert second.runner.locks._lines == {}


async def test_what_is_done_under_a_lost_lock_is_cancelled(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with two(database_url) as (first, second, clock):
        begun = asyncio.Event()

        async def hold_on() -> None:
            async with first.with_lock("k") as lock:
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    assert lock.lost
                    with pytest.raises(LockLost):
                        lock.check()

        async def body() -> None:
            with pytest.raises(LockLost):
                await hold_on()
            await first.engine.machine.sleep(0)  # it goes on behind its block

        task = asyncio.create_task(body())
        await begun.wait()
        clock.advance(LEASE)
        async with second.with_lock("k"):
            await task
        assert not task.cancelling()
        (told,) = [record for record in caplog.records if getattr(record, "event", "") == "lock.lost"]
        assert told.levelname == "WARNING"


async def test_a_block_may_be_told_only(database_url: str) -> None:
    async with two(database_url) as (first, second, clock):
        async with first.with_lock("k") as lock:
            watcher = asyncio.create_task(lock.wait_lost())
            await first.engine.machine.sleep(0)
            assert not watcher.done()
        assert not await watcher, "the block has ended"
        assert not lock.lost
        async with first.with_lock("k", on_lost="signal") as lock:
            await first.run_mutation(write, "in time", "k", lock.fence)
            assert repr(lock) == f"<lock 'k' {lock.fence}>"
            watcher = asyncio.create_task(lock.wait_lost())
            await first.engine.machine.sleep(0)
            clock.advance(LEASE)
            assert repr(lock) == f"<lock 'k' {lock.fence}, lost>"
            assert await watcher
            assert await lock.wait_lost(5)
            async with second.with_lock("k") as other:
                assert other.fence > lock.fence
                await second.run_mutation(write, "the next one", "k", other.fence)
                with pytest.raises(LockLost):
                    await first.run_mutation(write, "late", "k", lock.fence)
            assert lock.lost
        assert lock.lost, "what is lost stays lost"
        assert await second.run_query(written) == ["in time", "the next one"]


async def test_a_block_that_has_ended_well_held_its_lock_to_the_end(database_url: str) -> None:
    async with two(database_url) as (first, _, clock):

        async def body(*, fail: bool) -> None:
            async with first.with_lock("k") as lock:
                await first.engine.store.locks.release("k", lock.fence)  # as an administrator does
                if fail:
                    raise ZeroDivisionError

        async def fail_as_it_is_lost() -> None:
            async with first.with_lock("k"):
                try:
                    clock.advance(LEASE)
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise ZeroDivisionError from None

        with pytest.raises(LockLost, match="another holder, or was taken away"):
            await body(fail=False)
        for raises in (body(fail=True), fail_as_it_is_lost()):
            with pytest.raises(ZeroDivisionError):
                await raises
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()


async def test_a_thread_learns_of_a_lost_lock_at_the_end_of_its_block(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        clocks.append(backend.clock)
        with pytest.raises(LockLost):
            await backend.run_action(lose_in_thread)
        assert clocks == []

        async with backend.with_lock("k") as lock:
            for text, fence in (("good", lock.fence), ("late", lock.fence - 1 or 999), ("good", lock.fence)):
                await backend.scheduler.run_after(AT_ONCE, write, text, "k", fence)
            await backend.run_until_idle(raise_errors=False)
        (failed,) = await backend.jobs("failed")
        assert (failed.error or "").startswith("LockLost: "), "in a job that shares its transaction"
        assert await backend.run_query(written) == ["good", "good"]


async def test_a_lock_outlives_a_pooler_that_is_restarted(postgres_url: str) -> None:
    with pgbouncer(postgres_url) as own:
        await own.start()
        async with two(own.url) as (one, other, clock):
            async with one.with_lock("k", on_lost="signal") as lock:
                for _ in range(2):
                    await own.restart()
                    (row,) = await held(other)
                    clock.advance(LEASE / 3)
                    await renewed(other, row)
                assert not await is_free(other)
                await one.run_mutation(write, "locked", "k", lock.fence)
            async with other.with_lock("k", wait=AT_ONCE) as later:
                assert later.fence > lock.fence
                with pytest.raises(LockLost):
                    await one.run_mutation(write, "late", "k", lock.fence)


async def test_it_is_renewed_while_the_block_runs(database_url: str) -> None:
    async with two(database_url) as (first, second, clock):
        async with first.with_lock("k") as lock:
            for _ in range(6):  # twice its lease
                (row,) = await held(first)
                clock.advance(LEASE / 3)
                await renewed(first, row)
            assert not lock.lost
            assert not await is_free(second)
        assert await is_free(second)


async def hold(backend: Backend) -> tuple[asyncio.Task[None], Lock]:
    """A task that holds the lock until it is cancelled."""
    entered: asyncio.Future[Lock] = asyncio.get_running_loop().create_future()

    async def body() -> None:
        async with backend.with_lock("k") as lock:
            entered.set_result(lock)
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    return task, await entered


async def enter(backend: Backend) -> int:
    """Take the lock and give it back; its number."""
    async with backend.with_lock("k", wait=timedelta(seconds=3)) as lock:
        return lock.fence


async def wanted(backend: Backend) -> None:
    """Wait until somebody waits for the lock."""
    async with asyncio.timeout(SOON):
        while not any(row.wanted for row in await held(backend)):
            await backend.engine.machine.sleep(0.001)


async def renewed(backend: Backend, before: LockRow) -> None:
    """Wait until the lock runs out later than it did."""
    async with asyncio.timeout(SOON):
        while (await held(backend))[0].expires_at <= before.expires_at:
            await backend.engine.machine.sleep(0.001)
