"""Functions of every kind that raise whatever there is, or block the event loop of their process.

What one raises is its outcome, whatever its class: transaction and lease say what happened. While one blocks the
loop, a thread renews the leases of its process, until the loop counts as hung.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from stage.faults import held
from stage.waits import SOON, events, until

from penstock import (
    ActionCtx,
    App,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Retry,
    Table,
    TaskCtx,
    WorkId,
    WorkResult,
    errors,
    sync,
)
from penstock.app import Backend
from penstock.calls import lease as leases
from penstock.calls.run import renewals
from penstock.clock import SystemClock
from penstock.services.rescue import Rescue
from penstock.testing import TestApp

ONCE = Retry(max_attempts=1)
LEASE = 1.5
app = App()
pool = app.workpool("kinds", max_parallelism=20)
runs: Counter[tuple[str, int]] = Counter()
does: list[Callable[[int], None]] = []


def do(kind: str, number: int) -> None:
    """Do what the test says."""
    runs[kind, number] += 1
    does[0](number)


class Written(Table):
    kind: str


class Row(Table):
    kind: str
    number: int


async def write(ctx: MutationCtx, kind: str, number: int) -> None:
    await ctx.db.insert(Written(kind=kind))
    do(kind, number)


@app.internal_query
async def look(ctx: QueryCtx, number: int) -> None:
    do("query", number)


@app.internal_mutation
async def enter(ctx: MutationCtx, number: int) -> None:
    await write(ctx, "mutation", number)


@app.internal_mutation
def enter_in_thread(ctx: sync.MutationCtx, number: int) -> None:
    ctx.db.insert(Written(kind="mutation in a thread"))
    do("mutation in a thread", number)


@app.internal_action
async def act(ctx: ActionCtx, number: int) -> None:
    do("action", number)


@app.internal_action
def act_in_thread(ctx: sync.ActionCtx, number: int) -> None:
    do("action in a thread", number)


@app.internal_mutation
async def enter_beside(ctx: MutationCtx) -> None:
    await ctx.db.insert(Written(kind="beside"))


@app.internal_action
async def wait_beside(ctx: ActionCtx) -> None:
    await until(may_go_on.is_set)


@app.internal_action
async def do_nothing(ctx: ActionCtx) -> None:
    pass


@app.internal_mutation
async def complete(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: int) -> None:
    await write(ctx, "on_complete", context)


@app.reactive_task(Row, filter=lambda row: row.kind == "task", retry=ONCE)
async def follow(ctx: TaskCtx[Row]) -> None:
    do("task", (await ctx.get_document()).number)


@app.reactive_task(Row, filter=lambda row: row.kind == "mutation task", retry=ONCE)
async def follow_within(ctx: MutationTaskCtx[Row]) -> None:
    await write(ctx, "mutation task", (await ctx.get_document()).number)


@app.outbox("outbox", on_failure="park", retry=ONCE)
async def deliver(ctx: ActionCtx, number: int) -> None:
    do("outbox", number)


@app.outbox("mutation outbox", on_failure="park", retry=ONCE)
async def deliver_within(ctx: MutationCtx, number: int) -> None:
    await write(ctx, "mutation outbox", number)


@app.internal_mutation
async def start(ctx: MutationCtx, kind: str, number: int) -> None:
    if "task" in kind:
        await ctx.db.insert(Row(kind=kind, number=number))
    elif "outbox" in kind:
        await ctx.outbox.send(kind, number)
    else:
        options: dict[str, Any] = {"on_complete": complete, "on_complete_retry": ONCE, "context": number}
        await pool.with_options(**options).enqueue(ctx, do_nothing)


@app.internal_query
async def written(ctx: QueryCtx) -> list[str]:
    return sorted(row.kind for row in await ctx.db.query(Written).collect())


JOBS: dict[str, Any] = {
    "query": look,
    "mutation": enter,
    "mutation in a thread": enter_in_thread,
    "action": act,
    "action in a thread": act_in_thread,
}
HANDLERS = ("on_complete", "task", "mutation task", "outbox", "mutation outbox")


@pytest.fixture(autouse=True)
def nothing_has_run() -> Iterator[None]:
    runs.clear()
    does.clear()
    yield
    assert not [one for one in threading.enumerate() if one.name == "penstock-leases"], "the thread ends with them"


# ----- what raises


def classes(root: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    below = [child for child in root.__subclasses__() if child.__module__ == root.__module__]
    return [root, *(one for child in below for one in classes(child))]


class Odd(BaseException):
    """Neither an exit nor an error."""


WORDS: dict[str, Any] = {"RateLimited": (1.0,), "NotSignedIn": ()}
ERRORS: list[type[BaseException]] = [
    ValueError,
    *(one for one in classes(errors.PenstockError) if one not in {errors.NonRetryableError, errors.Snooze}),
    TimeoutError,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    SystemExit,
    KeyboardInterrupt,
    Odd,
]
NUMBERS = range(len(ERRORS))
EXITS = ERRORS.index(asyncio.CancelledError)
SHARED = {"mutation", "mutation task", "mutation outbox", "on_complete"}
MOST = 5  # runs in shared transactions: one without savepoints, three until the exits have left (1, 2, 4), and the last


def fail(number: int) -> None:
    error = ERRORS[number]
    try:
        made = error("of the test")
    except TypeError:
        made = error(*WORDS[error.__name__])
    raise made


@pytest.mark.parametrize("kind", JOBS)
async def test_a_job_that_raises_fails_whatever_it_raises(database_url: str, kind: str) -> None:
    does.append(fail)
    async with TestApp(app, database_url) as backend:
        jobs = []
        for numbers in (range(EXITS), range(EXITS, len(ERRORS))):  # an exit has jobs of its transaction run again
            jobs += [await pool.enqueue(backend, JOBS[kind], number) for number in numbers]
            await pool.enqueue(backend, enter_beside)
            async with asyncio.timeout(SOON):
                await backend.run_until_idle(raise_errors=False)
        for number, job in enumerate(jobs):
            found = await backend.job(job)
            assert found is not None
            assert (found.state.value, found.attempt) == ("failed", 1), (ERRORS[number], found)
            assert 1 <= runs[kind, number] <= (MOST if kind in SHARED else 1 + (number >= EXITS)), ERRORS[number]
        assert await backend.run_query(written) == ["beside"] * 2


async def test_a_handler_that_raises_fails_whatever_it_raises(database_url: str) -> None:
    does.append(fail)
    async with TestApp(app, database_url) as backend:
        for number in NUMBERS:
            for kind in HANDLERS:
                await backend.run_mutation(start, kind, number)
        async with asyncio.timeout(SOON):
            await backend.run_until_idle(raise_errors=False)
        for kind in HANDLERS:
            most = MOST if kind in SHARED else 1
            assert all(1 <= runs[kind, number] <= most for number in NUMBERS), (kind, runs)
        assert await backend.run_query(written) == []
        assert len(await backend.jobs("failed", 1000)) == 2 * len(ERRORS), "the runs of both tasks"


# ----- what blocks

begun, may_go_on = threading.Event(), threading.Event()
WRITES = ("mutation", "mutation outbox")
BLOCKING = ("action", "outbox", *WRITES)


def block(_number: int) -> None:
    """Hold the event loop, as a driver without async does."""
    begun.set()
    assert may_go_on.wait(SOON)


@contextmanager
def apart(url: str) -> Iterator[Backend]:
    """A backend with services on an event loop of its own, as in another process."""
    opened, found, ends = threading.Event(), list[Backend](), list[Callable[[], object]]()

    async def run() -> None:
        async with app.open(url, services=("worker", "planner", "relay"), lease=LEASE, poll=0.05) as backend:
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            found.append(backend)
            ends.append(lambda: loop.call_soon_threadsafe(stop.set))
            opened.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert opened.wait(SOON)
    try:
        yield found[0]
    finally:
        may_go_on.set()
        ends[0]()
        thread.join(SOON)
        assert not thread.is_alive()


async def begin(backend: Backend, kind: str) -> list[Any]:
    """Have a function block the loop of the victim; its job, and one that runs beside it, if it writes nothing."""
    does[:] = [block]
    begun.clear()
    may_go_on.clear()
    jobs: list[Any] = []
    if kind not in WRITES:
        jobs.append(await backend.scheduler.run_after(timedelta(0), wait_beside))
        await until(lambda: is_state(backend, jobs[0], "running"))
    if kind in JOBS:
        retried = pool.with_options(retry=Retry(3, 0.01)) if kind == "action" else pool
        jobs.insert(0, await retried.enqueue(backend, JOBS[kind], 0))
    else:
        await backend.run_mutation(start, kind, 0)
    assert await asyncio.to_thread(begun.wait, SOON)
    return jobs


async def is_state(backend: Backend, job: Any, state: str) -> bool:
    found = await backend.job(job)
    return found is not None and found.state.value == state


def leases_of(victim: Backend) -> list[Any]:
    services: list[Any] = victim.services.services
    return [one._lease for one in services]


@asynccontextmanager
async def rescuing(backend: Backend) -> AsyncIterator[None]:
    """Take away each expired lease, as workers, planners and relays of other processes do."""
    rescue = Rescue(backend.runner)

    async def take_away() -> None:
        while True:
            with suppress(errors.TryAgain):
                await rescue.look(None)
            await SystemClock().sleep(0.01)

    looking = asyncio.create_task(take_away())
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def for_leases(count: float, victim: Backend) -> None:
    """Wait until the leases of a process were renewed for so long."""
    since = {lease: lease.renewed_at for lease in leases_of(victim) if lease.number}
    assert since
    await until(lambda: all(lease.renewed_at > at + count * LEASE for lease, at in since.items()))


async def test_a_blocked_loop_keeps_its_jobs_and_messages(database_url: str) -> None:
    with apart(database_url) as victim:
        async with app.open(database_url, lease=LEASE) as backend:
            for kind in BLOCKING:
                jobs = await begin(backend, kind)
                numbers = [lease.number for lease in leases_of(victim)]
                async with rescuing(backend):
                    await for_leases(1.25, victim)
                assert [lease.number for lease in leases_of(victim)] == numbers, kind
                may_go_on.set()
                for job in jobs:
                    await until(lambda: is_state(backend, job, "success"))  # noqa: B023 - it is awaited here
                while kind in WRITES and kind not in await backend.run_query(written):
                    await SystemClock().sleep(0.01)
            assert await backend.run_query(written) == sorted(WRITES)
    assert runs == {(kind, 0): 1 for kind in BLOCKING}


async def test_a_loop_that_is_hung_gives_up_its_leases_and_settles_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "_HUNG_PARTS", 1)
    monkeypatch.setattr(renewals, "_BLOCKED_AT_LEAST", 0.1)
    with apart(database_url) as victim:
        async with app.open(database_url, lease=LEASE) as backend:
            job, beside = await begin(backend, "action")
            number = leases_of(victim)[0].number
            async with rescuing(backend):
                await until(lambda: is_state(backend, job, "pending"))
                assert await is_state(backend, beside, "failed")
            (told,) = {one.what for one in await backend.health() if one.code == "loop-blocked"} or {act.name}
            assert act.name in told
            may_go_on.set()
            await until(lambda: is_state(backend, job, "success"))
            found = await backend.job(job)
            assert found is not None
            assert [one.what for one in found.attempts] == ["lost"], "the blocked attempt settles nothing"
            assert leases_of(victim)[0].number not in {None, number}
    facts = events(caplog, "engine.loop_blocked")
    assert facts[0]["function"] == act.name
    assert "test_every_kind.py" in facts[0]["place"]


async def test_a_tick_takes_as_long_as_it_needs_while_its_lease_is_renewed(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A busy machine once cut each tick off, so that no worker ever began anything."""
    async with app.open(database_url, services=("worker",), lease=LEASE) as backend:
        async with held("worker.claimed", pool.enqueue(backend, do_nothing)) as enqueuing:
            await for_leases(1.0, backend)
            assert leases_of(backend)[0].number
        await until(lambda: is_state(backend, enqueuing.result(), "success"))
        found = await backend.job(enqueuing.result())
        assert found is not None
        assert found.attempt == 1
    assert "tick_failed" not in caplog.text
