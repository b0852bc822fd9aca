"""A function that blocks the event loop of its process: a thread renews its leases, until the loop counts as hung."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from stage.waits import SOON, until

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
)
from penstock.app import Backend
from penstock.calls import lease as leases
from penstock.calls.run import renewals
from penstock.clock import SystemClock
from penstock.errors import TryAgain
from penstock.services.rescue import Rescue
from penstock.testing import gate

LEASE = 2.0
NOW = timedelta(0)
app = App()
pool = app.workpool("blocking", default_retry=Retry(max_attempts=3, initial_backoff=0.01))
begun, may_go_on = threading.Event(), threading.Event()
runs: list[str] = []


class Ran(Table):
    what: str


class Row(Table):
    kind: str


class Message(Table):
    kind: str


async def answer(known: bool) -> bool:
    return known


def block(what: str) -> None:
    """Hold the event loop, as a driver without async does."""
    runs.append(what)
    begun.set()
    assert may_go_on.wait(SOON)


@app.internal_action
async def act(ctx: ActionCtx) -> None:
    block("action")


@app.internal_mutation
async def enter(ctx: MutationCtx, what: str) -> None:
    if what != "neighbour":
        await ctx.db.query(Ran).count()
        block(what)
    await ctx.db.insert(Ran(what=what))


@app.internal_query
async def look(ctx: QueryCtx) -> int:
    block("query")
    return await ctx.db.query(Ran).count()


@app.internal_action
async def neighbour(ctx: ActionCtx) -> None:
    await until(lambda: answer(may_go_on.is_set()))
    runs.append("neighbour")


@app.internal_action
async def do_nothing(ctx: ActionCtx) -> None:
    pass


@app.internal_mutation
async def complete(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: None) -> None:
    await enter(ctx, "on_complete")


@app.reactive_task(Row, filter=lambda row: row.kind == "action")
async def follow(ctx: TaskCtx[Row]) -> None:
    block("task")


@app.reactive_task(Row, filter=lambda row: row.kind == "mutation")
async def follow_within(ctx: MutationTaskCtx[Row]) -> None:
    block("mutation task")
    await ctx.db.insert(Ran(what="mutation task"))


@app.outbox("acted")
async def deliver(ctx: ActionCtx, said: str) -> None:
    block("outbox")


@app.outbox("entered")
async def deliver_within(ctx: MutationCtx, said: str) -> None:
    await enter(ctx, "mutation outbox")


@app.internal_mutation
async def add(ctx: MutationCtx, kind: str) -> None:
    await ctx.db.insert(Row(kind=kind))


@app.internal_mutation
async def send(ctx: MutationCtx, topic: str) -> None:
    await ctx.outbox.send(topic, "x")


@app.internal_query
async def entered(ctx: QueryCtx) -> list[str]:
    return [row.what for row in await ctx.db.query(Ran).collect()]


async def start(backend: Backend, kind: str) -> Any:
    """Have a worker or a relay run a function that blocks; the job, if a program can name it."""
    match kind:
        case "action":
            return await pool.with_options(retry=True).enqueue(backend, act)
        case "mutation":
            return await pool.enqueue(backend, enter, kind)
        case "query":
            return await pool.enqueue(backend, look)
        case "on_complete":
            return await pool.with_options(on_complete=complete).enqueue(backend, do_nothing)
        case "task" | "mutation task":
            return await backend.run_mutation(add, "action" if kind == "task" else "mutation")
        case _:
            return await backend.run_mutation(send, "acted" if kind == "outbox" else "entered")


KINDS = ("action", "mutation", "query", "on_complete", "task", "mutation task", "outbox", "mutation outbox")
WRITES = {"mutation", "on_complete", "mutation task", "mutation outbox"}


@contextmanager
def apart(url: str, **settings: Any) -> Iterator[Backend]:
    """A backend with services on an event loop of its own, as in another process."""
    opened, found, ends = threading.Event(), list[Backend](), list[Callable[[], object]]()

    async def run() -> None:
        async with app.open(
            url, services=("worker", "planner", "relay"), lease=LEASE, poll=0.05, **settings
        ) as backend:
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


@pytest.fixture(autouse=True)
def _new_events() -> Iterator[None]:
    begun.clear()
    may_go_on.clear()
    runs.clear()
    yield
    assert not [one for one in threading.enumerate() if one.name == "penstock-leases"], "the thread ends with them"


@asynccontextmanager
async def blocked(url: str, kind: str) -> AsyncIterator[tuple[Backend, Backend, Any]]:
    """A backend whose loop a function blocks, beside another one that would take over its work."""
    with apart(url) as victim:
        async with app.open(url, lease=LEASE) as backend:
            beside = await backend.scheduler.run_after(NOW, neighbour) if kind not in WRITES else None
            if beside:
                await until(lambda: is_state(backend, beside, "running"))
            job = await start(backend, kind)
            assert await asyncio.to_thread(begun.wait, SOON)
            yield victim, backend, (job, beside)


async def is_state(backend: Backend, job: Any, *states: str) -> bool:
    found = await backend.job(job)
    return found is not None and found.state.value in states


def held(victim: Backend) -> list[Any]:
    services: list[Any] = victim.services.services
    return [one._lease for one in services]


@asynccontextmanager
async def rescuing(backend: Backend) -> AsyncIterator[None]:
    """Take away each expired lease, as workers, planners and relays of other processes do."""
    rescue = Rescue(backend.runner)

    async def look() -> None:
        while True:
            with suppress(TryAgain):
                await rescue.look(None)
            await SystemClock().sleep(0.01)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def for_leases(count: float, victim: Backend) -> None:
    """Wait until the leases of a process were renewed for so long."""
    since = {lease: lease.renewed_at for lease in held(victim) if lease.number}

    async def renewed() -> bool:
        return all(lease.renewed_at > at + count * LEASE for lease, at in since.items())

    assert since
    await until(renewed)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_blocked_loop_keeps_its_jobs_and_messages(database_url: str, kind: str) -> None:
    async with blocked(database_url, kind) as (victim, backend, (job, beside)):
        numbers = [lease.number for lease in held(victim)]
        async with rescuing(backend):
            await for_leases(1.5, victim)
        assert [lease.number for lease in held(victim)] == numbers
        may_go_on.set()
        if beside:
            await until(lambda: is_state(backend, beside, "success"))
        if isinstance(job, str):
            await until(lambda: is_state(backend, job, "success"))
        if kind in WRITES:

            async def is_entered() -> bool:
                return await backend.run_query(entered) == [kind]

            await until(is_entered)
    assert [one for one in runs if one != "neighbour"] == [kind], "it ran once"


async def test_a_loop_that_is_hung_gives_up_its_leases_and_settles_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "_HUNG_PARTS", 1)
    monkeypatch.setattr(renewals, "_BLOCKED_AT_LEAST", 0.1)
    async with blocked(database_url, "action") as (victim, backend, (job, beside)):
        number = held(victim)[0].number
        async with rescuing(backend):
            await until(lambda: is_state(backend, job, "pending"))
            assert await is_state(backend, beside, "failed")
        (told,) = {one.what for one in await backend.health() if one.code == "loop-blocked"} or {act.name}
        assert act.name in told
        may_go_on.set()
        await until(lambda: is_state(backend, job, "success"))
        found = await backend.job(job)
        assert found is not None
        assert [one.what for one in found.attempts] == ["lost"], (
            "the blocked attempt settles nothing, the next one does"
        )
        assert held(victim)[0].number not in {None, number}
    facts = [vars(one)["facts"] for one in caplog.records if vars(one).get("event") == "engine.loop_blocked"]
    assert facts[0]["function"] == act.name
    assert "test_blocked_loops.py" in facts[0]["place"]


async def test_a_tick_takes_as_long_as_it_needs_while_its_lease_is_renewed(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A busy machine once cut each tick off, so that no worker ever began anything."""
    async with app.open(database_url, services=("worker",), lease=LEASE) as backend:
        (lease,) = held(backend)
        with gate("worker.claimed", most=1) as claimed:
            job = await pool.enqueue(backend, do_nothing)
            await claimed.arrived()
            await for_leases(1.0, backend)
            assert lease.number
            claimed.open()
            await until(lambda: is_state(backend, job, "success"))
        found = await backend.job(job)
        assert found is not None
        assert found.attempt == 1
    assert "tick_failed" not in caplog.text
