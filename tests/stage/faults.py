"""Faults: workers of workflows that are killed or suspended at their n-th named moment, and storms.

In a storm processes run a program while a fault strikes them again and again; then it is checked what they did.
`python -m stage.faults <services> <database> <module>:<app>` is such a process.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sqlite3
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock import App, MutationCtx, QueryCtx, Table
from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.observe import points
from penstock.store.session import reading
from penstock.testing import TestApp, gate
from stage.processes import Process
from stage.waits import until


class Effect(Table):
    what: str


def effects_in(app: App) -> tuple[Any, Any]:
    """A mutation of an app that writes an effect, and a query that lists all."""

    @app.internal_mutation
    async def do(ctx: MutationCtx, what: str) -> str:
        await ctx.db.insert(Effect(what=what))
        return what

    @app.internal_query
    async def effects(ctx: QueryCtx) -> list[str]:
        return [one.what for one in await ctx.db.query(Effect).collect()]

    return do, effects


MOMENTS = ("commit.before", "commit.after", "workflow.step_ran", "workflow.recorded", "workflow.sleeps")
EXPIRED = timedelta(seconds=31)


_frozen: ContextVar[bool] = ContextVar("frozen", default=False)  # whether this task is of a worker that is suspended


class Crash:
    """Holds the execution that comes to the n-th moment, until its worker is killed, or goes on."""

    def __init__(self, at: int, *, thaws: bool) -> None:
        self.left = at
        self.thaws = thaws
        self.came, self.goes_on = asyncio.Event(), asyncio.Event()
        self.moment = ""

    async def pass_by(self, moment: str) -> None:
        if self.thaws and (moment == "commit.before" or not _frozen.get()):
            return  # it would hold locks that others wait for
        self.left -= 1
        if self.left == 0:
            self.moment = moment
            self.came.set()
        if self.came.is_set():  # a process that is dead or suspended does nothing more
            await self.goes_on.wait()


@contextmanager
def crash(at: int, *, thaws: bool = False) -> Iterator[Crash]:
    """Crash at the n-th moment in a block."""
    made = Crash(at, thaws=thaws)

    def hold(moment: str) -> Any:
        async def come(**_facts: Any) -> None:
            await made.pass_by(moment)

        return come

    for moment in MOMENTS:
        points.arm(moment, hold(moment))
    try:
        yield made
    finally:
        for moment in MOMENTS:
            points.disarm(moment)


async def run_with_thaw(backend: TestApp, other: TestApp, at: int) -> str:
    """Run until idle, with the worker suspended at the n-th moment until another one has done the rest; the moment."""
    with crash(at, thaws=True) as made:
        work = asyncio.create_task(_work(backend))
        came = asyncio.create_task(made.came.wait())
        await asyncio.wait([work, came], return_when=asyncio.FIRST_COMPLETED)
        came.cancel()
        if made.came.is_set():
            backend.clock.advance(EXPIRED)
            await other.run_until_idle(raise_errors=False)
            made.goes_on.set()
        await work
    return made.moment


async def _work(backend: TestApp) -> None:
    _frozen.set(True)
    worker, clock = backend.worker, backend.clock
    while True:
        pause = await worker.tick()
        if worker.running or worker.open_outcomes or not pause:
            await worker.wait_for_jobs()
        elif worker.next_run_at is None or worker.next_run_at > clock.now() + timedelta(days=366):
            return
        else:
            clock.advance(max(worker.next_run_at - clock.now(), timedelta(0)))


async def run_with_crashes(backend: TestApp, crashes: list[int], *, advance: bool = True) -> list[str]:
    """Run until idle, with a crash at each of these numbers of moments, one after another; where they came."""
    found = []
    for at in crashes:
        with crash(at) as made:
            work = asyncio.ensure_future(backend.run_until_idle(advance=advance, raise_errors=False))
            came = asyncio.ensure_future(made.came.wait())
            await asyncio.wait([work, came], return_when=asyncio.FIRST_COMPLETED)
            came.cancel()
            if not made.came.is_set():
                await work
                break
            found.append(made.moment)
            work.cancel()  # or it would have the worker go on
            await asyncio.wait([work])
            await backend.worker.kill()
        backend.clock.advance(EXPIRED)
    await backend.run_until_idle(advance=advance, raise_errors=False)
    if (await backend.job_counts())["running"]:  # the dead worker has claimed one in its last moment
        backend.clock.advance(EXPIRED)
        await backend.run_until_idle(advance=advance, raise_errors=False)
    return found


LEASE = 1.0
MACHINE = SystemClock()


@dataclass(frozen=True)
class Program:
    """A program, what it is to do, and how far it has come with that.

    Attributes:
        app: The app.
        name: Where it is, as a module and a name in it.
        services: What its processes run.
        load: Gives them something to do; ends when all is given.
        progress: How much of it is done.
        total: How much that is in the end.
        count: How many processes there are.
        settings: Of its processes.
    """

    app: App
    name: str
    services: str
    load: Callable[[Storm], Awaitable[None]]
    progress: Callable[[Storm], Awaitable[int]]
    total: int
    count: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Storm:
    """The processes of a program, the one that has been there for the longest first, and when some have died."""

    program: Program
    backend: Backend
    url: str
    folder: Path
    stack: ExitStack
    processes: list[Process] = field(default_factory=list)
    deaths: dict[int, float] = field(default_factory=dict)
    frozen: bool = False  # whether a process was suspended, and has gone on

    def start(self) -> None:
        settings = {"lease": LEASE, "poll": 0.2, **self.program.settings}
        self.processes.append(serving(self.program.name, self.program.services, self.url, self.stack, **settings))

    async def has_done(self, count: int) -> None:
        async def enough() -> bool:
            return await self.program.progress(self) >= count

        await until(enough)


Act = Callable[[Storm], Awaitable[None]]


async def kill(storm: Storm) -> None:
    dying = storm.processes.pop(0)
    await asyncio.to_thread(dying.kill)
    storm.deaths[dying.number] = MACHINE.monotonic()
    storm.start()


async def freeze(storm: Storm) -> None:
    """Suspend a process until others have taken its leases over, and let it go on; not while it locks a file."""
    frozen, store = storm.processes.pop(0), storm.backend.engine.store

    async def is_taken_over() -> bool:
        async with reading(store.begin_read) as session:
            return not [one for one in await store.leases.list(session) if one.holder.endswith(f":{frozen.number}")]

    frozen.freeze()
    while _is_locked(storm.url):
        frozen.thaw()
        await MACHINE.sleep(0.001)
        frozen.freeze()
    storm.start()
    await until(is_taken_over)
    frozen.thaw()
    storm.frozen = True
    storm.processes.append(frozen)


def _is_locked(url: str) -> bool:
    """Whether somebody holds the write lock of a database that is a file."""
    if not url.startswith("sqlite"):
        return False
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
        connection.execute("rollback")
        return False


async def stop(storm: Storm) -> None:
    stopping = storm.processes.pop(0)
    assert await asyncio.to_thread(stopping.stop) == 0
    storm.start()


async def storm(program: Program, url: str, folder: Path, fault: Act, check: Act, strikes: int = 2) -> None:
    """Have a fault strike a program while it works, and check what it has done once it is done."""
    async with program.app.open(url, conflict_attempts=1000) as backend:
        with ExitStack() as stack:
            made = Storm(program, backend, url, folder, stack)
            for _ in range(program.count):
                made.start()
            loading: asyncio.Future[None] = asyncio.ensure_future(program.load(made))
            for number in range(1, strikes + 1):
                await made.has_done(program.total * number // (strikes + 2))
                await fault(made)
            await loading
            await made.has_done(program.total)
            for process in made.processes:
                assert await asyncio.to_thread(process.stop) == 0
            await check(made)


def serving(name: str, services: str, url: str, stack: ExitStack, **settings: Any) -> Process:
    process = Process(services, url, name, program="stage.faults", **settings)
    stack.callback(process.close)
    process.expect("ready")
    return process


# ----- limits


@dataclass
class History:
    """What ran when, as the jobs themselves have written down."""

    file: Path
    limits: list[tuple[float, int]]
    deaths: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.file.touch()

    def moves(self) -> list[tuple[float, int]]:
        """When one more began (1), and when one ended (-1)."""
        moves: list[tuple[float, int]] = []
        running: dict[int, int] = defaultdict(int)
        for line in self.file.read_text().splitlines():
            moment, process, what = line.split()
            step = 1 if what == "begins" else -1
            running[int(process)] += step
            moves.append((float(moment), step))
        for number, left in running.items():
            assert left == 0 or number in self.deaths, "what began has ended, or died"
            moves += [(self.deaths[number], -1)] * left if left else []
        return sorted(moves)

    def most(self) -> int:
        """How many ran at once, at most; fails if one began beyond the limit."""
        count = most = 0
        for moment, step in self.moves():
            count += step
            most = max(most, count)
            if step > 0:
                limit = [limit for since, limit in self.limits if since <= moment][-1]
                assert count <= limit, f"{count} ran at {moment}: {self.limits}"
        return most

    async def more_begin(self, count: int) -> None:
        wanted = self.file.read_text().count("begins") + count
        await until(lambda: self.file.read_text().count("begins") >= wanted)


# ----- gates


@asynccontextmanager
async def held(point: str, call: Any, when: Callable[..., bool] | None = None) -> AsyncIterator[asyncio.Task[Any]]:
    """Have a call come to a moment of the engine, and wait there for the time of a block; it ends after that."""
    with gate(point, most=1, when=when) as closed:
        task = asyncio.ensure_future(call)
        await closed.arrived()
        yield task
        closed.open()
        await task


async def main(services: Any, database: str, name: str, **settings: str) -> None:
    module, _, attribute = name.partition(":")
    app: App = getattr(importlib.import_module(module), attribute)
    async with app.open(services=tuple(services.split(",")), config=app.config(database=database, **settings)):
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await stopped.wait()


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    asyncio.run(main(*given, **dict(one[2:].split("=", 1) for one in sys.argv[1:] if one.startswith("--"))))
