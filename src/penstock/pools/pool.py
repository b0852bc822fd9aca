"""What a program declares of a pool: its name, its limit, and what its jobs get unless they ask for something else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from penstock.errors import DeclarationError
from penstock.jobs.job import DEFAULT_POOL
from penstock.jobs.retry import Retry

LogLevel = Literal["debug", "info", "report", "warning", "error"]

MOST_PARALLEL = 1_000_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class PoolDefinition:
    """A declared pool.

    Attributes:
        name: What it is called, in the database, in logs and on the command line.
        max_parallelism: How many of its jobs run at once, on all machines together; 0 starts none.
        default_retry: The policy of actions that are enqueued with ``retry=True``.
        retry_actions_by_default: Whether actions are retried unless they are enqueued with ``retry=False``.
        status_ttl: How long the status and the result of a finished job are kept; None for ever.
        log_level: Which events of it are told: all with debug and info, only reports with report, none beyond that.
    """

    name: str
    max_parallelism: int = 10
    default_retry: Retry = Retry()  # noqa: RUF009 - frozen
    retry_actions_by_default: bool = False
    status_ttl: timedelta | None = timedelta(days=1)
    log_level: LogLevel = "report"

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == DEFAULT_POOL:
            raise DeclarationError(
                f"A pool cannot be called {self.name!r}.",
                fix=f"Use letters, digits, dot, dash and underscore, at most 63, and not {DEFAULT_POOL!r}.",
            )
        check_max_parallelism(self.name, self.max_parallelism)
        if not isinstance(self.default_retry, Retry):
            raise DeclarationError(f"Pool {self.name}: default_retry must be a Retry, not {self.default_retry!r}.")
        ttl: object = self.status_ttl
        if ttl is not None and not (isinstance(ttl, timedelta) and ttl > timedelta(0)):
            raise DeclarationError(
                f"Pool {self.name}: status_ttl must be a timedelta greater than 0, or None for ever, not {ttl!r}."
            )
        if self.log_level not in get_args(LogLevel):
            raise DeclarationError(
                f"Pool {self.name}: log_level must be one of {', '.join(get_args(LogLevel))}, not {self.log_level!r}.",
                fix="debug and info tell of each job, report tells how the pool does about once a minute.",
            )

    @property
    def tells_of_jobs(self) -> bool:
        """Whether it has an event for each thing that happens to a job."""
        return self.log_level in {"debug", "info"}

    @property
    def reports(self) -> bool:
        """Whether it is reported on."""
        return self.log_level in {"debug", "info", "report"}


def check_max_parallelism(pool: str, number: object) -> int:
    """A limit that a pool may have.

    Raises:
        DeclarationError: It is no whole number from 0 to a million.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_PARALLEL:
        raise DeclarationError(
            f"Pool {pool}: max_parallelism must be a whole number from 0 to {MOST_PARALLEL:,}, not {number!r}.",
            fix="0 starts no jobs; for no limit use ctx.scheduler.",
        )
    return number
