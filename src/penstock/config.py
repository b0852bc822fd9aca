"""Settings: each with its default and its reason; read from arguments, the environment and the project file.

Owns the list of settings. A setting is looked for in this order: the argument of `App`, ``PENSTOCK_<NAME>`` in the
environment (``DATABASE_URL`` too, for the database), ``penstock.toml``, ``[tool.penstock]`` in ``pyproject.toml``.
"""

from __future__ import annotations

import contextlib
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of an app. Times are in seconds, sizes in bytes.

    Attributes:
        database: Where the data is: ``sqlite:///penstock.db`` or ``postgresql://…``.
        max_connections: Connections to PostgreSQL for calls, at most, per process; services have a few of their own.
        database_wait: How long a call waits for a database that is away, locked or out of connections.
        statement_timeout: After which time an unanswered statement is given up; at most 24 days.
        synchronous: How durable SQLite's commits are: ``full`` loses nothing; ``normal`` may lose the last commits
            when the machine (not the process) dies, and is faster.
        conflict_attempts: How often a conflicting mutation is run in all; jobs are run for as long as it takes.
        max_rows_read: Rows one transaction may read.
        max_rows_written: Rows one transaction may write.
        max_bytes_read: Bytes one transaction may read.
        max_bytes_written: Bytes one transaction may write.
        max_ranges_read: Ranges of indexes one transaction may read; a row by its id is one too.
        max_jobs_scheduled: Jobs one transaction may schedule, and cancel.
        max_bytes_scheduled: Size of the arguments of all jobs that one transaction schedules.
        max_row_bytes: Size of one row.
        max_argument_bytes: Size of the arguments of one call, and of one HTTP request.
        max_job_argument_bytes: Size of the arguments of one job.
        max_result_bytes: Size of a job's result that is kept.
        call_timeout: How long a call from outside may take.
        max_calls: Calls from outside under way at once; more are refused as overloaded.
        threads: Threads for functions written with def.
        processes: Processes for actions with runtime="process".
        worker_jobs: Jobs one worker runs at once.
        lease: Within which time other workers take over the jobs of one that crashed.
        grace: How long a stopping worker lets its running jobs finish.
        poll: How often an idle worker looks for work that nobody told it of.
        job_status_ttl: How long the status of a finished job is kept.
        cors_origins: Origins of web pages that may call, separated by commas; ``*`` for all.
        dev: Show callers the text of unexpected errors. Never in production.
    """

    database: str = "sqlite:///penstock.db"
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
    max_argument_bytes: int = 16 * _MIB
    max_job_argument_bytes: int = 4 * _MIB
    max_result_bytes: int = _MIB
    call_timeout: float = 60.0
    max_calls: int = 1_000
    threads: int = 32
    processes: int = 2
    worker_jobs: int = 100
    lease: float = 30.0
    grace: float = 10.0
    poll: float = 1.0
    job_status_ttl: float = 7 * 86400.0
    cors_origins: str = ""
    dev: bool = False

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            value = getattr(self, name)
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise ConfigError(f"{name} must be a {kind.__name__}, not {value!r}.")
            least = 0 if name == "grace" else _LEAST.get(kind, 0)
            if kind in _LEAST and not least <= value < math.inf:
                raise ConfigError(f"{name} must be a number greater than 0, not {value}.")
        least, most = _STATEMENT_TIMEOUT
        if not least <= self.statement_timeout <= most:
            raise ConfigError(
                f"statement_timeout must be between {least} and {most:,} seconds, which PostgreSQL can count in "
                f"milliseconds, not {self.statement_timeout}."
            )
        if self.synchronous not in {"full", "normal"}:
            raise ConfigError(f"synchronous must be full or normal, not {self.synchronous!r}.")


_TYPES: dict[str, type[Any]] = {field.name: type(field.default) for field in fields(Config)}
_LEAST: dict[type[Any], float] = {int: 1, float: math.ulp(0.0)}
_STATEMENT_TIMEOUT = (0.001, 2_147_483)  # 31 bits of milliseconds; 0 would be no limit


def load_config(
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Config:
    """The settings in force.

    Args:
        arguments: Settings given in code or on the command line; None values do not count.
        environment: The process's environment by default.
        folder: Where project files are looked for; the current folder by default.

    Raises:
        ConfigError: A setting is unknown, or its value cannot be read.
    """
    found = find_settings(arguments, environment, folder)
    return replace(Config(), **{name: value for name, (value, _source) in found.items()})


def find_settings(
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> dict[str, tuple[Any, str]]:
    """Each setting that is not left at its default: its value, and where it was found. See `load_config`.

    Raises:
        ConfigError: A setting is unknown, or its value cannot be read.
    """
    environment = os.environ if environment is None else environment
    found: dict[str, tuple[Any, str]] = {}
    for source, settings in (
        *_project_settings(folder or Path.cwd()),
        ("the environment", _environment_settings(environment)),
        ("an argument", {key: value for key, value in (arguments or {}).items() if value is not None}),
    ):
        found.update({name: (_read(source, name, value), source) for name, value in settings.items()})
    return found


def _project_settings(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name, path in (("pyproject.toml", ("tool", "penstock")), ("penstock.toml", ())):
        file = folder / name
        if not file.is_file():
            continue
        try:
            content: Any = tomllib.loads(file.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}.") from error
        for part in path:
            content = content.get(part, {})
            if not isinstance(content, dict):
                raise ConfigError(f"{file}: {part} must be a table, not {content!r}.")
        found.append((str(file), {key: value for key, value in content.items() if key != "app"}))
    return found


def _environment_settings(environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    if environment.get("DATABASE_URL"):
        found["database"] = environment["DATABASE_URL"]
    for name in _TYPES:
        value = environment.get(f"PENSTOCK_{name.upper()}")
        if value:
            found[name] = value
    return found


def _read(source: str, name: str, value: Any) -> Any:
    kind = _TYPES.get(name)
    if kind is None:
        raise ConfigError(f"{source}: there is no setting {name!r}.", fix=f"Settings are {', '.join(_TYPES)}.")
    if kind is bool and isinstance(value, str):
        if value.lower() not in {"1", "0", "true", "false"}:
            raise ConfigError(f"{source}: {name} must be true or false, not {value!r}.")
        return value.lower() in {"1", "true"}
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    if isinstance(value, str) and kind in _LEAST:
        with contextlib.suppress(ValueError):
            return kind(value)
    raise ConfigError(f"{source}: {name} must be a {kind.__name__}, not {value!r}.")
