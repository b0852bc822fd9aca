"""The commands that run until they are told to stop, each as a process of its own: dev, serve, worker."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from stage.waits import SOON

from penstock import App, MutationCtx, QueryCtx, public, signed_in
from penstock.cli.dev import sample_calls

if TYPE_CHECKING:
    from doors.cli_fixtures import Console, Process

pytest_plugins = ("doors.cli_fixtures",)

HELLO = """
from penstock import App, QueryCtx

app = App()


@app.query
async def hello(ctx: QueryCtx) -> str:
    return "one"
"""

SLOW = """
import asyncio
from datetime import timedelta

from penstock import ActionCtx, App, MutationCtx, sync

app = App()


@app.internal_mutation
async def begin(ctx: MutationCtx) -> None:
    await ctx.scheduler.run_after(timedelta(0), wait)


@app.internal_action
def wait(ctx: sync.ActionCtx) -> str:
    print("job begun", flush=True)
    with open("gate") as gate:
        return gate.read()
"""


def call(url: str, path: str, kind: str = "query", **args: Any) -> Any:
    answer = httpx.post(f"{url}/api/{kind}", json={"path": path, "args": args}, timeout=SOON).json()
    assert answer["status"] == "success", answer
    return answer["value"]


def rss(pid: int) -> int:
    """Memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# ----- dev


def test_dev_suggests_a_call_that_needs_no_token() -> None:
    app = App()

    @app.query(access=signed_in)
    async def mine(ctx: QueryCtx) -> int:
        """Ask for a token."""
        return 1

    assert sample_calls(app, "http://x") == []

    @app.mutation(access=public)
    async def knock(ctx: MutationCtx) -> None:
        """Ask for nothing."""

    (call,) = sample_calls(app, "http://x")
    assert "test_cli_services:knock" in call


def test_dev_serves_and_starts_again_when_the_source_changes(console: Console) -> None:
    console.write("hello.py", HELLO)
    with console.start("dev", "--port", "0") as process:
        url = process.wait_for(r"server +(http://127\.0\.0\.1:\d+)")[1]
        suggestion = process.wait_for(r"curl .*")[0]
        assert suggestion.startswith(f"curl {url}/api/query")
        assert call(url, "hello:hello") == "one"
        assert rss(process.pid) < 80 * 1024 * 1024

        console.write("hello.py", HELLO.replace('"one"', '"second"'))
        process.wait_for("hello.py changed")
        assert call(process.wait_for("ready at (.*)")[1], "hello:hello") == "second"
        process.wait_for(r"hello\.py:\d+:1: PEN006 hello: anyone who reaches")
        process.wait_for("penstock check --explain PEN006")

        console.write("hello.py", HELLO + "import does_not_exist\n")
        process.wait_for("No module named 'does_not_exist'")
        process.wait_for("Waiting for a change")
        console.write("inner/__init__.py", "TEXT = 'third'\n")
        process.wait_for("Waiting for a change")
        console.write("hello.py", "from inner import TEXT\n" + HELLO.replace('"one"', "TEXT"))
        assert call(process.wait_for("ready at (.*)")[1], "hello:hello") == "third"
        console.write("inner/__init__.py", "TEXT = 'the fourth'\n")
        process.wait_for("inner/__init__.py changed")
        assert call(process.wait_for("ready at (.*)")[1], "hello:hello") == "the fourth"

        process.tell(signal.SIGTERM)
        assert process.end() == 0
        assert re.search(r"^(Stopping\.|Waiting up to 2 s for 1 call\.)", "".join(process.lines), re.MULTILINE), (
            "the server may not know yet that its answer has arrived"
        )


@pytest.mark.long
def test_dev_waits_for_a_program_that_imports_and_writes_its_clients(console: Console) -> None:
    console.write("penstock.toml", '[codegen]\npython = "clients"\n')
    console.write("hello.py", HELLO.replace("app = App()", "app = App("))
    with console.start("dev", "--port", "0") as process:
        process.wait_for("SyntaxError")
        process.wait_for("Waiting for a change")
        console.write("hello.py", HELLO)
        assert call(process.wait_for(r"server +(http.*)")[1], "hello:hello") == "one"
        process.wait_for("Starts again when the source changes")
        console.write("hello.py", HELLO.replace("(ctx: QueryCtx", "(ctx: QueryCtx, name: str"))
        process.wait_for("hello.py changed")
        process.wait_for("ready at")
        assert "name: str" in (console.folder / "clients" / "api.py").read_text("utf-8")
        process.tell(signal.SIGTERM)
        assert process.end() == 0
        assert "api.py changed" not in "".join(process.lines)


def test_dev_tells_of_runs_and_a_second_interrupt_aborts(console: Console) -> None:
    program = SLOW.replace("@app.internal_mutation", "@app.mutation(access=public)")
    console.write("slow.py", program.replace("MutationCtx, sync", "MutationCtx, public, sync"))
    os.mkfifo(console.folder / "gate")
    with console.start("dev", "--port", "0", "--no-reload", COLUMNS="80") as process:
        url = process.wait_for(r"server +(http\S+)")[1]
        assert process.wait_for(r"docs +(http.*)")[1] == f"{url}/docs"
        call(url, "slow:begin", "mutation")
        process.wait_for("job begun")
        process.tell(signal.SIGINT)
        process.wait_for("for 1 job. Press Ctrl-C again to abort.")
        process.tell(signal.SIGINT)
        assert process.end() == 130
        told = "".join(process.lines)
    assert re.search(r"^\d\d:\d\d:\d\d ok      mutation slow:begin  ", told, re.MULTILINE)
    assert "worker.started" not in told, "events that are usual are not shown"
    assert all(len(line) <= 81 for line in told.splitlines(keepends=True))


# ----- serve


def test_serve_serves_and_stops_gracefully(bookings: Console) -> None:
    with bookings.start("serve", "--port", "0", "--log-format", "json") as process:
        url = process.wait_for(r'"event": "server.started", "url": "([^"]+)"')[1]
        booking = call(url, "bookings:book", "mutation", customer="Ada", phone="1")
        assert call(url, "bookings:upcoming", customer="Ada")[0]["_id"] == booking
        with bookings.start("dev", "--port", url.rpartition(":")[2]) as other:
            assert other.end() == 1, "no change of the source corrects that"
            assert "error: Cannot listen on 127.0.0.1" in "".join(other.lines)
        process.tell(signal.SIGTERM)
        assert process.end() == 0
        assert "worker" not in "".join(process.lines)
    away = {"DATABASE_URL": "postgresql://127.0.0.1:1/x", "PENSTOCK_DATABASE_WAIT": "0.05"}
    with bookings.start("worker", **away) as process:
        assert process.end() == 1
        assert process.lines[0].startswith("error: Cannot connect to the database")


# ----- worker


@pytest.fixture
def slow(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A program whose job waits until someone writes to the file named gate; one job is waiting to be run."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    console.write("slow.py", SLOW)
    os.mkfifo(console.folder / "gate")
    console.ok("migrate")
    console.ok("run", "begin")
    return console


def stop_in_the_middle(process: Process) -> None:
    process.wait_for("job begun")
    process.tell(signal.SIGTERM)
    process.wait_for("services.stopping")


def test_a_worker_lets_running_jobs_finish(slow: Console) -> None:
    with slow.start("worker", "--jobs", "1") as process:
        process.wait_for("services.started services=worker")
        stop_in_the_middle(process)
        (slow.folder / "gate").write_text("opened")
        assert process.end() == 0
        assert process.lines[-1].rstrip().endswith("services.stopped")
    job = slow.ok("jobs", "--json").json["jobs"][0]
    assert (job["state"], job["result"]) == ("success", "opened")


ENDLESS = """
from datetime import timedelta

from penstock import App, MutationCtx, sync

app = App(grace=0.1)


@app.internal_mutation
async def begin(ctx: MutationCtx) -> None:
    await ctx.scheduler.run_after(timedelta(0), wait)


@app.action
def wait(ctx: sync.ActionCtx) -> None:
    print("job begun", flush=True)
    while True:
        pass

"""


def test_a_worker_ends_although_a_function_does_not(console: Console, database_url: str) -> None:
    console.write("endless.py", ENDLESS)
    console.ok("migrate", "--database", database_url)
    console.ok("run", "begin", "--database", database_url)
    with console.start("worker", "--database", database_url) as process:
        stop_in_the_middle(process)
        assert process.end() == 0
    said = "".join(process.lines)
    assert "handed_back=0 lost=1" in said
    assert "engine.functions_left functions=endless:wait" in said
    assert "process.ended threads=penstock-action-0-1" in said
    job = console.ok("jobs", "--json", "--database", database_url).json["jobs"][0]
    assert (job["state"], job["error"][:10]) == ("failed", "WorkerLost")


def test_a_second_signal_does_not_wait(slow: Console) -> None:
    with slow.start("worker") as process:
        stop_in_the_middle(process)
        process.tell(signal.SIGTERM)
        assert process.end() == 128 + signal.SIGTERM
    assert slow.ok("jobs", "--json").json["jobs"][0]["state"] == "running"
