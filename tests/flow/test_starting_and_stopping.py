"""What a start takes, and what becomes of functions that do not end when their callers give up or the backend stops."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flow import process_actions
from programs import stubborn
from stage.databases import connected
from stage.waits import SOON, until

from penstock import App, ConfigError, JobState, MutationCtx, MutationTaskCtx, Overloaded, Table, asgi_app, sync
from penstock.app import Backend
from penstock.services.service import SERVICES
from penstock.store.postgres import catalog
from penstock.store.postgres.route import Connection, Route
from penstock.testing import TestApp

NOW = timedelta(0)


class Note(Table):
    text: str


class Held:
    """A place in a function at which it waits until the test lets it go on."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    def wait(self) -> str:
        """Wait, in the function."""
        self.begun.release()
        assert self.go.wait(60)
        return "done"

    def __deepcopy__(self, _memo: object) -> Held:
        return self  # each attempt at a mutation gets arguments of its own

    async def arrived(self) -> None:
        """Wait, in the test, until one more function has come here."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=60)


app = OPENED = App(tables=[Note])


@app.mutation
def add(ctx: sync.MutationCtx) -> None:
    ctx.db.insert(Note(text="def"))


@app.mutation
async def add_async(ctx: MutationCtx) -> None:
    await ctx.db.insert(Note(text="async"))


@app.action
def act(_ctx: sync.ActionCtx, held: Any) -> str:
    return str(held.wait())


waiting: list[Held] = []


@app.internal_action
def act_in_job(_ctx: sync.ActionCtx) -> str:
    return waiting[-1].wait()


@contextmanager
def holding() -> Iterator[Held]:
    """Functions that wait, let go at the end of the block at the latest."""
    held = Held()
    waiting.append(held)
    try:
        yield held
    finally:
        held.go.set()
        waiting.remove(held)


async def given_up(call: Awaitable[Any], held: Held) -> None:
    """A caller that goes while its function waits."""
    task = asyncio.ensure_future(call)
    await held.arrived()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def read(file: Path) -> str:
    return file.read_text("ascii") if file.exists() else ""


async def until_there(file: Path) -> int:
    await until(lambda: bool(read(file)))
    return int(read(file))


# ----- callers that give up


async def test_who_waits_for_a_thread_holds_no_lock(database_url: str) -> None:
    async with TestApp(app, database_url, threads=1) as backend:
        async with backend.engine.thread(add, 0):
            waits = asyncio.ensure_future(backend.run_mutation(add))
            async with asyncio.timeout(SOON):
                for _ in range(3):
                    await backend.run_mutation(add_async)
            assert not waits.done()
        await waits


async def test_threads_whose_callers_have_all_given_up_are_reported(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url, threads=2) as backend:
        with holding() as held:
            await given_up(backend.run_action(act, held), held)
            last = asyncio.ensure_future(backend.run_action(act, held))
            await held.arrived()
            in_line = asyncio.ensure_future(backend.run_action(act, held))
            await asyncio.wait([in_line], timeout=0)
            last.cancel()
            with pytest.raises(
                Overloaded, match=r"all 2 are busy with timed-out calls of test_starting_and_stopping:act .*timeout"
            ):
                await in_line
            await backend.run_mutation(add)
            held.go.set()

            async def thread_is_free() -> bool:
                with suppress(Overloaded):
                    return await backend.run_action(act, held) == "done"
                return False

            await until(thread_is_free)


async def test_a_job_that_finds_no_thread_waits_and_says_why(database_url: str) -> None:
    async with TestApp(app, database_url, threads=1) as backend:
        with holding() as held:
            await given_up(backend.run_action(act, held), held)
            job = await backend.scheduler.run_after(NOW, act_in_job)
            await backend.run_until_idle(advance=False, raise_errors=False)
            found: Any = await backend.job(job)
            assert (found.state, found.attempt) == (JobState.PENDING, 0)
            assert (found.error or "").startswith("Overloaded: test_starting_and_stopping:act_in_job found no thread")


async def test_a_process_is_ended_with_the_call_that_waits_for_it(sqlite_url: str, tmp_path: Path) -> None:
    """Two that hang, of two there are, and the next one finds a process all the same."""
    async with TestApp(process_actions.app, sqlite_url, processes=2) as backend:
        hung = [asyncio.ensure_future(backend.run_action(process_actions.hang, str(tmp_path / name))) for name in "ab"]
        numbers = [await until_there(tmp_path / name) for name in "ab"]
        for task in hung:
            task.cancel()
        async with asyncio.timeout(SOON):
            assert await backend.run_action(process_actions.process_id) not in {os.getpid(), *numbers}
        for number in numbers:
            with pytest.raises(ProcessLookupError):
                os.kill(number, 0)


# ----- stopping


async def test_closing_waits_within_the_grace_time_and_then_names_what_is_left(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with holding() as held:
        async with app.open(sqlite_url, grace=60.0) as backend:
            query = asyncio.ensure_future(backend.run_action(act, held))
            await held.arrived()
            asyncio.get_running_loop().call_soon(held.go.set)
        assert await query == "done"
    with holding() as held, caplog.at_level(logging.WARNING, "penstock"):
        async with asyncio.timeout(SOON), app.open(sqlite_url, grace=0.05) as backend:
            query = asyncio.ensure_future(backend.run_action(act, held))
            await held.arrived()
        assert not query.done()
        assert "engine.functions_left functions=test_starting_and_stopping:act" in caplog.text
        held.go.set()
        assert await query == "done"


async def test_a_worker_tells_what_it_has_handed_back_and_what_is_lost(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with holding() as held, caplog.at_level(logging.INFO, "penstock"):
        async with asyncio.timeout(SOON), app.open(database_url, services=["worker"], grace=0.05) as backend:
            job = await backend.scheduler.run_after(NOW, act_in_job)
            await held.arrived()
        assert "handed_back=0 lost=1" in caplog.text
        async with app.open(database_url) as backend:
            found: Any = await backend.job(job)
            assert found.state is JobState.FAILED


BOUND = 30.0  # seconds, on a machine that does other things as well; what fails never ends
# What writes comes last: nothing else can write on SQLite. `block` and `keep_interpreter` end the loop of the program.
KINDS = [
    ("action", "thread", "process", "shield", "task", "acted", "mutation"),
    ("mutation_thread",),
    ("on_complete",),
    ("task_within",),
    ("entered",),
]
CALLS: list[tuple[Any, ...]] = [
    (stubborn.act, stubborn.look, stubborn.act_in_thread, stubborn.enter),
    (stubborn.enter_in_thread,),
]


@asynccontextmanager
async def closing(url: str, **settings: Any) -> AsyncIterator[Backend]:
    """A backend that has to close in time once the block has ended; then what it ran may end."""
    stubborn.end.clear()
    try:
        async with asyncio.timeout(None) as bound, stubborn.app.open(url, **settings) as backend:
            yield backend
            bound.reschedule(asyncio.get_running_loop().time() + BOUND)
    finally:
        stubborn.end.set()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


async def begun(call: Any = None) -> None:
    """Wait until one more function has begun."""
    assert await asyncio.to_thread(stubborn.begun.wait, BOUND), call
    stubborn.begun.clear()


@pytest.mark.parametrize("kinds", KINDS)
async def test_a_backend_closes_though_work_does_not_end(database_url: str, kinds: tuple[str, ...]) -> None:
    stubborn.begun.clear()
    async with closing(database_url, services=SERVICES) as backend:
        for kind in kinds:
            await backend.run_mutation(stubborn.begin_work, kind)
            await begun(kind)


@pytest.mark.parametrize("functions", CALLS)
async def test_a_backend_closes_though_calls_do_not_end(database_url: str, functions: tuple[Any, ...]) -> None:
    stubborn.begun.clear()
    calls = []
    async with closing(database_url) as backend:
        for function in functions:
            calls.append(asyncio.ensure_future(getattr(backend, f"run_{function.kind.value}")(function)))
            await begun(function.name)
    await asyncio.wait(calls, timeout=BOUND)


# ----- what a start takes on PostgreSQL: few connections, none of which may change the schema


weighing = App()
LOCKS = """
select count(*) from pg_locks l join pg_database d on d.oid = l.database
where d.datname = current_database() and l.locktype = 'advisory'"""


class Parcel(Table):
    name: str


@weighing.reactive_task(Parcel)
async def weigh(ctx: MutationTaskCtx[Parcel]) -> None:
    """Weigh a parcel."""


@weighing.mutation
async def send(ctx: MutationCtx) -> None:
    await ctx.db.insert(Parcel(name="a"))


async def test_all_services_are_one_word_and_no_name_is_guessed(sqlite_url: str) -> None:
    async with app.open(sqlite_url, services="all") as backend:
        assert len(backend.services.services) == len(SERVICES) - 1, "no table has a search index"
    for wrong in ("worker", ["workers"], ["all"]):
        with pytest.raises(ConfigError, match="services is"):
            async with app.open(sqlite_url, services=wrong):  # type: ignore[arg-type]
                pass
        with pytest.raises(ConfigError, match="services is"):
            asgi_app(app, services=wrong)  # type: ignore[arg-type]


async def test_a_start_opens_a_connection_each_for_calls_services_and_the_schema(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_one = list[Connection](), Route.open

    async def noted(route: Route, *args: Any) -> Connection:
        opened.append(await open_one(route, *args))
        return opened[-1]

    monkeypatch.setattr(Route, "open", noted)
    async with TestApp(weighing, postgres_url) as backend:
        assert len(opened) == 3, "of which one has changed tables, tried out triggers and made them"
        await backend.run_mutation(send)
        await backend.engine.store.signals.close()  # type: ignore[attr-defined]  # when it has told the others
        assert len(opened) == 3, "no connection of its own tells of work"


async def test_whoever_has_started_holds_no_right_to_change_the_schema(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_KEPT", 3600.0)
    async with TestApp(weighing, postgres_url), connected(postgres_url) as connection:
        assert await connection.fetchval(LOCKS) == 0
        monkeypatch.setattr(catalog, "LOCK_WAIT", 0.0)
        async with TestApp(weighing, postgres_url) as other:
            await other.run_mutation(send)
