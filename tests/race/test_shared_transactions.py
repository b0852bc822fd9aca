"""Mutation jobs that share transactions: each keeps its own end, whatever befalls the others or the transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from race.test_workers import NOW, SHORT_LEASE, answer, ended, make_worker, state, two_on
from stage import crowd, ledger
from stage.processes import processes
from stage.waits import SOON, until

from penstock import Id
from penstock.app import Backend
from penstock.calls.jobs import group
from penstock.errors import Conflict, DatabaseUnavailable
from penstock.observe import points
from penstock.services.worker.executor import Executor
from penstock.services.worker.worker import Worker
from penstock.testing import gate, raising

OPENED = ledger.app

MANY = 30
FEW = 6


@contextmanager
def commits() -> Iterator[list[int]]:
    """How many rows each commit wrote, for the time of a block."""
    made: list[int] = []

    async def count(transaction: Any) -> None:
        made.append(transaction._rows_written)

    points.arm("commit.after", count)
    try:
        yield made
    finally:
        points.disarm("commit.after")


async def account(backend: Backend) -> Id[ledger.Account]:
    return await backend.run_mutation(ledger.open_account, owner="ada")


async def bumps(backend: Backend, of: Id[ledger.Account], count: int) -> list[Any]:
    return [await backend.scheduler.run_after(NOW, crowd.bump, account=of, number=number) for number in range(count)]


async def drained(worker: Worker) -> None:
    """Have a worker run all there is."""
    while not await worker.tick() or worker.running or worker.open_outcomes:
        await until(lambda: answer(not worker.running))


async def outcomes(backend: Backend, jobs: list[Any]) -> list[tuple[str, Any]]:
    found = [await backend.job(job) for job in jobs]
    return [(one.state.value, one.result) for one in found if one is not None]


async def test_jobs_share_a_commit_and_see_what_those_before_them_did(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        ada = await account(backend)
        jobs = await bumps(backend, ada, MANY)
        worker = make_worker(backend)
        with commits() as made:
            await drained(worker)
        assert len(made) < MANY / 2
        assert await outcomes(backend, jobs) == [("success", place) for place in range(1, MANY + 1)]
        assert await backend.run_query(crowd.balances) == [MANY]
        assert await backend.run_query(ledger.entries, what="bump") == list(range(MANY))
        await worker.finish()


async def test_jobs_that_come_one_by_one_are_not_run_beside_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a transaction of its own, they would be in each other's way. On SQLite they wait for each other."""
    alone: list[int] = []
    start = Executor._start_alone

    def noted(under_way: Executor, running: Any) -> None:
        alone.append(json.loads(running.job.args)["number"])
        start(under_way, running)

    async with ledger.app.open(postgres_url) as backend:
        accounts = [await backend.run_mutation(ledger.open_account, owner=str(number)) for number in range(FEW)]
        worker = make_worker(backend)
        monkeypatch.setattr(Executor, "_start_alone", noted)
        monkeypatch.setattr(group, "_LONGEST", SOON)  # a slow machine makes no job run alone
        with gate("mutation.ran", most=1) as held:
            for number, one in enumerate(accounts):
                await backend.scheduler.run_after(NOW, crowd.bump, account=one, number=number)
                await worker.tick()
                await held.arrived()
            assert alone == [0]
            held.open()
            await drained(worker)
        assert await backend.run_query(crowd.balances) == [1] * FEW
        await worker.finish()


async def test_after_jobs_were_stopped_one_that_comes_alone_runs_alone_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared transaction one that takes long is stopped, and begins a second time."""
    alone: list[int] = []
    start = Executor._start_alone

    def noted(executor: Executor, running: Any) -> None:
        alone.append(json.loads(running.job.args)["number"])
        start(executor, running)

    async with ledger.app.open(database_url) as backend:
        worker, ada = make_worker(backend), await account(backend)
        await bumps(backend, ada, 1)
        with gate("mutation.ran", most=1) as ran:
            await worker.tick()
            await ran.arrived()
            await worker._stop_jobs()  # as it does when its lease is lost
        monkeypatch.setattr(Executor, "_start_alone", noted)
        await backend.scheduler.run_after(NOW, crowd.bump, account=ada, number=1)
        await drained(worker)
        assert alone == [1]
        await worker.finish()


async def test_what_is_read_by_an_index_or_counted_is_what_those_before_have_done(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        jobs = [await backend.scheduler.run_after(NOW, crowd.count_entries, number=number) for number in range(MANY)]
        worker = make_worker(backend)
        await drained(worker)
        assert sorted(found for _, found in await outcomes(backend, jobs)) == list(range(MANY))
        assert await backend.run_query(ledger.entries, what="counted") == list(range(MANY))
        await worker.finish()


@pytest.mark.parametrize("how", sorted(crowd.WAYS.keys() - {"cancel what follows"}))
def test_one_that_fails_leaves_nothing_and_takes_nobody_along(database_url: str, how: str) -> None:
    fail_one(database_url, how)


def test_one_that_cancels_its_task_as_it_returns_takes_nobody_along(postgres_url: str) -> None:
    """On SQLite nothing is awaited after that, and it succeeds."""
    fail_one(postgres_url, "cancel what follows")


def fail_one(database_url: str, how: str) -> None:
    async def story() -> None:
        async with ledger.app.open(database_url, max_rows_written=12) as backend:
            ada = await account(backend)
            await backend.run_mutation(crowd.sit, number=FEW)
            jobs = []
            for number in range(2 * FEW):
                if number == FEW:
                    args: dict[str, Any] = {"account": ada, "number": number, "how": how}
                    jobs.append(await backend.scheduler.run_after(NOW, crowd.bump_and_fail, **args))
                else:
                    jobs.append(await backend.scheduler.run_after(NOW, crowd.bump, account=ada, number=number))
            worker = make_worker(backend)
            await drained(worker)
            found = await outcomes(backend, jobs)
            assert found.pop(FEW) == ("failed", None)
            assert {one for one, _ in found} == {"success"}
            assert sorted(balance for _, balance in found) == list(range(1, 2 * FEW))
            assert await backend.run_query(crowd.balances) == [2 * FEW - 1]
            assert FEW not in await backend.run_query(ledger.entries, what="bump")
            for what in ("left by one that failed", "too many", "never"):
                assert await backend.run_query(ledger.entries, what=what) == []
            assert await backend.run_query(crowd.seats) == [FEW]
            await asyncio.gather(*crowd.left_behind, return_exceptions=True)
            crowd.left_behind.clear()
            await worker.finish()

    asyncio.run(story())


async def test_sub_transactions_and_jobs_of_those_who_share_are_their_own(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        jobs = [
            await backend.scheduler.run_after(NOW, crowd.take_seat, number=number % FEW) for number in range(2 * FEW)
        ]
        for number in range(1, FEW):
            await backend.scheduler.run_after(NOW, crowd.pass_on, number=number)
        worker = make_worker(backend)
        await drained(worker)
        found = sorted(result for _, result in await outcomes(backend, jobs))
        assert found == ["UniqueViolation"] * FEW + ["taken"] * FEW
        assert await backend.run_query(crowd.seats) == list(range(FEW))
        assert await backend.run_query(ledger.entries, what="sat") == list(range(FEW))
        assert await backend.run_query(ledger.entries, what="refused") == list(range(FEW))
        await drained(worker)
        passed = [number for number in range(1 - FEW, FEW) if number]
        assert await backend.run_query(ledger.entries, what="passed on") == passed
        await worker.finish()


@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before", "commit.after"])
@pytest.mark.parametrize(
    "error", [Conflict("staged"), DatabaseUnavailable("staged", uncertain=True), RuntimeError("staged")]
)
async def test_whatever_ends_a_shared_transaction_each_takes_effect_once(
    database_url: str, moment: str, error: Exception
) -> None:
    async with ledger.app.open(database_url) as backend:
        ada = await account(backend)
        jobs = await bumps(backend, ada, MANY)
        crowd.times.clear()
        worker = make_worker(backend)
        times = 1 if isinstance(error, RuntimeError) else 2
        with raising(moment, error, times=times):
            await drained(worker)
        lost = [found for found, _ in await outcomes(backend, jobs)].count("failed")
        assert lost == (1 if moment == "mutation.ran" and isinstance(error, RuntimeError) else 0)
        assert await backend.run_query(crowd.balances) == [MANY - lost]
        assert len(await backend.run_query(ledger.entries, what="bump")) == MANY - lost
        assert all(len(set(runs)) == 1 for runs in crowd.times.values()), "a retry has the same time and chance"
        await worker.finish()


async def test_in_conflict_with_a_writer_outside_they_run_again(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url) as backend:
        ada = await account(backend)
        jobs = await bumps(backend, ada, MANY)
        worker = make_worker(backend)
        with ledger.held_between(1) as held:
            outside = asyncio.create_task(backend.run_mutation(crowd.bump, account=ada, number=-1, wait=True))
            await held.arrived()
            with gate("commit.before", most=1) as commit:
                await worker.tick()
                await commit.arrived()
                held.open()  # it waits for the group's lock on the row
                commit.open()
                await outside
        await drained(worker)
        assert {found for found, _ in await outcomes(backend, jobs)} == {"success"}
        assert await backend.run_query(crowd.balances) == [MANY + 1]
        await worker.finish()


async def test_if_the_lease_is_lost_meanwhile_nothing_commits(database_url: str) -> None:
    async with two_on(database_url) as (first, second, clock):
        ada = await account(first)
        jobs = await bumps(first, ada, FEW)
        stalled, rescuer = make_worker(first), make_worker(second)
        with gate("mutation.ran", most=1) as ran:
            await stalled.tick()
            await ran.arrived()
            clock.advance(timedelta(seconds=31))
            if database_url.startswith("sqlite"):
                rescue = asyncio.create_task(rescuer.tick())
                await asyncio.wait([rescue], timeout=0.02)
                ran.open()
                await rescue
            else:
                await rescuer.tick()
                ran.open()
        await until(lambda: answer(not stalled.running))
        await until(lambda: answer(not rescuer.running))
        clock.advance(timedelta(minutes=2))  # those that were lost wait before they run again
        await drained(rescuer)
        assert {found for found, _ in await outcomes(second, jobs)} == {"success"}
        assert await first.run_query(crowd.balances) == [FEW]
        for worker in (stalled, rescuer):
            await worker.finish()


async def test_one_that_is_slow_goes_on_by_itself(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url) as backend:
        ada = await account(backend)
        bob = await backend.run_mutation(ledger.open_account, owner="bob")
        with ledger.held_between(2) as held:
            jobs = await bumps(backend, ada, FEW)
            slow = await backend.scheduler.run_after(NOW, crowd.bump, account=bob, number=-1, wait=True)
            jobs += await bumps(backend, ada, FEW)
            worker = make_worker(backend)
            await worker.tick()
            await held.arrived(2)  # in the transaction that it shared, and in its own
            await until(lambda: answer(len(worker.running) == 1))
            assert {found for found, _ in await outcomes(backend, jobs)} == {"success"}
            assert await state(backend, slow) == "running"
            held.open()
        await bumps(backend, ada, MANY)
        with commits() as made:
            await drained(worker)
        assert len(made) <= 3, "the others of its function go on sharing: its own, and one or two of all others"
        assert await backend.run_query(crowd.balances) == [2 * FEW + MANY, 1]
        await worker.finish()


async def test_what_they_change_is_sent_together_and_is_each_ones_own(database_url: str) -> None:
    """Rows of values of each kind, most changed by one job, some by several: the last of them has the last word."""

    async with ledger.app.open(database_url) as backend:
        rows = await backend.run_mutation(crowd.take_samples, count=FEW)
        for number in range(1, 2 * FEW + 1):
            of = rows[number % FEW] if number <= FEW else rows[0]
            await backend.scheduler.run_after(NOW, crowd.change_sample, of=of, number=number)
        worker = make_worker(backend)
        with commits() as made:
            await drained(worker)
        assert len(made) < FEW
        found = await backend.run_query(crowd.samples, ids=rows)
        last = [2 * FEW, *range(1, FEW)]
        for row, number in zip(found, last, strict=True):
            asked = crowd.sample(number)
            assert {name: getattr(row, name) for name in asked} == asked
        await worker.finish()


async def test_a_stopping_worker_hands_back_those_that_share_a_transaction(database_url: str) -> None:
    async with ledger.app.open(database_url, grace=0.0) as backend:
        ada = await account(backend)
        jobs = await bumps(backend, ada, FEW)
        worker = make_worker(backend)
        with gate("commit.before", most=1) as commit:
            await worker.tick()
            await commit.arrived()
            await worker.finish()
        found = {one for one, _ in await outcomes(backend, jobs)}
        assert found == {"pending"}
        assert await backend.run_query(crowd.balances) == [0]
        another = make_worker(backend)
        await drained(another)
        assert await backend.run_query(crowd.balances) == [FEW]
        await another.finish()


async def test_if_the_process_dies_of_one_of_them_each_takes_effect_once(database_url: str, tmp_path: Path) -> None:
    async with ledger.app.open(database_url) as backend:
        for number in range(FEW):
            await backend.scheduler.run_after(NOW, ledger.enter, what="beside", number=number)
        await backend.scheduler.run_after(NOW, ledger.dies_in_its_transaction, folder=str(tmp_path))
        for number in range(FEW, 2 * FEW):
            await backend.scheduler.run_after(NOW, ledger.enter, what="beside", number=number)
        with processes(1, "work", database_url, lease=SHORT_LEASE) as (first,):
            assert await asyncio.to_thread(first.wait) == -9
        before = await backend.run_query(ledger.entries, what="beside")
        assert before == list(range(len(before))), "on a slow machine some were committed before it was begun"
        assert len(before) <= FEW, "those behind it shared its transaction, or came later"
        with processes(1, "work", database_url, lease=SHORT_LEASE):
            found = await ended(backend, 2 * FEW + 1)
        assert {one.state.value for one in found} == {"success"}
        assert await backend.run_query(ledger.entries, what="beside") == list(range(2 * FEW))
        assert await backend.run_query(ledger.entries, what="died") == [0]
