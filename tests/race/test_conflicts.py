"""Calls that want the same rows at the same time: every sum is right, and nobody notices."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from stage import ledger
from stage.databases import connected
from stage.processes import processes
from stage.waits import SOON, until

from penstock.app import Backend
from penstock.errors import Conflict, DatabaseUnavailable, PenstockError, UniqueViolation
from penstock.testing import gate, raising
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


async def test_a_retry_has_the_same_time_and_no_trace_of_the_first_run(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url) as first, ledger.app.open(postgres_url) as second:
        await first.run_mutation(ledger.open_account, owner="ada")
        with ledger.held_between(1) as held:
            slow = asyncio.create_task(first.run_mutation(ledger.add_and_enter, owner="ada"))
            await held.arrived()
            await second.run_mutation(ledger.add, owner="ada", amount=10)
            held.open()
            times = await slow
        assert len(times) == 1, "the entry of the first run is gone"
        assert ledger.runs_of_add_and_enter[-2:] == times * 2


async def test_a_counter_counts_every_call_of_many(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(ledger.app.open(database_url, conflict_attempts=1000)) for _ in range(3)
        ]
        await backends[0].run_mutation(ledger.open_account, owner="ada")
        calls = (backend.run_mutation(ledger.add, owner="ada", amount=1) for backend in backends * 20)
        assert sorted(await asyncio.gather(*calls)) == list(range(1, 61)), "each call saw a balance of its own"


@pytest.mark.long
async def test_a_counter_counts_every_call_of_several_processes(database_url: str) -> None:
    """On SQLite nobody ever hears that the database is locked."""
    async with ledger.app.open(database_url) as backend:
        await backend.run_mutation(ledger.open_account, owner="ada")
        with processes(3, "hammer", database_url, "ada", "150", "10") as three:
            for process in three:
                process.go()
            for process in three:
                await asyncio.to_thread(process.expect, "done")
                assert process.wait() == 0
        assert await balances(backend, "ada") == [3 * 150]


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


async def test_functions_that_conflict_in_their_own_queues_wait_for_all_of_them(postgres_url: str) -> None:
    async with (
        ledger.app.open(postgres_url, max_connections=2) as first,
        ledger.app.open(postgres_url, max_connections=2) as second,
        ledger.app.open(postgres_url) as other,
    ):
        for owner in ("ada", "bob"):
            await other.run_mutation(ledger.open_account, owner=owner)
        await conflict(ledger.transfer, first, other, times=1, source="ada", target="bob", amount=1)
        await conflict(ledger.add, second, other, times=3, owner="ada", amount=1)
        with ledger.held_between(2) as held:
            calls = [
                asyncio.create_task(first.run_mutation(ledger.transfer, source="ada", target="bob", amount=1)),
                asyncio.create_task(second.run_mutation(ledger.add, owner="ada", amount=1)),
            ]
            await until(lambda: have_begun(postgres_url, held, waiting=1))
            assert len(held.arrivals) == 1
            held.open()
            await asyncio.gather(*calls)
        assert await balances(other, "ada", "bob") == [1, 2]


async def test_a_conflict_without_end_is_told(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url, conflict_attempts=3) as backend:
        await backend.run_mutation(ledger.open_account, owner="ada")
        with raising("mutation.ran", Conflict("staged"), times=3), pytest.raises(Conflict, match="3 attempts"):
            await backend.run_mutation(ledger.add_and_enter, owner="ada")
        assert await backend.run_query(ledger.entries, what="add_and_enter") == []


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


@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before"])
async def test_whoever_waits_while_many_are_cancelled_is_served(database_url: str, moment: str) -> None:
    async with ledger.app.open(database_url, max_connections=2) as backend:
        with gate(moment, most=2) as held:
            calls = [
                asyncio.create_task(backend.run_mutation(ledger.enter, what="call", number=number))
                for number in range(20)
            ]
            await held.arrived()
            for call in calls[:-1]:
                call.cancel()
            held.open()
        outcomes = await outcomes_of(calls)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[:-1])
        assert outcomes[-1] is None
        assert 19 in await backend.run_query(ledger.entries, what="call")


async def test_errors_of_the_user_undo_all_and_harm_nobody_else(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        outcomes = await asyncio.gather(
            *(
                backend.run_mutation(ledger.fail_after_entering, number=number)
                if number % 3 == 0
                else backend.run_mutation(ledger.enter, what="group", number=number)
                for number in range(30)
            ),
            return_exceptions=True,
        )
        assert [isinstance(one, ZeroDivisionError) for one in outcomes] == [number % 3 == 0 for number in range(30)]
        assert not any(isinstance(outcome, PenstockError) for outcome in outcomes)
        entered = await backend.run_query(ledger.entries, what="group")
        assert entered == [number for number in range(30) if number % 3]


async def test_a_function_that_queues_still_waits_between_attempts_at_a_database_that_is_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite all writers take turns anyway."""
    async with ledger.app.open(postgres_url) as backend:
        await backend.run_mutation(ledger.open_account, owner="ada")
        with raising("mutation.ran", Conflict("staged"), times=6):
            await backend.run_mutation(ledger.add, owner="ada", amount=1)
        waits, sleep = list[float](), backend.engine.machine.sleep

        async def noted(seconds: float) -> None:
            waits.append(seconds)
            await sleep(0)

        monkeypatch.setattr(backend.engine.machine, "sleep", noted)
        with raising("mutation.ran", Conflict("staged"), times=1):
            await backend.run_mutation(ledger.add, owner="ada", amount=1)
        assert waits == [], "it waits its turn"
        with raising("mutation.ran", DatabaseUnavailable("staged"), times=3):
            await backend.run_mutation(ledger.add, owner="ada", amount=1)
        assert len(waits) == 3
        assert await balances(backend, "ada") == [3]
