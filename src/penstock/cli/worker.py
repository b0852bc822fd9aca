"""``penstock worker``: the services, without a server.

Owns how the process ends: a first signal lets running jobs finish, a second one does not wait.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import cast

import click

from penstock.app import App
from penstock.cli.opening import complete_serving, end_process, end_within, open_app
from penstock.cli.options import Command, Options, metrics_port_option, pass_options
from penstock.cli.processes import config_at, find_place, processes_option, supervise
from penstock.config import Config
from penstock.functions.scope import NONE, Only
from penstock.observe.logs import event
from penstock.services.service import SERVICES

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BY_SIGNAL = 128  # to which the exit code of a process that a signal ends adds its number


def _only_option(kind: str, about: str) -> Callable[[Command], Command]:
    """An option whose words are names with commas between; it may come several times."""

    def split(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
        names = [name.strip() for one in given for name in one.split(",")]
        return None if not given else [name for name in names if name not in {"", NONE}]

    return click.option(f"--{kind}", metavar="NAMES", multiple=True, callback=split, help=about)


@click.command("worker")
@click.option("--jobs", type=click.IntRange(1), help="How many jobs to run at once; default: worker_jobs.")
@metrics_port_option
@processes_option
@_only_option("pools", "Run only jobs of these pools; default is the one of jobs without a pool.")
@_only_option("not-pools", "Run no jobs of these pools.")
@_only_option("tasks", "Of the reactive tasks, run only these.")
@_only_option("outboxes", "Deliver only these outboxes.")
@_only_option("crons", "Start only these crons.")
@pass_options
def command(
    options: Options, /, jobs: int | None, metrics_port: int | None, processes: int, **only: Collection[str] | None
) -> int:
    """Run the services: jobs, crons, reactive tasks, outboxes and pruning. Any number of workers may share a database.

    A worker may run only some of them: name these, with commas between, or none for nothing of a kind.
    After SIGINT or SIGTERM, running jobs may finish within the grace time. A second signal ends the worker at once.
    Of several processes one that dies is started again.
    """
    app = open_app(options, log_level="info")
    place = find_place()
    config = config_at(place, app.config(**options.place, worker_jobs=jobs, metrics_port=metrics_port))
    if place is None and processes > 1:
        return supervise(processes)
    named = cast("Only", {kind: names for kind, names in only.items() if names is not None})
    complete_serving(_work(app, config, named, (lambda: None) if place is None else place.ready))
    end_process()
    return 0


async def _work(app: App, config: Config, only: Only, ready: Callable[[], None]) -> None:
    opened = asyncio.Event()
    with _stop_signal(opened, config.grace) as stop:
        async with app.open(config=config, services=SERVICES, only=only) as backend:
            opened.set()
            shown = (
                importlib.import_module("penstock.server.run").metrics_served if config.metrics_port else nullcontext
            )
            async with shown(backend):
                event("services.started", services=",".join(SERVICES), pid=os.getpid())
                ready()
                await stop.wait()
                event("services.stopping")
    event("services.stopped")


@contextmanager
def _stop_signal(opened: asyncio.Event, grace: float) -> Iterator[asyncio.Event]:
    """Set at the first signal. At the second the process ends as in a crash, which loses nothing but time.

    It does so at the first one, too, while it waits for its database: nothing has begun that could end.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set() or not opened.is_set():
            os._exit(_BY_SIGNAL + number)
        stop.set()
        end_within(grace)
        loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which may be waiting

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
