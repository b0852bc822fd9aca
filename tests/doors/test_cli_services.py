"""Commands that run until they are told to stop, whatever handlers and clients do: dev and its lines, serve, worker."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from doors.cli_fixtures import HELLO, Console, Process
from programs import stubborn
from stage.needs import LONG
from stage.processes import TESTS
from stage.waits import SOON
from starlette.exceptions import HTTPException

from penstock import ApplicationError
from penstock.cli.devlog import DevFormatter
from penstock.observe.logs import event

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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def rss(pid: int) -> int:
    """Memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# ----- dev


def test_dev_serves_and_starts_again_when_the_source_changes(console: Console) -> None:
    console.write("penstock.toml", '[codegen]\npython = "clients"\n')
    console.write("hello.py", HELLO)
    with console.start("dev", "--port", "0") as process:
        url = process.wait_for(r"server +(http://127\.0\.0\.1:\d+)")[1]
        token = process.wait_for(r"token +(\S{40,})$")[1]
        suggestion = process.wait_for(r"curl .*")[0]
        assert suggestion.startswith(f"curl {url}/api/query")
        assert call(url, "hello:hello") == "hi"
        assert httpx.get(f"{url}/admin/tasks", timeout=SOON).status_code == 401
        assert rss(process.pid) < 80 * 1024 * 1024

        console.write(
            "hello.py", HELLO.replace('"hi"', '"second"').replace("(ctx: QueryCtx", "(ctx: QueryCtx, n: int = 1")
        )
        process.wait_for("hello.py changed")
        url = process.wait_for("ready at (.*)")[1]
        assert call(url, "hello:hello") == "second"
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/admin/tasks", headers=headers, timeout=SOON).json() == {"tasks": []}, "it is the same"
        assert console.ok("live", "--json").json["queries"] == [], "it finds the address and the token"
        process.wait_for(r"hello\.py:\d+:1: PEN006 hello: anyone who reaches")
        process.wait_for("penstock check --explain PEN006")
        assert "n: int" in (console.folder / "clients" / "api.py").read_text("utf-8"), "its clients are written"

        console.write("hello.py", HELLO + "import does_not_exist\n")
        process.wait_for("No module named 'does_not_exist'")
        process.wait_for("Waiting for a change")
        console.write("inner/__init__.py", "TEXT = 'third'\n")
        process.wait_for("Waiting for a change")
        console.write("hello.py", "from inner import TEXT\n" + HELLO.replace('"hi"', "TEXT"))
        assert call(process.wait_for("ready at (.*)")[1], "hello:hello") == "third"
        console.write("inner/__init__.py", "TEXT = 'the fourth'\n")
        process.wait_for("inner/__init__.py changed")
        assert call(process.wait_for("ready at (.*)")[1], "hello:hello") == "the fourth"

        process.tell(signal.SIGTERM)
        assert process.end() == 0
        assert not [line for line in process.lines if token in line and not line.startswith("  token ")]
        assert re.search(r"^(Stopping\.|Waiting up to 2 s for 1 call\.)", "".join(process.lines), re.MULTILINE), (
            "the server may not know yet that its answer has arrived"
        )


def test_dev_begins_with_an_empty_database_if_asked(console: Console) -> None:
    console.write("hello.py", HELLO)
    console.write("penstock.db", "no database")
    with console.start("dev", "--port", "0", "--reset") as process:
        process.wait_for(r"deleted penstock\.db")
        process.wait_for("Starts again when the source changes")
        console.write("hello.py", HELLO.replace('"hi"', '"second"'))
        process.wait_for("ready at (.*)")
        process.tell(signal.SIGTERM)
        assert process.end() == 0
        assert "deleted" not in "".join(process.lines[process.lines.index("deleted penstock.db\n") + 1 :]), "only once"
    with console.start("dev", "--no-reload", "--reset", DATABASE_URL="postgresql://127.0.0.1:1/x") as process:
        assert process.end() == 1
        assert "error: --reset deletes SQLite files only." in "".join(process.lines)


def test_dev_tells_of_runs_and_a_second_interrupt_aborts(console: Console) -> None:
    program = SLOW.replace("@app.internal_mutation", "@app.mutation(access=public)")
    console.write("slow.py", program.replace("MutationCtx, sync", "MutationCtx, public, sync"))
    os.mkfifo(console.folder / "gate")
    settings = {"COLUMNS": "80", "PENSTOCK_ADMIN_TOKEN": "let-me-in-please"}
    with console.start("dev", "--port", "0", "--no-reload", **settings) as process:
        url = process.wait_for(r"server +(http\S+)")[1]
        assert process.wait_for(r"docs +(http.*)")[1] == f"{url}/docs"
        assert process.wait_for(r"token +(.*)$")[1] == "the setting admin_token"
        call(url, "slow:begin", "mutation")
        process.wait_for("job begun")
        process.tell(signal.SIGINT)
        process.wait_for("for 1 job. Press Ctrl-C again to abort.")
        process.tell(signal.SIGINT)
        assert process.end() == 130
        told = "".join(process.lines)
        assert "let-me-in" not in told
    assert re.search(r"^\d\d:\d\d:\d\d ok      mutation slow:begin  ", told, re.MULTILINE)
    assert "worker.started" not in told, "events that are usual are not shown"
    assert all(len(line) <= 81 for line in told.splitlines(keepends=True))


# ----- serve


def test_serve_serves_and_stops_gracefully(bookings: Console) -> None:
    port = str(free_port())
    with bookings.start("serve", "--port", "0", "--log-format", "json", "--metrics-port", port) as process:
        process.wait_for(f'"server.metrics_started", "url": "http://127.0.0.1:{port}/metrics"')
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
def slow(shell: Console) -> Console:
    """A program whose job waits until someone writes to the file named gate; one job is waiting to be run."""
    shell.write("slow.py", SLOW)
    os.mkfifo(shell.folder / "gate")
    shell.ok("migrate")
    shell.ok("run", "begin")
    return shell


def stop_in_the_middle(process: Process) -> None:
    process.wait_for("job begun")
    process.tell(signal.SIGTERM)
    process.wait_for("services.stopping")


def test_a_worker_lets_running_jobs_finish(slow: Console) -> None:
    with slow.start("worker", "--jobs", "1", "--metrics-port", str(free_port())) as process:
        url = process.wait_for(r"server.metrics_started url=(\S+)")[1]
        process.wait_for("services.started services=worker")
        with httpx.Client(transport=httpx.HTTPTransport(retries=5)) as http:
            assert "penstock_database_up 1.0" in http.get(url).text
            assert http.get(url.replace("/metrics", "/api/query")).status_code == 404
        stop_in_the_middle(process)
        (slow.folder / "gate").write_text("opened")
        assert process.end() == 0
        assert process.lines[-1].rstrip().endswith("services.stopped")
    job = slow.ok("jobs", "--json").json["jobs"][0]
    assert (job["state"], job["result"]) == ("success", "opened")


def test_a_worker_runs_only_what_its_options_name(slow: Console) -> None:
    refused = slow("worker", "--pools", "defualt")
    assert (refused.code, "fix: Did you mean default?" in refused.err) == (1, True), refused.err
    with slow.start("worker", "--not-pools", "default", "--outboxes", "none", "--crons=none") as process:
        process.wait_for("services.started")
        (worker,) = slow.ok("top", "--once", "--json").json["workers"]
        assert worker["scope"] == {
            "pools": None, "not_pools": ["default"], "tasks": None, "outboxes": [], "crons": [],
        }  # fmt: skip
        assert "not pools default; no" in slow.ok("top", "--once").out
        (finding,) = (one for one in slow("doctor", "--json").json["findings"] if one["code"] == "work-unserved")
        assert finding["where"] == "pool default"
        process.tell(signal.SIGTERM)
        assert process.end() == 0
    assert slow.ok("jobs", "--json").json["jobs"][0]["state"] == "pending"


def test_a_second_signal_does_not_wait(slow: Console) -> None:
    with slow.start("worker") as process:
        stop_in_the_middle(process)
        process.tell(signal.SIGTERM)
        assert process.end() == 128 + signal.SIGTERM
    assert slow.ok("jobs", "--json").json["jobs"][0]["state"] == "running"


# ----- the lines of dev


def test_runs_and_errors_are_told_in_lines_that_fit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    caplog.set_level(logging.INFO, "penstock")
    formatter = DevFormatter(verbose=False)

    def shown() -> list[str]:
        records = [one for one in caplog.records if formatter.filter(one)]
        caplog.clear()
        return [line[9:] for record in records for line in formatter.format(record).splitlines()]

    def ran(name: str = "call.ran", error: Exception | None = None, **facts: Any) -> None:
        usual: dict[str, Any] = {"kind": "mutation", "function": "shop:book", "status": "success", "ms": 3.44}
        if error is not None:
            with pytest.raises(type(error)):
                raise error
            usual |= {"status": "failed", "error": error}
        event(name, logging.INFO, exc_info=error, **usual | {"read": 0, "written": 0} | facts)

    ran(read=1200, written=1, caller="ada")
    ran("job.ran", job="job_1", attempt=2, status="retrying", ms=12_345.0)
    ran("job.ran", job="job_1", attempt=1, task="to_erp", key='["order_1"]', read=10, written=10)
    event("worker.started", lease=1)
    assert shown() == [
        "ok      mutation shop:book                 3.4 ms  read 1,200, wrote 1",
        "        ada",
        "retry   job      shop:book                 12.3 s  attempt 2",
        "penstock jobs show job_1",
        "ok      task     to_erp                    3.4 ms  read 10, wrote 10",
        "        order_1",
    ]
    ran("job.ran", error=ApplicationError("Seat A1 is taken."), job="job_1")
    event("job.failed", logging.WARNING, job="job_1")
    _first, said, place, _hint = shown()
    assert (said, "test_cli_services.py:" in place) == ("ApplicationError: Seat A1 is taken.", True)
    ran(error=ValueError("full\x1b[2J"))
    event("http.request", method="POST", path="/api/query", function="shop:book", error="unexpected")
    assert shown()[-1].strip() == "ValueError: full␛[2J", "it is told once"
    ran(error=HTTPException(404))
    assert [line.strip() for line in shown()[1:]] == ["404: Not Found"]
    for error in ("", "its token has expired\x1b[2J"):
        event("socket.closed", client="npm-1.48.0", code=1000, reason="AuthError", error=error, seconds=1.0)
    assert shown() == ["refused socket    npm-1.48.0  its token has expired␛[2J"]


# ----- handlers and clients that do not end

BOUND = 60.0  # seconds; what fails never ends, and what passes takes about five
MOUNTED = """
import uvicorn
from programs.stubborn import app
from penstock import asgi_app

uvicorn.run(asgi_app(app), port=0, log_level="info")
"""


async def prepare(url: str, *kinds: str) -> None:
    async with stubborn.app.open(url) as backend:
        for kind in kinds:
            await backend.run_mutation(stubborn.begin_work, kind)


def started(console: Console, url: str, *arguments: str) -> Process:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    return console.start("--app", "programs.stubborn", "--database", url, *arguments, PYTHONPATH=path)


def expect_end(process: Process) -> None:
    """SIGTERM must end the process; a process that does not end is killed, and the test fails."""
    process.tell(signal.SIGTERM)
    killer = threading.Timer(BOUND, process.tell, [signal.SIGKILL])
    killer.start()
    assert process.end() != -signal.SIGKILL, "it did not end"
    killer.cancel()


AT_ONCE = ("action", "thread", "process", "shield", "task", "acted")
GROUPS = (AT_ONCE, ("mutation",))


@pytest.mark.parametrize("kinds", [*GROUPS, *((kind,) for kind in stubborn.KINDS if LONG)], ids=", ".join)
def test_a_worker_ends(console: Console, database_url: str, kinds: tuple[str, ...]) -> None:
    asyncio.run(prepare(database_url, *kinds))
    with started(console, database_url, "worker") as process:
        for _ in kinds:
            process.wait_for("begun")
        expect_end(process)
    if "thread" in kinds:
        told = "".join(process.lines)
        assert re.search(r"engine.functions_left functions=\S*stubborn:act_in_thread", told), told
        assert "process.ended threads=penstock-action-0-1" in told


def request(path: str, body: object = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    word = "GET" if body is None else "POST"
    head = f"{word} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
    return head.encode() + b"\r\n" + text


SOCKET = (
    b"GET /api/sync HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
CLIENTS = {
    "reads a stream": request("/api/subscribe?path=programs.stubborn:rows"),
    "does not read a stream": request("/api/subscribe?path=programs.stubborn:rows") * 3,
    "does not read answers": request("/api/query", {"path": "programs.stubborn:rows", "args": {}}) * 20,
    "has a socket": SOCKET,
    "waits for a query": request("/api/query", {"path": "programs.stubborn:look", "args": {}}),
    "waits for a mutation": request("/api/mutation", {"path": "programs.stubborn:enter", "args": {}}),
    "waits for an action": request("/api/action", {"path": "programs.stubborn:act", "args": {}}),
    "waits for a thread": request("/api/action", {"path": "programs.stubborn:act_in_thread", "args": {}}),
}


@contextmanager
def client(port: int, name: str) -> Iterator[None]:
    """A client that does what its name says."""
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", port))
        line.sendall(CLIENTS[name])
        if not name.startswith("waits"):
            assert line.recv(12).startswith(b"HTTP/1.1 ")
        done = threading.Event()
        reader = threading.Thread(target=read_all, args=(line,), daemon=True)
        if name == "reads a stream":
            reader.start()
        yield
        done.set()


def read_all(line: socket.socket) -> None:
    try:
        while line.recv(1 << 16):
            pass
    except OSError:
        pass


def test_a_server_ends_whatever_its_clients_do(console: Console, database_url: str) -> None:
    with started(console, database_url, "serve", "--port", "0", "--services") as process, ExitStack() as clients:
        port = int(process.wait_for(r"server.started url=.*:(\d+)")[1])
        for name in CLIENTS:
            clients.enter_context(client(port, name))
            if name.startswith("waits"):
                process.wait_for("begun")
        expect_end(process)


def test_a_server_of_another_program_ends(database_url: str, tmp_path: Path) -> None:
    asyncio.run(prepare(database_url))
    (tmp_path / "mounted.py").write_text(MOUNTED)
    known = os.environ | {"PYTHONPATH": str(TESTS), "PENSTOCK_DATABASE": database_url}
    mounted = [sys.executable, "mounted.py"]
    ended = subprocess.Popen(mounted, cwd=tmp_path, env=known, stderr=subprocess.PIPE, text=True)
    try:
        assert ended.stderr is not None
        line = next(line for line in ended.stderr if "running on" in line)
        port = int(line.rpartition(":")[2].split()[0])
        with client(port, "reads a stream"), client(port, "does not read a stream"), client(port, "has a socket"):
            ended.send_signal(signal.SIGTERM)
            ended.wait(BOUND)
    finally:
        ended.kill()
        ended.communicate()
