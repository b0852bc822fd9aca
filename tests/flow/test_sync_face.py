"""The synchronous face of an app: the same words for programs that do not await, from any thread, after a fork too."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    ContextError,
    DatabaseUnavailable,
    Finished,
    JobFilter,
    JobState,
    MutationCtx,
    Pending,
    QueryCtx,
    Success,
    Table,
    sync,
)

app = App()
sms = app.workpool("sms", max_parallelism=3)


class Visit(Table, name="visit"):
    who: str


@app.mutation
async def visit(ctx: MutationCtx, who: str) -> int:
    await ctx.db.insert(Visit(who=who))
    return await ctx.db.query(Visit).count()


@app.query
async def visits(ctx: QueryCtx) -> int:
    return await ctx.db.query(Visit).count()


@app.action
async def shout(ctx: ActionCtx, text: str) -> str:
    return text.upper()


@app.mutation
def visit_in_a_thread(ctx: sync.MutationCtx, who: str) -> str:
    return ctx.db.insert(Visit(who=who))


@pytest.fixture
def _shared(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings name the database; what is shared is closed afterwards."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    yield
    app.sync.close()


def test_functions_run_and_jobs_are_seen_from_many_threads(database_url: str) -> None:
    with app.sync.open(database_url) as backend:
        assert backend.run_mutation(visit, "Ada") == 1
        assert backend.run_mutation(visit_in_a_thread, who="Bob").startswith("visit_")
        assert backend.run_query(visits) == 2
        assert backend.run_action(shout, "hey") == "HEY"
        with pytest.raises(ArgumentsInvalid):
            backend.run_mutation(visit, 5)  # type: ignore[arg-type]
        later = backend.scheduler.run_after(timedelta(hours=1), visit, "Eve")
        job: Any = backend.job(later)
        assert (job.state, job.function) == (JobState.PENDING, visit.name)
        assert [job.id for job in backend.jobs("pending")] == [later]
        assert backend.jobs(where=JobFilter(function=shout.name)) == []
        assert backend.job_counts()["scheduled"] == 1
        assert [(pool.name, pool.max_parallelism) for pool in backend.pools()] == [("sms", 3)]
        with ThreadPoolExecutor(8) as threads:
            counts = list(threads.map(lambda number: backend.run_mutation(visit, f"{number}"), range(20)))
            work = list(threads.map(lambda number: sms.enqueue(backend, shout, f"{number}"), range(20)))
        assert sorted(counts) == list(range(3, 23))
        assert len(set(work)) == backend.job_counts()["ready"] == 20


def test_pools_give_plain_results(database_url: str) -> None:
    with app.sync.open(database_url, services=("worker",)) as backend:
        work = sms.enqueue(backend, shout, "hey")
        assert sms.result(backend, work, timedelta(seconds=60)) == Success("HEY")
        assert sms.status(backend, work) == Finished(Success("HEY"))
        sms.pause(backend)
        waiting = sms.enqueue_batch(backend, shout, [{"text": "a"}, {"text": "b"}])
        assert sms.status_batch(backend, waiting) == [Pending(0), Pending(0)]
        assert sms.cancel_all(backend, shout) == 2
        sms.cancel(backend, waiting[0])
        sms.set_max_parallelism(backend, 5)
        sms.resume(backend)
        backend.wake()
        assert [(pool.max_parallelism, pool.paused) for pool in backend.pools()] == [(5, False)]


@pytest.mark.usefixtures("_shared")
def test_the_apps_own_backend_is_opened_when_it_is_needed_and_shared() -> None:
    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(lambda number: app.sync.run_mutation(visit, f"{number}"), range(8)))
    assert sorted(counts) == list(range(1, 9))
    work = sms.enqueue(app.sync, shout, "hey")
    assert sms.status(app.sync, work) == Pending(0)
    app.sync.close()
    app.sync.close()
    assert app.sync.run_query(visits) == 8
    app.sync.wake()


def test_it_is_refused_where_it_cannot_work(sqlite_url: str) -> None:
    backend = app.sync.open(sqlite_url)
    with pytest.raises(ContextError, match=r"is not open.* with app.sync.open"):
        backend.run_query(visits)
    with backend:
        assert backend.run_query(visits) == 0

        async def main() -> None:
            with pytest.raises(ContextError, match=r"on an event loop.* await there"):
                backend.run_query(visits)
            with pytest.raises(ContextError, match="on an event loop"):
                app.sync.run_query(visits)

        asyncio.run(main())
        with pytest.raises(ContextError, match="was opened before"), backend:
            pass
    with pytest.raises(ContextError, match="is closed"):
        backend.run_query(visits)
    with (
        pytest.raises(DatabaseUnavailable),
        app.sync.open("postgresql://nobody@127.0.0.1:1/nothing", database_wait=0.1) as backend,
    ):
        raise AssertionError(backend)


async def begin_too_late() -> None:
    """Never begins."""


def test_a_word_that_comes_when_the_loop_takes_its_last_turn_is_refused(sqlite_url: str) -> None:
    with app.sync.open(sqlite_url) as backend, pytest.MonkeyPatch.context() as patch:
        thread, left, call = backend._thread(), list[Any](), begin_too_late()
        loop, check = thread._loop, thread._check
        close = loop.close

        def close_late() -> None:
            left.append(thread._begin(call))
            close()

        def check_early() -> None:
            check()
            thread.close()

        patch.setattr(loop, "close", close_late)
        patch.setattr(thread, "_check", check_early)
        with pytest.raises(ContextError, match="The backend is closed"):
            backend.run_query(visits)  # after the loop was closed
        assert left[0].cancelled(), "who came before that waits no more"
        call.close()


def test_what_calls_begin_as_they_end_comes_to_its_end(sqlite_url: str) -> None:
    begun, ended, tasks = threading.Event(), list[str](), list[asyncio.Task[None]]()

    async def wait(what: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(what)
            if what != "the last":
                tasks.append(asyncio.create_task(wait("the last")))
            raise

    with ThreadPoolExecutor(1) as user:
        with app.sync.open(sqlite_url) as backend:
            used = user.submit(backend._thread().wait, wait("the first"))
            assert begun.wait(60)
        with pytest.raises(ContextError, match="is closed"):
            used.result(60)
    assert ended == ["the first", "the last"]


_PROGRAM = """
    import asyncio, os, sys, threading
    from penstock import App, ContextError, MutationCtx, QueryCtx, Table

    app = App()

    class Visit(Table):
        who: str

    @app.mutation
    async def visit(ctx: MutationCtx, who: str) -> int:
        await ctx.db.insert(Visit(who=who))
        return await ctx.db.query(Visit).count()
"""


def run_program(folder: Path, database_url: str, body: str) -> str:
    """What a program says that does not await; it has to end well, and in silence."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(_PROGRAM) + textwrap.dedent(body))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process", str(program)],  # newer Pythons warn of each fork
        env=os.environ | {"DATABASE_URL": database_url, "PENSTOCK_LOG_LEVEL": "WARNING"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_is_closed_when_the_program_ends_without_new_threads(database_url: str, tmp_path: Path) -> None:
    """Python 3.12 refuses them while it ends."""
    said = run_program(
        tmp_path,
        database_url,
        """
        from penstock.app import Backend
        stop = Backend.stop
        async def told(self):
            await stop(self)
            print("stopped", flush=True)
        Backend.stop = told

        def refuse(thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")

        print(app.sync.run_mutation(visit, "Ada"), flush=True)
        threading._register_atexit(lambda: setattr(threading.Thread, "start", refuse))
        """,
    )
    assert said == "1\nstopped\n"


def test_a_forked_process_opens_its_own(database_url: str, tmp_path: Path) -> None:
    said = run_program(
        tmp_path,
        database_url,
        """
        print(app.sync.run_mutation(visit, "Ada"), flush=True)
        with app.sync.open() as backend:
            backend.run_mutation(visit, "Bob")
            child = os.fork()
            if not child:
                try:
                    backend.run_mutation(visit, "Eve")
                except ContextError as error:
                    print(error, flush=True)
                backend.__exit__(None, None, None)
                print(app.sync.run_mutation(visit, "Dan"), flush=True)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(backend.run_mutation(visit, "Joe"), app.sync.run_mutation(visit, "Kim"), flush=True)
        """,
    )
    lines = said.splitlines()
    assert lines[0] == "1"
    assert lines[1].startswith("The backend was opened before this process was forked")
    assert lines[2:] == ["3", "4 5"]
