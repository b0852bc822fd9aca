"""Work in pools: enqueued with a transaction, run within a limit and a rate, told of exactly once when it has ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.stories import tell_in

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    CallTimeout,
    Canceled,
    ConfigError,
    ContextError,
    DataError,
    DeclarationError,
    Failed,
    Finished,
    FixedWindow,
    LimitExceeded,
    MutationCtx,
    NonRetryableError,
    Pending,
    QueryCtx,
    RateStatus,
    Retry,
    Success,
    Table,
    TokenBucket,
    UsageError,
    ValueInvalid,
    WorkId,
    WorkResult,
)
from penstock.api.pools.workpool import Workpool
from penstock.app import Backend
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx
from penstock.services.worker.worker import Worker
from penstock.testing import TestApp

app = OPENED = App()
write, read, act = tell_in(app)
sms = app.workpool("sms", max_parallelism=3, default_retry=Retry(max_attempts=3, initial_backoff=10, base=2))
eager = app.workpool("eager", retry_actions_by_default=True, default_retry=Retry(max_attempts=2, initial_backoff=1))
kept = app.workpool("kept", status_ttl=None)
brief = app.workpool("brief", status_ttl=timedelta(hours=1))

failures: list[Exception] = []
sent: list[str] = []
callback_failures: list[Exception] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for left in (failures, sent, callback_failures, started, going):
        left.clear()


@app.internal_action
async def send(ctx: ActionCtx, text: str) -> str:
    sent.append(text)
    if failures:
        raise failures.pop(0)
    return f"sent {text}"


@app.internal_action
def send_in_a_thread(ctx: SyncActionCtx, text: str) -> str:
    sent.append(text)
    return f"sent {text}"


class Told(Table, name="told"):
    kind: str
    what: str
    context: str


@app.internal_mutation
async def note(ctx: MutationCtx, what: str) -> int:
    await ctx.db.insert(Told(kind="noted", what=what, context=""))
    if failures:
        raise failures.pop(0)
    return len(what)


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    what = result.value if isinstance(result, Success) else getattr(result, "error", "")
    await ctx.db.insert(Told(kind=result.kind, what=f"{what}", context=f"{context}"))
    if callback_failures:
        raise callback_failures.pop(0)


@app.query
async def count_told(ctx: QueryCtx) -> int:
    return await ctx.db.query(Told).count()


@app.query
async def all_told(ctx: QueryCtx) -> list[tuple[str, str, str]]:
    return [(row.kind, row.what, row.context) async for row in ctx.db.query(Told)]


@app.internal_action
async def wait_for_ever(ctx: ActionCtx) -> None:
    await asyncio.Event().wait()


@app.internal_action
async def leave_to_others(ctx: ActionCtx) -> None:
    await ctx.work.complete_later()


async def test_work_exists_if_its_transaction_commits_and_its_end_is_told_once(database_url: str) -> None:
    async def book(ctx: MutationCtx) -> WorkId:
        return await sms.with_options(on_complete=told, context={"for": "hello"}).enqueue(ctx, send, "hello")

    async def book_and_fail(ctx: MutationCtx) -> None:
        await book(ctx)
        raise RuntimeError("never mind")

    async with TestApp(app, database_url) as backend:
        with pytest.raises(RuntimeError, match="never mind"):
            await backend.run_mutation(write, book_and_fail)
        work = await backend.run_mutation(write, book)
        assert await sms.status(backend, work) == Pending(0)
        assert await backend.run_query(read, lambda ctx: sms.status(ctx, work)) == Pending(0)
        await backend.run_until_idle()
        assert sent == ["hello"]
        assert await sms.status(backend, work) == Finished(Success("sent hello"))
        assert await backend.run_query(all_told) == [("success", "sent hello", "{'for': 'hello'}")]


async def test_each_kind_of_function_is_work(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        pool, ends = sms.with_options(on_complete=told), list[Any]()
        asked: list[tuple[Any, dict[str, str], Any]] = [
            (send_in_a_thread, {"text": "x"}, Success("sent x")),
            (note, {"what": "four"}, Success(4)),
            (count_told, {}, Success(3)),
        ]
        for function, arguments, end in asked:
            ends.append(await pool.enqueue(backend, function, **arguments))
            await backend.run_until_idle()
            assert await sms.result(backend, ends[-1]) == end
        assert await sms.status_batch(backend, ends) == [Finished(end) for _, _, end in asked]
        failures.append(ValueError("no"))
        ends.append(await pool.enqueue(backend, note, what="gone"))
        await backend.run_until_idle(raise_errors=False)
        assert await sms.status(backend, ends[-1]) == Finished(Failed("ValueError: no"))
        assert [(kind, what) for kind, what, _ in await backend.run_query(all_told)] == [
            ("success", "sent x"), ("noted", "four"), ("success", "4"), ("success", "3"), ("failed", "ValueError: no"),
        ]  # fmt: skip


RETRIED: list[tuple[Any, Exception, int]] = [
    (sms, OSError("down"), 1),
    (sms.with_options(retry=True), OSError("down"), 3),
    (sms.with_options(retry=True), NonRetryableError("down"), 1),
    (eager, OSError("down"), 2),
    (eager.with_options(retry=False), OSError("down"), 1),
    (eager.with_options(retry=Retry(max_attempts=4, initial_backoff=0)), OSError("down"), 4),
]


async def test_work_is_retried_if_it_or_its_pool_asks_for_it(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for number, (pool, error, attempts) in enumerate(RETRIED):
            failures[:] = [error] * 5
            sent.clear()
            work = await pool.enqueue(backend, send, "x")
            await backend.run_until_idle(raise_errors=False)
            end = Finished(Failed(f"{type(error).__name__}: down"))
            assert (len(sent), await pool.status(backend, work)) == (attempts, end), number
        failures[:] = [OSError("busy")]
        work = await sms.with_options(retry=True, on_complete=told).enqueue(backend, send, "again")
        await backend.run_until_idle(advance=False)
        assert await sms.status(backend, work) == Pending(1)
        await backend.run_until_idle()
        assert await sms.status(backend, work) == Finished(Success("sent again"))
        assert len(await backend.run_query(all_told)) == 1, "told only after the last attempt"


async def test_work_is_canceled_in_every_state(database_url: str) -> None:
    followed = sms.with_options(on_complete=told)
    async with TestApp(app, database_url) as backend:
        works = {
            "ready": await followed.enqueue(backend, send, "ready"),
            "scheduled": await followed.with_options(run_after=timedelta(hours=1)).enqueue(backend, send, "scheduled"),
            "at a gate": await followed.with_options(concurrency_key="a").enqueue(backend, send, "at a gate"),
        }
        for work in works.values():
            await sms.cancel(backend, work)
        await backend.run_until_idle()
        for state, work in works.items():
            assert await sms.status(backend, work) == Finished(Canceled()), state
        assert [kind for kind, _, _ in await backend.run_query(all_told)] == ["canceled"] * 3
        assert sent == []

        outside = await sms.enqueue(backend, leave_to_others)
        await backend.run_until_idle()
        await sms.cancel(backend, outside)
        await backend.run_until_idle()
        assert await sms.status(backend, outside) == Finished(Canceled())

        callback_failures[:] = [RuntimeError("not yet")] * 2
        completing = await followed.enqueue(backend, send, "completing")
        await backend.run_until_idle(advance=False)
        await sms.cancel(backend, completing)
        await backend.run_until_idle()
        assert await sms.status(backend, completing) == Finished(Success("sent completing")), "it had ended before"


async def test_no_more_runs_at_once_than_is_declared_or_set_and_the_urgent_comes_first(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await sms.enqueue_batch(backend, send, [{"text": "x"}] * 10)
        await eager.enqueue(backend, send, "other")
        await backend.worker.tick()
        assert sorted(job.job.pool for job in backend.worker.running.values()) == ["eager", "sms", "sms", "sms"]
        await backend.run_until_idle()
        assert len(sent) == 11
        sent.clear()
        await sms.set_max_parallelism(backend, 1)
        for text, priority in (("low", -5), ("middle", 0), ("high", 5), ("higher", 32_000)):
            await sms.with_options(priority=priority).enqueue(backend, send, text)
        await backend.worker.tick()
        assert len(backend.worker.running) == 1
        while len(sent) < 4:
            await backend.run_until_idle()
        assert sent == ["higher", "high", "middle", "low"]


async def test_work_that_takes_too_long_fails(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        work = await sms.with_options(timeout=timedelta(milliseconds=10)).enqueue(backend, wait_for_ever)
        await backend.run_until_idle(raise_errors=False)
        assert "Failed(error='CallTimeout: " in str(await sms.status(backend, work))


async def test_a_status_is_kept_as_long_as_its_pool_says(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        works: dict[Any, WorkId] = {pool: await pool.enqueue(backend, send, "x") for pool in (sms, kept, brief)}
        await backend.run_until_idle()
        done = Finished(Success("sent x"))
        for passed, ends in ((0, [done, done, done]), (2, [done, done, None]), (48, [None, done, None])):
            backend.clock.advance(timedelta(hours=passed))
            assert [await pool.status(backend, work) for pool, work in works.items()] == ends
        backend.clock.advance(timedelta(days=365 * 20))
        assert await kept.status(backend, works[kept]) == done


async def test_a_result_is_waited_for(database_url: str) -> None:
    async def send_and_wait(ctx: ActionCtx) -> Any:
        return await sms.result(ctx, await sms.enqueue(ctx, send, "x"))

    async with app.open(database_url, services=("worker",)) as backend:
        assert await backend.run_action(act, send_and_wait) == Success("sent x")
        paused = await sms.with_options(run_after=timedelta(days=1)).enqueue(backend, send, "y")
        with pytest.raises(CallTimeout, match="has not ended within"):
            await sms.result(backend, paused, timedelta(milliseconds=20))
        with pytest.raises(DataError, match="There is no work"):
            await sms.result(backend, WorkId("job_00000000000000000000000001"))


def test_a_pool_that_cannot_be_is_refused_where_it_is_declared() -> None:
    wrong: list[dict[str, Any]] = [
        {"name": ""}, {"name": "default"}, {"name": "x" * 64}, {"name": 7}, {"name": "x", "default_retry": 5},
        {"name": "x", "max_parallelism": -1}, {"name": "x", "max_parallelism": True},
        {"name": "x", "status_ttl": timedelta(days=365_000, microseconds=1)}, {"name": "x", "status_ttl": timedelta(0)},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(DeclarationError):
            App().workpool(**given)
    with pytest.raises(ConfigError, match="at most 365,000 days"):
        App(job_status_ttl=1e12)
    App().workpool("ever", status_ttl=timedelta(days=365_000))
    with pytest.raises(DeclarationError, match="two pools called 'sms'"):
        app.workpool("sms")
    with pytest.raises(DeclarationError, match="must be True or False, not 'no'"):
        App().workpool("y", retry_actions_by_default="no")  # type: ignore[arg-type]


def test_options_that_cannot_be_are_refused_where_they_are_given() -> None:
    debounced: dict[str, Any] = {"key": "a", "on_duplicate": "debounce", "run_after": timedelta(seconds=1)}
    sms.with_options(timeout=timedelta(days=1830), **debounced | {"max_wait": timedelta(days=1830)})
    for given, error in (
        ({"color": "red"}, UsageError),
        ({"run_at": "tomorrow", "run_after": timedelta(1)}, UsageError),
        ({"retry": 5}, ValueInvalid),
        ({"priority": 40_000}, ValueInvalid),
        ({"timeout": timedelta(days=1830, microseconds=1)}, ValueInvalid),
        (debounced | {"max_wait": timedelta(days=1830, microseconds=1)}, ValueInvalid),
        ({"on_complete": send}, DeclarationError),
        ({"on_complete": note}, DeclarationError),
        ({"key": "k", "on_duplicate": None}, ValueInvalid),
        ({"context": 1}, UsageError),
    ):
        with pytest.raises(error):
            sms.with_options(**given)


async def test_work_that_cannot_be_is_refused_and_leaves_nothing(database_url: str) -> None:
    elsewhere = App()

    @elsewhere.internal_action
    async def foreign(ctx: ActionCtx) -> None: ...

    followed = sms.with_options(on_complete=told)
    async with TestApp(app, database_url, max_job_argument_bytes=1000) as backend:
        calls: list[tuple[Any, Any, dict[str, Any], type[Exception]]] = [
            (sms, send, {"text": 7}, ArgumentsInvalid),
            (sms, send, {"text": "x" * 1000}, LimitExceeded),
            (sms, foreign, {}, ContextError),
            (sms.with_options(retry=True), note, {"what": "x"}, UsageError),
            (sms.with_options(run_after=timedelta(seconds=-1)), send, {"text": "x"}, ValueInvalid),
            (sms.with_options(run_after=timedelta(days=9999)), send, {"text": "x"}, ValueInvalid),
            (followed.with_options(context=object()), send, {"text": "x"}, ValueInvalid),
        ]
        for pool, function, arguments, error in calls:
            with pytest.raises(error):
                await pool.enqueue(backend, function, **arguments)
        with pytest.raises(ContextError, match="neither a ctx nor a backend"):
            sms.enqueue(None, send, "x")  # type: ignore[call-overload]
        many: Any = [{"text": "x"}, 2]
        with pytest.raises(ArgumentsInvalid):
            await sms.enqueue_batch(backend, send, many)
        with pytest.raises(ValueInvalid, match="a timedelta or None as its timeout, not 1"):
            await sms.result(backend, "job_" + "0" * 26, 1)  # type: ignore[call-overload]
        assert not any((await backend.job_counts()).values())


# ----- rate limits


SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
slow = app.workpool("slow", rate_limit=TokenBucket(rate=10, period=10 * SECOND, capacity=2))
windows = app.workpool("windows", key_rate_limit=FixedWindow(rate=2, period=60 * SECOND))

logins = app.rate_limit("logins", TokenBucket(rate=2, period=MINUTE))
mails = app.rate_limit("mails", FixedWindow(rate=3, period=MINUTE))
started: list[tuple[str, datetime]] = []


@app.internal_action
async def call(ctx: ActionCtx, who: str) -> None:
    started.append((who, ctx.now()))


def seconds() -> list[float]:
    """When each one started, since the first."""
    times = sorted(moment for _, moment in started)
    return [(moment - times[0]).total_seconds() for moment in times]


async def test_work_starts_no_faster_than_its_pool_and_its_key_may(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await slow.enqueue_batch(backend, call, [{"who": "x"}] * 6)
        await backend.run_until_idle()
        assert seconds() == [0, 0, 1, 2, 3, 4]
        started.clear()
        for who, count in (("a", 5), ("b", 1)):
            work = windows.with_options(concurrency_key=who)
            await work.enqueue_batch(backend, call, [{"who": who}] * count)
        await windows.enqueue_batch(backend, call, [{"who": ""}] * 4)
        await backend.run_until_idle(advance=False)
        assert Counter(who for who, _ in started) == {"a": 2, "b": 1, "": 4}
        await backend.run_until_idle()
        assert Counter(who for who, _ in started) == {"a": 5, "b": 1, "": 4}
        assert started[-1][1] - started[0][1] >= 60 * SECOND


@app.mutation
def log_in_in_a_thread(ctx: SyncMutationCtx, user: str) -> bool:
    return ctx.rate_limit("logins", key=user).ok


async def test_functions_take_tokens_of_each_key_with_their_transaction(database_url: str) -> None:
    async def log_in(ctx: MutationCtx) -> bool:
        return (await ctx.rate_limit("logins", "ada")).ok

    async def log_in_and_fail(ctx: MutationCtx) -> None:
        await log_in(ctx)
        raise RuntimeError("never mind")

    async with TestApp(app, database_url) as backend:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="never mind"):
                await backend.run_mutation(write, log_in_and_fail)
        assert [await backend.run_mutation(write, log_in) for _ in range(3)] == [True, True, False]
        assert await backend.run_mutation(log_in_in_a_thread, "bob")
        for user, left in (("ada", 0), ("bob", 1)):
            assert await backend.run_query(read, lambda ctx, user=user: logins.peek(ctx, user)) == left
        backend.clock.advance(MINUTE / 2)
        assert [await backend.run_mutation(write, log_in) for _ in range(2)] == [True, False]
        refused = await logins.take(backend, "ada")
        assert refused == RateStatus(ok=False, retry_after=MINUTE / 2)
        backend.clock.advance(refused.retry_after)
        assert (await logins.take(backend, "ada")).ok

        def reserve(count: int) -> Any:
            return backend.run_action(act, lambda ctx: ctx.rate_limit("mails", count=count, reserve=True))

        assert (await reserve(3)).retry_after == timedelta(0)
        assert timedelta(0) < (await reserve(2)).retry_after <= MINUTE
        assert await mails.peek(backend) == -2
        await mails.reset(backend)
        assert await mails.peek(backend) == 3
        with pytest.raises(LimitExceeded):
            await mails.take(backend, count=4)


async def test_what_cannot_be_is_refused(database_url: str) -> None:
    with pytest.raises(DeclarationError, match="two rate limits"):
        app.rate_limit("logins", TokenBucket(1, MINUTE))
    with pytest.raises(DeclarationError, match="cannot be called"):
        app.rate_limit("pool:sms", TokenBucket(1, MINUTE))

    async with TestApp(app, database_url) as backend:
        with pytest.raises(ContextError, match="declares no rate limit 'nothing'"):
            await backend.run_mutation(write, lambda ctx: ctx.rate_limit("nothing"))
        with pytest.raises(ContextError, match="only reads"):
            await backend.run_query(read, logins.take)
        for key in ("x" * 201, "\0"):
            with pytest.raises(ValueInvalid, match="key of a rate limit"):
                await logins.take(backend, key)
        with pytest.raises(ValueInvalid, match="whole numbers"):
            await logins.take(backend, count=0)


# ----- pools in turn: none waits for the others, or keeps what it cannot use


pools = [app.workpool(f"pool-{number}", max_parallelism=2) for number in range(6)]
shared = app.workpool("shared", max_parallelism=4)
mail = app.workpool("mail", max_parallelism=2, group="outside")
scrape = app.workpool("scrape", max_parallelism=3, group="outside")
tenants = app.workpool("tenants", max_parallelism=6, key_parallelism=2, group="keyed")
other = app.workpool("other", max_parallelism=1, group="keyed")

going: list[tuple[str, asyncio.Event]] = []


@app.internal_action
async def occupy(ctx: ActionCtx, what: str) -> None:
    mine = (what, asyncio.Event())
    going.append(mine)
    await mine[1].wait()
    going.remove(mine)


@app.internal_action
async def nothing(ctx: ActionCtx) -> None:
    """It has a place for a moment."""


async def turn() -> None:
    """Let others go on."""


async def look(backend: TestApp, *workers: Worker, passing: float = 0.3) -> list[str]:
    """What runs once these workers have had their turns, in which time passes."""
    for _ in range(10):
        backend.clock.advance(timedelta(seconds=passing))
        for worker in workers or (backend.worker,):
            await worker.tick()
            for _ in range(5):
                await asyncio.wait([asyncio.ensure_future(turn())])
    return [what for what, _ in going]


async def soon(backend: TestApp) -> list[str]:
    """What runs after so little time that the worker keeps the slots that it holds."""
    return await look(backend, passing=0.02)


async def end_oldest(backend: TestApp) -> list[str]:
    going[0][1].set()
    return await soon(backend)


async def fill(backend: Backend, several: Sequence[Workpool], jobs: int) -> None:
    for pool in several:
        await pool.enqueue_batch(backend, occupy, [{"what": pool.name}] * jobs)


def end_all(what: str) -> None:
    for name, end in going:
        if name == what:
            end.set()


async def test_work_starts_though_more_pools_are_idle_than_there_are_places(database_url: str) -> None:
    async with TestApp(app, database_url, worker_jobs=1) as backend:
        for pool in pools:  # after which the worker holds a slot of each
            await pool.enqueue(backend, nothing)
            await backend.run_until_idle()
        for pool in (pools[-1], pools[0], pools[3]):
            await pool.enqueue(backend, occupy, pool.name)
            assert await soon(backend) == [pool.name]
            assert await end_oldest(backend) == []


@pytest.mark.parametrize("late", [0, 5])
@pytest.mark.parametrize("places", [1, 4])
async def test_an_idle_pool_does_not_wait_for_the_backlogs_of_others(database_url: str, places: int, late: int) -> None:
    async with TestApp(app, database_url, worker_jobs=places) as backend:
        busy = [pool for pool in pools if pool is not pools[late]][:4]
        await fill(backend, busy, 20)
        assert len(await soon(backend)) == places
        for _ in range(4):
            await end_oldest(backend)
        await fill(backend, [pools[late]], 1)
        turns = [await end_oldest(backend) for _ in range(len(busy) + 1)]
        assert any(pools[late].name in names for names in turns), "each of the others has had at most one turn"


@asynccontextmanager
async def two_workers(database_url: str) -> AsyncIterator[tuple[TestApp, Worker, Worker]]:
    async with TestApp(app, database_url, worker_jobs=4) as backend:
        second = backend.make_service("worker")
        assert isinstance(second, Worker)
        yield backend, backend.worker, second
        await second.kill()


async def fill_places(backend: TestApp, worker: Worker) -> None:
    """Let long jobs that need no slot take all places of a worker."""
    for _ in range(4):
        await backend.scheduler.run_after(timedelta(0), occupy, "long")
    await look(backend, worker)


async def test_who_is_full_wants_no_slots_and_has_its_share_when_it_is_not(database_url: str) -> None:
    async with two_workers(database_url) as (backend, first, second):
        await shared.enqueue_batch(backend, occupy, [{"what": "short"}] * 40)
        await look(backend, first)
        assert await look(backend, second) == ["short"] * 4, "the second has got none"
        await fill_places(backend, second)
        end_all("short")
        assert Counter(await look(backend, first, second)) == {"short": 4, "long": 4}
        assert first._slots.numbers()["shared"] == 4
        end_all("long")
        await look(backend, second, first)
        end_all("short")
        assert await look(backend, first, second) == ["short"] * 4
        assert [worker._slots.numbers()["shared"] for worker in (first, second)] == [2, 2]


async def end_first(backend: TestApp) -> Counter[str]:
    going[0][1].set()
    return Counter(await look(backend))


async def test_a_pool_borrows_what_is_idle_and_gives_it_back(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await mail.pause(backend)
        await fill(backend, [scrape], 20)
        await fill(backend, [mail], 20)
        assert Counter(await look(backend)) == {"scrape": 3}, "a paused pool neither lends nor borrows"
        await mail.cancel_all(backend)
        await mail.resume(backend)
        assert Counter(await look(backend)) == {"scrape": 5}
        await fill(backend, [mail], 20)
        assert Counter(await look(backend)) == {"scrape": 5}, "what runs is not stopped"
        assert await end_first(backend) == {"scrape": 4, "mail": 1}
        assert await end_first(backend) == {"scrape": 3, "mail": 2}
        assert (await end_first(backend)).total() == 5
        assert Counter(await look(backend)) == {"scrape": 3, "mail": 2}


async def test_a_pool_whose_keys_run_all_they_may_lends_the_rest(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for key, others in (("a", 9), ("b", 0)):
            await tenants.with_options(concurrency_key=key).enqueue_batch(backend, occupy, [{"what": key}] * 9)
            expected = {"a": 2, "other": 5} if others == 0 else {"a": 2}
            assert Counter(await look(backend)) == expected
            await fill(backend, [other], others)
            assert Counter(await look(backend)) == {"a": 2, "other": 5}
        for left in (4, 3):
            going[2][1].set()
            assert Counter(await look(backend)) == {"a": 2, "b": 5 - left, "other": left}, "as far as its keys go"
