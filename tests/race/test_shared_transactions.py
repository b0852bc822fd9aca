"""Mutation jobs that share transactions: each keeps its own end, whatever befalls the others or the transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from programs import ledger, sharing
from race.test_workers import EXPIRED, NOW, SHORT_LEASE, answer, ended, make_worker, stalled_and_rescuer, state
from stage.outboxes import OutboxStage, drain
from stage.processes import processes
from stage.waits import until

from penstock import App, Id, MutationCtx, Table
from penstock.app import Backend
from penstock.calls.jobs import group
from penstock.errors import Conflict, DatabaseUnavailable
from penstock.observe import points
from penstock.services.worker.worker import Worker
from penstock.testing import TestApp, gate, raising

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


@asynccontextmanager
async def working(url: str, **settings: Any) -> AsyncIterator[tuple[Backend, Worker]]:
    """A backend with a worker whose ticks the test makes."""
    async with ledger.app.open(url, **settings) as backend:
        worker = make_worker(backend)
        yield backend, worker
        await worker.finish()


async def account(backend: Backend) -> Id[ledger.Account]:
    return await backend.run_mutation(ledger.open_account, owner="ada")


async def bumps(backend: Backend, of: Id[ledger.Account], count: int) -> list[Any]:
    return [await backend.scheduler.run_after(NOW, sharing.bump, account=of, number=number) for number in range(count)]


async def drained(worker: Worker) -> None:
    """Have a worker run all there is."""
    while not await worker.tick() or worker.running or worker.open_outcomes:
        await until(lambda: answer(not worker.running))


async def outcomes(backend: Backend, jobs: list[Any]) -> list[tuple[str, Any]]:
    found = [await backend.job(job) for job in jobs]
    return [(one.state.value, one.result) for one in found if one is not None]


async def all_succeeded(backend: Backend, jobs: list[Any]) -> bool:
    return {found for found, _ in await outcomes(backend, jobs)} == {"success"}


async def test_jobs_share_a_commit_and_see_what_those_before_them_did(database_url: str) -> None:
    async with working(database_url) as (backend, worker):
        ada = await account(backend)
        jobs = await bumps(backend, ada, MANY)
        with commits() as made:
            await drained(worker)
        assert len(made) < MANY / 2
        assert await outcomes(backend, jobs) == [("success", place) for place in range(1, MANY + 1)]
        assert await backend.run_query(sharing.balances) == [MANY]
        assert await backend.run_query(ledger.entries, what="bump") == list(range(MANY))
        jobs = [await backend.scheduler.run_after(NOW, sharing.count_entries, number=number) for number in range(MANY)]
        await drained(worker)
        assert sorted(found for _, found in await outcomes(backend, jobs)) == list(range(MANY)), "read by an index"
        assert await backend.run_query(ledger.entries, what="counted") == list(range(MANY))


async def test_what_they_change_is_sent_together_and_is_each_ones_own(database_url: str) -> None:
    """Rows of values of each kind, most changed by one job, some by several: the last of them has the last word."""
    async with working(database_url) as (backend, worker):
        rows = await backend.run_mutation(sharing.take_samples, count=FEW)
        for number in range(1, 2 * FEW + 1):
            of = rows[number % FEW] if number <= FEW else rows[0]
            await backend.scheduler.run_after(NOW, sharing.change_sample, of=of, number=number)
        with commits() as made:
            await drained(worker)
        assert len(made) < FEW
        found = await backend.run_query(sharing.samples, ids=rows)
        for row, number in zip(found, [2 * FEW, *range(1, FEW)], strict=True):
            asked = sharing.sample(number)
            assert {name: getattr(row, name) for name in asked} == asked


async def test_sub_transactions_and_jobs_of_those_who_share_are_their_own(database_url: str) -> None:
    async with working(database_url) as (backend, worker):
        jobs = [
            await backend.scheduler.run_after(NOW, sharing.take_seat, number=number % FEW) for number in range(2 * FEW)
        ]
        for number in range(1, FEW):
            await backend.scheduler.run_after(NOW, sharing.pass_on, number=number)
        await drained(worker)
        found = sorted(result for _, result in await outcomes(backend, jobs))
        assert found == ["UniqueViolation"] * FEW + ["taken"] * FEW
        assert await backend.run_query(sharing.seats) == list(range(FEW))
        for what in ("sat", "refused"):
            assert await backend.run_query(ledger.entries, what=what) == list(range(FEW))
        await drained(worker)
        passed = [number for number in range(1 - FEW, FEW) if number]
        assert await backend.run_query(ledger.entries, what="passed on") == passed


# ----- those that run alone


async def test_one_that_is_slow_goes_on_by_itself(postgres_url: str) -> None:
    async with working(postgres_url) as (backend, worker):
        ada = await account(backend)
        bob = await backend.run_mutation(ledger.open_account, owner="bob")
        with ledger.held_between(2) as held:
            jobs = await bumps(backend, ada, FEW)
            slow = await backend.scheduler.run_after(NOW, sharing.bump, account=bob, number=-1, wait=True)
            jobs += await bumps(backend, ada, FEW)
            await worker.tick()
            await held.arrived(2)  # in the transaction that it shared, and in its own
            await until(lambda: len(worker.running) == 1)
            assert await all_succeeded(backend, jobs)
            assert await state(backend, slow) == "running"
            held.open()
        await bumps(backend, ada, MANY)
        with commits() as made:
            await drained(worker)
        assert len(made) <= 3, "the others of its function go on sharing: its own, and one or two of all others"
        assert await backend.run_query(sharing.balances) == [2 * FEW + MANY, 1]


async def test_the_limit_of_a_job_cancels_that_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_LONGEST", 0.01)
    task = asyncio.current_task()
    assert task is not None
    limit = group._Limit()
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError), limit:
            await asyncio.Event().wait()
        assert (limit.exceeded, task.cancelling()) == (True, 0)
        with limit, suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        assert (limit.exceeded, task.cancelling()) == (True, 0), "also if it takes no notice"
        with limit:
            assert not limit.exceeded
        looks = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, looks.set)
        await looks.wait()
        assert not limit.exceeded, "nobody is cancelled between two jobs"
    limit.end()


# ----- failures


def test_one_that_fails_leaves_nothing_and_takes_nobody_along(database_url: str) -> None:
    ways = sorted(sharing.WAYS)
    if database_url.startswith("sqlite"):  # nothing is awaited after that there, and it succeeds
        ways.remove("cancel what follows")

    async def story() -> None:
        async with ledger.app.open(database_url, max_rows_written=12) as backend:
            ada = await account(backend)
            await backend.run_mutation(sharing.sit, number=FEW)
            for turn, how in enumerate(ways):
                jobs = await bumps(backend, ada, FEW)
                args: dict[str, Any] = {"account": ada, "number": FEW, "how": how}
                jobs.append(await backend.scheduler.run_after(NOW, sharing.bump_and_fail, **args))
                jobs += await bumps(backend, ada, FEW)
                worker = make_worker(backend)
                await drained(worker)
                found = await outcomes(backend, jobs)
                assert found.pop(FEW) == ("failed", None), how
                assert {one for one, _ in found} == {"success"}, how
                before = 2 * FEW * turn
                assert sorted(balance - before for _, balance in found) == list(range(1, 2 * FEW + 1)), how
                assert await backend.run_query(sharing.balances) == [before + 2 * FEW], how
                assert FEW not in await backend.run_query(ledger.entries, what="bump"), how
                for what in ("left by one that failed", "too many", "never"):
                    assert await backend.run_query(ledger.entries, what=what) == [], how
                assert await backend.run_query(sharing.seats) == [FEW], how
                await asyncio.gather(*sharing.left_behind, return_exceptions=True)
                sharing.left_behind.clear()
                await worker.finish()

    asyncio.run(story())


@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before", "commit.after"])
@pytest.mark.parametrize(
    "error", [Conflict("staged"), DatabaseUnavailable("staged", uncertain=True), RuntimeError("staged")]
)
async def test_whatever_ends_a_shared_transaction_each_takes_effect_once(
    database_url: str, moment: str, error: Exception
) -> None:
    async with working(database_url) as (backend, worker):
        jobs = await bumps(backend, await account(backend), MANY)
        sharing.times.clear()
        with raising(moment, error, times=1 if isinstance(error, RuntimeError) else 2):
            await drained(worker)
        lost = [found for found, _ in await outcomes(backend, jobs)].count("failed")
        assert lost == (1 if moment == "mutation.ran" and isinstance(error, RuntimeError) else 0)
        assert await backend.run_query(sharing.balances) == [MANY - lost]
        assert len(await backend.run_query(ledger.entries, what="bump")) == MANY - lost
        assert all(len(set(runs)) == 1 for runs in sharing.times.values()), "a retry has the same time and chance"


@pytest.mark.parametrize("count", [1, FEW])
async def test_if_the_lease_is_lost_meanwhile_nothing_commits(database_url: str, count: int) -> None:
    async with stalled_and_rescuer(database_url) as (backend, stalled, rescuer, clock):
        jobs = await bumps(backend, await account(backend), count)
        with gate("mutation.ran", most=1) as ran:
            await stalled.tick()
            await ran.arrived()
            clock.advance(EXPIRED)
            if database_url.startswith("sqlite"):
                # There is one writer: the rescue is next in line, and finds what the mutation has done.
                rescue = asyncio.create_task(rescuer.tick())
                await asyncio.wait([rescue], timeout=0.02)
                ran.open()
                await rescue
            else:
                await rescuer.tick()
                ran.open()
        await until(lambda: not stalled.running and not rescuer.running)
        clock.advance(4 * EXPIRED)  # those that were lost wait before they run again
        await drained(rescuer)
        assert await all_succeeded(backend, jobs)
        assert await backend.run_query(sharing.balances) == [count]


async def test_if_the_process_dies_of_one_of_them_each_takes_effect_once(database_url: str, tmp_path: Path) -> None:
    async with ledger.app.open(database_url) as backend:
        for number in range(FEW):
            await backend.scheduler.run_after(NOW, ledger.enter, what="beside", number=number)
        died = await backend.scheduler.run_after(NOW, ledger.dies_in_its_transaction, folder=str(tmp_path))
        for number in range(FEW, 2 * FEW):
            await backend.scheduler.run_after(NOW, ledger.enter, what="beside", number=number)
        with processes(1, "work", database_url, lease=SHORT_LEASE) as (first,):
            assert await asyncio.to_thread(first.wait) == -9
        assert await state(backend, died) == "running", "nobody knows yet"
        before = await backend.run_query(ledger.entries, what="beside")
        assert before == list(range(len(before))), "on a slow machine some were committed before it was begun"
        assert len(before) <= FEW, "those behind it shared its transaction, or came later"
        with processes(1, "work", database_url, lease=SHORT_LEASE):
            found = await ended(backend, 2 * FEW + 1)
        assert {one.state.value for one in found} == {"success"}
        assert await backend.run_query(ledger.entries, what="beside") == list(range(2 * FEW))
        assert await backend.run_query(ledger.entries, what="died") == [0]


old = App()


class Thing(Table, name="thing"):
    note: str = ""
    calls: int = 0


@old.internal_mutation
async def add(ctx: MutationCtx, count: int) -> list[Id[Thing]]:
    return await ctx.db.insert_many(Thing(note=str(one)) for one in range(count))


@old.internal_mutation
async def call(ctx: MutationCtx, item: Id[Thing]) -> None:
    row = await ctx.db.get(Thing, item)
    assert row is not None
    await ctx.db.patch(Thing, item, calls=row.calls + 1)


@old.internal_mutation
async def there_and_back(ctx: MutationCtx, item: Id[Thing]) -> None:
    await ctx.db.patch(Thing, item, note="away")
    await ctx.db.patch(Thing, item, note="0")


@old.internal_mutation
async def replace(ctx: MutationCtx, item: Id[Thing]) -> None:
    await ctx.db.insert(Thing(note="new"))
    await ctx.db.delete(Thing, item)


def declared(name: str = "send") -> OutboxStage:
    """Another program, with an outbox of the table."""
    stage = OutboxStage(Thing)
    stage.outbox(Thing, name, on=("insert", "update", "delete"), start="end")
    return stage


async def calls(backend: Backend, *items: Id[Thing]) -> None:
    for item in items:
        await backend.scheduler.run_after(NOW, call, item)


def told(stage: OutboxStage) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = [
        (one.kind, one.row.note, one.row.calls) for one in stage.got if one.row is not None
    ]
    stage.got.clear()
    return found


async def test_changes_by_jobs_that_share_a_transaction_are_told_each_and_in_order(database_url: str) -> None:
    async with TestApp(old, database_url) as one:
        worker = make_worker(one)
        a, b = await one.run_mutation(add, 2)
        await calls(one, *[a] * 5)
        await drained(worker)  # merged, as nobody counts them
        stage = declared()
        async with stage.open(database_url, clock=one.clock) as two:
            assert "thing" not in one.engine.statements.ordered
            await drain(two)
            await calls(one, a, b, a, b, a)
            await one.scheduler.run_after(NOW, there_and_back, a)
            await drained(worker)
            await drain(two)
            notes = ["0", "1", "0", "1", "0", "away", "0"]
            assert told(stage) == [("update", *one) for one in zip(notes, [6, 1, 7, 2, 8, 8, 8], strict=True)]
            for item in (a, b):
                await one.scheduler.run_after(NOW, replace, item)
            await drained(worker)
            await drain(two)
            assert [one.kind for one in stage.got] == ["insert", "delete"] * 2
        await worker.finish()
