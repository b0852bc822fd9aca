"""From a database URL to its store: the one file that names both."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from penstock.clock import Clock
from penstock.config import Config
from penstock.errors import ConfigError
from penstock.store.contract import Store


def make_store(config: Config, clock: Clock) -> Store:
    """The store of the configured database, not yet connected. Only its own driver is imported.

    Raises:
        ConfigError: The URL names no database that penstock knows, or its driver is not installed.
    """
    scheme = urlsplit(config.database).scheme
    if scheme in {"postgresql", "postgres"}:
        try:
            module = importlib.import_module("penstock.store.postgres.store")
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise ConfigError(
                "PostgreSQL needs the asyncpg driver, which is not installed.",
                fix="pip install 'penstock[postgres]'",
            ) from error
        return cast("Store", module.PostgresStore(config.database, config, clock))
    module = importlib.import_module("penstock.store.sqlite.store")
    return cast("Store", module.SqliteStore(sqlite_path(config.database), config, clock))


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, or a plain path.

    Raises:
        ConfigError: It is of another scheme, or in memory, where no other process and no second connection sees it.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"sqlite", ""}:
        raise ConfigError(
            f"The database URL has the unknown scheme {parts.scheme!r}.",
            fix="Use sqlite:///file.db or postgresql://user@host/database.",
        )
    path = unquote(parts.path.removeprefix("/")) if parts.scheme else url
    if parts.scheme and parts.netloc:
        raise ConfigError(f"{url!r} names a host, but SQLite is a file.", fix="Write three slashes: sqlite:///file.db.")
    if path in {"", ":memory:"}:
        raise ConfigError("penstock needs a SQLite file: memory is not shared.", fix="Use sqlite:///file.db.")
    return Path(path)
