"""Jobs that nobody can read, as something past all doors has stored them: they end, and no other waits."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from race.test_workers import answer, make_worker
from stage.guests import sqlite_file
from stage.waits import events, until

from penstock import (
    ActionCtx,
    App,
    Canceled,
    Failed,
    Finished,
    MutationCtx,
    Retry,
    Success,
    TaskFilter,
    WorkId,
    WorkResult,
)
from penstock.errors import Snooze
from penstock.jobs.job import JobId, job_uuid
from penstock.testing import TestApp

app = OPENED = App()
mail = app.workpool("mail", max_parallelism=20)

KEPT = ['{"keep": 1e300}', '{"keep": "until spring"}', '{"keep": [1]}']
GONE = ['{"keep": -1e300}']
NO_TASK = '{"task": 1}'  # whose arguments are none of a task's
OF_NO_USE = [
    '{"task": [1]}',
    '{"task": true}',
    '{"name": 5}',
    '{"timeout": "a day"}',
    '{"context": [1]}',
    '{"key": {"a": 1}}',
    '{"until_start": "yes"}',
]
BROKEN = [*KEPT, *GONE, NO_TASK, *OF_NO_USE]


@app.internal_action
async def send(ctx: ActionCtx, number: int) -> int:
    return number


begun: list[int] = []
told: dict[str, str] = {}  # how jobs have ended


@app.internal_action
async def wait(ctx: ActionCtx, number: int) -> int:
    begun.append(number)
    if ctx.work.attempt == 1:
        await asyncio.Event().wait()
    return number


@app.internal_mutation
async def tell(ctx: MutationCtx, work_id: WorkId, result: WorkResult[int], context: Any) -> None:
    told[work_id] = result.kind


def change(url: str, statement: str, job: JobId, *values: str) -> None:
    """Change the row of a job, as no program of penstock's does."""
    uuid = job_uuid(job)
    if url.startswith("sqlite"):
        lite = sqlite3.connect(sqlite_file(url))
        with lite:
            assert lite.execute(statement.format(table="penstock_", mark="?"), (*values, uuid.bytes)).rowcount == 1
        lite.close()
    else:
        with psycopg.connect(url) as connection:
            marked = statement.format(table="penstock.", mark="%s")
            assert connection.execute(marked, (*values, uuid)).rowcount == 1


async def test_broken_jobs_are_settled_with_others(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    of_tasks = [f'{{"task": {number}, "keep": 1e300}}' for number in ('"one"', "1.5")]
    given = [*BROKEN, *of_tasks]
    told.clear()
    async with TestApp(app, database_url) as backend:
        pool = mail.with_options(on_complete=tell)
        works = [await pool.enqueue(backend, send, number) for number in range(len(given) + 3)]
        for work, options in zip(works, given, strict=False):
            change(database_url, "update {table}ready_job set options = {mark} where id = {mark}", work, options)
        keyed = await mail.with_options(key="only one").enqueue(backend, send, 1)
        change(database_url, "update {table}scheduled_job set options = {mark} where id = {mark}", keyed, '{"key": 5}')
        unread = await mail.enqueue(backend, send, 1)
        change(database_url, "update {table}ready_job set options = {mark} where id = {mark}", unread, "no JSON")
        await backend.run_until_idle(advance=False, raise_errors=False)

        fails = {NO_TASK, *OF_NO_USE, *of_tasks}
        assert sorted(told.values()) == [
            *["failed"] * len(fails), *["success"] * (len(works) - len(fails)),
        ]  # fmt: skip
        ends = dict(zip(given, await mail.status_batch(backend, works[: len(given)]), strict=True))
        for options, end in ends.items():
            if options in fails:
                assert isinstance(end, Finished), options
                assert isinstance(end.result, Failed), options
                assert end.result.error.startswith("JobBroken: "), options
            else:
                expected = None if options in GONE else Finished(Success(given.index(options)))
                assert end == expected, (options, "what is gone had no time to be kept")
        for number in range(len(given), len(works)):
            assert await mail.status(backend, works[number]) == Finished(Success(number))
        broken = {one["job"] for one in events(caplog, "job.broken")}
        assert broken == {work for work, options in zip(works, given, strict=False) if options in fails} | {keyed}
        again = await mail.with_options(key="only one").enqueue(backend, send, 2)
        await backend.run_until_idle(advance=False)
        assert await mail.status(backend, again) == Finished(Success(2)), "its key is free"
        found = await backend.job(unread)
        assert found is not None
        assert (found.state.value, (found.error or "").partition(":")[0]) == ("pending", "OptionsUnread")

        backend.clock.advance(timedelta(days=100))
        assert await mail.status(backend, works[-1]) is None, "its day is over"
        for options, work in zip(given, works, strict=False):
            if options in {*KEPT, *of_tasks}:
                assert await mail.status(backend, work) == ends[options], (options, "it is kept for ever")
        failed = TaskFilter(state="failed")
        assert await app.tasks.count(backend, failed) == {}
        assert (await app.tasks.records(backend, failed)).records == []
        assert await app.tasks.list(backend) == []


async def test_broken_jobs_are_canceled_with_others(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    given = [*KEPT, *GONE, NO_TASK, *OF_NO_USE[:1], "{}"]
    async with TestApp(app, database_url) as backend:
        works = [await mail.enqueue(backend, send, number) for number in range(len(given))]
        for work, options in zip(works, given, strict=True):
            change(database_url, "update {table}ready_job set options = {mark} where id = {mark}", work, options)
            await mail.cancel(backend, work)
        await backend.run_until_idle()
        for work, options in zip(works, given, strict=True):
            assert await mail.status(backend, work) == (None if options in GONE else Finished(Canceled()))
        assert [one["job"] for one in events(caplog, "job.broken")] == [works[given.index(NO_TASK)]]


async def test_a_broken_job_of_a_worker_that_died_is_taken_over_with_others(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun.clear()
    async with TestApp(app, database_url) as backend:
        pool = mail.with_options(retry=Retry(3, 0.01, 1))
        works = [await pool.enqueue(backend, wait, number) for number in range(len(BROKEN) + 3)]
        dead = make_worker(backend)
        await dead.tick()
        await until(lambda: answer(len(begun) == len(works)))
        await dead.kill()
        for work, options in zip(works, BROKEN, strict=False):
            change(database_url, "update {table}running_job set options = {mark} where id = {mark}", work, options)
        backend.clock.advance(timedelta(seconds=31))
        await backend.run_until_idle(raise_errors=False)
        for number in range(len(BROKEN), len(works)):
            assert await mail.status(backend, works[number]) == Finished(Success(number))
        ends = [await mail.status(backend, work) for work in works[: len(BROKEN)]]
        lost = [
            end.result.error.partition(":")[0]
            for end in ends
            if isinstance(end, Finished) and hasattr(end.result, "error")
        ]
        assert lost == [*["WorkerLost"] * 3, "JobBroken", *["WorkerLost"] * len(OF_NO_USE)]
        assert ends[3] is None, "its time was over at once"
        assert len(events(caplog, "job.broken")) == 1


async def test_no_lease_waits_for_another_that_cannot_be_taken_over(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun.clear()
    async with TestApp(app, database_url) as backend:
        pool, works = mail.with_options(retry=Retry(3, 0.01, 1)), []
        for number in range(2):
            works.append(await pool.enqueue(backend, wait, number))
            worker = make_worker(backend)
            await worker.tick()
            await until(lambda: answer(len(begun) == len(works)))
            await worker.kill()
        change(database_url, "update {table}running_job set ending = {mark} where id = {mark}", works[0], "no ending")
        backend.clock.advance(timedelta(seconds=31))
        await backend.run_until_idle(raise_errors=False)
        assert await mail.status(backend, works[1]) == Finished(Success(1))
        assert events(caplog, "worker.not_rescued")
        assert [facts["jobs"] for facts in events(caplog, "worker.rescued")] == [1]


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I do not say")


class SilentSnooze(Silent, Snooze):
    """It says neither why nor until when."""


@dataclass(frozen=True)
class Letter:
    number: int


@app.internal_action(batch=10, of=Letter, linger=timedelta(seconds=0.05))
async def send_all(ctx: ActionCtx, letters: list[Letter]) -> list[Any]:
    answers: dict[int, Any] = {0: Silent(), 1: KeyError("k"), 2: SilentSnooze(timedelta(days=1))}
    return [answers.get(letter.number, letter.number) for letter in letters]


@app.internal_mutation
async def complete_silently(ctx: MutationCtx, work_id: WorkId, result: WorkResult[int], context: Any) -> None:
    raise Silent


async def test_an_error_that_cannot_be_told_is_the_end_of_its_own_job_only(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with TestApp(app, database_url) as backend:
        works = await mail.enqueue_batch(backend, send_all, [{"number": number} for number in range(4)])
        pool = mail.with_options(on_complete=complete_silently, on_complete_retry=Retry(1))
        called = await pool.enqueue(backend, send, 1)
        await backend.run_until_idle(advance=False, raise_errors=False)
        ends = await mail.status_batch(backend, [works[0], works[1], works[3], called])
        untold = Failed("Silent: <it cannot say why: its str() raised RuntimeError>")
        assert ends == [Finished(end) for end in (untold, Failed("KeyError: 'k'"), Success(3), Success(1))]
        snoozed, found = await backend.job(works[2]), await backend.job(called)
        assert snoozed is not None
        assert snoozed.state.value == "pending"
        assert found is not None
        assert found.on_complete_error == untold.error
        (failed,) = events(caplog, "job.on_complete_failed")
        assert failed["error"] == untold.error
        assert called not in {one["job"] for one in events(caplog, "job.failed")}, "it succeeded"
