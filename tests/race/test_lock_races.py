"""Locks whose holders die, freeze or lose the database: the next one gets it, and the last one changes nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import UUID

import pytest
from stage import ledger
from stage.administrators import administrator, end_all_connections
from stage.processes import processes
from stage.proxy import Moment, Proxy
from stage.server import server
from stage.waits import until

from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.errors import LockLost, LockTaken
from penstock.store.nouns.locks import LockRow
from penstock.testing import TestClock, gate

OPENED = ledger.app

AT_ONCE = timedelta(0)
LEASE = timedelta(seconds=15)
SHORT_LEASE = timedelta(seconds=1)
LONG = timedelta(seconds=30)


async def row_of(backend: Backend, key: str = "k") -> LockRow | None:
    session = await backend.engine.store.begin_read()
    try:
        rows = await backend.engine.store.locks.list(session, 10)
    finally:
        await session.rollback()
    return next((row for row in rows if row.key == key), None)


async def is_free(backend: Backend) -> bool:
    return await row_of(backend) is None


@asynccontextmanager
async def holding(backend: Backend) -> AsyncIterator[tuple[asyncio.Task[None], asyncio.Event]]:
    """A task that holds the lock until an event, or until it is lost."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with backend.with_lock("k"):
            entered.set()
            await leave.wait()

    task = asyncio.create_task(hold())
    await entered.wait()
    yield task, leave
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# ----- processes


async def test_the_lock_of_a_killed_process_is_free_within_its_lease(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        with processes(1, "lock", database_url, "k", "1") as (first,):
            before = await row_of(backend)
            assert before is not None
            assert before.holder.endswith(f":{first.number}")
            waiter = asyncio.create_task(take(backend))
            await asyncio.to_thread(first.kill)
            clock = SystemClock()
            killed_at = clock.monotonic()
            assert await waiter > before.fence
            assert clock.monotonic() - killed_at < SHORT_LEASE.total_seconds() + 25, (
                "not after some default of 30 seconds"
            )


async def test_a_frozen_process_that_goes_on_does_not_get_its_lock_back(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        with processes(1, "lock", database_url, "k", "1") as (first,):
            first.freeze()
            async with backend.with_lock("k", wait=LONG) as lock:
                first.thaw()
                first.go()
                await asyncio.to_thread(first.expect, "lost")
                await asyncio.to_thread(first.expect, "refused")
                assert await asyncio.to_thread(first.wait) == 0
                row = await row_of(backend)
                assert row is not None
                assert row.fence == lock.fence
                await backend.run_mutation(ledger.enter_under_lock, what="locked", key="k", fence=lock.fence)
        assert await backend.run_query(ledger.entries, what="locked") == [lock.fence]


async def test_a_holder_in_another_process_renews_its_lock(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        with processes(1, "lock", database_url, "k", "1") as (first,):
            before = await row_of(backend)
            assert before is not None

            async def is_renewed_twice() -> bool:
                row = await row_of(backend)
                return row is not None and row.expires_at >= before.expires_at + SHORT_LEASE

            await until(is_renewed_twice)
            first.go()
            await asyncio.to_thread(first.expect, "held")
            await asyncio.to_thread(first.expect, "written")
            assert await asyncio.to_thread(first.wait) == 0
        assert await is_free(backend)
        assert await backend.run_query(ledger.entries, what="locked") == [before.fence]


async def take(backend: Backend, wait: timedelta = LONG) -> int:
    async with backend.with_lock("k", wait=wait) as lock:
        return lock.fence


# ----- the database


async def test_a_lock_outlives_connections_that_are_cut(postgres_url: str) -> None:
    clock = TestClock()
    async with ledger.app.open(postgres_url, clock=clock) as backend, administrator(postgres_url) as admin:
        async with holding(backend) as (task, leave):
            before = await row_of(backend)
            assert before is not None
            await end_all_connections(admin)
            clock.advance(LEASE / 3)

            async def is_renewed() -> bool:
                row = await row_of(backend)
                return row is not None and row.expires_at > before.expires_at

            await until(is_renewed)
            await end_all_connections(admin)
            leave.set()
            await task
        assert await is_free(backend)


async def test_what_is_done_under_a_lock_ends_when_the_database_is_away_for_too_long() -> None:
    clock = TestClock()
    with server() as own:
        async with ledger.app.open(own.url, clock=clock, database_wait=1.0) as backend, holding(backend) as (task, _):
            await own.stop()
            with gate("lock.renew") as held:
                held.open()
                clock.advance(LEASE / 2)
                await backend.engine.machine.sleep(0)
                assert not task.done()
                clock.advance(LEASE / 3)
                with pytest.raises(LockLost):
                    await task
            await own.start()


@pytest.mark.parametrize("wait", [AT_ONCE, LONG])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_answer_that_is_lost_costs_no_lock(postgres_url: str, moment: Moment, wait: timedelta) -> None:
    async with (
        Proxy(postgres_url).running() as proxy,
        ledger.app.open(proxy.url, clock=TestClock()) as backend,
        ledger.app.open(postgres_url) as other,
    ):
        await take(backend)
        proxy.cut(moment, word=b"precious")
        task = asyncio.create_task(enter_precious(backend, wait))
        if wait:  # it looks again after a pause, and time does not pass by itself
            await until(lambda: answer(proxy.cuts == 1))
            while not task.done():
                await backend.engine.machine.sleep(0.001)
                assert isinstance(backend.engine.clock, TestClock)
                backend.engine.clock.advance(timedelta(milliseconds=10))
        await task
        assert proxy.cuts == 1
        assert await row_of(other, "precious") is None


async def enter_precious(backend: Backend, wait: timedelta) -> None:
    async with backend.with_lock("precious", wait=wait):
        pass


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_lock_that_was_given_back_and_nobody_heard_of_it_was_not_lost(
    postgres_url: str, moment: Moment
) -> None:
    async with (
        Proxy(postgres_url).running() as proxy,
        ledger.app.open(proxy.url, clock=TestClock()) as backend,
    ):
        async with backend.with_lock("precious") as lock:
            proxy.cut(moment, word=b"precious")
        assert proxy.cuts == 1
        assert not lock.lost
        assert await row_of(backend, "precious") is None


async def answer(true: bool) -> bool:
    return true


SLOW = """
create function slow() returns trigger language plpgsql as $$
begin
    if new.holder = 'slow' then perform pg_advisory_xact_lock(42); end if;
    return new;
end $$;
create trigger slow before insert on penstock.lock for each row execute function slow();
"""


async def test_who_drew_a_number_and_came_late_is_not_behind_one_with_a_greater_one(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url) as backend, administrator(postgres_url) as admin:
        locks, now = backend.engine.store.locks, backend.engine.clock.now()
        await admin.execute(SLOW)
        await admin.fetch("select pg_advisory_lock(42)")

        async def are_waiting(count: int) -> bool:
            waiting = await admin.fetchval("select count(*) from pg_locks where locktype = 'advisory' and not granted")
            return bool(waiting >= count)

        fences: list[int] = []

        async def use(number: int, holder: str) -> None:
            row = await locks.take("k", UUID(int=number), holder, LEASE, now)
            if row.holder == holder:
                fences.append(row.fence)
                await locks.release("k", row.fence)

        slow = asyncio.create_task(use(1, "slow"))
        await until(lambda: are_waiting(1))
        quick = asyncio.create_task(use(2, "quick"))
        await until(lambda: either(quick.done(), are_waiting(2)))
        await admin.fetch("select pg_advisory_unlock(42)")
        await asyncio.gather(slow, quick)
        assert fences, "somebody had it"
        assert fences == sorted(fences)


async def either(true: bool, other: Awaitable[bool]) -> bool:
    return await other or true


# ----- moments


async def test_a_renewal_that_comes_behind_the_release_is_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = TestClock()
    async with ledger.app.open(database_url, clock=clock) as backend:
        with gate("lock.renew", most=1) as held:
            async with holding(backend) as (task, leave):
                clock.advance(LEASE / 3)
                await held.arrived()
                leave.set()
                await task
                async with backend.with_lock("k", wait=AT_ONCE) as lock:
                    held.open()
                    for _ in range(20):
                        await backend.engine.machine.sleep(0.001)
                    row = await row_of(backend)
                    assert row is not None
                    assert row.fence == lock.fence
                    lock.check()
        assert not [record for record in caplog.records if getattr(record, "event", "") == "lock.lost"]


async def test_a_renewal_that_comes_too_late_is_not_trusted(database_url: str) -> None:
    clock = TestClock()
    async with (
        ledger.app.open(database_url, clock=clock) as backend,
        ledger.app.open(database_url, clock=clock) as other,
    ):
        with gate("lock.renew", most=1) as held:
            async with holding(backend) as (task, _):
                clock.advance(LEASE / 3)
                await held.arrived()
                clock.advance(LEASE)
                fence = await take(other, AT_ONCE)
                async with other.with_lock("k", wait=AT_ONCE) as lock:
                    held.open()
                    with pytest.raises(LockLost):
                        await task
                    assert lock.fence > fence
                    row = await row_of(other)
                    assert row is not None
                    assert row.fence == lock.fence


async def test_whoever_is_cancelled_on_the_way_to_a_lock_leaves_it_free(database_url: str) -> None:
    async with ledger.app.open(database_url, clock=TestClock()) as backend:
        for steps in range(40):
            task = asyncio.create_task(take(backend))
            for _ in range(steps):
                await backend.engine.machine.sleep(0.0 if steps % 2 else 0.0002)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def is_taken() -> bool:  # the server may still be at what the last of them asked for
            with suppress(LockTaken):
                await take(backend, AT_ONCE)
                return True
            return False

        await until(is_taken)


async def test_of_two_processes_that_wait_both_get_it(database_url: str) -> None:
    async with (
        ledger.app.open(database_url) as one,
        ledger.app.open(database_url) as two,
        holding(one) as (task, leave),
    ):
        waiters = [asyncio.create_task(take(backend)) for backend in (one, two)]
        with pytest.raises(LockTaken):
            await take(two, AT_ONCE)
        leave.set()
        await task
        assert len(set(await asyncio.gather(*waiters))) == 2
