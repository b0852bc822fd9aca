"""A pool as declared: its name, its limits, and the default options of its jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, NoReturn, get_args

from penstock.config import FOR_EVER
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError
from penstock.functions.component import short_name
from penstock.functions.programs import NAME, check_name
from penstock.jobs.job import DEFAULT_POOL
from penstock.jobs.order import NO_AGEING
from penstock.jobs.retry import Retry
from penstock.pools.rates import FixedWindow, RateLimit, TokenBucket

LogLevel = Literal["debug", "info", "report", "warning", "error"]

MOST_PARALLEL = 1_000_000
_SHORTEST_AGEING = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class PoolDefinition:
    name: str  # its name, in the database, in logs and on the command line
    max_parallelism: int = 10  # how many of its jobs run at once, on all machines together; 0 starts none
    # the policy of actions that are enqueued with ``retry=True``
    default_retry: Retry = Retry()
    retry_actions_by_default: bool = False  # whether actions are retried unless they are enqueued with ``retry=False``
    # how long the status and the result of a finished job are kept; None for ever
    status_ttl: timedelta | None = timedelta(days=1)
    # how many of its jobs with one concurrency key run at once; None for as many as of the pool
    key_parallelism: int | None = None
    rate_limit: RateLimit | None = None  # how many of its jobs start in a time; None for any number
    # how many of its jobs with one concurrency key start in a time; None for any number
    key_rate_limit: RateLimit | None = None
    group: str | None = None  # name of the pools that lend it their unused slots; None for no such pools
    # how long a job waits until it is as urgent as one of the next higher priority; None for ever
    ageing: timedelta | None = None
    # which events of it are told: all with debug and info, only reports with report, none beyond that
    log_level: LogLevel = "report"

    def __post_init__(self) -> None:
        check_name("A pool", short_name(self.name))
        if self.name == DEFAULT_POOL:
            self._refuse("it has the name of the jobs without a pool", "Choose another one.")
        check_max_parallelism(self.name, self.max_parallelism)
        if not isinstance(self.default_retry, Retry):
            self._refuse(f"default_retry must be a Retry, not {self.default_retry!r}")
        always: object = self.retry_actions_by_default
        if not isinstance(always, bool):
            self._refuse(f"retry_actions_by_default must be True or False, not {always!r}")
        ttl: object = self.status_ttl
        if ttl is not None and not (isinstance(ttl, timedelta) and timedelta(0) < ttl <= FOR_EVER):
            longest = f"{FOR_EVER.days:,} days"
            self._refuse(
                f"status_ttl must be a timedelta greater than 0, of at most {longest}, or None for ever, not {ttl!r}"
            )
        if self.log_level not in get_args(LogLevel):
            self._refuse(
                f"log_level must be one of {', '.join(get_args(LogLevel))}, not {self.log_level!r}",
                "debug and info log each job; report logs a summary about once a minute.",
            )
        self._check_keys_and_rates()

    def _check_keys_and_rates(self) -> None:
        number: object = self.key_parallelism
        if number is not None and (type(number) is not int or not 1 <= number <= MOST_PARALLEL):
            self._refuse(f"key_parallelism must be a whole number from 1 to {MOST_PARALLEL:,}, not {number!r}")
        for word in ("rate_limit", "key_rate_limit"):
            policy: object = getattr(self, word)
            if policy is not None and not isinstance(policy, TokenBucket | FixedWindow):
                fix = "Write TokenBucket(rate=100, period=timedelta(minutes=1))."
                self._refuse(f"{word} must be a TokenBucket or a FixedWindow, not {policy!r}", fix)
        group: object = self.group
        if group is not None and (not isinstance(group, str) or not NAME.fullmatch(short_name(group))):
            self._refuse(f"a group cannot be called {group!r}", "Name it like a pool.")
        ageing: object = self.ageing
        if ageing is not None and not (isinstance(ageing, timedelta) and _SHORTEST_AGEING <= ageing <= NO_AGEING):
            self._refuse(f"ageing must be a timedelta from a millisecond to {NO_AGEING.days} days, not {ageing!r}")

    def _refuse(self, why: str, fix: str = "") -> NoReturn:
        raise DeclarationError(f"Pool {self.name}: {why}.", fix=fix)

    @property
    def tells_of_jobs(self) -> bool:
        """Whether it has an event for each thing that happens to a job."""
        return self.log_level in {"debug", "info"}

    @property
    def reports(self) -> bool:
        return self.log_level in {"debug", "info", "report"}


def check_max_parallelism(pool: str, number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_PARALLEL:
        raise DeclarationError(
            f"Pool {pool}: max_parallelism must be a whole number from 0 to {MOST_PARALLEL:,}, not {number!r}.",
            fix="0 starts no jobs; for no limit use ctx.scheduler.",
        )
    return number
