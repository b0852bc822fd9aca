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


async def balance(backend: Backend, owner: str) -> int | None:
    return await backend.run_query(ledger.balance, owner=owner)


async def outcome_of(call: asyncio.Task[object]) -> object:
    """What a call returned or raised."""
    return (await asyncio.gather(call, return_exceptions=True))[0]


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


async def test_of_two_that_conflict_one_runs_again_and_both_take_effect(database_url: str) -> None:
    async with ledger.app.open(database_url) as first, ledger.app.open(database_url) as second:
        await first.run_mutation(ledger.open_account, owner="ada", balance=100)
        with ledger.held_between(1) as held:
            slow = asyncio.create_task(first.run_mutation(ledger.add, owner="ada", amount=1))
            await held.arrived()
            quick = asyncio.create_task(second.run_mutation(ledger.add, owner="ada", amount=10))
            # Where rows are versioned it commits now; where there is one writer it waits for the slow one.
            await asyncio.wait([quick], timeout=0.2)
            held.open()
            assert sorted([await slow, await quick]) in ([101, 111], [110, 111])
        assert await balance(first, "ada") == 111


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
        seen = await asyncio.gather(
            *(backend.run_mutation(ledger.add, owner="ada", amount=1) for backend in backends * 20)
        )
        assert sorted(seen) == list(range(1, 61)), "each call saw a balance of its own"
        assert await balance(backends[0], "ada") == 60


@pytest.mark.long
def test_a_counter_counts_every_call_of_several_processes(database_url: str) -> None:
    """On SQLite nobody ever hears that the database is locked."""

    async def opened() -> None:
        async with ledger.app.open(database_url) as backend:
            await backend.run_mutation(ledger.open_account, owner="ada")

    async def counted() -> None:
        async with ledger.app.open(database_url) as backend:
            assert await balance(backend, "ada") == 3 * 150

    asyncio.run(opened())
    with processes(3, "hammer", database_url, "ada", "150", "10") as three:
        for process in three:
            process.go()
        for process in three:
            process.expect("done")
            assert process.wait() == 0
    asyncio.run(counted())


async def test_callers_that_had_conflicts_queue_across_processes(postgres_url: str) -> None:
    """PostgreSQL only: on SQLite all writers queue."""

    async with (
        ledger.app.open(postgres_url, max_connections=2) as first,
        ledger.app.open(postgres_url, max_connections=2) as second,
        ledger.app.open(postgres_url) as other,
    ):
        await other.run_mutation(ledger.open_account, owner="ada")
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


async def test_calls_for_other_rows_do_not_wait_for_one_that_queues(postgres_url: str) -> None:
    async with (
        ledger.app.open(postgres_url, max_connections=2) as backend,
        ledger.app.open(postgres_url) as other,
    ):
        for owner in ("ada", "bob"):
            await other.run_mutation(ledger.open_account, owner=owner)
        await conflict(ledger.add, backend, other, times=2, owner="ada", amount=1)
        with ledger.held_between(1) as held:
            slow = asyncio.create_task(backend.run_mutation(ledger.add, owner="ada", amount=1))
            await held.arrived()
            for _ in range(FEW):
                await backend.run_mutation(ledger.add, owner="bob", amount=1)
            held.open()
            await slow
        assert [await balance(other, owner) for owner in ("ada", "bob")] == [2, FEW]


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
        assert [await balance(other, owner) for owner in ("ada", "bob")] == [1, 2]


async def test_a_conflict_without_end_is_told(postgres_url: str) -> None:
    async with (
        ledger.app.open(postgres_url, conflict_attempts=3) as backend,
        ledger.app.open(postgres_url) as other,
    ):
        await backend.run_mutation(ledger.open_account, owner="ada")
        runs = 0

        with ledger.held_between(1000) as held:
            call = asyncio.create_task(backend.run_mutation(ledger.add_and_enter, owner="ada"))
            while not call.done():
                arrival = asyncio.create_task(held.arrived(runs + 1))
                await asyncio.wait([arrival, call], return_when=asyncio.FIRST_COMPLETED)
                if arrival.done():
                    runs += 1
                    await other.run_mutation(ledger.set_balance, owner="ada", balance=runs)
                    held.let_pass()
                arrival.cancel()
        assert runs == 3
        error = await outcome_of(call)
        assert isinstance(error, Conflict)
        assert "3 attempts" in str(error)
        assert await backend.run_query(ledger.entries, what="add_and_enter") == []


async def test_write_skew_does_not_happen(database_url: str) -> None:
    async with ledger.app.open(database_url) as first, ledger.app.open(database_url) as second:
        for owner in ("ada", "bob"):
            await first.run_mutation(ledger.open_account, owner=owner, balance=10)
        with ledger.held_between(1) as held:
            leaves = [
                asyncio.create_task(
                    backend.run_mutation(ledger.withdraw_unless_both_are_empty, owner=owner, both=["ada", "bob"])
                )
                for backend, owner in ((first, "ada"), (second, "bob"))
            ]
            await held.arrived()
            await asyncio.wait(leaves, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
            held.open()
            assert sorted(await asyncio.gather(*leaves)) == [False, True]
        assert sorted([await balance(first, "ada") or 0, await balance(first, "bob") or 0]) == [0, 10]


async def test_of_two_that_look_and_then_insert_one_inserts_and_the_other_sees_it(database_url: str) -> None:
    async with ledger.app.open(database_url) as first, ledger.app.open(database_url) as second:
        with ledger.held_between(1) as held:
            calls = [
                asyncio.create_task(backend.run_mutation(ledger.open_once, owner="ada")) for backend in (first, second)
            ]
            await held.arrived()
            await asyncio.wait(calls, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
            held.open()
            assert sorted(await asyncio.gather(*calls)) == [False, True]
        assert await first.run_query(ledger.accounts) == 1


async def test_of_many_that_look_and_then_insert_one_inserts(database_url: str) -> None:
    async with ledger.app.open(database_url) as first, ledger.app.open(database_url) as second:
        calls = [backend.run_mutation(ledger.open_once, owner="ada") for backend in [first, second] * 10]
        assert sum(await asyncio.gather(*calls)) == 1
        assert await first.run_query(ledger.accounts) == 1


async def test_of_two_that_insert_one_key_one_is_told_that_it_is_taken(database_url: str) -> None:
    async with ledger.app.open(database_url) as first, ledger.app.open(database_url) as second:
        with gate("mutation.ran", most=1) as held:
            calls: list[asyncio.Task[object]] = [
                asyncio.create_task(backend.run_mutation(ledger.open_account, owner="ada"))
                for backend in (first, second)
            ]
            await held.arrived()
            await asyncio.wait(calls, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
            held.open()
            outcomes = [await outcome_of(call) for call in calls]
        assert sorted(isinstance(outcome, UniqueViolation) for outcome in outcomes) == [False, True]


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
        assert [await balance(first, owner) for owner in ("ada", "bob")] == [2, 2]


async def test_a_caller_that_is_cancelled_leaves_no_trace(database_url: str) -> None:
    async with ledger.app.open(database_url, max_connections=1) as backend:
        await backend.run_mutation(ledger.open_account, owner="ada")
        with gate("mutation.ran") as held:
            call = asyncio.create_task(backend.run_mutation(ledger.add, owner="ada", amount=1))
            await held.arrived()
            call.cancel()
            assert isinstance(await outcome_of(call), asyncio.CancelledError)
        assert await balance(backend, "ada") == 0
        assert await backend.run_mutation(ledger.add, owner="ada", amount=5) == 5


async def test_a_caller_in_a_thread_that_is_cancelled_leaves_no_trace(database_url: str) -> None:
    async with ledger.app.open(database_url, max_connections=1) as backend:
        await backend.run_mutation(ledger.open_account, owner="ada")
        ledger.reached.clear()
        ledger.go_on.clear()
        call = asyncio.create_task(backend.run_mutation(ledger.add_in_a_thread, owner="ada"))
        assert await asyncio.to_thread(ledger.reached.wait, 10)
        call.cancel()
        assert isinstance(await outcome_of(call), asyncio.CancelledError)
        assert await backend.run_mutation(ledger.add, owner="ada", amount=5) == 5, "its turn is over"
        ledger.go_on.set()  # the thread finds that its ctx has ended
        assert await asyncio.to_thread(ledger.thread_ended.get, timeout=SOON) == "ContextError"
        assert await balance(backend, "ada") == 5


@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before"])
async def test_whoever_waits_while_many_are_cancelled_is_served(database_url: str, moment: str) -> None:
    async with ledger.app.open(database_url, max_connections=2) as backend:
        await backend.run_mutation(ledger.open_account, owner="ada")
        with gate(moment, most=2) as held:
            calls = [
                asyncio.create_task(backend.run_mutation(ledger.enter, what="call", number=number))
                for number in range(20)
            ]
            await held.arrived()
            for call in calls[:-1]:
                call.cancel()
            held.open()
        outcomes = [await outcome_of(call) for call in calls]
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[:-1])
        assert outcomes[-1] is None
        assert 19 in await backend.run_query(ledger.entries, what="call")


async def test_errors_of_the_user_undo_all_and_harm_nobody_else(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        calls: list[asyncio.Task[object]] = [
            asyncio.create_task(
                backend.run_mutation(ledger.fail_after_entering, number=number)
                if number % 3 == 0
                else backend.run_mutation(ledger.enter, what="group", number=number)
            )
            for number in range(30)
        ]
        outcomes = [await outcome_of(call) for call in calls]
        assert [isinstance(outcome, ZeroDivisionError) for outcome in outcomes] == [
            number % 3 == 0 for number in range(30)
        ]
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
        assert await balance(backend, "ada") == 3
