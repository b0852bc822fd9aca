"""What runs of workflows share with jobs, or do otherwise: published state, restarts, keys, rates, limits of time."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from stage.faults import effects_in, run_with_crashes
from stage.stories import rows_of, status_of
from stage.waits import until

from penstock import (
    ActionCtx,
    App,
    ContextError,
    Failed,
    JobId,
    LimitExceeded,
    QueryCtx,
    Success,
    TokenBucket,
    UsageError,
    sync,
)
from penstock.calls.workflows import body as bodies
from penstock.calls.workflows.context import WorkflowCtx
from penstock.calls.workflows.loop import WorkflowSuspended
from penstock.errors import EventTimeout
from penstock.jobs.job import job_uuid
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW, HOUR = timedelta(0), timedelta(hours=1)
app = App()
do, done = effects_in(app)
pool = app.workpool("runs", max_parallelism=4)
said = app.event("said", str)


@app.internal_action
async def act(ctx: ActionCtx, what: str) -> str:
    return f"{what} {ctx.work.key}"


@app.internal_query
async def show(ctx: QueryCtx, run: JobId) -> Any:
    status = await ctx.jobs.get(run)
    return None if status is None else status.published


# ----- published state


@app.workflow
async def tell(ctx: WorkflowCtx) -> None:
    for part in range(3):
        ctx.publish({"part": part})
        await ctx.run_mutation(do, f"{part}")
        await ctx.sleep(HOUR)
    ctx.publish("ended")


async def test_a_live_query_sees_what_a_run_publishes(database_url: str) -> None:
    async with TestApp(app, database_url, job_status_ttl=86400.0) as backend:
        run = await backend.scheduler.run_after(NOW, tell)
        await said.send(backend, run, "nobody waits for it")
        async with backend.live(show, run) as updates:
            assert (await anext(updates)) is None
            for seen in ({"part": 0}, {"part": 1}, {"part": 2}, "ended"):
                await backend.run_until_idle(advance=False)
                backend.clock.advance(HOUR)
                assert (await anext(updates)) == seen
        pruner = backend.make_service("pruner")
        for _ in range(3):
            backend.clock.advance(timedelta(hours=23))
            await pruner.tick()
        for kind in ("record", "event", "state", "wake"):
            assert await rows_of(backend, f"workflow_{kind}") == []


async def test_a_state_is_published_with_the_effect_that_follows(database_url: str) -> None:
    """Whenever the worker dies, the state is that of the last effect, or of the one that begins."""
    async with TestApp(app, database_url) as backend:
        for at in range(1, 30):
            run = await backend.scheduler.run_after(NOW, tell)
            before = len(await backend.run_query(done))
            moments = await run_with_crashes(backend, [at], advance=False)
            parts = len(await backend.run_query(done)) - before
            state = (await status_of(backend, run)).published
            assert parts == 1, (at, moments)
            assert state == {"part": 0}, (at, moments)
            await backend.run_until_idle()
            assert (await status_of(backend, run)).published == "ended"
            if not moments:
                return
        pytest.fail("there are more moments")


# ----- runs that begin again


@app.workflow
async def turn(ctx: WorkflowCtx, number: int, seen: list[str]) -> list[str]:
    seen = [*seen, str(ctx.uuid()), await ctx.run_action(act, f"{number}"), await ctx.wait_for(said)]
    ctx.publish(number)
    ctx.compensate(do, "undone")
    return seen if number == 3 else ctx.restart(number + 1, seen=seen)


@pytest.mark.parametrize("crashes", [[], [1, 2, 3, 4, 5]])
async def test_a_run_that_begins_again_keeps_its_id_and_events(database_url: str, crashes: list[int]) -> None:
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, turn, 1, [])
        for word in "abc":
            await said.send(backend, run, word)
        await run_with_crashes(backend, crashes)
        status = await status_of(backend, run)
        assert status.state.value == "success", status
        found = status.result
        assert found[1::3] == [f"1 {run}/1", f"2 {run}/1/1", f"3 {run}/2/1"]
        assert found[2::3] == ["a", "b", "c"]
        assert len(set(found)) == 9
        assert status.published == 3
        assert status.args["number"] == 3
        assert await backend.run_query(done) == []
        records = await backend.engine.store.workflows.read_history(job_uuid(run))
        assert len(records) == 3


async def test_a_run_that_has_begun_again_can_be_canceled(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, turn, 1, [])
        await said.send(backend, run, "a")
        await backend.run_until_idle(advance=False)
        await backend.scheduler.cancel(run)
        await backend.run_until_idle(advance=False)
        assert (await status_of(backend, run)).state.value == "canceled"


@app.workflow
async def restart_badly(ctx: WorkflowCtx, number: int) -> None:
    ctx.restart("no number")


async def test_a_restart_with_other_arguments_is_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, restart_badly, 1)
        await backend.run_until_idle(raise_errors=False)
        assert (await status_of(backend, run)).error.startswith("ArgumentsInvalid")  # type: ignore[union-attr]


# ----- keys, rates and priorities


keyed = app.workpool("keyed", max_parallelism=4, key_parallelism=1)
rated = app.workpool("rated", max_parallelism=4, rate_limit=TokenBucket(rate=1, period=HOUR))


@app.workflow
async def nap(ctx: WorkflowCtx, name: str, naps: int) -> str:
    await ctx.run_mutation(do, f"{name} begins")
    for _ in range(naps):
        await ctx.sleep(timedelta(minutes=1))
    await ctx.run_mutation(do, f"{name} ends")
    return name


async def test_a_sleeping_run_keeps_its_concurrency_key(database_url: str) -> None:
    """Work of a higher priority that waits for the key does not overtake it when it wakes."""
    async with TestApp(app, database_url) as backend:
        first, urgent = keyed.with_options(concurrency_key="k"), keyed.with_options(concurrency_key="k", priority=9)
        runs = [await first.enqueue(backend, nap, "a", 2)]
        await backend.run_until_idle(advance=False)
        runs += [await urgent.enqueue(backend, nap, "b", 1), await first.enqueue(backend, nap, "c", 1)]
        other = await keyed.with_options(concurrency_key="other").enqueue(backend, nap, "d", 0)
        await backend.run_until_idle(advance=False)
        assert await keyed.result(backend, other) == Success("d")
        await backend.run_until_idle()
        assert [await keyed.result(backend, run) for run in runs] == [Success("a"), Success("b"), Success("c")]
        order = [one for one in await backend.run_query(done) if one[0] != "d"]
        assert order == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


async def test_a_unique_key_is_held_until_the_end(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        unique = pool.with_options(key="one")
        run = await unique.enqueue(backend, nap, "a", 2)
        await backend.run_until_idle(advance=False)
        assert await unique.enqueue(backend, nap, "b", 1) == run
        await backend.run_until_idle()
        assert await unique.enqueue(backend, nap, "c", 1) != run


async def test_a_rate_limit_counts_only_the_first_start(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        first = await rated.enqueue(backend, nap, "a", 3)
        second = await rated.enqueue(backend, nap, "b", 0)
        await backend.run_until_idle(advance=False)
        for _ in range(3):
            backend.clock.advance(timedelta(minutes=1))
            await backend.run_until_idle(advance=False)
        assert await rated.result(backend, first) == Success("a")
        assert (await status_of(backend, second)).state.value == "pending"
        backend.clock.advance(HOUR)
        await backend.run_until_idle(advance=False)
        assert await rated.result(backend, second) == Success("b")


# ----- limits of time


@app.internal_action
async def wait_until_stopped(ctx: ActionCtx) -> None:
    stopping.append(True)
    await ctx.wait_cancelled()


stopping: list[bool] = []


@app.workflow
async def take_long(ctx: WorkflowCtx, how: str) -> str:
    await ctx.run_mutation(do, "booked")
    ctx.compensate(do, "unbooked")
    try:
        if how == "acts":
            await ctx.run_action(wait_until_stopped)
        if how in {"sleeps", "stays"}:
            await ctx.sleep(timedelta(days=3))
        if how == "swallows":
            try:
                await ctx.sleep(timedelta(days=3))
            except asyncio.CancelledError:
                return "went on"
    finally:
        await ctx.run_mutation(do, "finally")
        if how == "stays":
            await ctx.sleep(timedelta(days=9))
    return "ended"


async def test_a_deadline_reaches_a_sleeping_run(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        limited = pool.with_options(deadline=timedelta(days=1))
        late = await limited.enqueue(backend, take_long, "sleeps")
        deaf = await limited.enqueue(backend, take_long, "swallows")
        await backend.run_until_idle(advance=False)
        assert "until 2030-01-02" in str((await status_of(backend, late)).error)
        backend.clock.advance(timedelta(days=1))
        await backend.run_until_idle(advance=False, raise_errors=False)
        assert await pool.result(backend, late) == Failed(
            "CallTimeout: test_workflow_runs:take_long took longer than the deadline of 86400 seconds. "
            "Raise it, or do less in one run."
        )
        assert await pool.result(backend, deaf) == Success("went on")
        found = await backend.run_query(done)
        assert sorted(found) == ["booked", "booked", "finally", "finally", "unbooked"]
        with pytest.raises(UsageError, match="no deadline"):
            await limited.enqueue(backend, do, "no workflow")


async def test_a_timeout_counts_the_time_in_which_a_run_is_active(database_url: str) -> None:
    """Its sleep counts for nothing; then an action is stopped that takes what is left."""
    async with TestApp(app, database_url) as backend:
        limited = pool.with_options(timeout=timedelta(minutes=1))
        assert await _result(backend, await limited.enqueue(backend, nap, "a", 3)) == Success("a")
        run = await limited.enqueue(backend, take_long, "acts")
        stopping.clear()
        work = asyncio.ensure_future(backend.run_until_idle(advance=False, raise_errors=False))
        await until(lambda: bool(stopping))
        backend.clock.advance(timedelta(minutes=1))
        await work
        failed = await pool.result(backend, run)
        assert isinstance(failed, Failed)
        assert "took longer than the timeout of 60 seconds" in failed.error
        assert (await backend.run_query(done))[-3:] == ["booked", "finally", "unbooked"]


async def _result(backend: TestApp, run: JobId) -> Any:
    await backend.run_until_idle()
    return await pool.result(backend, run)


async def test_the_time_to_clean_up_is_limited(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run = await pool.enqueue(backend, take_long, "stays")
        await backend.run_until_idle(advance=False)
        await pool.cancel(backend, run)
        await backend.run_until_idle(advance=False)
        backend.clock.advance(timedelta(days=1))
        await backend.run_until_idle(advance=False)
        status = await status_of(backend, run)
        assert (status.state.value, status.error) == (
            "canceled",
            "test_workflow_runs:take_long was ended by force: the body had not ended 1 day, 0:00:00 after its cancel.",
        )


async def test_a_deadline_to_start_does_not_count_later_starts(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        soon = pool.with_options(start_deadline=timedelta(seconds=30))
        run, late = await soon.enqueue(backend, nap, "a", 1), await soon.enqueue(backend, nap, "b", 1)
        await pool.cancel(backend, late)
        await backend.run_until_idle(advance=False)
        backend.clock.advance(HOUR)  # it wakes long after its time
        await backend.run_until_idle(advance=False)
        assert await pool.result(backend, run) == Success("a")
        late = await soon.enqueue(backend, nap, "c", 1)
        backend.clock.advance(HOUR)
        await backend.run_until_idle(advance=False, raise_errors=False)
        assert await pool.result(backend, late) == Failed("expired")


# ----- workflows written with def


let_go: list[str] = []


@app.workflow
def book(ctx: sync.WorkflowCtx, name: str) -> list[Any]:
    with_retry = ctx.with_options(retry=True)
    found: list[Any] = [ctx.run_mutation(do, f"{name} 1"), str(ctx.uuid()), ctx.now().isoformat()]
    found.append(with_retry.run_action(act, name))
    ctx.compensate(do, f"{name} undone")
    ctx.publish(name)
    try:
        ctx.sleep(HOUR)
        found.append(ctx.wait_for(said, timeout=HOUR))
    except EventTimeout:
        found.append("late")
    except WorkflowSuspended:
        let_go.append(name)
        raise
    finally:
        found.append(ctx.run_mutation(do, f"{name} 2"))
    if len(ctx.run_query(done)) > 1000:
        ctx.restart(name)
    return found


async def test_a_body_written_with_def_is_replayed_from_each_moment(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for at in range(1, 40):
            name = f"n{at}"
            run = await backend.scheduler.run_after(NOW, book, name)
            moments = await run_with_crashes(backend, [at])
            status = await status_of(backend, run)
            assert status.state.value == "success", (at, moments, status)
            found = status.result
            assert [found[0], *found[3:]] == [f"{name} 1", f"{name} {run}/2", "late", f"{name} 2"], (at, moments)
            effects = [one for one in await backend.run_query(done) if one.startswith(f"{name} ")]
            assert effects == [f"{name} 1", f"{name} 2"], (at, moments)
            assert status.published == name
            if not moments:
                return
        pytest.fail("there are more moments")


async def test_a_thread_whose_run_goes_to_sleep_ends(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, book, "a")
        let_go.clear()
        await backend.run_until_idle(advance=False)
        assert let_go == ["a"]
        await until(lambda: not [one for one in threading.enumerate() if "book" in one.name])
        await backend.scheduler.cancel(run)
        await backend.run_until_idle(advance=False)
        assert (await status_of(backend, run)).state.value == "canceled"
        assert await backend.run_query(done) == ["a 1", "a 2", "a undone"]


@app.workflow
def leak(ctx: sync.WorkflowCtx) -> None:
    def use() -> None:
        try:
            ctx.now()
            ctx.uuid()
        except ContextError as error:
            let_go.append(error.code)

    other = threading.Thread(target=use)
    other.start()
    other.join()


async def test_another_thread_than_that_of_the_body_is_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        let_go.clear()
        run = await backend.scheduler.run_after(NOW, leak)
        await backend.run_until_idle()
        assert (await status_of(backend, run)).state.value == "success"
        assert let_go == ["context"]


# ----- runs that are woken


parts = app.workpool("parts", max_parallelism=3)


@app.internal_action
async def make(ctx: ActionCtx, number: int) -> int:
    if number < 0:
        raise ConnectionError("no part")
    return number


@app.workflow
async def fan_out(ctx: WorkflowCtx, how: str, many: int) -> Any:
    each = ctx.with_options(pool=parts)
    if how == "gather":
        return sum(await asyncio.gather(*(each.run_action(make, number) for number in range(many))))
    if how == "group":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.run_action(make, number)) for number in range(many)]
        return sum(task.result() for task in tasks)
    if how == "fails":
        return await asyncio.gather(*(each.run_action(make, number - 1) for number in range(many)), ctx.sleep(HOUR))
    if how == "first":
        made = [asyncio.create_task(each.run_action(make, number)) for number in range(many)]
        done, left = await asyncio.wait(made, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        return len(done) >= 1
    found = await asyncio.gather(each.run_action(make, 1), then(each))
    return sum(found)


async def then(ctx: WorkflowCtx) -> int:
    first = await ctx.run_action(make, 2)
    return first + await ctx.run_action(make, 3)


@pytest.mark.parametrize(
    ("how", "ends", "most"),
    [
        ("gather", "1770", 2),
        ("group", "1770", 2),
        ("fails", "ConnectionError: no part", 3),
        ("first", "True", 3),
        ("mixed", "6", 4),
    ],
)
async def test_a_run_is_woken_when_what_it_awaits_is_decided(database_url: str, how: str, ends: str, most: int) -> None:
    """Of 60 parts that end in 20 turns none but the last wakes it, and one that fails does at once."""
    async with TestApp(app, database_url) as backend:
        starts, claimed = list[Any](), backend.worker.on_claimed

        def note(jobs: Any) -> None:
            starts.extend(job for job in jobs if job.function.endswith("fan_out"))
            claimed(jobs)

        backend.worker.on_claimed = note
        run = await backend.scheduler.run_after(NOW, fan_out, how, 60)
        await backend.run_until_idle(advance=False, raise_errors=False)
        status = await status_of(backend, run)
        assert ends in (str(status.result), status.error), status
        assert len(starts) <= most


# ----- the size of a history


@app.workflow
async def gather_much(ctx: WorkflowCtx) -> int:
    for number in range(1000):
        try:
            await ctx.run_action(act, "x" * 100)
        except LimitExceeded:
            await ctx.sleep(HOUR)  # all of it is replayed
            return number
    return -1


async def test_a_history_has_a_largest_size(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The step beyond it is refused, each time that the body comes to it. The body can catch that. (WF147, WF148)"""
    monkeypatch.setattr(bodies, "MOST_BYTES", 1000)
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, gather_much)
        await run_with_crashes(backend, [3, 3])
        assert (await status_of(backend, run)).result == 4, await status_of(backend, run)
        assert caplog.text.count("workflow.long") == 1
