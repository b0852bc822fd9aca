"""Programs in turn: each run on an empty database of one server, checked, and compared turn by turn.

Owns the servers' life and what counts as a sound run. Leaves what is compared with what to `bars`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from benchmarks.databases import Databases
from benchmarks.harness import Bar, Bench, spread
from benchmarks.peers.protocol import COUNTERS, STEPS, Outcome
from benchmarks.peers.sides import Side, Skip

_LONGEST = 300.0
_REDIS_ANSWERS_WITHIN = 5.0
_COUNTERS = f"""
create table counter (id integer primary key, count integer not null);
insert into counter select n, 0 from generate_series(0, {COUNTERS - 1}) as n;
"""
_WRONG = "select sum(count) <> $1::bigint or max(count) > $2::bigint from counter"

Number = Callable[[Outcome], float]


@dataclass(slots=True)
class Turns:
    """What sides have taken in turn.

    Attributes:
        taken: The outcomes of each side, turn by turn; of those that could be measured.
    """

    bench: Bench
    taken: dict[str, list[Outcome]] = field(default_factory=dict)

    def report(self, what: str, number: Number, unit: str = "") -> None:
        """Print a number of each side."""
        for name, outcomes in self.taken.items():
            values = [number(outcome) for outcome in outcomes]
            self.bench.row(spread(f"{name} {what}", values, unit))
            self.bench.report(f"{name}_{what}", statistics.median(values))

    def median(self, side: Side, number: Number) -> float | None:
        """The median of a side's numbers."""
        outcomes = self.taken.get(side.name)
        return None if outcomes is None else statistics.median(number(outcome) for outcome in outcomes)

    def hold_ratio(self, ours: Side, other: Side, number: Number, bar: Bar, label: str = "") -> None:
        """Hold the ratio of two sides' numbers, turn by turn, to a bar."""
        what = f"to_{label or other.name}"
        first, second = self.taken.get(ours.name), self.taken.get(other.name)
        if first is None or second is None:
            self.bench.hold(what, None, bar)
            return
        ratios = [number(a) / number(b) for a, b in zip(first, second, strict=True)]
        self.bench.row(spread(f"{ours.name} to {other.name}", ratios))
        self.bench.hold(what, statistics.median(ratios), bar)

    def best(self, sides: Sequence[Side], number: Number, *, greatest: bool) -> Side | None:
        """The side with the greatest, or the least, median; None if none was measured."""
        medians = {side: median for side in sides if (median := self.median(side, number)) is not None}
        choose = max if greatest else min
        return choose(medians, key=lambda side: medians[side]) if medians else None


async def take_turns(bench: Bench, most: int, sides: Sequence[Side], measure: str, *numbers: float) -> Turns:
    """Measure sides in turn, A B C C B A …; those that cannot be measured are named and left out.

    Args:
        bench: Says how much is measured, and where.
        most: Turns of each, at most.
        sides: What is measured.
        measure: One of the protocol's.
        numbers: What the measure is given.
    """
    turns = Turns(bench)
    usable = [side for side in sides if _is_prepared(side)]
    for turn in range(min(most, bench.sizes.turns)):
        for side in list(usable) if turn % 2 == 0 else list(reversed(usable)):
            try:
                outcome = await _measured(bench.databases, side, measure, *numbers)
            except Skip as reason:
                _skip(side, reason)
                usable.remove(side)
                turns.taken.pop(side.name, None)
            else:
                turns.taken.setdefault(side.name, []).append(outcome)
    turns.taken = {side.name: turns.taken[side.name] for side in usable}
    return turns


def _is_prepared(side: Side) -> bool:
    try:
        version = side.prepare()
    except Skip as reason:
        _skip(side, reason)
        return False
    if version:
        print(f"{side.name} {version}", flush=True)
    return True


def _skip(side: Side, reason: Skip) -> None:
    print(f"SKIP {side.name} {reason}", flush=True)


async def _measured(databases: Databases, side: Side, measure: str, *numbers: float) -> Outcome:
    """Run a program on an empty database, and check that each job was done once.

    Raises:
        Skip: The program failed, or lost or doubled jobs.
    """
    count = int(numbers[0])
    bumps = {"transactions": 1, "flows": STEPS}.get(measure, 0)
    async with _empty(databases, side) as url:
        if bumps and side.packages:
            await _execute(url, _COUNTERS)
        outcome = await _run(side, url, measure, *numbers)
        if bumps and await _fetch(url, _WRONG, count * bumps, -(-count // COUNTERS) * bumps):
            raise Skip("its transactions did not add exactly one each time")
    for what in ("distinct", "stored") if bumps else ("ran", "distinct", "stored"):  # a conflict runs a handler again
        if outcome.get(what, count) != count:
            raise Skip(f"{outcome[what]} jobs were counted as {what} instead of {count}")
    return outcome


async def _run(side: Side, url: str, measure: str, *numbers: float) -> Outcome:
    program = await asyncio.create_subprocess_exec(
        *side.command, url, measure, *map(str, numbers),
        cwd=side.workplace, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_LONGEST):
            output, errors = await program.communicate()
    except TimeoutError:
        raise Skip(f"its {measure} did not end within {_LONGEST:.0f} seconds") from None
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    if program.returncode or not output:
        print(errors.decode(), flush=True)
        raise Skip(f"its program failed with status {program.returncode}")
    outcome: Outcome = json.loads(output.splitlines()[-1])
    if "cannot" in outcome:
        raise Skip(outcome["cannot"])
    return outcome


# ----- servers


@asynccontextmanager
async def _empty(databases: Databases, side: Side) -> AsyncIterator[str]:
    if side.server != "redis":
        async with databases.fresh(side.server) as url:
            yield url
        return
    folder = databases.folder / "redis"
    folder.mkdir()
    socket = folder / "socket"
    server = await asyncio.create_subprocess_exec(
        "redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no",
        cwd=folder, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await _until_it_answers(str(socket))
        yield f"unix://{socket}"
    finally:
        server.kill()
        await server.wait()
        shutil.rmtree(folder)


async def _until_it_answers(socket: str) -> None:
    try:
        async with asyncio.timeout(_REDIS_ANSWERS_WITHIN):
            while True:
                try:
                    _, writer = await asyncio.open_unix_connection(socket)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return
    except TimeoutError:
        raise Skip("redis-server does not answer") from None


async def _execute(url: str, statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statements)
    finally:
        await connection.close()


async def _fetch(url: str, statement: str, *values: Any) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement, *values)
    finally:
        await connection.close()
