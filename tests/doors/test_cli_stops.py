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
from contextlib import contextmanager
from pathlib import Path

import pytest
from doors.cli_fixtures import Process
from stage import stubborn
from stage.examples import LONG
from stage.processes import TESTS

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


@contextmanager
def started(url: str, folder: Path, *arguments: str) -> Iterator[Process]:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    said = ("--app", "stage.stubborn", "--database", url, *arguments)
    with Process(folder, said, {"PYTHONPATH": path}) as process:
        yield process


def expect_end(process: Process) -> None:
    """SIGTERM must end the process; a process that does not end is killed, and the test fails."""
    process.tell(signal.SIGTERM)
    killer = threading.Timer(BOUND, process.tell, [signal.SIGKILL])
    killer.start()
    assert process.end() != -signal.SIGKILL, "it did not end"
    killer.cancel()


@pytest.mark.parametrize("kind", stubborn.KINDS if LONG else ("action", "thread", "block", "keep_interpreter", "acted"))
def test_a_worker_ends(database_url: str, tmp_path: Path, kind: str) -> None:
    asyncio.run(prepare(database_url, kind))
    with started(database_url, tmp_path, "worker") as process:
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


@pytest.mark.parametrize("name", CLIENTS)
def test_a_server_ends(database_url: str, tmp_path: Path, name: str) -> None:
    with started(database_url, tmp_path, "serve", "--port", "0", "--services") as process:
        port = int(process.wait_for(r"server.started url=.*:(\d+)")[1])
        with client(port, name):
            if name.startswith("waits"):
                process.wait_for("begun")
            expect_end(process)


@pytest.mark.parametrize("kind", ["acted", "block"])
def test_dev_ends(database_url: str, tmp_path: Path, kind: str) -> None:
    asyncio.run(prepare(database_url, kind))
    with started(database_url, tmp_path, "dev", "--port", "0", "--no-reload") as process:
        process.wait_for("begun")
        expect_end(process)


@pytest.mark.parametrize("name", ["reads a stream", "does not read a stream", "has a socket"])
def test_a_server_of_another_program_ends(database_url: str, tmp_path: Path, name: str) -> None:
    asyncio.run(prepare(database_url))
    (tmp_path / "mounted.py").write_text(MOUNTED)
    known = os.environ | {"PYTHONPATH": str(TESTS), "PENSTOCK_DATABASE": database_url}
    mounted = [sys.executable, "mounted.py"]
    ended = subprocess.Popen(mounted, cwd=tmp_path, env=known, stderr=subprocess.PIPE, text=True)
    try:
        assert ended.stderr is not None
        line = next(line for line in ended.stderr if "running on" in line)
        port = int(line.rpartition(":")[2].split()[0])
        with client(port, name):
            ended.send_signal(signal.SIGTERM)
            ended.wait(BOUND)
    finally:
        ended.kill()
        ended.communicate()
