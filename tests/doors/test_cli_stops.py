"""SIGTERM ends each command that serves within the grace time and a moment, whatever handlers and clients do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stage import stubborn
from stage.examples import LONG
from stage.processes import TESTS

if TYPE_CHECKING:
    from doors.cli_fixtures import Console, Process

pytest_plugins = ("doors.cli_fixtures",)

BOUND = 60.0  # seconds; what fails never ends, and what passes takes about five
MOUNTED = """
import uvicorn
from stage.stubborn import app
from penstock import asgi_app

uvicorn.run(asgi_app(app), port=0, log_level="info")
"""


async def prepare(url: str, *kinds: str) -> None:
    async with stubborn.app.open(url) as backend:
        for kind in kinds:
            await backend.run_mutation(stubborn.begin_work, kind)


def started(console: Console, url: str, *arguments: str) -> Process:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    return console.start("--app", "stage.stubborn", "--database", url, *arguments, PYTHONPATH=path)


def expect_end(process: Process) -> None:
    """SIGTERM must end the process; a process that does not end is killed, and the test fails."""
    process.tell(signal.SIGTERM)
    killer = threading.Timer(BOUND, process.tell, [signal.SIGKILL])
    killer.start()
    assert process.end() != -signal.SIGKILL, "it did not end"
    killer.cancel()


ENDLESS = ("action", "thread", "process", "shield", "task", "acted")
GROUPS = (ENDLESS, ("mutation",), ("keep_interpreter",))


@pytest.mark.parametrize("kinds", [*GROUPS, *((kind,) for kind in stubborn.KINDS if LONG)], ids=", ".join)
def test_a_worker_ends(console: Console, database_url: str, kinds: tuple[str, ...]) -> None:
    asyncio.run(prepare(database_url, *kinds))
    with started(console, database_url, "worker") as process:
        for _ in kinds:
            process.wait_for("begun")
        expect_end(process)


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
    "reads a stream": request("/api/subscribe?path=stage.stubborn:rows"),
    "does not read a stream": request("/api/subscribe?path=stage.stubborn:rows") * 3,
    "does not read answers": request("/api/query", {"path": "stage.stubborn:rows", "args": {}}) * 20,
    "has a socket": SOCKET,
    "waits for a query": request("/api/query", {"path": "stage.stubborn:look", "args": {}}),
    "waits for a mutation": request("/api/mutation", {"path": "stage.stubborn:enter", "args": {}}),
    "waits for an action": request("/api/action", {"path": "stage.stubborn:act", "args": {}}),
    "waits for a thread": request("/api/action", {"path": "stage.stubborn:act_in_thread", "args": {}}),
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


def test_dev_ends(console: Console, database_url: str) -> None:
    asyncio.run(prepare(database_url, "acted"))
    with started(console, database_url, "dev", "--port", "0", "--no-reload") as process:
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
