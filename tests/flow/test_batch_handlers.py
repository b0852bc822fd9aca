"""Batch functions: many jobs, one call, a result for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from race.test_on_complete import finish, two_workers
from race.test_workers import NOW, make_worker
from stage.waits import until

from penstock import (
    ActionCtx,
    App,
    Canceled,
    Failed,
    Finished,
    Id,
    JobId,
    MutationCtx,
    NonRetryableError,
    QueryCtx,
    Retry,
    Success,
    Table,
    WorkId,
    WorkResult,
    public,
)
from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.errors import ArgumentsInvalid, Conflict, DeclarationError, ResultInvalid
from penstock.observe import points
from penstock.services.worker.worker import Worker
from penstock.sync import ActionCtx as SyncActionCtx
from penstock.sync import MutationCtx as SyncMutationCtx
from penstock.testing import TestApp, gate

app = OPENED = App()
sms = app.workpool("sms", max_parallelism=200, default_retry=Retry(max_attempts=3, initial_backoff=0.001, base=1))
mail = app.workpool("mail", max_parallelism=3)


@dataclass(frozen=True)
class Message:
    to: str
    text: str = "Hello"


class Letter(BaseModel):
    to: str
    pages: int = 1

    @field_validator("to")
    @classmethod
    def check_to(cls, to: str) -> str:
        if not to:
            raise ValueError("nobody")
        return to


sent: list[list[str]] = []
told_of: set[str] = set()


@app.internal_action(batch=10, of=Message)
async def send(ctx: ActionCtx, calls: list[Message]) -> list[str | Exception]:
    """Send messages; to whom one is sent says what becomes of it."""
    sent.append([call.to for call in calls])
    if any(call.to == "all fail" for call in calls):
        raise ConnectionError("no network")
    if any(call.to == "cancel" for call in calls):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await SystemClock().sleep(0)
    if any(call.to == "too few" for call in calls):
        return []
    if any(call.to == "wait" for call in calls):
        await ctx.wait_cancelled()
    found: list[str | Exception] = []
    for call in calls:
        if call.to == "nobody":
            found.append(NonRetryableError("unknown number"))
        elif call.to == "busy":
            found.append(ConnectionError("busy"))
        elif call.to == "strange":
            found.append(1)  # type: ignore[arg-type]  # which is not what is declared
        else:
            found.append(f"{call.text} {call.to}")
    return found


@app.action(batch=100, of=Letter, linger=timedelta(seconds=4))
def post(ctx: SyncActionCtx, letters: list[Letter]) -> Sequence[int]:
    sent.append([letter.to for letter in letters])
    return [letter.pages for letter in letters]


class Entry(Table):
    name: str


@app.internal_mutation(batch=10, of=Message)
async def book(ctx: MutationCtx, calls: list[Message]) -> list[Id[Entry] | Exception]:
    """Write a row for each; to whom one is says what becomes of it."""
    sent.append([call.to for call in calls])
    made = [await ctx.db.insert(Entry(name=call.to)) for call in calls if call.to not in {"nobody", "busy"}]
    if any(call.to == "all fail" for call in calls):
        raise ConnectionError("no network")
    ids = iter(made)
    return [
        NonRetryableError("unknown number") if call.to == "nobody"
        else ConnectionError("busy") if call.to == "busy"
        else next(ids)
        for call in calls
    ]  # fmt: skip


@app.mutation(batch=5, of=Letter, access=public)
def file(ctx: SyncMutationCtx, letters: list[Letter]) -> list[int]:
    for letter in letters:
        ctx.db.insert(Entry(name=letter.to))
    return [letter.pages for letter in letters]


@app.internal_mutation
async def write_alone(ctx: MutationCtx, to: str) -> None:
    await ctx.db.insert(Entry(name=to))


@app.query
async def entries(ctx: QueryCtx) -> list[str]:
    return sorted([row.name async for row in ctx.db.query(Entry)])


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    told_of.add(f"{context}: {type(result).__name__}")


async def drained(backend: Backend, worker: Worker, jobs: list[JobId]) -> list[WorkResult[Any]]:
    """How jobs have ended, once all have."""

    async def all_have_ended() -> bool:
        await worker.tick()
        return all(isinstance(one, Finished) for one in await sms.status_batch(backend, jobs))

    await until(all_have_ended)
    return [one.result for one in await sms.status_batch(backend, jobs) if isinstance(one, Finished)]


async def test_many_jobs_are_one_call_and_each_has_its_result(database_url: str) -> None:
    async with app.open(database_url, worker_jobs=25) as backend:
        sent.clear()
        jobs = [await sms.enqueue(backend, send, to=f"n{number}", text="Hi") for number in range(25)]
        worker = make_worker(backend)
        assert await drained(backend, worker, jobs) == [Success(f"Hi n{number}") for number in range(25)]
        assert [len(calls) for calls in sent] == [10, 10, 5]
        sent.clear()
        jobs = [await mail.enqueue(backend, send, to=str(number)) for number in range(9)]
        assert len(await drained(backend, worker, jobs)) == len(jobs)
        assert max(len(calls) for calls in sent) <= 3, "a limit counts jobs, and not calls"
        posted = [await sms.enqueue(backend, post, to=str(number)) for number in range(25)]
        assert len(await drained(backend, worker, [*posted])) == len(posted), "no more can come, as the worker is full"
        await worker.finish()


async def test_one_that_fails_fails_alone_and_a_handler_that_fails_fails_all(database_url: str) -> None:
    async with app.open(database_url) as backend:
        sent.clear()
        worker, again = make_worker(backend), sms.with_options(retry=True)
        jobs = [await again.enqueue(backend, send, to) for to in ("ada", "nobody", "busy", "strange")]
        ada, *failed = await drained(backend, worker, jobs)
        assert ada == Success("Hello ada")
        assert [one.error.partition(":")[0] for one in failed if isinstance(one, Failed)] == [
            "NonRetryableError", "ConnectionError", "ResultInvalid",
        ]  # fmt: skip
        tried = [to for calls in sent for to in calls]
        assert (tried.count("ada"), tried.count("nobody"), tried.count("busy")) == (1, 1, 3)
        for how, expected in (
            ("all fail", "ConnectionError: no network"),
            ("too few", "returned 0 results for 3 calls"),
            ("cancel", "CancelledError"),
        ):
            jobs = [await sms.enqueue(backend, send, to) for to in ("ada", how, "bob")]
            (error,) = {one.error for one in await drained(backend, worker, jobs) if isinstance(one, Failed)}
            assert expected in error, how
        await worker.finish()


async def test_on_complete_cancels_and_timeouts_are_of_each_job(database_url: str) -> None:
    told_of.clear()
    async with app.open(database_url) as backend:
        jobs = []
        for to, timeout in (("wait", None), ("busy", timedelta(hours=1)), ("ada", None)):
            pool = sms.with_options(on_complete=told, context=to, timeout=timeout)
            jobs.append(await pool.enqueue(backend, send, to))
        worker = make_worker(backend)
        await worker.tick()
        await sms.cancel(backend, jobs[1])
        await worker.tick()
        assert len(worker.running) == len(jobs)
        await sms.cancel_all(backend, send)
        found = await drained(backend, worker, jobs)
        assert found == [Success("Hello wait"), Canceled(), Success("Hello ada")], "what was done is done"
        assert told_of == {"ada: Success", "busy: Canceled", "wait: Success"}

        late = [
            await sms.with_options(timeout=timedelta(seconds=seconds)).enqueue(backend, send, to)
            for to, seconds in (("wait", 3600), ("ada", 0.01))
        ]
        assert ["CallTimeout" in one.error for one in await drained(backend, worker, late)] == [True, True]  # type: ignore[union-attr]
        await worker.finish()


async def test_the_first_lingers_for_those_who_come_shortly_after(database_url: str) -> None:
    async with app.open(database_url, worker_jobs=200) as backend:
        sent.clear()
        worker = make_worker(backend)
        jobs = [await sms.enqueue(backend, post, to="n0")]
        await worker.tick()
        gone = await sms.enqueue(backend, post, to="gone")
        await worker.tick()
        await sms.cancel(backend, gone)
        await worker.tick()
        assert sent == []
        for start, end in ((1, 50), (50, 99)):  # then it is full, if the canceled one counts
            arguments = [{"to": f"m{number}", "pages": number} for number in range(start, end)]
            jobs += await sms.enqueue_batch(backend, post, arguments)
            await worker.tick()
        found = await drained(backend, worker, [*jobs, gone])
        assert found == [Success(1), *[Success(number) for number in range(1, 99)], Canceled()]
        assert [len(calls) for calls in sent] == [99]
        await worker.finish()


async def test_to_those_who_call_it_is_a_function_of_one_call(database_url: str) -> None:
    async with app.open(database_url) as backend:
        assert await backend.run_action(send, to="ada") == "Hello ada"
        assert await backend.run_action(post, to="ada", pages=3) == 3
        with pytest.raises(ConnectionError, match="busy"):
            await backend.run_action(send, "busy")
        with pytest.raises(ResultInvalid, match="returned 0 results for 1 calls"):
            await backend.run_action(send, to="too few")
        with pytest.raises(ArgumentsInvalid):
            await sms.enqueue(backend, send, to=1)  # type: ignore[call-overload]
        with pytest.raises(ArgumentsInvalid, match="nobody"):
            await backend.run_action(post, to="")
        job = await backend.scheduler.run_after(NOW, send, to="bob")
        worker = make_worker(backend)
        assert await drained(backend, worker, [job]) == [Success("Hello bob")]
        await worker.finish()


async def test_a_batch_of_mutations_commits_with_the_ends_of_its_jobs(database_url: str) -> None:
    sent.clear()
    told_of.clear()
    async with app.open(database_url, worker_jobs=100) as backend:
        worker = make_worker(backend)
        names = [*map(str, range(10, 28)), "nobody", "busy"]
        pool = sms.with_options(on_complete=told, context="x")
        jobs = [await pool.enqueue(backend, book, to=name) for name in names]
        found = await drained(backend, worker, jobs)
        assert [len(calls) for calls in sent] == [10, 10], "a mutation that fails is not tried again"
        assert [type(one).__name__ for one in found] == ["Success"] * 18 + ["Failed"] * 2
        assert await backend.run_query(entries) == names[:18]
        assert told_of == {"x: Success", "x: Failed"}
        jobs = [await sms.enqueue(backend, book, to=name) for name in ("ada", "all fail", "bob")]
        assert {type(one) for one in await drained(backend, worker, jobs)} == {Failed}
        assert await backend.run_query(entries) == names[:18], "nothing of it stays"
        filed = await sms.enqueue_batch(backend, file, [{"to": "f", "pages": number} for number in range(7)])
        assert await drained(backend, worker, [*filed]) == [Success(number) for number in range(7)]
        assert await backend.run_mutation(file, to="g", pages=3) == 3
        assert (await backend.run_query(entries))[18:] == ["f"] * 7 + ["g"]
        await worker.finish()


@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before", "commit.after"])
async def test_a_batch_of_mutations_takes_effect_once_though_its_worker_dies(database_url: str, moment: str) -> None:
    sent.clear()
    async with two_workers(database_url, app) as (backend, dying, other, clock):
        names = [str(number) for number in range(5)]
        jobs = [await sms.enqueue(backend, book, to=name) for name in names]
        with gate(moment, when=lambda **_: bool(sent), most=1) as held:
            arrival = asyncio.create_task(held.arrived())
            while not arrival.done():
                await dying.tick()
                await asyncio.wait([arrival], timeout=0.01)
            await dying.kill()
        for job in jobs:
            assert isinstance(await finish(backend, other, clock, job), Success)
        assert await backend.run_query(entries) == names


async def test_a_batch_of_mutations_that_conflicts_runs_again_as_if_for_the_first_time(database_url: str) -> None:
    sent.clear()
    async with app.open(database_url) as backend:
        jobs = [await sms.enqueue(backend, book, to=name) for name in ("ada", "bob")]
        worker = make_worker(backend)

        async def conflict(**_: Any) -> None:
            if len(sent) < 3:
                raise Conflict("staged")

        points.arm("commit.before", conflict)
        try:
            found = await drained(backend, worker, jobs)
        finally:
            points.disarm("commit.before")
        assert {type(one) for one in found} == {Success}
        assert await backend.run_query(entries) == ["ada", "bob"]
        assert sent == [["ada", "bob"]] * 3
        await worker.finish()


def test_what_cannot_be_a_batch_function_is_refused_where_it_is_declared() -> None:
    def one(ctx: SyncActionCtx, calls: list[Message]) -> list[str]:
        return []

    def two(ctx: SyncActionCtx, calls: list[Message], more: int) -> list[str]:
        return []

    def no_list(ctx: SyncActionCtx, calls: list[Message]) -> str:
        return ""

    refused: Any = App().internal_action
    for options, handler in (
        ({"batch": 0, "of": Message}, one),
        ({"batch": 5}, one),
        ({"batch": 5, "of": Message, "linger": timedelta(hours=1)}, one),
        ({"batch": 5, "of": Message, "runtime": "process"}, one),
        ({"batch": 5, "of": Message}, two),
    ):
        with pytest.raises(DeclarationError):
            refused(**options)(handler)
    with pytest.raises(DeclarationError, match="returns a list"):
        refused(batch=5, of=Message)(no_list).signature  # noqa: B018 - it is built when it is first needed


async def test_work_that_could_not_start_in_time_ends_as_expired(database_url: str) -> None:
    sent.clear()
    told_of.clear()
    async with TestApp(app, database_url) as backend:
        pool = sms.with_options(start_deadline=timedelta(minutes=1), on_complete=told, context="late")
        for advance, kind in ((timedelta(seconds=59), "Success"), (timedelta(seconds=61), "Failed")):
            jobs = [await pool.enqueue(backend, function, to="ada") for function in (send, book, write_alone)]
            later = await pool.with_options(run_after=timedelta(hours=1)).enqueue(backend, send, to="later")
            backend.clock.advance(advance)
            await backend.run_until_idle(raise_errors=False)
            found = [one.result for one in await sms.status_batch(backend, jobs) if isinstance(one, Finished)]
            assert [type(one).__name__ for one in found] == [kind] * 3
            assert {one.error for one in found if isinstance(one, Failed)} <= {"expired"}
            assert await pool.status(backend, later) == Finished(Success("Hello later")), "it is late once it was due"
        assert told_of == {"late: Success", "late: Failed"}
        assert (sent.count(["ada"]), await backend.run_query(entries)) == (2, ["ada", "ada"])
