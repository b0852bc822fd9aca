"""From a database URL to its store: the one file that names both."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.clock import Clock
from penstock.codec import Codec
from penstock.config import Config, Password
from penstock.errors import ConfigError, of_extra
from penstock.store.store import Store

_LAST_PORT = 65_535


def make_store(config: Config, clock: Clock, codec: Codec | None = None, password: Password | None = None) -> Store:
    """The store of the configured database, not yet connected. Only its own driver is imported.

    Args:
        config: Its settings.
        clock: The time.
        codec: Encrypts values.
        password: Gives the password of each new connection to PostgreSQL, in place of the one in the URL.

    Raises:
        ConfigError: The URL names no database that penstock knows, or its driver is not installed.
    """
    if config.direct_database:
        scheme_of(config.direct_database)
    if config.read_url and {scheme_of(config.read_url), scheme_of(config.database)} != {"postgresql"}:
        raise ConfigError(
            "read_url is set, but only a PostgreSQL database has replicas.",
            fix="Leave read_url out, or use PostgreSQL.",
        )
    if scheme_of(config.database) == "postgresql":
        with of_extra("postgres", "PostgreSQL", {"asyncpg"}):
            module = importlib.import_module("penstock.store.postgres.store")
        store = cast("Store", module.PostgresStore(config.database, config, clock, password))
    else:
        module = importlib.import_module("penstock.store.sqlite.store")
        store = cast("Store", module.SqliteStore(sqlite_path(config.database), config, clock))
    store.encrypt_with(codec)
    return store


def scheme_of(url: str) -> str:
    """The store that a database URL names, ``sqlite`` or ``postgresql``. Errors never repeat the URL: passwords.

    Raises:
        ConfigError: It cannot be read, or names no database that penstock knows.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _unreadable() from error
    scheme, _, driver = parts.scheme.partition("+")
    scheme = {"": "sqlite", "postgres": "postgresql"}.get(scheme, scheme)
    if scheme not in {"sqlite", "postgresql"}:
        raise ConfigError(
            f"The database URL has the unknown scheme {parts.scheme!r}.",
            fix="Use sqlite:///file.db or postgresql://user@host/database.",
        )
    if driver:
        raise ConfigError(
            f"The database URL names the driver {driver!r}, which penstock does not support.",
            fix=f"Drop the driver: {scheme}://…",
        )
    hosts = parts.netloc.rpartition("@")[2].split(",") if scheme == "postgresql" else ()
    given = [host.rpartition("]")[2].partition(":")[2] for host in hosts]
    ports = [*given, *",".join(parse_qs(parts.query).get("port", ())).split(",")]
    if any(port and not (port.isdecimal() and int(port) <= _LAST_PORT) for port in ports):
        raise _unreadable()
    return scheme


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, or a plain path.

    Raises:
        ConfigError: It is of another scheme, a folder, or in memory, where no other process and no second connection
            sees it.
    """
    scheme_of(url)
    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigError(
            f"The database URL names the host {parts.hostname or ''!r}, but a SQLite database is a file.",
            fix="Write three slashes: sqlite:///file.db.",
        )
    path = unquote(parts.path.removeprefix("/")) if parts.scheme else url
    if path in {"", ":memory:"}:
        raise ConfigError(
            "penstock needs a SQLite file, because processes cannot share memory.", fix="Use sqlite:///file.db."
        )
    if Path(path).is_dir():
        raise ConfigError(
            f"{path} is a folder, but a SQLite database is a file.", fix=f"Name a file: sqlite:///{path}/app.db."
        )
    return Path(path)


def _unreadable() -> ConfigError:
    return ConfigError(
        "The database URL cannot be read: its host or its port is invalid.",
        fix="Use postgresql://user:password@host:5432/database; in a password write @ as %40, / as %2F and : as %3A. "
        "Among several hosts put an IPv6 address first, or all of them into ?host=a,[::1].",
    )
