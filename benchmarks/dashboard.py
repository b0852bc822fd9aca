"""What it costs to look at the dashboard: of a drain, of each page, and for each viewer beneath a steady load.

One process serves the dashboard and runs the jobs. What it costs is measured in its processor time, so that other
programs on the machine matter little. How long a page takes is measured by the clock, as the jobs beneath are a part of
it. A viewer reads the events of a page as a browser does.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import httpx

from benchmarks.claims import enqueue
from benchmarks.databases import StoreName
from benchmarks.harness import Bar, Bench, Benchmark, spread
from benchmarks.program import app, nothing
from penstock import Backend, Config, asgi_app

_TOKEN = "the-token-of-the-benchmark"
_HERE = "http://localhost"
_VIEWED = ("/", "/work")
_PER_SECOND, _STEP = 1000, 0.1
_LOOK_EVERY = 0.05
_PAGES = ("/", "/work", "/schema", "/health", "/logs", "/audit")


async def drain_with_viewers(bench: Bench, store: StoreName) -> float:
    """Processor time of a drain without viewers, as a share of that with viewers of two pages."""
    taken, count = {(): list[float](), _VIEWED: list[float]()}, bench.sizes.actions // 4
    async with _opened(bench, store, ()) as plain, _opened(bench, store, ()) as watched:
        asgi = _asgi(watched)
        for turn in range(4 * bench.sizes.drains + 1):  # single turns spread by a tenth
            for viewed in ((), _VIEWED) if turn % 2 else (_VIEWED, ()):
                backend = watched if viewed else plain
                async with _viewers(asgi, viewed):
                    await enqueue(backend, nothing, count)
                    taken[viewed].append(await _spent_on(_drained(backend)) / count * 1e6)
    shares = [a / b for a, b in zip(taken[()][1:], taken[_VIEWED][1:], strict=True)]  # the first opens connections
    bench.row(*(spread(f"{len(viewed)} viewers", each, " us a job") for viewed, each in taken.items()))
    bench.row(spread("share", shares))
    return statistics.median(shares)


async def viewer_share(bench: Bench, store: StoreName) -> float:
    """The share of a core that a viewer takes while 1,000 jobs run each second."""
    seconds, used = bench.sizes.settle * 2, {}
    for viewed in ((), _VIEWED):
        async with _opened(bench, store, viewed) as backend:
            used[viewed] = await _spent_on(_load(backend, seconds)) / seconds
        bench.row(f"{len(viewed)} viewers", f"{used[viewed]:.3f} of a core")
    return (used[_VIEWED] - used[()]) / len(_VIEWED)


async def page_time(bench: Bench, store: StoreName) -> float:
    """Milliseconds within which 95 of 100 answers of the slowest page come while 1,000 jobs run each second."""
    slowest = 0.0
    async with _opened(bench, store, ()) as backend, _browser(_asgi(backend)) as http:
        await enqueue(backend, nothing, bench.sizes.actions)
        await _drained(backend)
        load, begun = asyncio.create_task(_load(backend, math.inf)), time.perf_counter()
        try:
            for path in _PAGES:
                taken = list[float]()
                for _ in range(bench.sizes.socket_writes):
                    asked = time.perf_counter()
                    (await http.get(f"/dashboard{path}")).raise_for_status()
                    taken.append(1000 * (time.perf_counter() - asked))
                    await asyncio.sleep(_LOOK_EVERY)
                bench.row(path, spread("", taken, " ms"))
                slowest = max(slowest, *statistics.quantiles(taken, n=20)[-1:])
        finally:
            load.cancel()
        seconds = time.perf_counter() - begun
        done = (await backend.job_counts())["success"] - bench.sizes.actions
        bench.row(f"beneath {done / seconds:,.0f} jobs a second")
    return slowest


@asynccontextmanager
async def _opened(bench: Bench, store: StoreName, viewed: Sequence[str]) -> AsyncIterator[Backend]:
    """A backend, with a worker and viewers of these pages."""
    async with AsyncExitStack() as around:
        url = await around.enter_async_context(bench.databases.fresh(store))
        config = Config(database=url, admin_token=_TOKEN, metrics_token=_TOKEN)
        backend = await around.enter_async_context(app.open(config=config, services=["worker"]))
        if viewed:
            await around.enter_async_context(_viewers(_asgi(backend), viewed))
        yield backend


def _asgi(backend: Backend) -> Any:
    return asgi_app(app, backend=backend, dashboard=True)


@asynccontextmanager
async def _browser(asgi: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who has signed in."""
    transport, headers = httpx.ASGITransport(asgi), {"origin": _HERE}
    async with httpx.AsyncClient(transport=transport, base_url=_HERE, headers=headers) as http:
        await http.post("/dashboard/sign-in", data={"token": _TOKEN})
        yield http


@asynccontextmanager
async def _viewers(asgi: Any, viewed: Sequence[str]) -> AsyncIterator[None]:
    """Viewers of these pages."""
    async with AsyncExitStack() as around:
        if viewed:
            http = await around.enter_async_context(_browser(asgi))
            cookie = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
            for path in viewed:
                await around.enter_async_context(_viewer(asgi, path, cookie))
        yield


@asynccontextmanager
async def _viewer(asgi: Any, path: str, cookie: str) -> AsyncIterator[None]:
    """Read the events of a page, for a block that begins after the first one."""
    left, seen = asyncio.Event(), asyncio.Event()
    headers = [(b"accept", b"text/event-stream"), (b"host", b"localhost"), (b"cookie", cookie.encode())]
    where = f"/dashboard{path}"
    scope = {
        "type": "http", "method": "GET", "path": where, "raw_path": where.encode(), "query_string": b"",
        "headers": headers, "client": ("127.0.0.1", 1), "scheme": "http", "server": ("localhost", 80),
        "root_path": "", "http_version": "1.1",
    }  # fmt: skip

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body", b"").startswith(b"data: "):
            seen.set()

    task = asyncio.create_task(asgi(scope, receive, send))
    await seen.wait()
    try:
        yield
    finally:
        left.set()
        await task


async def _spent_on(work: Any) -> float:
    """Processor seconds of this process while something is awaited."""
    begun = time.process_time()
    await work
    return time.process_time() - begun


async def _drained(backend: Backend) -> None:
    while True:
        counts = await backend.job_counts()
        if not counts.get("ready", 0) + counts.get("running", 0):
            return
        await asyncio.sleep(_LOOK_EVERY)


async def _load(backend: Backend, seconds: float) -> None:
    """Enqueue 1,000 jobs a second, by the clock."""
    begun, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < seconds:
        due = int(passed * _PER_SECOND) - sent
        if due:
            await enqueue(backend, nothing, due)
            sent += due
        await asyncio.sleep(_STEP)


BENCHMARKS = (
    Benchmark("large_dashboard_drain_sqlite", partial(drain_with_viewers, store="sqlite"), Bar(at_least=0.95)),
    Benchmark("large_dashboard_drain_postgres", partial(drain_with_viewers, store="postgres"), Bar(at_least=0.95)),
    Benchmark("large_dashboard_viewer_sqlite", partial(viewer_share, store="sqlite"), Bar(at_most=0.1)),
    Benchmark("large_dashboard_viewer_postgres", partial(viewer_share, store="postgres"), Bar(at_most=0.1)),
    Benchmark("large_dashboard_page_sqlite", partial(page_time, store="sqlite"), Bar(at_most=100)),
    Benchmark("large_dashboard_page_postgres", partial(page_time, store="postgres"), Bar(at_most=100)),
)
