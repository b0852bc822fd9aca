"""How a command gets at the app and its database.

Owns the steps from the shared options to a running backend, and what is said when the database is not there yet.
Leaves finding the app to `program`.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from penstock.app import App, Backend
from penstock.cli.ending import run_to_end
from penstock.cli.logs import set_up_logs
from penstock.cli.options import Options
from penstock.cli.program import find_program, load_app
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import ConfigError, DataError
from penstock.store.open import make_store, scheme_of, sqlite_path
from penstock.store.push.migrate import push

T = TypeVar("T")

_SECRET = re.compile(r"pass|secret|token", re.IGNORECASE)  # password, passfile, sslpassword, oauth_client_secret

UNHURRIED = 7 * 86400.0  # seconds; for commands whose user may stop them at any time


def open_app(options: Options, *, log_level: str = "warning") -> App:
    """The app that the options name, imported, with logs set up as they say.

    Args:
        options: What was said on the command line.
        log_level: From which level on this command shows logs, if the options do not say.
    """
    set_up_logs(options.log_level or log_level, options.log_format)
    return load_app(find_program(options.app, Path.cwd()))


@asynccontextmanager
async def open_backend(app: App, options: Options, *, fitting: bool = False, **settings: Any) -> AsyncIterator[Backend]:
    """The backend of the app for the time of a block, without services, on a database that is there already.

    The database is never made, nor made to fit: a command that is called in passing may name the wrong one.

    Args:
        app: The app; imported before the event loop runs, as its program may run one of its own while it is imported.
        options: What was said on the command line.
        fitting: Whether the database must hold all that the app declares, as it must for commands that write.
        **settings: Settings that differ for this command.

    Raises:
        ConfigError: The database does not exist, or does not fit the app.
    """
    config = app.config(database=options.database, **settings)
    _expect_file(config)
    if fitting:
        await _expect_fit(app, config)
    async with app.open(config=config, push_schema=False) as backend:
        try:
            yield backend
        except DataError as error:
            if type(error) is DataError:
                await _expect_fit(app, config)
            raise


def with_backend(app: App, options: Options, use: Callable[[Backend], Awaitable[T]]) -> T:
    """Do something with the backend of the app, to its end; what it gives."""

    async def work() -> T:
        async with open_backend(app, options) as backend:
            return await use(backend)

    return complete(work())


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; its result."""
    with asyncio.Runner() as runner:
        return runner.run(work)


def complete_serving(work: Coroutine[Any, Any, T]) -> T:
    """The same for what serves: on uvloop, if it is installed. The caller then has the process end."""
    return run_to_end(asyncio.Runner(loop_factory=_uvloop()), work)


def shown_url(url: str) -> str:
    """A database URL without its passwords, which may stand before the host and among the options."""
    parts = urlsplit(url)
    netloc, query = parts.netloc, "&".join(map(_shown_option, parts.query.split("&")))
    if parts.password is not None:
        netloc = netloc.replace(f":{parts.password}@", ":***@", 1)
    if (netloc, query) == (parts.netloc, parts.query):
        return url  # as it was written, which putting it together again need not give
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def _shown_option(option: str) -> str:
    name, equals, _value = option.partition("=")
    return f"{name}{equals}***" if equals and _SECRET.search(unquote(name)) else option


def _uvloop() -> Any:
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None


def _expect_file(config: Config) -> None:
    """Refuse to make an empty database by looking at it."""
    if scheme_of(config.database) == "sqlite" and not sqlite_path(config.database).exists():
        raise ConfigError(
            f"There is no database {sqlite_path(config.database)}.",
            fix="Make it with penstock migrate, or name another one with --database.",
        )


async def _expect_fit(app: App, config: Config) -> None:
    """Refuse a database that lacks something; asked before it is opened, which would change the file of another one."""
    store = make_store(config, SystemClock())
    try:
        plan = await push(store, app.definitions(), apply=False)
    finally:
        await store.close()
    if not plan.empty:
        raise ConfigError(
            "The database lacks declarations of this program.",
            fix="Run penstock migrate; penstock migrate --plan shows what it would do.",
        )
