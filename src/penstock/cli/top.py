"""``penstock top``: what goes on in pools and workers, live on a terminal, or once.

Owns the refreshing and the keys. Leaves the numbers to the store, and their look to `topview`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

import click
from rich.live import Live

from penstock.app import App, Backend
from penstock.cli.opening import complete, open_app, open_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import make_console, print_json
from penstock.cli.topview import Look, as_data, draw
from penstock.clock import SystemClock

_WINDOW = 10.0  # seconds, for rates
_SHARE = 4  # looking takes at most one part in so many of the time, however much there is to count


@click.command("top")
@click.option("--once", is_flag=True, help="Print once; the default without a terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between updates."
)
@json_option("Print once, as JSON.")
@pass_options
def command(options: Options, once: bool, interval: float) -> None:
    """Watch pools and workers: running, waiting and failing jobs, and rates over ten seconds. q ends it."""
    app = open_app(options)
    with contextlib.suppress(KeyboardInterrupt):
        complete(_watch(app, options, None if once or options.json or not sys.stdout.isatty() else interval))


async def _watch(app: App, options: Options, interval: float | None) -> None:
    async with open_backend(app, options) as backend:
        seen = await look(backend)
        if options.json:
            print_json(as_data(seen))
        elif interval is None:
            make_console().print(draw(seen))
        else:
            await _live(backend, seen, interval)


async def _live(backend: Backend, seen: Look, interval: float) -> None:
    clock = SystemClock()
    async with _quit_key() as quits:
        with Live(draw(seen), console=make_console(), screen=True, auto_refresh=False) as live:
            pause = interval
            while not await _told_within(quits, pause):
                began = clock.monotonic()
                live.update(draw(await look(backend)), refresh=True)
                pause = max(interval, (clock.monotonic() - began) * _SHARE)


async def look(backend: Backend) -> Look:
    """What goes on now: pools, jobs and leases, all of one moment."""
    store, now = backend.engine.store, SystemClock().now()
    session = await store.begin_read()
    try:
        return Look(
            now,
            _WINDOW,
            await store.pools.list(session),
            await store.pools.activity(session, now - timedelta(seconds=_WINDOW)),
            [one for one in await store.leases.list(session) if one.is_worker],
        )
    finally:
        await session.rollback()


async def _told_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


@asynccontextmanager
async def _quit_key() -> AsyncIterator[asyncio.Event]:
    """An event that is set when q is typed, if there is a keyboard."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def read() -> None:
        if sys.stdin.read(1) in {"q", "Q", ""}:
            loop.remove_reader(sys.stdin)
            event.set()

    with _keys_at_once() as possible:
        if possible:
            loop.add_reader(sys.stdin, read)
        try:
            yield event
        finally:
            if possible:
                loop.remove_reader(sys.stdin)


@contextlib.contextmanager
def _keys_at_once() -> Iterator[bool]:
    """Have the terminal give each key when it is typed, and not show it; False if there is none that can."""
    try:
        termios, tty = importlib.import_module("termios"), importlib.import_module("tty")
        before = termios.tcgetattr(sys.stdin)
    except Exception:  # noqa: BLE001 - the system has no such terminals, or stdin is none: Ctrl-C is left
        yield False
        return
    try:
        tty.setcbreak(sys.stdin)
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
