"""Retry policies: which attempt follows when.

Owns the one formula of the wait between attempts; also used between attempts of a conflicting transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from penstock.errors import DeclarationError

_LONGEST = timedelta(days=365).total_seconds()


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and after which wait something is tried again.

    Args:
        max_attempts: Attempts in all, the first one included.
        initial_backoff: Seconds before the second attempt, on average.
        base: By which factor each further wait is longer.
        max_backoff: Seconds that no wait exceeds; None for no such limit.
    """

    max_attempts: int = 5
    initial_backoff: float = 0.25
    base: float = 2.0
    max_backoff: float | None = None

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise DeclarationError(f"Retry: max_attempts must be at least 1, not {self.max_attempts}.")
        if self.initial_backoff < 0 or self.base < 1 or (self.max_backoff is not None and self.max_backoff < 0):
            raise DeclarationError("Retry: initial_backoff and max_backoff must not be negative, and base at least 1.")


def backoff(policy: Retry, attempt: int, chance: float) -> float:
    """Seconds to wait after this many attempts: ``initial_backoff · base^(attempt-1) · U[0.5, 1.5)``, capped.

    Args:
        policy: The retry policy.
        attempt: Attempts made so far, at least 1.
        chance: A number in [0, 1).
    """
    try:
        nominal = policy.initial_backoff * policy.base ** (attempt - 1)
    except OverflowError:
        nominal = _LONGEST
    cap = _LONGEST if policy.max_backoff is None else policy.max_backoff
    return min(nominal * (0.5 + chance), cap)
