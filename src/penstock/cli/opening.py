"""Opens the app and its database for a command, sets up its logs, and ends a process that serves.

The interpreter would wait for threads of blocking functions, for ever if need be; a process that serves does not.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from penstock.app import App, Backend
from penstock.cli.failure import in_colour
from penstock.cli.options import Options
from penstock.cli.program import find_program, load_app
from penstock.cli.visible import visible, visible_line
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import ConfigError, DataError
from penstock.observe.logs import JsonFormatter, event
from penstock.store.open import make_store, scheme_of, sqlite_path
from penstock.store.push.migrate import push
from penstock.store.session import Session, reading
from penstock.store.store import Store

T = TypeVar("T")

_SECRET = re.compile(r"pass|secret|token", re.IGNORECASE)  # password, passfile, sslpassword, oauth_client_secret

UNHURRIED = 7 * 86400.0  # seconds; for commands whose user may stop them at any time


def open_app(options: Options, *, log_level: str = "warning") -> App:
    """Set up logs and import the app that the options name."""
    set_up_logs(options.log_level or log_level, options.log_format)
    return load_app(find_program(options.app, Path.cwd()))


@asynccontextmanager
async def open_backend(app: App, options: Options, *, fitting: bool = False, **settings: Any) -> AsyncIterator[Backend]:
    config = app.config(**options.place, **settings)
    _expect_file(config)
    if fitting:
        await _expect_fit(app, config)
    async with app.open(config=config, push_schema=False) as backend:
        try:
            yield backend
        except DataError as error:
            if error.code == DataError.code:  # and no kind of its own
                await _expect_fit(app, config)
            raise


@asynccontextmanager
async def open_store(app: App, config: Config) -> AsyncIterator[Store]:
    """Make the app's store, and close it at the end. `Store.open` connects what needs more than the catalog."""
    store = make_store(config, SystemClock(), app.registry.codec, app.registry.password)
    try:
        yield store
    finally:
        await store.close()


def with_backend(
    options: Options, use: Callable[[Backend], Awaitable[T]], *, fitting: bool = False, **settings: Any
) -> T:
    """Open the app and its backend, without services; the result of `use`.

    The database must exist and is not migrated here: a command called in passing may name the wrong one. With
    `fitting` it must hold all that the app declares, as it must for commands that write.
    """
    app = open_app(options)  # before the event loop runs, as its program may run one of its own

    async def work() -> T:
        async with open_backend(app, options, fitting=fitting, **settings) as backend:
            return await use(backend)

    return asyncio.run(work())


def snapshot(backend: Backend) -> AbstractAsyncContextManager[Session]:
    return reading(backend.engine.store.begin_read)


def safe_url(url: str) -> str:
    """A database URL without its passwords, which may stand before the host and among the options."""
    parts = urlsplit(url)
    netloc, query = parts.netloc, "&".join(map(_safe_option, parts.query.split("&")))
    if parts.password is not None:
        netloc = netloc.replace(f":{parts.password}@", ":***@", 1)
    if (netloc, query) == (parts.netloc, parts.query):
        return url  # as it was written, which putting it together again need not give
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def _safe_option(option: str) -> str:
    name, equals, _value = option.partition("=")
    return f"{name}{equals}***" if equals and _SECRET.search(unquote(name)) else option


def _expect_file(config: Config) -> None:
    """Refuse to make an empty database by looking at it."""
    if scheme_of(config.database) == "sqlite" and not sqlite_path(config.database).exists():
        raise ConfigError(
            f"There is no database {sqlite_path(config.database)}.",
            fix="Make it with penstock migrate, or name another one with --database.",
        )


async def _expect_fit(app: App, config: Config) -> None:
    """Refuse a database that lacks something, before opening it changes the file."""
    async with open_store(app, config) as store:
        plan = await push(store, app.definitions(), apply=False)
    if not plan.empty:
        raise ConfigError(
            "The database lacks declarations of this program.",
            fix="Run penstock migrate; penstock migrate --plan shows what it would do.",
        )


_PREFIX = "penstock-"
_ENDS_WITHIN = 0.5  # seconds, for threads that have nothing to do any more, and for tasks that are cancelled
_AT_LEAST, _AND_THEN = 3.0, 5.0  # seconds: the least grace time of services; what stopping may take beyond it
_deaf: set[asyncio.Task[Any]] = set()  # tasks that went on after they were cancelled


def complete_serving(work: Coroutine[Any, Any, T]) -> T:
    """Run a server, on uvloop if it is installed; its result. `end_process` ends the threads that are left."""
    gc.freeze()  # what was imported stays, and need not be searched for garbage
    try:
        loop_factory = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        loop_factory = None
    runner = asyncio.Runner(loop_factory=loop_factory)
    threads = ThreadPoolExecutor(thread_name_prefix=f"{_PREFIX}blocking")
    try:
        runner.get_loop().set_default_executor(threads)
        return runner.run(work)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        _deaf.update(runner.run(_end_tasks()))
        if not _threads_left() and not _deaf:
            runner.close()
        faulthandler.cancel_dump_traceback_later()


async def _end_tasks() -> set[asyncio.Task[Any]]:
    """Cancel all other tasks; those whose code swallows that."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    return (await asyncio.wait(tasks, timeout=_ENDS_WITHIN))[1] if tasks else set()


def end_within(grace: float) -> None:
    """End this process some seconds after the grace time, whatever blocks its event loop or keeps the interpreter.

    A watchdog that needs no interpreter does it, and shows where each thread is.
    """
    with suppress(OSError, ValueError):  # standard error is closed
        faulthandler.dump_traceback_later(max(grace, _AT_LEAST) + _AND_THEN, exit=True, file=2)


def end_process() -> None:
    """End the process now if threads or tasks are left; otherwise it ends by itself."""
    left = sorted(thread.name for thread in _threads_left())
    if not left and not _deaf:
        return
    tasks = ",".join(sorted(task.get_name() for task in _deaf))
    event("process.ended", logging.WARNING, threads=",".join(left), tasks=tasks)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    logging.shutdown()
    os._exit(0)


def _threads_left() -> list[threading.Thread]:
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_PREFIX)]
    clock = SystemClock()
    until = clock.monotonic() + _ENDS_WITHIN
    for thread in threads:
        thread.join(max(0.0, until - clock.monotonic()))
    return [thread for thread in threads if thread.is_alive()]


_COLOURS = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "31"}
_LIBRARIES = ("asyncio", "httpcore", "httpx", "uvicorn", "uvicorn.error")


class TextFormatter(logging.Formatter):
    """One readable line: the time, the level and what happened; in colour on a terminal."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__(datefmt="%H:%M:%S" if colour else "%Y-%m-%d %H:%M:%S")
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower():7}"
        if self._colour:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        line = f"{self.formatTime(record, self.datefmt)} {level} {visible_line(record.getMessage())}"
        return f"{line}\n{visible(self.formatException(record.exc_info))}" if record.exc_info else line


def set_up_logs(level: str, form: str) -> None:
    """Send all logs to stderr; libraries log from warning on, or from `level` if that is higher."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(colour=in_colour()))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for quiet in _LIBRARIES:
        logging.getLogger(quiet).setLevel(max(logging.WARNING, logging.getLogger().level))
