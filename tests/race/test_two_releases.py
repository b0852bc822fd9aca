"""Two releases of penstock, with one of a program each, run together on one database while processes are killed."""

from __future__ import annotations

import asyncio
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest
from stage.needs import LONG
from stage.repository import ROOT, alone, build, install, last_release, run, wheel_of
from stage.waits import until

from penstock.clock import SystemClock

pytestmark = pytest.mark.skipif(not LONG, reason="for make test-long")

SECONDS = 30.0
KILLED = (1, 3, 0, 1, 2, 3, 3, 1, 0, 2)  # which of the four processes, one after another
PARCELS = "select writer || '.' || number from parcel"
EFFECTS = "select parcel from effect"
KINDS = ("pack", "packed success", "shipped success", "later", "label", "book")


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The programs of the last release, and those of the working tree."""
    made = []
    for name in ("old", "new"):
        folder = tmp_path_factory.mktemp(name)
        wheel = wheel_of(last_release(), folder) if name == "old" else build(ROOT, folder, "wheel")
        made.append(install(wheel, folder / "venv", "postgres"))
    return made


class Service:
    """A server or a worker of one release; killed, another one takes its place."""

    def __init__(self, role: str, environment: dict[str, str], log: Path) -> None:
        self.role = role
        self.environment = environment
        self.log = log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    def start(self, programs: Path, program: str) -> None:
        options = ["--port", str(self.port)] if self.role == "serve" else []
        command = [str(programs / "penstock"), "--app", "programs.rolling:app", self.role, *options]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, env=self.environment | {"PROGRAM": program}, stderr=log)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


class Load:
    """Parcels that are placed one after another at a server, each until it is known that it was stored."""

    def __init__(self, writer: int, port: int) -> None:
        self.writer, self.port, self.number = writer, port, 0
        self.stored: list[str] = []
        self.maybe: set[str] = set()

    async def go_on(self, over: asyncio.Event) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=10) as client:
            while not over.is_set():
                self.number += 1
                name = f"{self.writer}.{self.number}"
                args = {"writer": self.writer, "number": self.number}
                try:
                    answer = await client.post("/api/mutation", json={"path": "programs.rolling:place", "args": args})
                except httpx.HTTPError:
                    self.maybe.add(name)  # its server was killed, or has not started
                    await SystemClock().sleep(0.1)
                    continue
                if answer.status_code == httpx.codes.OK and answer.json()["status"] == "success":
                    self.stored.append(name)
                else:
                    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
                    self.maybe.add(name)


def fetch(url: str, sql: str) -> list[str]:
    """The only column of all rows."""
    connect = (
        partial(sqlite3.connect, url.removeprefix("sqlite:///")) if "sqlite" in url else partial(psycopg.connect, url)
    )
    with closing(connect()) as connection:
        return [value for (value,) in connection.execute(sql)]


def heard(outside: Path) -> list[str]:
    """The parcels that the outside world was told of, in order."""
    return outside.read_text("utf-8").split()


def all_done(url: str, outside: Path) -> Callable[[], Awaitable[bool]]:
    async def done() -> bool:
        rows, found = len(fetch(url, PARCELS)), Counter(fetch(url, "select what from effect"))
        return all(found[kind] >= rows for kind in KINDS) and len(set(heard(outside))) >= rows

    return done


async def test_nothing_is_lost_or_done_twice_while_one_release_takes_the_place_of_another(
    empty_database_url: str, releases: list[Path], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    environment = alone(
        {
            "DATABASE_URL": empty_database_url,
            "OUTSIDE": str(outside),
            "PYTHONPATH": str(ROOT / "tests"),
            "PENSTOCK_LEASE": "3",
            "PENSTOCK_GRACE": "5",
        }
    )
    old, new = releases
    run(old / "penstock", "--app", "programs.rolling:app", "migrate", env=environment | {"PROGRAM": "1"})
    services = [
        Service(role, environment, tmp_path / f"{number}.log")
        for number, role in enumerate(("serve", "worker", "serve", "worker"))
    ]
    loads = [Load(number, services[number].port) for number in (0, 2)]
    over, kills, clock = asyncio.Event(), 0, SystemClock()
    with ExitStack() as stack:
        for service in services[:2]:
            service.start(old, "1")
            stack.callback(service.end, signal.SIGKILL)
        writing = [asyncio.ensure_future(load.go_on(over)) for load in loads]
        await clock.sleep(SECONDS / 6)
        await asyncio.to_thread(
            run, new / "penstock", "--app", "programs.rolling:app", "migrate", env=environment | {"PROGRAM": "2"}
        )
        for service in services[2:]:
            service.start(new, "2")
            stack.callback(service.end, signal.SIGKILL)
        begun = clock.monotonic()
        while clock.monotonic() - begun < SECONDS:
            await clock.sleep(2)
            number = KILLED[kills % len(KILLED)]
            services[number].end(signal.SIGKILL)
            services[number].start(*((old, "1") if number < 2 else (new, "2")))
            kills += 1
        for service in services[:2]:  # the new release takes the place of the old one
            assert await asyncio.to_thread(service.end, signal.SIGTERM) in {0, -signal.SIGTERM}, service.log.read_text()
            service.start(new, "2")
        await clock.sleep(SECONDS / 6)
        over.set()
        await asyncio.gather(*writing)
        await until(all_done(empty_database_url, outside))
    rows = sorted(fetch(empty_database_url, PARCELS))
    done = Counter(fetch(empty_database_url, "select what from effect"))
    assert done == dict.fromkeys(KINDS, len(rows))
    for kind in KINDS:
        assert sorted(fetch(empty_database_url, f"{EFFECTS} where what = '{kind}'")) == rows, kind
    stored = {name for load in loads for name in load.stored}
    assert stored <= set(rows) <= stored.union(*(load.maybe for load in loads))
    told = list(dict.fromkeys(heard(outside)))
    assert sorted(told) == rows
    for load in loads:
        numbers = [int(name.split(".")[1]) for name in told if name.startswith(f"{load.writer}.")]
        assert numbers == sorted(numbers)
    sys.stdout.write(f"{len(rows)} parcels, {len(stored)} acknowledged, {kills} kills, {len(heard(outside))} told\n")
