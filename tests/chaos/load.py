"""The load: a database, the processes that work, write and watch on it, and their traces."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from chaos.patroni import PROGRAMS, Patroni, patroni
from chaos.program import WRITERS
from stage.postgres import Proxy, Replica, Server, replicated, server
from stage.processes import TESTS, Process
from stage.servers import PgBouncer, pgbouncer

from penstock.clock import SystemClock

MACHINE = SystemClock()
LEASE = 5.0
_POLL = 0.3
_WORKERS, _WRITING = 3, 2  # processes
_ROOM = "1g"  # of a disk that gets full; 20,000 rows take up to half of it
_ROOMY = "max_connections = 200\n"  # six processes open up to 26 each


class NotRunError(Exception):
    """A fault cannot be made on this machine."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is written: parcels of each of the writers, and jobs with each parcel."""

    rows: int
    jobs: int
    only_flows: bool = False  # whether all jobs are runs of workflows

    @property
    def words(self) -> str:
        parcels = self.rows * WRITERS
        messages = 2 * parcels + self.rows // 2 * WRITERS
        return (
            f"{parcels * self.jobs:,} {'runs' if self.only_flows else 'jobs'}, {messages:,} messages, {parcels:,} rows"
        )


@dataclass
class Place:
    store: str
    url: str  # for the processes under test
    own_url: str  # past all proxies, for those who count
    server: Server | None = None
    standby: Replica | None = None
    proxy: Proxy | None = None
    pooler: PgBouncer | None = None
    cluster: Patroni | None = None
    disk: Path | None = None
    older: Sequence[str] = ()  # the command within which one more worker runs, which is of an older release


@dataclass
class Load:
    place: Place
    folder: Path
    size: Size
    workers: list[Process] = field(default_factory=list)
    others: list[Process] = field(default_factory=list)
    deaths: dict[int, float] = field(default_factory=dict)
    frozen: list[tuple[int, float, float]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # when each fault was over
    takeovers: list[tuple[str, float]] = field(default_factory=list)  # by what, and when
    port: int = 0  # of the server process, if there is one
    moments: Iterator[str] | None = None  # at which the next workers will kill themselves, if they do
    skew: float = 0.0  # seconds by which the clock of all processes is wrong, where they share one
    _next: Iterator[int] = field(default_factory=itertools.count)
    _starting: list[Process] = field(default_factory=list)

    def start_worker(self) -> None:
        dies = {} if self.moments is None else {"dies": next(self.moments)}
        self.workers.append(self._process("work", skew=self.skew, **dies))
        self._starting.append(self.workers[-1])

    def all_start(self) -> None:
        while self._starting:
            if (worker := self._starting.pop()) in self.workers:
                worker.expect("ready")

    def start(self) -> list[Process]:
        for _ in range(_WORKERS):
            self.start_worker()
        part = WRITERS // _WRITING
        sizes = (str(part), str(self.size.rows), str(self.size.jobs))
        writing = [self._process("write", str(number * part), *sizes) for number in range(_WRITING)]
        self.others = [*writing, self._process("watch")]
        if self.place.older:
            self.others.append(self._process("work", within=self.place.older))
        self.all_start()
        for process in self.others:
            process.expect("ready")
        return writing

    def kill(self) -> None:
        worker = self.workers.pop(0)
        worker.kill()
        self._replace(worker)

    def replace_dead(self) -> None:
        """Start a worker in the place of each that has killed itself."""
        for worker in [one for one in self.workers if one.exit_status is not None]:
            self.workers.remove(worker)
            self._replace(worker)

    def _replace(self, worker: Process) -> None:
        self.deaths[worker.number] = MACHINE.monotonic()
        worker.close()
        self.start_worker()

    def calm(self) -> None:
        """Let no worker kill itself any more."""
        if self.moments is not None:
            self.moments = None
            for _ in self.workers[:]:
                self.kill()

    @property
    def traces(self) -> int:
        """The size of all traces, which grows while something is done."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    async def freeze(self, seconds: float) -> None:
        worker = self.workers[next(self._next) % len(self.workers)]
        begun = MACHINE.monotonic()
        worker.freeze()
        await MACHINE.sleep(seconds)
        worker.thaw()
        self.frozen.append((worker.number, begun, MACHINE.monotonic()))

    def stop(self) -> None:
        for process in (*self.workers, *self.others):
            if process.exit_status is None:
                process.stop()
            process.close()

    def close(self) -> None:
        for process in (*self.workers, *self.others):
            process.close()

    def _process(self, role: str, *arguments: str, within: Sequence[str] = (), **options: object) -> Process:
        settings = {"lease": LEASE, "poll": _POLL, "database_wait": 5} | options
        return Process(role, self.place.url, *arguments, program="chaos.roles", within=within, **settings)


@asynccontextmanager
async def placed(store: str, needs: str) -> AsyncIterator[Place]:
    """A database for the time of a block.

    Args:
        store: ``sqlite`` or ``postgres``.
        needs: What the fault needs of it: ``disk``, ``proxy``, ``http``, ``standby``, ``standby behind a pooler``,
            ``patroni``, ``patroni behind a pooler``, ``older program``, ``older penstock``, or nothing.
    """
    async with AsyncExitStack() as stack:
        older: list[str] = ["env", "CHAOS_RELEASE=older"] if needs.startswith("older") else []
        if needs == "older penstock":
            if not (source := os.environ.get("CHAOS_OLDER")):
                raise NotRunError("CHAOS_OLDER names no checkout of an older penstock")
            older.append(f"PYTHONPATH={source}/src{os.pathsep}{TESTS}")
        disk = stack.enter_context(small_disk()) if needs == "disk" else None
        if store == "sqlite":
            folder = disk or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-chaos-")))
            url = f"sqlite:///{folder}/chaos.db"
            yield Place(store, url, url, disk=disk, older=older)
        elif needs in {"standby", "standby behind a pooler"}:
            primary, standby = stack.enter_context(replicated(_ROOMY))
            await make_synchronous(primary)
            place = Place(store, in_one(primary, standby), in_one(primary, standby), primary, standby)
            if needs != "standby":
                place.pooler = stack.enter_context(pgbouncer(primary.url, default_pool_size="20"))
                await place.pooler.start()
                place.url = place.pooler.url
            yield place
        elif needs in {"patroni", "patroni behind a pooler"}:
            if missing := [name for name in PROGRAMS if not shutil.which(name)]:
                raise NotRunError(f"{' and '.join(missing)} are missing")
            cluster = stack.enter_context(patroni(pooled=needs != "patroni"))
            await cluster.start()
            url = cluster.pooler.url if cluster.pooler else cluster.url
            yield Place(store, url, cluster.url, cluster=cluster)
        else:
            with patch("tempfile.tempdir", str(disk) if disk else tempfile.gettempdir()):
                own = stack.enter_context(server(f"{_ROOMY}max_wal_size = 64MB\nmin_wal_size = 32MB\n"))
            proxy = await stack.enter_async_context(Proxy(own.url).running()) if needs == "proxy" else None
            yield Place(store, proxy.url if proxy else own.url, own.url, own, proxy=proxy, disk=disk, older=older)


def in_one(primary: Server, standby: Server) -> str:
    """One URL of both servers; a connection leads to the one that takes writes."""
    hosts = ",".join(one.url.partition("host=")[2] for one in (primary, standby))
    return f"postgresql://postgres@/postgres?host={hosts}&port=5432,5432&target_session_attrs=read-write"


async def make_synchronous(primary: Server) -> None:
    sql = "alter system set synchronous_standby_names = '*'"
    primary.program(
        "psql", "--dbname", primary.url, "--quiet", "--command", sql, "--command", "select pg_reload_conf()"
    )


@contextmanager
def small_disk() -> Iterator[Path]:
    """A disk of its own, which can be filled without harm to others."""
    if os.geteuid() != 0:
        raise NotRunError("only root can mount a small disk")
    with tempfile.TemporaryDirectory(prefix="penstock-disk-") as folder:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_ROOM},mode=777", "tmpfs", folder], capture_output=True, check=False
        )
        if made.returncode:
            raise NotRunError("this machine mounts no small disk")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
