"""Measuring: two sides in turn, medians over pairs, and the lines that tell the outcome.

Owns how time is taken and how an outcome is printed. Leaves what is measured to one file per group of benchmarks.

Machines are noisy, so two sides are never measured one after the other but in many short turns, A B B A A B …; each
turn is compared with its neighbour, and the median of these ratios is the outcome.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.databases import Databases


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        pairs: Turns of each side.
        seconds: Length of one turn.
        rows: Rows of the tables that are read and written.
        later: Jobs scheduled for later while claims are measured.
        planned: Rows for which tasks plan runs.
        claims: Claims measured on each side.
        actions: Jobs without effect that a worker drains; actions.
        mutations: The same; mutations.
        drains: How often it does so.
        flows: Runs of a workflow that a worker drains.
        sleepers: Runs of a workflow that sleep.
        due: Runs that are due within a second.
        steps: Steps of a run that is replayed.
        parts: Parts that a run waits for.
        turns: Turns of each program, where programs are measured beside each other.
        hot: Seconds of one turn of the callers of one row, who begin by conflicting.
        singles: Jobs stored one by one.
        batch: Jobs stored all at once.
        pickups: Jobs that an idle worker picks up.
        starts: Starts of fresh interpreters.
        settle: Seconds until a program that was started counts as idle.
        sockets: Clients of live queries.
        socket_writes: Writes that they are told of.
        tokens: Tokens that are verified.
        searched: Rows of the table that is searched.
    """

    pairs: int = 9
    seconds: float = 0.125
    rows: int = 10_000
    later: int = 1_000_000
    planned: int = 20_000
    claims: int = 60
    actions: int = 10_000
    mutations: int = 3_000
    flows: int = 1000
    sleepers: int = 100_000
    due: int = 10_000
    steps: int = 1000
    parts: int = 1000
    drains: int = 3
    turns: int = 5
    hot: float = 1.0
    singles: int = 2_000
    batch: int = 100_000
    pickups: int = 160
    starts: int = 7
    settle: float = 2.0
    sockets: int = 1_000
    socket_writes: int = 40
    tokens: int = 20_000
    searched: int = 1_000_000


QUICK = Sizes(
    pairs=1,
    seconds=0.05,
    rows=200,
    later=2_000,
    planned=2_000,
    claims=5,
    actions=200,
    mutations=50,
    flows=20,
    sleepers=1000,
    due=100,
    steps=50,
    parts=20,
    drains=1,
    turns=1,
    hot=0.1,
    singles=50,
    batch=1_000,
    pickups=40,
    starts=1,
    settle=1.0,
    sockets=20,
    socket_writes=4,
    tokens=200,
    searched=2_000,
)


@dataclass(frozen=True, slots=True)
class Bar:
    """What a measured number must be: at least, or at most, so much."""

    at_least: float | None = None
    at_most: float | None = None

    def holds(self, measured: float) -> bool:
        """Whether a number meets it."""
        enough = self.at_least is None or measured >= self.at_least
        return enough and (self.at_most is None or measured <= self.at_most)

    def __str__(self) -> str:
        return f">={self.at_least:.2f}" if self.at_least is not None else f"<={self.at_most:g}"


class CannotMeasureError(Exception):
    """What is to be measured is not there; the message says why."""


@dataclass(slots=True)
class Bench:
    """What a benchmark is given: how much to measure, where, and how to tell of it.

    Attributes:
        name: The benchmark's name.
        sizes: How much to measure.
        databases: Gives fresh databases.
        met: Whether all bars that numbers were held to so far are met.
    """

    name: str
    sizes: Sizes
    databases: Databases
    met: bool = field(default=True, init=False)

    def row(self, *columns: str) -> None:
        """Print a line for people: what was measured, in columns."""
        print(f"{self.name:<28} " + "  ".join(columns), flush=True)

    def report(self, what: str, value: float) -> None:
        """Print a number that has no bar."""
        print(f"REPORT {self._full(what)} {plain(value)}", flush=True)

    def hold(self, what: str, measured: float | None, bar: Bar, otherwise: str = "none") -> None:
        """Hold a number to a bar, and print the outcome; `otherwise` stands for a number that could not be had."""
        holds = measured is not None and bar.holds(measured)
        number = otherwise if measured is None else plain(measured)
        print(f"BAR {self._full(what)} {number} {bar} {'ok' if holds else 'short'}", flush=True)
        self.met = self.met and holds

    def _full(self, what: str) -> str:
        return f"{self.name}_{what}" if what else self.name


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark that can be chosen by its name.

    Attributes:
        run: Measures; its result is the number that the bar is about, or None if it has reported all by itself.
        bar: What the result must be; without a bar it is only reported.
        uvloop: Whether it runs on uvloop instead of asyncio's own event loop.
    """

    name: str
    run: Callable[[Bench], Awaitable[float | None]]
    bar: Bar | None = None
    uvloop: bool = False


# ----- two sides


@dataclass(slots=True)
class Side:
    """One of two sides: callers that do the same thing again and again, all at once.

    Attributes:
        label: How it is called in the output.
        callers: One function for each caller; or a single one that is not async, for a loop in one thread.
        done: Calls made so far, in all turns.
    """

    label: str
    callers: Sequence[Callable[[], Awaitable[Any]]] | Callable[[], Any]
    done: int = field(default=0, init=False)

    async def turn(self, seconds: float) -> float:
        """Make calls for some time; calls per second of all callers."""
        gc.collect()
        begun = time.perf_counter()
        end = begun + seconds
        if callable(self.callers):
            done = _repeat(self.callers, end)
        else:
            done = sum(await asyncio.gather(*(_repeat_async(caller, end) for caller in self.callers)))
        self.done += done
        return done / (time.perf_counter() - begun)


def _repeat(call: Callable[[], Any], end: float) -> int:
    for done in itertools.count(1):
        call()
        if time.perf_counter() >= end:
            return done
    raise AssertionError


async def _repeat_async(call: Callable[[], Awaitable[Any]], end: float) -> int:
    for done in itertools.count(1):
        await call()
        if time.perf_counter() >= end:
            return done
    raise AssertionError


async def compare(bench: Bench, ours: Side, bare: Side, *, finer: int = 1) -> float:
    """Measure two sides in turn, print their rates, and give the median of the ratios, pair by pair.

    What waits for a disk takes its turns `finer`: so many times as many, each so much shorter.
    """
    sizes = replace(bench.sizes, pairs=bench.sizes.pairs * finer, seconds=bench.sizes.seconds / finer)
    for side in (ours, bare):
        await side.turn(sizes.seconds)  # connections opened, statements prepared
    rates: dict[str, list[float]] = {ours.label: [], bare.label: []}
    for pair in range(sizes.pairs):
        for side in (ours, bare) if pair % 2 == 0 else (bare, ours):
            rates[side.label].append(await side.turn(sizes.seconds))
    ratios = [a / b for a, b in zip(rates[ours.label], rates[bare.label], strict=True)]
    bench.row(*(spread(label, side, "/s") for label, side in rates.items()), spread("ratio", ratios))
    return statistics.median(ratios)


async def alternate(
    pairs: int, first: Callable[[], Awaitable[float]], second: Callable[[], Awaitable[float]]
) -> tuple[list[float], list[float]]:
    """Take two measurements in turn, A B B A …, and give both lists."""
    taken: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            taken[side].append(await (second if side else first)())
    return taken


# ----- words


def spread(label: str, values: Sequence[float], unit: str = "") -> str:
    """Least, median and greatest of some numbers, for people."""
    least, median, most = (plain(value) for value in (min(values), statistics.median(values), max(values)))
    return f"{label} {least} / {median} / {most}{unit}"


def plain(value: float) -> str:
    """A number with no more digits than mean something."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def machine_facts() -> list[str]:
    """What numbers of this run depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 0.0
    system, python = f"{platform.system()} {platform.release()}", platform.python_version()
    drivers = f"asyncpg {version('asyncpg')}, SQLite {sqlite3.sqlite_version}"
    return [
        f"machine: {_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {system}, load {os.getloadavg()[0]:.2f}",
        f"software: {platform.python_implementation()} {python}, {drivers}, pydantic {version('pydantic')}",
        f"disk: fsync of 4 KiB takes {_fsync_ms():.2f} ms in {tempfile.gettempdir()}",
        "columns: least / median / greatest of all turns",
    ]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _fsync_ms() -> float:
    taken = []
    with tempfile.TemporaryFile() as file:
        for _ in range(50):
            file.write(bytes(4096))
            file.flush()
            begun = time.perf_counter()
            os.fsync(file.fileno())
            taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)
