"""Retry policies: which attempt follows when.

Owns the one formula of the wait between attempts; also used between attempts of a conflicting transaction.
"""

from __future__ import annotations

import math
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
        least = {"initial_backoff": 0, "base": 1, "max_backoff": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not bound <= value < math.inf:
                raise DeclarationError(f"Retry: {name} must be a number of at least {bound}, not {value}.")


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
        nominal = math.inf if policy.initial_backoff else 0.0
    cap = _LONGEST if policy.max_backoff is None else policy.max_backoff
    return min(nominal * (0.5 + chance), cap)
