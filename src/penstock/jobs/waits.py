"""How long to wait before a further attempt: the kinds of waits, of which each retry policy has one.

Owns their formulas and their jitter, and refuses what makes no sense of them. Leaves how many attempts there are, and
for how long, to `jobs/retry`; and when a cron expression is due to `crons/expression`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from penstock.crons.expression import CronExpression
from penstock.errors import DeclarationError

JITTER = 0.1
LONGEST = timedelta(days=365).total_seconds()
_MOST_IN_SERIES = 100  # each job carries its policy along


@dataclass(frozen=True, slots=True)
class Exponential:
    """Each wait is longer than the one before by the same factor; in seconds."""

    initial_backoff: float
    base: float
    max_backoff: float | None = None

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        """The wait after so many attempts."""
        return timedelta(seconds=backoff(self, attempt, chance))


@dataclass(frozen=True, slots=True)
class Fixed:
    """All waits are the same number of seconds, give or take the part that is jitter."""

    wait: float
    jitter: float = JITTER

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        """The wait after so many attempts."""
        return _varied(self.wait, self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Linear:
    """Each wait is longer than the one before by the same number of seconds, give or take the part that is jitter."""

    wait: float
    jitter: float = JITTER

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        """The wait after so many attempts."""
        return _varied(min(self.wait * attempt, LONGEST), self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Series:
    """Waits as listed, in seconds, the last one again and again; give or take the part that is jitter."""

    waits: tuple[float, ...]
    jitter: float = JITTER

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        """The wait after so many attempts."""
        return _varied(self.waits[min(attempt, len(self.waits)) - 1], self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Ticks:
    """Until a cron expression is due, and up to `jitter` seconds more."""

    cron: CronExpression
    jitter: float = 0.0

    def after(self, attempt: int, now: datetime, chance: float) -> timedelta:  # noqa: ARG002 - of all kinds of waits
        """The wait after so many attempts.

        Raises:
            DeclarationError: It is never due again, since its time zone was changed.
        """
        return self.cron.next(now) - now + timedelta(seconds=self.jitter * chance)


Waits = Exponential | Fixed | Linear | Series | Ticks


def backoff(waits: Exponential, attempt: int, chance: float) -> float:
    """Seconds to wait after this many attempts: ``initial_backoff · base^(attempt-1) · U[0.5, 1.5)``, capped.

    Args:
        waits: First wait, factor and cap.
        attempt: Attempts made so far, at least 1.
        chance: A number in [0, 1).
    """
    try:
        nominal = waits.initial_backoff * waits.base ** (attempt - 1)
    except OverflowError:
        nominal = math.inf if waits.initial_backoff else 0.0
    cap = LONGEST if waits.max_backoff is None else waits.max_backoff
    return min(nominal * (0.5 + chance), cap)


def _varied(seconds: float, jitter: float, chance: float) -> timedelta:
    """A wait times ``U[1 - jitter, 1 + jitter)``."""
    return timedelta(seconds=min(seconds * (1 + jitter * (2 * chance - 1)), LONGEST))


# ----- as they are declared; `policy` is what an error names


def exponential(
    policy: str, initial_backoff: float | timedelta, base: float, max_backoff: float | timedelta | None
) -> Exponential:
    """Waits that grow by a factor, checked."""
    first = seconds_of(f"{policy}: initial_backoff", initial_backoff)
    cap = None if max_backoff is None else seconds_of(f"{policy}: max_backoff", max_backoff)
    if not (_is_number(base) and 1 <= _float(base) < math.inf):
        raise DeclarationError(f"{policy}: base must be a number of at least 1, not {base!r}.")
    return Exponential(first, float(base), cap)


def fixed(policy: str, wait: float | timedelta, jitter: float) -> Fixed:
    """Waits that are all the same, checked."""
    return Fixed(seconds_of(f"{policy}: wait", wait), _part(policy, jitter))


def linear(policy: str, wait: float | timedelta, jitter: float) -> Linear:
    """Waits that grow by a step, checked."""
    return Linear(seconds_of(f"{policy}: wait", wait), _part(policy, jitter))


def series(policy: str, waits: object, jitter: float) -> Series:
    """Waits one by one, checked."""
    if not isinstance(waits, list | tuple):
        raise DeclarationError(
            f"{policy}: waits must be a list, not {waits!r}.", fix="Write Retry.series([1, 10, 60])."
        )
    if not 1 <= len(waits) <= _MOST_IN_SERIES:
        raise DeclarationError(
            f"{policy}: waits must be 1 to {_MOST_IN_SERIES}, not {len(waits)}.",
            fix="The last wait repeats.",
        )
    found = tuple(seconds_of(f"{policy}: waits[{place}]", wait) for place, wait in enumerate(waits))
    return Series(found, _part(policy, jitter))


def ticks(policy: str, expression: object, timezone: object, jitter: float | timedelta) -> Ticks:
    """Waits until a cron expression is due, checked."""
    if not (isinstance(expression, str) and isinstance(timezone, str)):
        raise DeclarationError(
            f"{policy}: expression and timezone must be text, not {expression!r} and {timezone!r}.",
            fix='Write Retry.cron("0 6 * * *", timezone="Europe/Prague").',
        )
    return Ticks(_cron(expression, timezone), seconds_of(f"{policy}: jitter", jitter))


def seconds_of(what: str, given: float | timedelta, most: float = LONGEST) -> float:
    """A length of time that is given as a timedelta or in seconds.

    Args:
        what: What an error calls it.
        given: The length.
        most: Seconds that it must not exceed.

    Raises:
        DeclarationError: It is neither, or negative, or too long.
    """
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
