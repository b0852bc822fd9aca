"""Retry policies: which attempt follows when, and when there is none.

Owns the one decision about what follows a failed attempt, for work in pools, jobs and reactive tasks. Leaves how long
each wait is to `jobs/waits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Self

from penstock.errors import DeclarationError
from penstock.jobs.waits import JITTER, Waits, exponential, fixed, linear, seconds_of, series, ticks

MaxAttempts = int | EllipsisType | None
_MAX_ATTEMPTS = 5
_LONGEST_DURATION = timedelta(days=36500).total_seconds()


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """How often, for how long and after which waits something is tried again.

    ``Retry(…)`` waits longer each time, by a factor; `Retry.fixed`, `Retry.linear`, `Retry.series` and `Retry.cron`
    wait otherwise. All lengths of time are timedeltas or seconds.

    Args:
        max_attempts: Attempts in all, the first one included; None for any number. By default 5, or any number if
            max_duration is given.
        initial_backoff: The wait before the second attempt, on average.
        base: By which factor each further wait is longer.
        max_backoff: What no wait exceeds; None for no such limit.
        max_duration: An attempt that fails later than this after the first one failed is the last one.

    Attributes:
        max_attempts: Attempts in all; None for any number.
        max_duration: For how long it is tried again after the first attempt has failed; None for ever.
        waits: The waits in between.

    Raises:
        DeclarationError: Something of it makes no sense.
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
        self._fill("Retry", exponential("Retry", initial_backoff, base, max_backoff), max_attempts, max_duration)

    @classmethod
    def fixed(
        cls,
        wait: float | timedelta,
        *,
        max_attempts: MaxAttempts = ...,
        max_duration: float | timedelta | None = None,
        jitter: float = JITTER,
    ) -> Self:
        """The same wait each time.

        Args:
            wait: The wait, on average.
            max_attempts: See `Retry`.
            max_duration: See `Retry`.
            jitter: Each wait differs by up to this part of it, so that what failed together is not tried together.
        """
        policy = "Retry.fixed"
        return cls._of(policy, fixed(policy, wait, jitter), max_attempts, max_duration)

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
        policy = "Retry.linear"
        return cls._of(policy, linear(policy, wait, jitter), max_attempts, max_duration)

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
        policy = "Retry.series"
        return cls._of(policy, series(policy, waits, jitter), max_attempts, max_duration)

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
        """Until a cron expression is due for the next time.

        Args:
            expression: The cron expression, as `CronExpression` takes it.
            timezone: IANA name of its time zone.
            max_attempts: See `Retry`.
            max_duration: See `Retry`.
            jitter: How much later than that at most.
        """
        policy = "Retry.cron"
        return cls._of(policy, ticks(policy, expression, timezone, jitter), max_attempts, max_duration)

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
    """What follows an attempt that failed: a wait, and another one; or None: to give up.

    Args:
        policy: The retry policy.
        attempt: Attempts made so far, at least 1.
        failing_since: When the first one failed; None if this is the first one.
        now: When this one failed.
        chance: A number in [0, 1).
    """
    if policy.max_attempts is not None and attempt >= policy.max_attempts:
        return None
    if policy.max_duration is not None and failing_since is not None and now - failing_since > policy.max_duration:
        return None
    try:
        return policy.waits.after(attempt, now, chance)
    except DeclarationError:  # it was due when it was declared, and is not any more: nothing is left to wait for
        return None
