"""``penstock top``: the activity of pools and workers, live on a terminal, or once.

Owns the refreshing and the keys. Leaves the numbers to the store, and their look to `topview`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import click
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.api.pools.activity import Look, PoolNow, look, pools_of
from penstock.app import Backend
from penstock.cli.opening import with_backend
from penstock.cli.options import Options, json_option
from penstock.cli.output import make_console, print_json
from penstock.clock import SystemClock
from penstock.jobs.job import job_id
from penstock.observe.readable import amount, span

_OLDEST = 3  # jobs that run, and that are ready
_ALL = 2**62  # jobs of a pool count
_POOL = 14  # characters of a pool's name next to a job
_SHARE = 4  # looking takes at most one part in so many of the time, however much there is to count


@click.command("top")
@click.option("--once", is_flag=True, help="Print once; the default without a terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between updates."
)
@json_option("Print once, as JSON.")
def command(options: Options, once: bool, interval: float) -> None:
    """Watch pools and workers: running, waiting and failing jobs, and rates over a minute. q ends it."""
    every = None if once or options.json or not sys.stdout.isatty() else interval
    with contextlib.suppress(KeyboardInterrupt):
        with_backend(options, lambda backend: _watch(backend, options, every))


async def _watch(backend: Backend, options: Options, interval: float | None) -> None:
    seen = await _look(backend)
    if options.json:
        print_json(as_data(seen))
    elif interval is None:
        make_console().print(draw(seen))
    else:
        await _live(backend, seen, interval)


async def _look(backend: Backend) -> Look:
    return await look(backend.engine.store, SystemClock().now(), _ALL, _OLDEST)


async def _live(backend: Backend, seen: Look, interval: float) -> None:
    clock = SystemClock()
    async with _quit_key() as quits:
        with Live(draw(seen), console=make_console(), screen=True, auto_refresh=False) as live:
            pause = interval
            while not await clock.wait(quits, pause):
                began = clock.monotonic()
                live.update(draw(await _look(backend)), refresh=True)
                pause = max(interval, (clock.monotonic() - began) * _SHARE)


@asynccontextmanager
async def _quit_key() -> AsyncIterator[asyncio.Event]:
    """An event that is set when q is typed, if there is a keyboard. Keys come at once, and the terminal hides them."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def read() -> None:
        if sys.stdin.read(1) in {"q", "Q", ""}:
            loop.remove_reader(sys.stdin)
            event.set()

    try:
        termios, tty = importlib.import_module("termios"), importlib.import_module("tty")
        before = termios.tcgetattr(sys.stdin)
    except Exception:  # noqa: BLE001 - the system has no such terminals, or stdin is none: Ctrl-C is left
        yield event
        return
    try:
        tty.setcbreak(sys.stdin)
        loop.add_reader(sys.stdin, read)
        yield event
    finally:
        loop.remove_reader(sys.stdin)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def as_data(seen: Look) -> dict[str, Any]:
    return {
        "now": seen.now,
        "window": seen.window,
        "pools": pools_of(seen),
        "workers": seen.workers,
        "oldest": oldest_of(seen),
    }


def draw(seen: Look) -> Group:
    pools = pools_of(seen)
    running, ready = sum(pool.running for pool in pools), sum(pool.ready for pool in pools)
    rate = sum(pool.ended for pool in pools)
    jobs = f"{running:,} running  {ready:,} ready  {rate:,.1f} ended/s in {seen.window:.0f} s"
    head = f"{seen.now:%Y-%m-%d %H:%M:%SZ}  {amount(len(seen.workers), 'worker')}  {jobs}"
    return Group(Text(head, style="bold"), Text(), _pools(pools), Text(), _workers(seen), Text(), _oldest(seen))


def _pools(pools: Sequence[PoolNow]) -> Table:
    table = _table("pool", "limit", "running", "ready", "scheduled", "ended/s", "failed", "waits")
    for pool in pools:
        limit = "paused" if pool.paused else "-" if pool.limit is None else f"{pool.limit:,}"
        counts = (f"{number:,}" for number in (pool.running, pool.ready, pool.scheduled))
        failed = Text(f"{pool.failed:,}", style="red" if pool.failed else "")
        table.add_row(Text(pool.name), limit, *counts, f"{pool.ended:,.1f}", failed, span(pool.waits))
    return table


def _workers(seen: Look) -> Table:
    table = _table("worker", "lease", "jobs", "up", "lease ends in")
    for worker in seen.workers:
        left = (worker.expires_at - seen.now).total_seconds()
        ends = Text("over", style="red") if left <= 0 else Text(span(left))
        up = span((seen.now - worker.started_at).total_seconds())
        table.add_row(
            Text(f"{worker.holder} {worker.scope}".rstrip()), str(worker.lease), f"{worker.running:,}", up, ends
        )
    if not seen.workers:
        table.add_row(Text("no worker runs", style="red"), *[""] * 4)
    return table


def _oldest(seen: Look) -> Table | Text:
    if not seen.oldest:
        return Text("nothing runs, nothing is ready", style="dim")
    table = _table("oldest jobs", "id", "pool", "", "for")
    table.columns[2].max_width = _POOL  # what is narrower leaves the ids whole
    for job in oldest_of(seen):
        verb = "runs" if job["place"] == "running" else "waits"
        table.add_row(Text(job["function"]), job["id"], job["pool"], verb, span(job["seconds"]))
    return table


def oldest_of(seen: Look) -> list[dict[str, Any]]:
    """The jobs that have run or waited longest."""
    return [
        {
            "id": job_id(job.id),
            "function": job.function,
            "pool": job.pool,
            "place": job.place,
            "seconds": max(0.0, (seen.now - job.since).total_seconds()),
        }
        for job in seen.oldest
    ]


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column(first, overflow="fold", min_width=8)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
