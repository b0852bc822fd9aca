"""Calls that want the same rows or locks at once: every sum is right, and who has lost a lock changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from programs import ledger
from stage.databases import connected
from stage.postgres import Moment, Proxy
from stage.processes import processes
from stage.waits import SOON, events, until

from penstock.app import Backend
from penstock.errors import LockLost, UniqueViolation
from penstock.store.nouns.locks import LockRow
from penstock.store.session import reading
from penstock.testing import TestClock, gate
from penstock.testing.gates import Gate

OPENED = ledger.app

FEW = 5


async def balances(backend: Backend, *owners: str) -> list[int | None]:
    return [await backend.run_query(ledger.balance, owner=owner) for owner in owners]


async def outcomes_of(calls: list[asyncio.Task[Any]]) -> list[Any]:
    """What calls returned or raised."""
    return await asyncio.gather(*calls, return_exceptions=True)


async def conflict(function: Any, backend: Backend, other: Backend, *, times: int, **arguments: Any) -> None:
    """Have a call conflict so many times with others that write ada's account."""
    with ledger.held_between(times) as held:
        call = asyncio.create_task(backend.run_mutation(function, **arguments))
        for time in range(1, times + 1):
            await held.arrived(time)
            await other.run_mutation(ledger.set_balance, owner="ada", balance=0)
            held.let_pass()
        await call


async def have_begun(url: str, held: Gate, *, waiting: int) -> bool:
    """Whether so many calls wait for a lock, or more than one is held between what it reads and what it writes."""
    async with connected(url) as watcher:
        count: int = await watcher.fetchval(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
    return count == waiting or len(held.arrivals) > 1


async def race(held: Gate, *calls: Any) -> list[Any]:
    """Have calls run into one that is held, as far as they come, and let it go on; how they end.

    Where rows are versioned the others commit meanwhile; where there is one writer they wait.
    """
    tasks = [asyncio.create_task(call) for call in calls]
    await held.arrived()
    await asyncio.wait(tasks, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
    held.open()
    return await outcomes_of(tasks)


async def test_of_two_calls_that_conflict_one_runs_again_and_both_answers_are_right(database_url: str) -> None:
    async with ledger.app.open(database_url) as first, ledger.app.open(database_url) as second:
        with ledger.held_between(1) as held:
            opened = (backend.run_mutation(ledger.open_once, owner="ada") for backend in (first, second))
            assert sorted(await race(held, *opened)) == [False, True], "who looks and then inserts"
        with ledger.held_between(1) as held:
            added = (
                backend.run_mutation(ledger.add, owner="ada", amount=amount)
                for backend, amount in ((first, 1), (second, 10))
            )
            assert sorted(await race(held, *added)) in ([1, 11], [10, 11])
        await first.run_mutation(ledger.set_balance, owner="ada", balance=10)
        await first.run_mutation(ledger.open_account, owner="bob", balance=10)
        withdraw = ledger.withdraw_unless_both_are_empty
        with ledger.held_between(1) as held:
            skewed = (
                backend.run_mutation(withdraw, owner=owner, both=["ada", "bob"])
                for backend, owner in ((first, "ada"), (second, "bob"))
            )
            assert sorted(await race(held, *skewed)) == [False, True], "no write skew"
        assert sorted(await balances(first, "ada", "bob"), key=str) == [0, 10]
        with gate("mutation.ran", most=1) as ran:
            taken = await race(
                ran, *(backend.run_mutation(ledger.open_account, owner="eve") for backend in (first, second))
            )
        assert sorted(isinstance(one, UniqueViolation) for one in taken) == [False, True], "of two that insert one key"
        calls = [backend.run_mutation(ledger.open_once, owner="fay") for backend in [first, second] * 10]
        assert sum(await asyncio.gather(*calls)) == 1, "of many that look and then insert"


async def test_a_counter_counts_every_call_of_many(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(ledger.app.open(database_url, conflict_attempts=1000)) for _ in range(3)
        ]
        await backends[0].run_mutation(ledger.open_account, owner="ada")
        calls = (backend.run_mutation(ledger.add, owner="ada", amount=1) for backend in backends * 20)
        assert sorted(await asyncio.gather(*calls)) == list(range(1, 61)), "each call saw a balance of its own"


async def test_callers_that_had_conflicts_queue_across_processes_and_functions(postgres_url: str) -> None:
    """PostgreSQL only: on SQLite all writers queue."""
    async with (
        ledger.app.open(postgres_url, max_connections=2) as first,
        ledger.app.open(postgres_url, max_connections=2) as second,
        ledger.app.open(postgres_url) as other,
    ):
        for owner in ("ada", "bob"):
            await other.run_mutation(ledger.open_account, owner=owner)
        for backend in (first, second):
            await conflict(ledger.add, backend, other, times=1, owner="ada", amount=1)
        with ledger.held_between(4) as held:
            calls = [
                asyncio.create_task(backend.run_mutation(ledger.add, owner="ada", amount=1))
                for backend in (first, first, second, second)
            ]
            await until(lambda: have_begun(postgres_url, held, waiting=3))
            assert len(held.arrivals) == 1, "the others wait before they read"
            held.open()
            assert sorted(await asyncio.gather(*calls)) == [2, 3, 4, 5]
        with ledger.held_between(1) as held:
            slow = asyncio.create_task(first.run_mutation(ledger.add, owner="ada", amount=1))
            await held.arrived()
            for _ in range(FEW):
                await first.run_mutation(ledger.add, owner="bob", amount=1)
            held.open()
            await slow
        assert await balances(other, "ada", "bob") == [6, FEW], "calls for other rows do not wait for one that queues"


async def test_transactions_that_lock_in_opposite_orders_both_take_effect(postgres_url: str) -> None:
    """The database finds the deadlock and ends one of them, which runs again."""
    async with ledger.app.open(postgres_url) as first, ledger.app.open(postgres_url) as second:
        for owner in ("ada", "bob"):
            await first.run_mutation(ledger.open_account, owner=owner)
        ledger.meeting = asyncio.Barrier(2)
        await asyncio.gather(
            first.run_mutation(ledger.add_to_both, owners=["ada", "bob"]),
            second.run_mutation(ledger.add_to_both, owners=["bob", "ada"]),
        )
        assert await balances(first, "ada", "bob") == [2, 2]


async def test_a_caller_that_is_cancelled_leaves_no_trace(database_url: str) -> None:
    async with ledger.app.open(database_url, max_connections=1) as backend:
        await backend.run_mutation(ledger.open_account, owner="ada")
        with gate("mutation.ran") as held:
            call = asyncio.create_task(backend.run_mutation(ledger.add, owner="ada", amount=1))
            await held.arrived()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert await balances(backend, "ada") == [0]
        ledger.reached.clear()
        ledger.go_on.clear()
        call = asyncio.create_task(backend.run_mutation(ledger.add_in_a_thread, owner="ada"))  # type: ignore[arg-type]
        assert await asyncio.to_thread(ledger.reached.wait, SOON)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await backend.run_mutation(ledger.add, owner="ada", amount=5) == 5, "its turn is over"
        ledger.go_on.set()  # the thread finds that its ctx has ended
        assert await asyncio.to_thread(ledger.thread_ended.get, timeout=SOON) == "ContextError"
        assert await balances(backend, "ada") == [5]


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
