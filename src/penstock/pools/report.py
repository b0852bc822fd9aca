"""The report of a pool, about once a minute: the attempts that ended since the last report, and their rates.

The names and the rates are those of Convex's Workpool.
"""

from __future__ import annotations

from typing import Literal

from penstock.dataclass import dataclass

EVERY = 60.0
_DIGITS = 4

Status = Literal["success", "failed", "canceled", "skipped", "retrying"]
_NAMES = {"success": "succeeded", "retrying": "retries"}  # of numbers that are called otherwise


@dataclass(slots=True)
class Tally:
    """Attempts that have ended since the last report; retried ones count as well."""

    succeeded: int = 0
    failed: int = 0
    retries: int = 0
    canceled: int = 0
    skipped: int = 0

    @property
    def completed(self) -> int:
        return self.succeeded + self.failed + self.retries + self.canceled + self.skipped

    def add(self, status: Status) -> None:
        name = _NAMES.get(status, status)
        setattr(self, name, getattr(self, name) + 1)

    def failure_rate(self) -> float | None:
        """The share of failed attempts; None if none has ended, so that no average counts it as a good one."""
        return round((self.failed + self.retries) / self.completed, _DIGITS) if self.completed else None

    def permanent_failure_rate(self) -> float | None:
        """The share of failed jobs among the ones that ended for good; None if none has."""
        ended = self.completed - self.retries
        return round(self.failed / ended, _DIGITS) if ended else None
