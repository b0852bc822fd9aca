"""What a job knows of its attempt: how it asks to run later, says how far it is, and leaves its end to others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flow import process_actions as processes
from stage.databases import sql

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    Canceled,
    Completion,
    ContextError,
    Failed,
    Finished,
    JobState,
    LimitExceeded,
    MutationCtx,
    Pending,
    Progress,
    QueryCtx,
    ResultInvalid,
    Retry,
    Running,
    Snooze,
    Success,
    Table,
    TokenExpired,
    TokenInvalid,
    UsageError,
    ValueInvalid,
    WorkId,
    WorkResult,
)
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx
from penstock.clock import SystemClock
from penstock.testing import TestApp

app = OPENED = App(max_result_bytes=10_000)
pool = app.workpool("work", max_parallelism=2, default_retry=Retry(max_attempts=2, initial_backoff=10))

seen: list[Any] = []
snoozes: list[Exception] = []
said: list[tuple[Any, ...]] = []


class Note(Table, name="work_note"):
    text: str


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for left in (seen, snoozes, said, tokens, then):
        left.clear()


@app.internal_action
async def look(ctx: ActionCtx) -> None:
    work = ctx.work
    seen.append(("action", ctx.is_job, work.id, work.attempt, work.deadline, work.cancelled))
    await ctx.run_action(look_deeper)
    await ctx.run_action(look_in_a_thread)
    await ctx.run_mutation(look_in_a_mutation)
    await ctx.run_query(look_in_a_query)
    if len(seen) < 6:
        raise OSError("away")


@app.internal_action
async def look_deeper(ctx: ActionCtx) -> None:
    seen.append(("deeper", ctx.is_job, ctx.work.id, ctx.work.attempt, ctx.work.deadline, ctx.work.cancelled))


@app.internal_action
def look_in_a_thread(ctx: SyncActionCtx) -> None:
    seen.append(("thread", ctx.is_job, ctx.work.id, ctx.work.attempt, ctx.work.deadline, ctx.work.cancelled))


@app.internal_mutation
def look_in_a_mutation(ctx: SyncMutationCtx) -> None:
    seen.append(("mutation", ctx.is_job, ctx.work.id, ctx.work.attempt, ctx.work.deadline, False))


@app.internal_query
async def look_in_a_query(ctx: QueryCtx) -> None:
    seen.append(("query", ctx.is_job, ctx.work.id, ctx.work.attempt, ctx.work.deadline, False))


@app.internal_action
async def is_job(ctx: ActionCtx) -> bool:
    return ctx.is_job


@app.internal_mutation
async def note(ctx: MutationCtx, text: str) -> int:
    await ctx.db.insert(Note(text=text))
    if snoozes:
        raise snoozes.pop(0)
    return ctx.work.attempt


@app.internal_query
async def count(ctx: QueryCtx) -> int:
    if snoozes:
        raise snoozes.pop(0)
    return await ctx.db.query(Note).count()


@app.internal_action
async def act(ctx: ActionCtx) -> int:
    if snoozes:
        raise snoozes.pop(0)
    return ctx.work.attempt


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    await ctx.db.insert(Note(text=f"{result.kind} {ctx.is_job}"))
    if snoozes:
        raise snoozes.pop(0)


@app.internal_action
async def say(ctx: ActionCtx) -> None:
    for progress in said:
        await ctx.work.progress(*progress)
    while not ctx.cancelled:
        await ctx.wait_cancelled(0.01)


@app.internal_action
async def forgetful(ctx: ActionCtx) -> None:
    ctx.work.progress(1)  # type: ignore[unused-coroutine]  # noqa: RUF100 - this is the point


async def test_a_job_knows_its_attempt_wherever_it_runs(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        start = backend.clock.now()
        work = await pool.with_options(retry=True, timeout=timedelta(seconds=30)).enqueue(backend, look)
        await backend.run_until_idle()
        first, second = seen[:5], seen[5:]
        assert [where for where, *_ in first] == ["action", "deeper", "thread", "mutation", "query"]
        assert {tuple(rest) for _, *rest in first} == {(True, work, 1, start + timedelta(seconds=30), False)}
        (later,) = {tuple(rest) for _, *rest in second}
        assert later[:3] == (True, work, 2)
        assert later[3] > start + timedelta(seconds=30)

        seen.clear()
        works = [await pool.enqueue(backend, function) for function in (look_in_a_mutation, look_in_a_query)]
        scheduled = await backend.scheduler.run_after(timedelta(0), is_job)
        await backend.run_until_idle()
        assert [(where, work) for where, _, work, *_ in sorted(seen)] == [("mutation", works[0]), ("query", works[1])]
        status: Any = await backend.job(scheduled)
        assert status.result is True, "a scheduled function is a job"

        assert not await backend.run_action(is_job)
        for call in (backend.run_action(look), backend.run_mutation(look_in_a_mutation)):
            with pytest.raises(ContextError, match="not a job"):
                await call


async def test_an_action_in_a_process_knows_what_is_known_beforehand() -> None:
    async with TestApp(processes.app) as backend:
        crunch = processes.app.pools["crunch"]
        work = await crunch.with_options(timeout=timedelta(seconds=60)).enqueue(backend, processes.tell_work)
        await backend.run_until_idle()
        deadline = (backend.clock.now() + timedelta(seconds=60)).isoformat()
        assert await crunch.status(backend, work) == Finished(Success((work, 1, deadline)))
        refused = await crunch.enqueue(backend, processes.say_progress)
        snoozed = await crunch.enqueue(backend, processes.snooze)
        died = await crunch.enqueue(backend, processes.fail, how="die")
        await backend.run_until_idle(advance=False, raise_errors=False)
        ends: list[Any] = [await backend.job(work) for work in (refused, snoozed, died)]
        assert "ContextError: ctx.work.progress does not exist" in ends[0].error
        assert (ends[1].state, ends[1].error, ends[1].attempt) == (JobState.PENDING, "Snooze: not yet", 0)
        assert ends[1].run_at == backend.clock.now() + timedelta(minutes=2)
        assert ends[2].state is JobState.FAILED
        assert ends[2].error.startswith("WorkerLost: The process that ran flow.process_actions:fail died")


async def test_a_job_that_snoozes_runs_again_and_uses_no_attempt(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for function in (act, note, count):
            snoozes.extend(Snooze(timedelta(minutes=5), reason="the provider rests") for _ in range(7))
            args = ["x"] if function is note else []
            work = await pool.with_options(on_complete=told).enqueue(backend, function, *args)
            before, start = await notes(backend), backend.clock.now()
            await backend.run_until_idle(advance=False)
            status: Any = await backend.job(work)
            assert (status.state, status.attempt, status.error) == (JobState.PENDING, 0, "Snooze: the provider rests")
            assert status.run_at == start + timedelta(minutes=5)
            assert await pool.status(backend, work) == Pending(0)
            assert await notes(backend) == before, "what a mutation has written was undone"
            await backend.run_until_idle()
            assert backend.clock.now() == start + timedelta(minutes=35)
            result = await pool.status(backend, work)
            assert result == Finished(Success(before if function is count else 1)), function.name
        snoozes.extend(Snooze(timedelta(minutes=1)) for _ in range(3))
        await pool.with_options(on_complete=told).enqueue(backend, is_job)
        await backend.run_until_idle()
        assert not snoozes, "an on_complete may snooze, too"
        assert await notes(backend) == 5, "one of the note, and one of each on_complete"

        time = backend.clock.now() + timedelta(hours=3)
        snoozes.extend([Snooze(until=time), Snooze(until=time - timedelta(days=1))])
        work = await pool.enqueue(backend, act)
        await backend.run_until_idle(advance=False)
        status = await backend.job(work)
        assert (status.run_at, status.error) == (time, f"Snooze: until {time.isoformat()}")
        await backend.run_until_idle()
        assert await pool.status(backend, work) == Finished(Success(1))
        assert backend.clock.now() == time, "a time that is past is now"


async def notes(backend: TestApp) -> int:
    """How many there are, past what snoozes."""
    waiting, snoozes[:] = list(snoozes), []
    found: int = await backend.run_query(count)
    snoozes[:] = waiting
    return found


def test_a_snooze_that_cannot_be_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({}, UsageError),
        ({"delay": timedelta(1), "until": datetime(2040, 1, 1, tzinfo=UTC)}, UsageError),
        ({"delay": timedelta(seconds=-1)}, ValueInvalid),
        ({"until": datetime(2040, 1, 1)}, ValueInvalid),  # noqa: DTZ001 - this is the point
    ]
    for given, error in wrong:
        with pytest.raises(error):
            Snooze(**given)


async def test_progress_is_written_about_once_a_second(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with TestApp(app, database_url) as backend:
        tokens = backend.engine.store.tokens
        report, written = tokens.report, []

        async def counted(lease: int, progress: Any) -> None:
            written.append(dict(progress))
            await report(lease, progress)

        monkeypatch.setattr(tokens, "report", counted)
        said.extend((number, 1000) for number in range(1, 1001))
        works = [await pool.enqueue(backend, say) for _ in range(2)]
        for passed in (0, 0, 2):
            backend.clock.advance(timedelta(seconds=passed))
            await backend.worker.tick()
            await SystemClock().sleep(0.01)
        assert [await pool.status(backend, work) for work in works] == [Running(0, Progress(1000, 1000))] * 2
        assert len(written) <= 4, "2,000 times they said something"
        await pool.cancel_all(backend)
        await backend.run_until_idle()


SENSELESS: list[tuple[Any, ...]] = [
    (-1,), (float("nan"),), ("1",), (True,), (2, 1), (1, float("nan")), (1, None, "x" * 1001), (1, None, "\0"),
]  # fmt: skip


async def test_progress_is_seen_in_the_status_if_it_makes_sense(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        said.extend([(1,), (2, 10), (3, 10.5, "on the road")])
        work = await pool.enqueue(backend, say)
        for _ in range(3):
            await backend.worker.tick()
            await SystemClock().sleep(0)
        await backend.worker.tick()
        assert await pool.status(backend, work) == Running(0, Progress(3, 10.5, "on the road"))
        status: Any = await backend.job(work)
        assert status.progress == Progress(3, 10.5, "on the road")
        assert (await backend.jobs("running"))[0].progress == status.progress
        await pool.cancel(backend, work)
        await backend.run_until_idle()
        assert await pool.status(backend, work) == Finished(Success(None))
        status = await backend.job(work)
        assert status.progress is None

        for progress in SENSELESS:
            said[:] = [progress]
            work = await pool.enqueue(backend, say)
            await backend.run_until_idle(raise_errors=False)
            assert "ValueInvalid: progress: " in str(await pool.status(backend, work)), progress
        work = await pool.enqueue(backend, forgetful)
        await backend.run_until_idle(raise_errors=False)
        assert "ctx.work.progress" in str(await pool.status(backend, work)), "it was not awaited"


async def test_arguments_of_a_batch_are_written_like_a_call(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        works = await pool.enqueue_batch(backend, note, [note.args("a"), note.args(text="b")])
        await backend.run_until_idle()
        assert await pool.status_batch(backend, works) == [Finished(Success(1))] * 2
        assert await notes(backend) == 2
        with pytest.raises(ArgumentsInvalid, match="given twice"):
            note.args("a", text="b")  # type: ignore[misc]  # wrong on purpose


# ----- work that an outside system completes: it keeps its slot and no worker


press = app.workpool("press", max_parallelism=2, default_retry=Retry(max_attempts=2, initial_backoff=10))

tokens: list[str] = []
then: list[Any] = []


class Heard(Table, name="heard"):
    kind: str
    value: str


@app.internal_action
async def print_book(ctx: ActionCtx, minutes: int = 60) -> Any:
    await ctx.work.progress(1, 2, "sent to the printer")
    tokens.append(await ctx.work.complete_later(timedelta(minutes=minutes)))
    if then:
        return await then.pop(0)(ctx)
    return None


@app.internal_action
def print_in_a_thread(ctx: SyncActionCtx) -> None:
    tokens.append(ctx.work.complete_later())


@app.internal_action
async def ask(ctx: ActionCtx, wait: timedelta) -> None:
    await ctx.work.complete_later(wait)


@app.internal_action
async def webhook(ctx: ActionCtx, token: str, result: str) -> bool:
    return (await press.complete(ctx, token, result)).accepted


@app.internal_action
def failing_webhook(ctx: SyncActionCtx, token: str) -> bool:
    return press.fail(ctx, token, "no paper").accepted


@app.internal_mutation
async def bring_in_a_mutation(ctx: MutationCtx, token: str) -> None:
    await press.complete(ctx, token)  # type: ignore[call-overload]  # this is the point


@app.internal_mutation
async def heard(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    value = result.value if isinstance(result, Success) else getattr(result, "error", "")
    await ctx.db.insert(Heard(kind=result.kind, value=str(value)))


@app.query
async def all_heard(ctx: QueryCtx) -> list[tuple[str, str]]:
    return [(row.kind, row.value) async for row in ctx.db.query(Heard)]


async def slots(backend: TestApp) -> tuple[int, int]:
    await backend.worker.tick()
    (row,) = [row for row in await backend.pools() if row.name == "press"]
    return row.granted, row.running


async def enqueue(backend: TestApp, **options: Any) -> WorkId:
    """Work that is held outside now."""
    work = await press.with_options(on_complete=heard, **options).enqueue(backend, print_book)
    await backend.run_until_idle()
    assert not backend.worker.running
    return work


async def test_work_goes_on_without_a_worker_until_it_is_completed(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        work = await enqueue(backend)
        assert await press.status(backend, work) == Running(0, Progress(1, 2, "sent to the printer"))
        assert await backend.run_query(all_heard) == []
        assert await press.complete(backend, tokens[0], {"pages": 300}) == Completion(accepted=True, kind="success")
        await backend.run_until_idle()
        assert await press.status(backend, work) == Finished(Success({"pages": 300}))
        assert await backend.run_query(all_heard) == [("success", "{'pages': 300}")]
        for again in (press.complete(backend, tokens[0], 5), press.fail(backend, tokens[0], "no")):
            assert await again == Completion(accepted=False, kind="success"), "what stands"
        await backend.run_until_idle()
        assert await backend.run_query(all_heard) == [("success", "{'pages': 300}")]

        tokens.clear()
        for _ in range(3):
            await press.enqueue(backend, print_book)
        await backend.run_until_idle()
        assert len(tokens) == 2, "the limit"
        assert await slots(backend) == (2, 2), "each keeps its slot"
        await press.complete(backend, tokens[0])
        await backend.run_until_idle()
        assert len(tokens) == 3, "its slot was free"
        for token in tokens:
            await press.complete(backend, token)
        await backend.run_until_idle()
        assert await backend.job_counts() == {"ready": 0, "scheduled": 0, "retrying": 0, "running": 0, "success": 4}


async def test_a_failure_is_retried_and_the_next_attempt_has_a_token_of_its_own(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        work = await enqueue(backend, retry=True)
        assert (await press.fail(backend, tokens[0], "no paper")).accepted
        assert await press.status(backend, work) == Pending(1)
        await backend.run_until_idle()
        assert await press.status(backend, work) == Running(1, Progress(1, 2, "sent to the printer"))
        assert await press.complete(backend, tokens[0], "late") == Completion(accepted=False, kind="failed")
        assert (await press.fail(backend, tokens[1], "no ink")).accepted
        await backend.run_until_idle(raise_errors=False)
        assert await press.status(backend, work) == Finished(Failed("no ink"))
        assert await backend.run_query(all_heard) == [("failed", "no ink")]
        work = await enqueue(backend, retry=True)
        await press.fail(backend, tokens[2], "no such\0book\ud800", retryable=False)
        await backend.run_until_idle(raise_errors=False)
        assert await press.status(backend, work) == Finished(Failed("no such\\0book\\ud800"))


async def test_nobody_tells_in_time(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        work = await enqueue(backend, retry=True)
        backend.clock.advance(timedelta(minutes=61))
        with pytest.raises(TokenExpired):
            await press.complete(backend, tokens[0])
        await backend.worker.tick()
        status: Any = await backend.job(work)
        assert (status.state, status.attempt) == (JobState.PENDING, 1)
        assert "no completion came" in status.error
        await backend.run_until_idle()
        assert len(tokens) == 2
        backend.clock.advance(timedelta(minutes=61))
        await backend.run_until_idle(raise_errors=False)
        assert [kind for kind, _ in await backend.run_query(all_heard)] == ["failed"]
        assert (await slots(backend))[1] == 0
        pruner = backend.make_service("pruner")
        for hours, error in ((0, TokenExpired), (22, TokenExpired), (3, TokenInvalid)):
            backend.clock.advance(timedelta(hours=hours))
            await pruner.tick()
            for token in tokens:
                with pytest.raises(error):
                    await press.complete(backend, token)


async def test_work_that_is_held_can_be_canceled(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        work = await enqueue(backend, retry=True)
        await press.cancel(backend, work)
        await backend.run_until_idle()
        assert await press.status(backend, work) == Finished(Canceled())
        assert await backend.run_query(all_heard) == [("canceled", "")]
        assert await press.complete(backend, tokens[0]) == Completion(accepted=False, kind="canceled")
        assert (await slots(backend))[1] == 0


async def test_functions_bring_tokens_too(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        first, second = [await press.enqueue(backend, function) for function in (print_book, print_in_a_thread)]
        await backend.run_until_idle()
        by_job = {token.partition(".")[0]: token for token in tokens}
        assert await backend.run_action(webhook, by_job[first], "done")
        assert await backend.run_action(failing_webhook, by_job[second])
        assert await press.status_batch(backend, [first, second]) == [
            Finished(Success("done")), Finished(Failed("no paper")),
        ]  # fmt: skip
        with pytest.raises(ContextError, match="A transaction cannot complete"):
            await backend.run_mutation(bring_in_a_mutation, tokens[0])
        scheduled = [await backend.scheduler.run_after(timedelta(0), print_book) for _ in range(2)]
        await backend.run_until_idle()
        by_job = {token.partition(".")[0]: token for token in tokens}
        assert (await backend.scheduler.complete(by_job[scheduled[0]], "printed")).accepted
        assert (await backend.scheduler.fail(by_job[scheduled[1]], "torn")).accepted
        states = [await backend.job(job) for job in scheduled]
        assert [(one.result, one.error) for one in states if one is not None] == [("printed", None), (None, "torn")]


# ----- before the function has returned


async def test_what_is_told_before_the_function_returns_counts(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def outside_is_faster(ctx: ActionCtx) -> None:
            assert (await press.complete(ctx, tokens[-1], "quick")).accepted

        async def answer_is_lost(ctx: ActionCtx) -> None:
            await press.complete(ctx, tokens[-1], "quick")
            raise OSError("connection reset")

        async def canceled_meanwhile(ctx: ActionCtx) -> None:
            await press.cancel(ctx, ctx.work.id)

        ends: list[tuple[Any, Success[str] | Canceled]] = [
            (outside_is_faster, Success("quick")),
            (answer_is_lost, Success("quick")),
            (canceled_meanwhile, Canceled()),
        ]
        for number, (story, end) in enumerate(ends, start=1):
            then.append(story)
            work = await enqueue(backend, retry=True)
            assert await press.status(backend, work) == Finished(end), story.__name__
            assert (len(tokens), len(await backend.run_query(all_heard))) == (number, number)
            assert (await slots(backend))[1] == 0


async def test_a_failure_that_comes_first_is_retried_beside_the_function_that_still_runs(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def goes_on(ctx: ActionCtx) -> None:
            await press.fail(ctx, tokens[0], "no paper")
            backend.clock.advance(timedelta(seconds=16))
            while len(tokens) < 2:
                backend.clock.advance(timedelta(seconds=0.1))
                await backend.worker.tick()
                await ctx.run_query(all_heard)
            await ctx.work.progress(2, 2)

        then.append(goes_on)
        work = await enqueue(backend, retry=True)
        assert len(tokens) == 2
        assert await press.status(backend, work) == Running(1, Progress(1, 2, "sent to the printer")), "of its own"
        assert (await press.complete(backend, tokens[1], "second")).accepted
        await backend.run_until_idle()
        assert await backend.run_query(all_heard) == [("success", "second")]
        assert (await slots(backend))[1] == 0
        assert backend.worker._executor.busy["press"] == 0


async def test_a_function_that_raises_takes_its_token_with_it(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for error in (OSError("away"), Snooze(timedelta(minutes=1))):

            async def raise_it(ctx: ActionCtx, error: Exception = error) -> None:
                raise error

            tokens.clear()
            then.append(raise_it)
            work = await press.with_options(retry=True).enqueue(backend, print_book)
            await backend.run_until_idle(advance=False)
            assert isinstance(await press.status(backend, work), Pending)
            with pytest.raises(TokenExpired):
                await press.complete(backend, tokens[0])
            await backend.run_until_idle()
            with pytest.raises((TokenExpired, TokenInvalid)):
                await press.complete(backend, tokens[0])
            assert (await press.complete(backend, tokens[1])).accepted


# ----- what is refused


async def test_a_second_token_is_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def once_more(ctx: ActionCtx) -> None:
            with pytest.raises(ContextError, match="has a token already"):
                await ctx.work.complete_later()

        async def return_it(ctx: ActionCtx) -> int:
            return 5

        then.append(once_more)
        await enqueue(backend)
        assert (await press.complete(backend, tokens[0])).accepted
        then.append(return_it)
        work = await press.enqueue(backend, print_book)
        await backend.run_until_idle(raise_errors=False)
        status: Any = await backend.job(work)
        assert str(status.error).startswith("ResultInvalid: ")
        with pytest.raises(TokenExpired):
            await press.complete(backend, tokens[1])
        for seconds in (0, 86400 * 400):
            work = await press.enqueue(backend, ask, timedelta(seconds=seconds))
            await backend.run_until_idle(raise_errors=False)
            status = await backend.job(work)
            assert str(status.error).startswith("ValueInvalid: complete_later"), status.error


async def test_tokens_of_nobody_are_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        work = await enqueue(backend)
        job, attempt, secret = tokens[0].split(".")
        other = "job_01jd3k4v5w6x7y8z9a0b1c2d3e"
        for token in (
            "", ".", f"{job}.{attempt}.{secret[:-1]}", f"{job}.{attempt}.{secret}a", f"{job}.2.{secret}",
            f"{other}.1.{secret}", f"{job}.1.", f"{job}.01.{secret}", f"{job}.{10**30}.{secret}", f"{job}.-1.{secret}",
            f"{job}.1.{secret}\n", tokens[0].upper(), "job_x.1.x", "a" * 9_000, "\0", "\ud800", None, [tokens[0]],
        ):  # fmt: skip
            with pytest.raises(TokenInvalid):
                await press.complete(backend, token, "forged")  # type: ignore[arg-type]
        with pytest.raises(LimitExceeded):
            await press.complete(backend, tokens[0], "x" * 10_001)
        with pytest.raises(ResultInvalid):
            await press.complete(backend, tokens[0], object())
        with pytest.raises(ValueInvalid):
            await press.fail(backend, tokens[0], "")
        assert isinstance(await press.status(backend, work), Running)
        assert (await press.complete(backend, tokens[0], "x")).accepted


async def test_only_the_hash_of_a_token_is_stored(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await enqueue(backend)
        for table in ("token", "running_job"):
            name = f"penstock_{table}" if backend.engine.store.dialect.name == "sqlite" else f"penstock.{table}"
            rows = await sql(backend, f"select * from {name}")
            assert rows
            assert tokens[0].rpartition(".")[2] not in str([list(row) for row in rows])
