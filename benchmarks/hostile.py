"""The main bars on a machine that is busy, and with a database that is far away: nothing may fall off a cliff.

``hostile_busy``: beside four busy loops. ``hostile_slow``: PostgreSQL answers five milliseconds later. Each row tells
its rate, and how much that is of its rate on the same machine right before, without the fault. A thousand jobs show
that as well as more do, and end in time where each waits for the database again and again.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

from benchmarks.databases import Databases, StoreName
from benchmarks.harness import Bar, Bench, Benchmark, plain
from benchmarks.prices import callers_rate, drain_rate

_LOOPS, _DELAY = 4, 0.005
_LOOP = "while True: pass"
_PROXY = """
import asyncio, sys

host, port, delay = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


async def pump(reader, writer):
    loop = asyncio.get_running_loop()
    while data := await reader.read(65536):
        loop.call_later(delay / 2, writer.write, data)
    loop.call_later(delay, writer.close)


async def handle(reader, writer):
    if host.startswith("/"):
        there = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    else:
        there = await asyncio.open_connection(host, port)
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer), return_exceptions=True)


async def main():
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
_JOBS = ("plain", "on_complete", "by_index", "two_writes", "mutation_task")
_CALLERS = 16
_MOST = 1000  # jobs


@asynccontextmanager
async def _busy(_databases: Databases) -> AsyncIterator[None]:
    loops = [await asyncio.create_subprocess_exec(sys.executable, "-c", _LOOP) for _ in range(_LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            await loop.wait()


@asynccontextmanager
async def _slow(databases: Databases) -> AsyncIterator[None]:
    """Have PostgreSQL answer later, for a block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROXY, *databases.address, str(_DELAY)), stdout=asyncio.subprocess.PIPE
    )
    try:
        if process.stdout is None:
            raise RuntimeError("The proxy has no output.")
        with databases.behind(int(await process.stdout.readline())):
            yield
    finally:
        process.kill()
        await process.wait()


Fault = Callable[[Databases], AbstractAsyncContextManager[None]]


async def hostile(bench: Bench, fault: Fault, stores: tuple[StoreName, ...], least: float) -> None:
    """The rates of the main rows, with and without a fault."""
    fewer = replace(bench, sizes=replace(bench.sizes, mutations=min(bench.sizes.mutations, _MOST)))
    rows = {f"{store}_{job}": partial(drain_rate, store=store, name=job) for store in stores for job in _JOBS}
    for store in stores:
        for kind in ("query", "mutation"):
            rows[f"{store}_{kind}"] = partial(callers_rate, store=store, kind=kind, callers=_CALLERS)
    for name, rate in rows.items():
        quiet: list[float] = []
        hurt: list[float] = []
        for _ in range(bench.sizes.drains):
            quiet.append(await rate(fewer))
            async with fault(bench.databases):
                hurt.append(await rate(fewer))
        kept = statistics.median(hurt) / statistics.median(quiet)
        bench.row(f"{name:<26}", f"{plain(statistics.median(hurt))}/s of {plain(statistics.median(quiet))}/s")
        bench.hold(name, kept, Bar(at_least=least))


BENCHMARKS = [
    Benchmark("hostile_busy", partial(hostile, fault=_busy, stores=("postgres", "sqlite"), least=0.25)),
    Benchmark("hostile_slow", partial(hostile, fault=_slow, stores=("postgres",), least=0.5)),
]
