"""Retry policies: whether a further attempt follows a failed one, and after which wait.

Owns the one decision after a failed attempt, for work in pools, jobs, outboxes and reactive tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from types import EllipsisType
from typing import Self

from penstock.crons.schedule import CronExpression
from penstock.errors import DeclarationError

JITTER = 0.1
LONGEST = timedelta(days=365).total_seconds()
_MOST_IN_SERIES = 100  # each job carries its policy along


@dataclass(frozen=True, slots=True)
class Exponential:
    """In seconds."""

    initial_backoff: float
    base: float
    max_backoff: float | None = None

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        return timedelta(seconds=backoff(self, attempt, chance))


@dataclass(frozen=True, slots=True)
class Fixed:
    """All waits are the same number of seconds, give or take the part that is jitter."""

    wait: float
    jitter: float = JITTER

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        return _vary(self.wait, self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Linear:
    """Each wait is longer than the one before by the same number of seconds, give or take the part that is jitter."""

    wait: float
    jitter: float = JITTER

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        return _vary(min(self.wait * attempt, LONGEST), self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Series:
    """Waits as listed, in seconds, the last one again and again; give or take the part that is jitter."""

    waits: tuple[float, ...]
    jitter: float = JITTER

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        return _vary(self.waits[min(attempt, len(self.waits)) - 1], self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Ticks:
    """Until a cron expression is due, and up to `jitter` seconds more."""

    cron: CronExpression
    jitter: float = 0.0

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        """DeclarationError if it is never due again, since its time zone was changed."""
        return self.cron.next(now) - now + timedelta(seconds=self.jitter * chance)


Waits = Exponential | Fixed | Linear | Series | Ticks


def backoff(waits: Exponential, attempt: int, chance: float) -> float:
    """Seconds to wait after this many attempts: ``initial_backoff · base^(attempt-1) · U[0.5, 1.5)``, capped."""
    try:
        nominal = waits.initial_backoff * waits.base ** (attempt - 1)
    except OverflowError:
        nominal = math.inf if waits.initial_backoff else 0.0
    cap = LONGEST if waits.max_backoff is None else waits.max_backoff
    return min(nominal * (0.5 + chance), cap)


def _vary(seconds: float, jitter: float, chance: float) -> timedelta:
    return timedelta(seconds=min(seconds * (1 + jitter * (2 * chance - 1)), LONGEST))


# ----- as they are declared


def seconds_of(what: str, given: float | timedelta, most: float = LONGEST) -> float:
    if isinstance(given, timedelta):
        found = given.total_seconds()
    elif _is_number(given):
        found = _float(given)
    else:
        raise DeclarationError(
            f"{what} must be a timedelta or a number of seconds, not {given!r}.",
            fix="Write timedelta(minutes=5), or 300.",
        )
    if not 0 <= found <= most:
        raise DeclarationError(
            f"{what} must be a timedelta or a number of seconds from 0 to {most / 86400:g} days, not {given!r}."
        )
    return found


def _part(policy: str, jitter: float) -> float:
    if not (_is_number(jitter) and 0 <= jitter <= 1):
        raise DeclarationError(
            f"{policy}: jitter must be a part of the wait, from 0 to 1, not {jitter!r}.", fix="Write 0.1 for a tenth."
        )
    return float(jitter)


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _float(given: float) -> float:
    try:
        return float(given)
    except OverflowError:  # of a whole number
        return math.inf if given > 0 else -math.inf


@lru_cache(256)  # to check one costs much, and policies are read with each job
def _cron(expression: str, timezone: str) -> CronExpression:
    return CronExpression(expression, timezone)


MaxAttempts = int | EllipsisType | None
_MAX_ATTEMPTS = 5
_LONGEST_DURATION = timedelta(days=36500).total_seconds()


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """A retry policy: the number of attempts, their time in all, and the waits between them.

    ``Retry(…)`` waits longer each time, by a factor; `Retry.fixed`, `Retry.linear`, `Retry.series` and `Retry.cron`
    wait otherwise. All lengths of time are timedeltas or seconds.

    Args:
        max_attempts: Attempts in all, the first one included; None for any number. By default 5, or any number if
            max_duration is given.
        initial_backoff: The wait before the second attempt, on average.
        base: The factor by which each further wait is longer.
        max_backoff: The longest wait; None for no limit.
        max_duration: An attempt that fails later than this after the first one failed is the last one.

    Attributes:
        max_attempts: Attempts in all; None for any number.
        max_duration: The time for retries, counted from the first failure; None for ever.
        waits: The waits in between.

    Raises:
        DeclarationError: A value is out of its bounds, or two exclude each other.
    """

    max_attempts: int | None
    max_duration: timedelta | None
    waits: Waits

    def __init__(
        self,
        max_attempts: MaxAttempts = ...,
        initial_backoff: float | timedelta = 0.25,
        base: float = 2.0,
        max_backoff: float | timedelta | None = None,
        *,
        max_duration: float | timedelta | None = None,
    ) -> None:
        first = seconds_of("Retry: initial_backoff", initial_backoff)
        cap = None if max_backoff is None else seconds_of("Retry: max_backoff", max_backoff)
        if not (_is_number(base) and 1 <= _float(base) < math.inf):
            raise DeclarationError(f"Retry: base must be a number of at least 1, not {base!r}.")
        self._fill("Retry", Exponential(first, float(base), cap), max_attempts, max_duration)

    @classmethod
    def fixed(
        cls,
        wait: float | timedelta,
        *,
        max_attempts: MaxAttempts = ...,
        max_duration: float | timedelta | None = None,
        jitter: float = JITTER,
    ) -> Self:
        """Wait equally long each time.

        Args:
            wait: The wait, on average.
            max_attempts: See `Retry`.
            max_duration: See `Retry`.
            jitter: Each wait differs by up to this part of it, so that jobs that failed together do not retry together.
        """
        waits = Fixed(seconds_of("Retry.fixed: wait", wait), _part("Retry.fixed", jitter))
        return cls._of("Retry.fixed", waits, max_attempts, max_duration)

    @classmethod
    def linear(
        cls,
        wait: float | timedelta,
        *,
        max_attempts: MaxAttempts = ...,
        max_duration: float | timedelta | None = None,
        jitter: float = JITTER,
    ) -> Self:
        """A wait that is longer by its first length each time: after the third attempt, three times as long.

        Args:
            wait: The wait before the second attempt, on average.
            max_attempts: See `Retry`.
            max_duration: See `Retry`.
            jitter: See `fixed`.
        """
        waits = Linear(seconds_of("Retry.linear: wait", wait), _part("Retry.linear", jitter))
        return cls._of("Retry.linear", waits, max_attempts, max_duration)

    @classmethod
    def series(
        cls,
        waits: Sequence[float | timedelta],
        *,
        max_attempts: MaxAttempts = ...,
        max_duration: float | timedelta | None = None,
        jitter: float = JITTER,
    ) -> Self:
        """Waits as listed; the last one comes again and again.

        Args:
            waits: The waits, on average.
            max_attempts: See `Retry`; it does not follow from how many waits there are.
            max_duration: See `Retry`.
            jitter: See `fixed`.
        """
        given: object = waits
        if not isinstance(given, list | tuple):
            raise DeclarationError(
                f"Retry.series: waits must be a list, not {given!r}.", fix="Write Retry.series([1, 10, 60])."
            )
        if not 1 <= len(waits) <= _MOST_IN_SERIES:
            raise DeclarationError(
                f"Retry.series: waits must be 1 to {_MOST_IN_SERIES}, not {len(waits)}.", fix="The last wait repeats."
            )
        found = tuple(seconds_of(f"Retry.series: waits[{place}]", wait) for place, wait in enumerate(waits))
        return cls._of("Retry.series", Series(found, _part("Retry.series", jitter)), max_attempts, max_duration)

    @classmethod
    def cron(
        cls,
        expression: str,
        *,
        timezone: str = "UTC",
        max_attempts: MaxAttempts = ...,
        max_duration: float | timedelta | None = None,
        jitter: float | timedelta = 0.0,
    ) -> Self:
        """Until a cron expression is due for the next time, and up to `jitter` later."""
        given: tuple[object, object] = (expression, timezone)
        if not all(isinstance(one, str) for one in given):
            raise DeclarationError(
                f"Retry.cron: expression and timezone must be text, not {expression!r} and {timezone!r}.",
                fix='Write Retry.cron("0 6 * * *", timezone="Europe/Prague").',
            )
        waits = Ticks(_cron(expression, timezone), seconds_of("Retry.cron: jitter", jitter))
        return cls._of("Retry.cron", waits, max_attempts, max_duration)

    @classmethod
    def _of(cls, policy: str, waits: Waits, max_attempts: MaxAttempts, max_duration: float | timedelta | None) -> Self:
        made = object.__new__(cls)
        made._fill(policy, waits, max_attempts, max_duration)
        return made

    def _fill(
        self, policy: str, waits: Waits, max_attempts: MaxAttempts, max_duration: float | timedelta | None
    ) -> None:
        if max_attempts is ...:
            max_attempts = _MAX_ATTEMPTS if max_duration is None else None
        if max_attempts is not None and (type(max_attempts) is not int or max_attempts < 1):
            raise DeclarationError(
                f"{policy}: max_attempts must be a whole number of at least 1, not {max_attempts!r}.",
                fix="Write None for any number.",
            )
        duration = None
        if max_duration is not None:
            duration = timedelta(seconds=seconds_of(f"{policy}: max_duration", max_duration, _LONGEST_DURATION))
        for name, value in (("max_attempts", max_attempts), ("max_duration", duration), ("waits", waits)):
            object.__setattr__(self, name, value)


def wait_after(
    policy: Retry, attempt: int, failing_since: datetime | None, now: datetime, chance: float
) -> timedelta | None:
    """The wait before the next attempt; None to give up. `failing_since` is when the first attempt failed."""
    if policy.max_attempts is not None and attempt >= policy.max_attempts:
        return None
    if policy.max_duration is not None and failing_since is not None and now - failing_since > policy.max_duration:
        return None
    try:
        return policy.waits.after(attempt, now, chance)
    except DeclarationError:  # it was due when it was declared, and is not any more: nothing is left to wait for
        return None
