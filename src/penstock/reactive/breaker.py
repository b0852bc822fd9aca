"""Circuit breakers: they hold a task for a while after a number of failed attempts in a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.errors import DeclarationError

_MOST = 1000
_LONGEST = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Holds a reactive task after so many failed attempts in a time, counted on all machines together.

    While it is open no run of the task starts, and none uses an attempt. When that time is over, each process that
    runs the task tries one run first: if that fails, the breaker opens again; if not, all go on.

    Args:
        failures: The number of failed attempts that opens it, from 1 to 1000.
        within: The time in which they have to fall.
        open_for: The time for which it stays open.

    Raises:
        DeclarationError: A value is out of its bounds.
    """

    failures: int = 5
    within: timedelta = timedelta(minutes=1)
    open_for: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if type(self.failures) is not int or not 1 <= self.failures <= _MOST:
            raise DeclarationError(f"CircuitBreaker: failures is from 1 to {_MOST}, not {self.failures!r}.")
        for word in ("within", "open_for"):
            given: object = getattr(self, word)
            if not isinstance(given, timedelta) or not timedelta(0) < given <= _LONGEST:
                raise DeclarationError(f"CircuitBreaker: {word} is a timedelta of up to a year, not {given!r}.")

    def opens(self, failed: Sequence[datetime]) -> datetime | None:
        """The time until which it is open after attempts failed at these times; None if it is not."""
        last = sorted(failed)[-self.failures :]
        if len(last) < self.failures or last[-1] - last[0] > self.within:
            return None
        return last[-1] + self.open_for
