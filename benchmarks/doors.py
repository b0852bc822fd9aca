"""How long others wait while one anonymous client sends the worst that the server reads.

The client is a process of its own, which sends documents of many shapes, each over one connection and then over ten at
once. Meanwhile ``/healthz`` is asked again and again. The outcome is its slowest answer, in milliseconds of the
server's own processor time: so long it takes where nothing else runs. The time on the clock is told beside it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.footprint import dev_program, family
from benchmarks.harness import Bar, Bench, Benchmark, CannotMeasureError, spread

_PROGRAM = """
from typing import Any

from penstock import App, QueryCtx

app = App()


@app.query
async def take(ctx: QueryCtx, value: Any) -> None:
    pass
"""
_PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
_PAUSE = 0.005
_CONNECTIONS = (1, 10)


def shapes(size: int) -> Iterator[tuple[str, str]]:
    """JSON texts of about this size, by name: what is slow to read, and slow to refuse."""
    yield "one text", f'"{"x" * size}"'
    yield "escapes", f'"{chr(92) * 2 * (size // 2)}"'
    yield "small numbers", f"[{'1,' * (size // 2)}1]"
    yield "large numbers", f"[{('9' * 4000 + ',') * (size // 4001)}1]"
    yield "keys", f"{{{','.join(f'{chr(34)}{number:x}{chr(34)}:1' for number in range(size // 10))}}}"
    deep = "[" * 60 + "]" * 60 + ","
    some = size // 32 // 60 - 1
    yield "deep", f"[{deep * some}{'1,' * ((size - some * len(deep)) // 2)}1]"
    yield "arrays", f"[{'[],' * (size // 32 - 50)}{'1,' * ((size - size * 3 // 32) // 2)}1]"
    yield "very deep", f"[{deep * (size // len(deep))}1]"
    yield "very many arrays", f"[{'[],' * (size // 3)}1]"


async def longest_wait(bench: Bench) -> float:
    """The slowest answer of ``/healthz`` in milliseconds, over all that is sent."""
    slowest = on_the_clock = 0.0
    mib = 1024 * 1024
    async with dev_program(bench, _PROGRAM) as (process, host, port):
        server = _Server(host, port, tuple(family(process.pid)))
        alone, _ = await _probe(server, bench.sizes.seconds * 5)
        bench.row(spread("alone", alone, " ms"))
        sent = [(mib - 1000, name, connections) for name, _ in shapes(1000) for connections in _CONNECTIONS]
        sent += [(15 * mib, name, _CONNECTIONS[-1]) for name in ("one text", "very deep")]  # too large to be read
        for size, name, connections in sent:
            taken, seen = await _beside(server, size, name, connections, bench.sizes.seconds * 5)
            bench.row(f"{size / mib:.0f} MiB, {name}, {connections} at once", spread("", taken, " ms"))
            slowest, on_the_clock = max(slowest, *taken), max(on_the_clock, *seen)
    bench.report("on_the_clock", on_the_clock)
    return slowest


@dataclass(frozen=True, slots=True)
class _Server:
    """Where a server listens, and its processes."""

    host: str
    port: int
    processes: tuple[int, ...]

    def spent(self) -> float:
        """Milliseconds of processor time that it has had."""
        files = [file for pid in self.processes for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        if not files:
            raise CannotMeasureError("this system does not tell how long threads have run")
        found = 0
        for file in files:
            with suppress(OSError):  # a thread that has just ended
                found += int(file.read_text("ascii").split()[0])
        return found / 1_000_000


async def _beside(
    server: _Server, size: int, name: str, connections: int, seconds: float
) -> tuple[list[float], list[float]]:
    sender = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.doors", server.host, str(server.port), str(size), name, str(connections),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert sender.stdout is not None
    await sender.stdout.readline()  # it has sent
    try:
        return await _probe(server, seconds)
    finally:
        sender.kill()
        await sender.wait()


async def _probe(server: _Server, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds until each of many answers, over a new connection each time: the server's own, and on the clock."""
    taken, seen, end = list[float](), list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end:
        spent, begun = server.spent(), time.perf_counter()
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(_PROBE)
        await reader.readuntil(b"alive")
        seen.append((time.perf_counter() - begun) * 1000)
        taken.append(server.spent() - spent)
        writer.close()
        await asyncio.sleep(_PAUSE)
    return taken, seen


async def _send(host: str, port: int, size: int, name: str, connections: int) -> None:
    """Send a document again and again, until killed."""
    body = f'{{"path": "main:take", "args": {{"value": {dict(shapes(size))[name]}}}}}'.encode()
    head = f"POST /api/query HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()

    async def one() -> None:
        while True:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(head + body)
            print(flush=True)
            await reader.read()
            writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(one())


BENCHMARKS = [Benchmark("door_wait", longest_wait, Bar(at_most=150))]

if __name__ == "__main__":
    asyncio.run(_send(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
