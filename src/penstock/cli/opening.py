"""How a command gets at the app and its database.

Owns the steps from the shared options to a running backend, and what is said when the database is not there yet.
Leaves finding the app to `program`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from penstock.app import App, Backend
from penstock.cli.ending import run_to_end
from penstock.cli.logs import set_up_logs
from penstock.cli.options import Options
from penstock.cli.program import find_program, load_app
from penstock.config import Config
from penstock.errors import ConfigError, DataError
from penstock.store.migrate import push
from penstock.store.open import sqlite_path

T = TypeVar("T")

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
async def open_backend(
    app: App, options: Options, *, push_schema: bool = False, **settings: Any
) -> AsyncIterator[Backend]:
    """The backend of the app for the time of a block, without services.

    Args:
        app: The app; imported before the event loop runs, as its program may run one of its own while it is imported.
        options: What was said on the command line.
        push_schema: Whether to make the database fit first; if not, it must exist.
        **settings: Settings that differ for this command.

    Raises:
        ConfigError: The database does not exist, or does not fit the app.
    """
    config = app.config(database=options.database, **settings)
    if not push_schema:
        _expect_file(config)
    async with app.open(config=config, push_schema=push_schema) as backend:
        try:
            yield backend
        except DataError as error:
            if type(error) is DataError:
                await _expect_fit(backend, error)
            raise


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; its result."""
    with asyncio.Runner() as runner:
        return runner.run(work)


def complete_serving(work: Coroutine[Any, Any, T]) -> T:
    """The same for what serves: on uvloop, if it is installed. The caller then has the process end."""
    return run_to_end(asyncio.Runner(loop_factory=_uvloop()), work)


def shown_url(url: str) -> str:
    """A database URL without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@", 1)))


def _uvloop() -> Any:
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None


def _expect_file(config: Config) -> None:
    """Refuse to make an empty database by looking at it."""
    if urlsplit(config.database).scheme in {"sqlite", ""} and not sqlite_path(config.database).exists():
        raise ConfigError(
            f"There is no database {sqlite_path(config.database)}.",
            fix="Make it with penstock migrate, or name another one with --database.",
        )


async def _expect_fit(backend: Backend, error: DataError) -> None:
    """Explain a refused statement by what the database lacks."""
    plan = await push(backend.engine.store, backend.app.definitions(), apply=False)
    if not plan.empty:
        raise ConfigError(
            "The database does not hold all that this program declares.",
            fix="Run penstock migrate; penstock migrate --plan shows what it would do.",
        ) from error
