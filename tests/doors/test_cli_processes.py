"""``--processes N``: a supervisor keeps so many processes at work, and ends with them."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from stage.waits import SOON, until

from penstock import TryAgain
from penstock.cli.processes import Place, config_at
from penstock.client import AsyncClient
from penstock.config import Config

PROGRAM = """
import os
from penstock import ActionCtx, App, MutationCtx, QueryCtx, Table, public
app = App()

class Note(Table):
    text: str

@app.mutation(access=public)
async def write(ctx: MutationCtx, text: str) -> None:
    await ctx.db.insert(Note(text=text))

@app.query(access=public)
async def read(ctx: QueryCtx) -> list[str]:
    return [note.text for note in await ctx.db.query(Note).collect()]

@app.action(access=public)
async def pid(ctx: ActionCtx) -> int:
    return os.getpid()
"""


class Supervisor:
    """A running command, its log, and the processes below it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def wait_for(self, pattern: str, times: int = 1) -> list[str]:
        """Read the log until this many more lines match; what their first groups hold."""
        assert self.process.stderr is not None
        found: list[str] = []
        while len(found) < times:
            line = self.process.stderr.readline()
            assert line, "".join(self.lines)
            self.lines.append(line)
            found += [match.group(1) for match in [re.search(pattern, line)] if match]
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SOON)


@contextmanager
def started(folder: Path, *arguments: str, database: str = "sqlite:///shop.db") -> Iterator[Supervisor]:
    (folder / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *arguments, "--app", "program.py", "--processes", "2"],
        cwd=folder, env={**os.environ, "PENSTOCK_DATABASE": database},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            yield Supervisor(process)
        finally:
            process.kill()


def pids(url: str) -> set[int]:
    """The processes that answer, each asked over a connection of its own."""
    asked = {"path": "program:pid", "args": {}}
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(transport=httpx.HTTPTransport(limits=limits)) as http:
        return {http.post(f"{url}/api/action", json=asked).json()["value"] for _ in range(12)}


async def write_on(url: str, name: str, written: set[str], doubtful: set[str], over: asyncio.Event) -> None:
    """Write notes one after another, whatever happens to the servers."""
    async with AsyncClient(url, timeout=SOON) as client:
        for number in itertools.count():
            if over.is_set():
                return
            text = f"{name}-{number}"
            try:
                await client.mutation("program:write", text=text)
                written.add(text)
            except TryAgain as error:
                if error.facts.get("uncertain"):
                    doubtful.add(text)


async def test_servers_share_a_port_and_what_was_answered_stays_while_they_are_killed(
    tmp_path: Path, database_url: str
) -> None:
    written, doubtful, over = set[str](), set[str](), asyncio.Event()
    with started(tmp_path, "serve", "--port", "0", database=database_url) as supervisor:
        url = (await asyncio.to_thread(supervisor.wait_for, r"server\.started url=(\S+)", 2))[0]
        writers = [asyncio.create_task(write_on(url, str(n), written, doubtful, over)) for n in range(3)]
        for _ in range(2):
            more = len(written) + 20
            await until(lambda more=more: len(written) >= more)  # type: ignore[misc]
            killed = min(await asyncio.to_thread(pids, url))
            os.kill(killed, signal.SIGKILL)
            (ended,) = await asyncio.to_thread(supervisor.wait_for, r"processes\.ended number=\d (.*)")
            assert ended in {"code=137 again_in=0.5", "code=137 again_in=1.0"}, "the same one, or another"
            await asyncio.to_thread(supervisor.wait_for, r"(server\.started)")
            assert killed not in await asyncio.to_thread(pids, url)
        over.set()
        await asyncio.gather(*writers)
        async with AsyncClient(url) as client:
            found = await client.query("program:read")
        assert await asyncio.to_thread(supervisor.stop) == 0
        with pytest.raises(httpx.ConnectError):
            pids(url)
    assert len(found) == len(set(found)), "nothing is written twice"
    assert written <= set(found) <= written | doubtful, "nothing that was answered is lost, nothing refused is there"


def test_workers_stop_on_control_c(tmp_path: Path) -> None:
    with started(tmp_path, "worker") as supervisor:
        supervisor.wait_for(r"(services\.started)", times=2)
        assert supervisor.stop(signal.SIGINT) == 0
        supervisor.wait_for(r"(services\.stopped)", times=2)


def test_processes_stop_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, "worker") as supervisor:
        supervisor.wait_for(r"(services\.started)", times=2)
        supervisor.process.kill()
        supervisor.wait_for(r"(services\.stopped)", times=2)


def test_what_keeps_one_from_starting_ends_all(tmp_path: Path) -> None:
    with started(tmp_path, "serve", "--port", "0", database="sqlite:///no/such/folder.db") as supervisor:
        assert supervisor.process.stderr is not None
        told = supervisor.process.stderr.read()
        assert "no/such" in told
        assert supervisor.process.wait(SOON) == 1


def test_each_process_has_a_port_of_its_own_for_metrics() -> None:
    line, _other = socket.socketpair()
    with line, _other:
        assert config_at(Place(2, line, None), Config(metrics_port=9000)).metrics_port == 9002
        assert config_at(Place(2, line, None), Config()).metrics_port == 0
        assert config_at(None, Config(metrics_port=9000)).metrics_port == 9000
