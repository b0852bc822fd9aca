"""What it costs to look at the dashboard: of a drain, of each page, and for each viewer beneath a steady load.

One process serves the dashboard and runs the jobs. What it costs is measured in its processor time, so that other
programs on the machine matter little. Two drains differ by more than viewers take, even so. The bar of a drain is thus
held to the time of the tasks and statements that viewers cause, within a drain that they watch. What two drains say is
reported beside it. How long a page takes is measured by the clock, as the jobs beneath are a part of
it. A viewer reads the events of a page as a browser does.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from types import coroutine
from typing import Any
from unittest.mock import patch

import httpx

from benchmarks.claims import enqueue
from benchmarks.databases import StoreName
from benchmarks.harness import Bar, Bench, Benchmark, spread
from benchmarks.program import app, nothing
from penstock import Backend, Config, asgi_app

_TOKEN = "the-token-of-the-benchmark"
_HERE = "http://localhost"
_VIEWED = ("/", "/work")
_VIEWER = ContextVar("_VIEWER", default=False)  # whether a viewer causes what runs
_PER_SECOND, _STEP = 1000, 0.1
_LOOK_EVERY = 0.05
_PAGES = ("/", "/work", "/schema", "/health", "/logs", "/audit")


async def drain_with_viewers(bench: Bench, store: StoreName) -> float:
    """The share of a drain's processor time that is left to it beside viewers of two pages."""
    left, taken, count = list[float](), {False: list[float](), True: list[float]()}, bench.sizes.actions // 2
    async with _opened(bench, store, ()) as plain, _opened(bench, store, ()) as watched:
        asgi = _asgi(watched)
        for turn in range(4 * bench.sizes.drains + 1):
            for views in (False, True) if turn % 2 else (True, False):
                backend = watched if views else plain
                with _metered() as meter:
                    async with _viewers(asgi, _VIEWED if views else ()):
                        await enqueue(backend, nothing, count)
                        before = meter.seconds
                        seconds = await _spent_on(_drained(backend))
                        share = (meter.seconds - before) / seconds
                taken[views].append(seconds / count * 1e6)
                if views:
                    left.append(1 - share)
    pairs = [a / b for a, b in zip(taken[False][1:], taken[True][1:], strict=True)]  # the first drain opens connections
    bench.row(*(spread(f"{2 * views} viewers", each, " us a job") for views, each in taken.items()))
    bench.row(spread("left", left[1:]), spread("a drain without beside one with viewers", pairs))
    bench.report("pairs", statistics.median(pairs))
    return statistics.median(left[1:])


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

    context = copy_context()
    context.run(_VIEWER.set, True)
    task = asyncio.get_running_loop().create_task(asgi(scope, receive, send), context=context)
    await seen.wait()
    try:
        yield
    finally:
        left.set()
        await task


class _Meter:
    """Processor seconds of the tasks that viewers cause, and of what these give to threads."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def task(self, loop: asyncio.AbstractEventLoop, steps: Any, context: Context | None = None, **named: Any) -> Any:
        """A new task, as the event loop asks for it."""
        is_viewer = _VIEWER.get() if context is None else context.get(_VIEWER)
        return asyncio.Task(self._all(steps) if is_viewer else steps, loop=loop, context=context, **named)

    async def _all(self, steps: Any) -> Any:
        return await self._each(steps)

    @coroutine
    def _each(self, steps: Any) -> Any:
        step = partial(steps.send, None)
        while True:
            try:
                awaited = self.timed(step)
            except StopIteration as end:
                return end.value
            try:
                step = partial(steps.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - it is the task's own
                step = partial(steps.throw, error)

    def timed(self, work: Any, *args: Any, **named: Any) -> Any:
        """Do a piece of work, in any thread, and add what it takes."""
        begun = time.thread_time()
        try:
            return work(*args, **named)
        finally:
            self.seconds += time.thread_time() - begun


@contextmanager
def _metered() -> Iterator[_Meter]:
    """What viewers take within a block."""
    meter, loop, given = _Meter(), asyncio.get_running_loop(), ThreadPoolExecutor.submit

    def submit(pool: ThreadPoolExecutor, work: Any, /, *args: Any, **named: Any) -> Any:
        return given(pool, partial(meter.timed, work) if _VIEWER.get() else work, *args, **named)

    loop.set_task_factory(meter.task)
    with patch.object(ThreadPoolExecutor, "submit", submit):
        try:
            yield meter
        finally:
            loop.set_task_factory(None)


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
    Benchmark("dashboard_drain_sqlite", partial(drain_with_viewers, store="sqlite"), Bar(at_least=0.95)),
    Benchmark("dashboard_drain_postgres", partial(drain_with_viewers, store="postgres"), Bar(at_least=0.95)),
    Benchmark("dashboard_viewer_sqlite", partial(viewer_share, store="sqlite"), Bar(at_most=0.1)),
    Benchmark("dashboard_viewer_postgres", partial(viewer_share, store="postgres"), Bar(at_most=0.1)),
    Benchmark("dashboard_page_sqlite", partial(page_time, store="sqlite"), Bar(at_most=100)),
    Benchmark("dashboard_page_postgres", partial(page_time, store="postgres"), Bar(at_most=100)),
)
