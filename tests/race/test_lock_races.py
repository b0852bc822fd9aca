"""Locks whose holders die, freeze or lose the database: the next one gets it, and the last one changes nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import UUID

import pytest
from stage import ledger
from stage.administrators import administrator, end_all_connections
from stage.processes import processes
from stage.proxy import Moment, Proxy
from stage.server import server
from stage.told import events
from stage.waits import until

from penstock.app import Backend
from penstock.errors import LockLost, LockTaken
from penstock.store.nouns.locks import LockRow
from penstock.store.session import reading
from penstock.testing import TestClock, gate

OPENED = ledger.app

AT_ONCE = timedelta(0)
LEASE = timedelta(seconds=15)
SHORT_LEASE = timedelta(seconds=1)
LONG = timedelta(seconds=30)


async def row_of(backend: Backend, key: str = "k") -> LockRow | None:
    async with reading(backend.engine.store.begin_read) as session:
        rows = await backend.engine.store.locks.list(session, 10)
    return next((row for row in rows if row.key == key), None)


async def held_row(backend: Backend) -> LockRow:
    row = await row_of(backend)
    assert row is not None
    return row


async def take(backend: Backend, wait: timedelta = LONG, key: str = "k") -> int:
    async with backend.with_lock(key, wait=wait) as lock:
        return lock.fence


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


async def test_the_lock_of_a_process_is_renewed_and_free_once_it_is_frozen_or_killed(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        with processes(1, "lock", database_url, "k", "1") as (first,):
            before = await held_row(backend)
            assert before.holder.endswith(f":{first.number}")

            async def is_renewed_twice() -> bool:
                return (await held_row(backend)).expires_at >= before.expires_at + SHORT_LEASE

            await until(is_renewed_twice)
            first.freeze()
            async with backend.with_lock("k", wait=LONG) as lock:
                first.thaw()
                first.go()
                for word in ("lost", "refused"):
                    await asyncio.to_thread(first.expect, word)
                assert await asyncio.to_thread(first.wait) == 0
                assert (await held_row(backend)).fence == lock.fence > before.fence
                await backend.run_mutation(ledger.enter_under_lock, what="locked", key="k", fence=lock.fence)
        assert await backend.run_query(ledger.entries, what="locked") == [lock.fence]
        with processes(1, "lock", database_url, "k", "1") as (second,):
            waiter = asyncio.create_task(take(backend))
            await asyncio.to_thread(second.kill)
            assert await waiter > lock.fence


# ----- the database


async def test_a_lock_outlives_connections_that_are_cut(postgres_url: str) -> None:
    clock = TestClock()
    async with ledger.app.open(postgres_url, clock=clock) as backend, administrator(postgres_url) as admin:
        async with holding(backend) as (task, leave):
            before = await held_row(backend)
            await end_all_connections(admin)
            clock.advance(LEASE / 3)

            async def is_renewed() -> bool:
                return (await held_row(backend)).expires_at > before.expires_at

            await until(is_renewed)
            await end_all_connections(admin)
            leave.set()
            await task
        assert await row_of(backend) is None


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


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_answer_that_is_lost_costs_no_lock(postgres_url: str, moment: Moment) -> None:
    async with (
        Proxy(postgres_url).running() as proxy,
        ledger.app.open(proxy.url, clock=TestClock()) as backend,
        ledger.app.open(postgres_url) as other,
    ):
        await take(backend)
        for number, wait in enumerate((AT_ONCE, LONG), start=1):
            proxy.cut(moment, word=b"precious")
            task = asyncio.create_task(take(backend, wait, "precious"))
            if wait:  # it looks again after a pause, and time does not pass by itself
                await until(lambda: proxy.cuts == number)  # noqa: B023 - it is awaited here
                while not task.done():
                    await backend.engine.machine.sleep(0.001)
                    assert isinstance(backend.engine.clock, TestClock)
                    backend.engine.clock.advance(timedelta(milliseconds=10))
            await task
            assert proxy.cuts == number
            assert await row_of(other, "precious") is None
        async with backend.with_lock("precious") as lock:
            proxy.cut(moment, word=b"precious")
        assert (proxy.cuts, lock.lost) == (3, False), "it was given back, and nobody heard of it"
        assert await row_of(other, "precious") is None


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

        async def has_ended_or_waits() -> bool:
            return quick.done() or await are_waiting(2)

        fences: list[int] = []

        async def use(number: int, holder: str) -> None:
            row = await locks.take("k", UUID(int=number), holder, LEASE, now)
            if row.holder == holder:
                fences.append(row.fence)
                await locks.release("k", row.fence)

        slow = asyncio.create_task(use(1, "slow"))
        await until(lambda: are_waiting(1))
        quick = asyncio.create_task(use(2, "quick"))
        await until(has_ended_or_waits)
        await admin.fetch("select pg_advisory_unlock(42)")
        await asyncio.gather(slow, quick)
        assert fences, "somebody had it"
        assert fences == sorted(fences)


# ----- moments


async def test_a_renewal_that_comes_behind_the_release_or_too_late_changes_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = TestClock()
    async with (
        ledger.app.open(database_url, clock=clock) as backend,
        ledger.app.open(database_url, clock=clock) as other,
    ):
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
                    assert (await held_row(backend)).fence == lock.fence
                    lock.check()
        assert not events(caplog, "lock.lost")
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
                    assert (await held_row(other)).fence == lock.fence > fence


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
