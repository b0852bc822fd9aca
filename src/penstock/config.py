"""Settings: each with its default and its reason; read from arguments, the environment and the project file.

Owns the list of settings. A setting is looked for in this order: the argument of `App`, ``PENSTOCK_<NAME>`` in the
environment (``DATABASE_URL`` too, for the database), ``penstock.toml``, ``[tool.penstock]`` in ``pyproject.toml``.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import re
import sys
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

FOR_EVER = timedelta(days=365 * 1000)  # nothing is kept for longer; penstock's SQL says so too
_MIB = 1024 * 1024
Password = Callable[[], str | Awaitable[str]]  # gives the password of a new connection, such as a token that rotates
SCHEMAS = {"penstock"}  # the values of `schema` that this process has met, for Alembic, which asks about names alone


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of an app. Times are in seconds, sizes in bytes.

    Attributes:
        database: URL of the database: ``sqlite:///penstock.db`` or ``postgresql://…``.
        schema: PostgreSQL's schema of penstock's own tables; on SQLite the beginning of their names.
        direct_database: URL of PostgreSQL itself, if ``database`` leads to a pooler such as PgBouncer.
        read_url: URL of a PostgreSQL replica for live queries.
        max_connections: Most connections for calls per process, on SQLite for reads. Services have up to seven more.
        database_wait: How long a call waits for a database that is away, locked or out of connections.
        statement_timeout: How long a statement may take; at most 24 days.
        synchronous: SQLite only. ``full`` loses nothing. ``normal`` is faster, and may lose the last commits when the
            machine dies.
        conflict_attempts: Attempts of a conflicting mutation. Jobs have no limit.
        max_rows_read: Rows that one transaction may read.
        max_rows_written: Rows and messages that one transaction may write.
        max_bytes_read: Bytes that one transaction may read.
        max_bytes_written: Bytes that one transaction may write, messages included.
        max_ranges_read: Index ranges that one transaction may read; an id counts as one.
        max_jobs_scheduled: Jobs that one transaction may schedule, and may cancel.
        max_bytes_scheduled: Bytes of job arguments that one transaction may schedule.
        max_row_bytes: Bytes of one row.
        max_argument_bytes: Bytes of the arguments of one call, and of one HTTP request.
        max_job_argument_bytes: Bytes of the arguments of one job, and of one message to a topic.
        max_result_bytes: Bytes of a job's stored result.
        call_timeout: How long a call from outside may take, unless its function has a ``timeout``.
        max_calls: Calls from outside at once. Further calls get Overloaded.
        max_watched: Different queries that one process watches. Further clients get Overloaded, further queries
            LimitExceeded.
        max_watched_bytes: Bytes of their answers, as JSON; in memory several times as much.
        threads: Threads for functions written with def: as many each for queries, mutations and actions.
        processes: Processes for actions with runtime="process".
        worker_jobs: Jobs that one worker runs at once.
        lease: Other workers take over a crashed worker's jobs within this time.
        files: Folder or bucket for files: a path, ``s3://bucket/folder``, ``gs://…``, ``az://…``, or ``memory://`` for
            tests. Keys come from the environment, under the vendor's names.
        max_file_bytes: Bytes of one file.
        unclaimed_files_ttl: How long a file is kept that no field ``Id[File]`` refers to.
        public_url: Beginning of the URLs of files, such as ``https://api.example.com``; by default they are paths.
        grace: How long a stopping process waits for calls and jobs.
        poll: How often an idle worker looks for jobs that nobody announced.
        job_status_ttl: How long a finished job's status is kept.
        http_port: Port with HTTP actions only, of the server; 0 for none.
        metrics_port: Port with metrics, without a token; 0 for none.
        metrics_host: Address for ``metrics_port``; choose one that outsiders cannot reach.
        metrics_token: Bearer token for ``/metrics`` on the server's port.
        admin_token: Bearer token for ``/admin``, of 12 characters or more; without one there is no ``/admin``.
        masked_names: Arguments and fields that the dashboard hides, separated by commas, in addition to ``password``
            and the like.
        cors_origins: Web origins that may call, separated by commas; ``*`` for all.
        require_access: Refuse public functions that do not declare their access.
        dev: Show callers the text of unexpected errors. Never in production.
        practices: Watch for broken best practices: ``off``, ``log``, ``error``, or by rule, as in ``log, PEN006=off``.
            By default ``log`` with dev and in tests, else ``off``.
    """

    database: str = field(default="sqlite:///penstock.db", repr=False)  # has a password, as the two others may
    schema: str = "penstock"
    direct_database: str = field(default="", repr=False)
    read_url: str = field(default="", repr=False)
    max_connections: int = 20
    database_wait: float = 10.0
    statement_timeout: float = 30.0
    synchronous: str = "full"
    conflict_attempts: int = 10
    max_rows_read: int = 32_000
    max_rows_written: int = 16_000
    max_bytes_read: int = 16 * _MIB
    max_bytes_written: int = 16 * _MIB
    max_ranges_read: int = 4_096
    max_jobs_scheduled: int = 1_000
    max_bytes_scheduled: int = 16 * _MIB
    max_row_bytes: int = _MIB
    max_argument_bytes: int = _MIB
    max_job_argument_bytes: int = 4 * _MIB
    max_result_bytes: int = _MIB
    call_timeout: float = 60.0
    max_calls: int = 1_000
    max_watched: int = 50_000
    max_watched_bytes: int = 128 * _MIB
    threads: int = 32
    processes: int = 2
    worker_jobs: int = 100
    lease: float = 30.0
    files: str = "penstock-files"
    max_file_bytes: int = 5 * 1024 * _MIB
    unclaimed_files_ttl: float = 86400.0
    public_url: str = ""
    grace: float = 10.0
    poll: float = 1.0
    job_status_ttl: float = 7 * 86400.0
    http_port: int = 0
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"
    metrics_token: str = field(default="", repr=False)
    admin_token: str = field(default="", repr=False)
    masked_names: str = ""
    cors_origins: str = ""
    require_access: bool = False
    dev: bool = False
    practices: str = ""

    def __post_init__(self) -> None:
        for name in _TYPES:
            _check(name, name, getattr(self, name))


_TYPES: dict[str, type[Any]] = {one.name: type(one.default) for one in fields(Config)}
_WORDS: dict[type[Any], str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number greater than 0",
    float: "a number of seconds greater than 0",
}
_WORDS_OF = {
    "admin_token": "text of 12 characters or more that nobody guesses",
    "grace": "a number of seconds, 0 or greater",
    "job_status_ttl": "a number of seconds greater than 0, and of at most 365,000 days",
    "practices": "off, log or error, and other words for single rules, as in log, PEN006=off",
    "http_port": "a port from 1 to 65535, or 0 for none",
    "metrics_port": "a port from 1 to 65535, or 0 for none",
    "public_url": "a URL that begins with http:// or https:// and has no / at its end",
    "schema": "1 to 30 letters from a to z, digits and _, a letter first; not public, pg_… or …_running",
    "statement_timeout": "between 0.001 and 2,147,483 seconds, which PostgreSQL can count in milliseconds",
    "synchronous": "full or normal",
}
_RANGES: dict[type[Any], tuple[float, float]] = {int: (1, math.inf), float: (math.ulp(0.0), sys.float_info.max)}
_RANGES_OF = {
    "grace": (0, sys.float_info.max),
    "job_status_ttl": (math.ulp(0.0), FOR_EVER.total_seconds()),
    "http_port": (0, 65_535),
    "metrics_port": (0, 65_535),
    "statement_timeout": (0.001, 2_147_483),  # 31 bits of milliseconds; 0 would be no limit
}
_PATTERNS = {
    "admin_token": r"|\s*\S.{10,}\S\s*",
    "practices": r"((PEN\d{3}=)?(off|log|error)(, *|$))*",
    "public_url": r"|https?://[^\s?#]*[^\s?#/]",
    # Together with the rest of the longest name, that of a trigger, it has at most 63 bytes.
    "schema": r"(?!(pg_.*|sqlite.*|public|information_schema|.*_(running|scheduled_job))$)[a-z][a-z0-9_]{0,29}",
    "synchronous": "full|normal",
}
SECRETS = frozenset(one.name for one in fields(Config) if not one.repr)
_NO_SETTINGS = {"app", "check", "codegen"}  # what else project files say, to the command line
_PREFIX = "PENSTOCK_"
_OTHER_VARIABLES = {  # that begin with PENSTOCK_ and are no settings
    "PENSTOCK_APP",
    "PENSTOCK_LOG_FORMAT",
    "PENSTOCK_LOG_LEVEL",
}
_OF_TESTS = ("PENSTOCK_TEST_", "PENSTOCK_WRITE_")


def load_config(arguments: Mapping[str, Any] | None = None) -> Config:
    """The settings in force.

    Args:
        arguments: Settings given in code or on the command line; None values do not count.

    Raises:
        ConfigError: A setting is unknown, or its value cannot be read.
    """
    found = find_settings(arguments)
    if found.get("database", ("default",))[0] == "":
        raise ConfigError(
            f"The database is set by {found['database'][1]}, but empty.",
            fix="Set it to postgresql://user@host/name or sqlite:///file.db, or do not set it at all.",
        )
    return Config(**{name: value for name, (value, _source) in found.items()})


def find_settings(arguments: Mapping[str, Any] | None = None) -> dict[str, tuple[Any, str]]:
    """Each setting that is not left at its default: its value, and where it was found. See `load_config`.

    Raises:
        ConfigError: A setting is unknown, or its value cannot be read.
    """
    found: dict[str, tuple[Any, str]] = {}
    for file, content in project_files(Path.cwd()):
        settings = {name: value for name, value in content.items() if name not in _NO_SETTINGS}
        found |= {name: (_read(f"{file}: {name}", name, value), str(file)) for name, value in settings.items()}
    for variable, (name, value) in _environment_settings().items():
        found[name] = (_read(variable, name, value), variable)
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    found.update({name: (_read(name, name, value), "an argument") for name, value in given.items()})
    return found


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of an app that cannot be; None values are left open.

    Args:
        settings: Values by name.

    Raises:
        ConfigError: A setting is unknown, or cannot have its value.
    """
    for name, value in settings.items():
        if name not in _TYPES or value is not None:
            _read(f"App(…): {name}", name, value)


def stray_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are named like settings and are none; for each the one it comes near to, or nothing."""
    known = {*map(_variable, _TYPES), *_OTHER_VARIABLES}
    return {
        variable: next(iter(map(_variable, _near(variable.removeprefix(_PREFIX).lower()))), "")
        for variable, value in environment.items()
        if value and variable.startswith(_PREFIX) and variable not in known and not variable.startswith(_OF_TESTS)
    }


def project_files(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Read what the project files of a folder say of penstock; a later file counts more.

    Raises:
        ConfigError: One cannot be read.
    """
    found = []
    for name, path in (("pyproject.toml", ("tool", "penstock")), ("penstock.toml", ())):
        file = folder / name
        if not file.is_file():
            continue
        try:
            content: Any = _parsed(file.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}.") from error
        for part in path:
            content = content.get(part, {})
            if not isinstance(content, dict):
                raise ConfigError(f"{file}: {part} must be a table, not {content!r}.")
        found.append((file, content))
    return found


_parsed = lru_cache(maxsize=2)(tomllib.loads)  # settings are read each time a backend opens, in test suites thousands


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def _near(name: str) -> list[str]:
    return difflib.get_close_matches(name, _TYPES, 1)


def _environment_settings() -> dict[str, tuple[str, str]]:
    """Find the variables that set something: the setting's name and its value. A later one counts more."""
    variables = {"DATABASE_URL": "database"} | {_variable(name): name for name in _TYPES}
    return {
        variable: (name, os.environ[variable])
        for variable, name in variables.items()
        if os.environ.get(variable) or (name == "database" and variable in os.environ)
    }


def _read(where: str, name: str, value: Any) -> Any:
    """The value of a setting; numbers and truths may be written as text.

    Raises:
        ConfigError: There is no such setting, or it cannot have this value; the text begins with `where`.
    """
    kind = _TYPES.get(name)
    if kind is None:
        meant = "".join(f"Did you mean {near}?" for near in _near(name))
        meant = f"It is an option: penstock serve --{name}." if name in {"host", "port"} else meant
        meant = "Write penstock.toml without [tool.penstock]." if name == "tool" else meant
        raise ConfigError(f"{where} is no setting.", fix=meant or "See the settings with penstock config.")
    if isinstance(value, str):
        if kind is bool:
            value = {"1": True, "true": True, "0": False, "false": False}.get(value.lower(), value)
        elif kind in _RANGES:
            with contextlib.suppress(ValueError):
                value = kind(value)
    _check(where, name, value)
    return value


def _check(where: str, name: str, value: Any) -> None:
    kind = _TYPES[name]
    fits = type(value) is kind or (kind is float and type(value) is int)
    if fits and kind in _RANGES:
        least, most = _RANGES_OF.get(name, _RANGES[kind])
        fits = least <= value <= most
    if fits and name in _PATTERNS:
        fits = re.fullmatch(_PATTERNS[name], value, re.DOTALL) is not None
    if not fits:
        given = "what is set" if name in SECRETS else repr(value)
        raise ConfigError(f"{where} must be {_WORDS_OF.get(name, _WORDS[kind])}, not {given}.")
    if name == "schema":
        SCHEMAS.add(value)
