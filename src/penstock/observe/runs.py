"""Runs: the cost of one call from outside, or of one attempt at a job, with all that it calls. In development only.

Owns what is counted. `calls.journal` logs it when the run ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from penstock.clock import profile_timer


@dataclass(slots=True)
class Run:
    """What a run has read and written so far, in rows; `error` is the last one that a function raised in it."""

    begun: float
    read: int = 0
    written: int = 0
    error: Exception | None = None
    ended: float | None = None

    def wrote(self, rows: int) -> None:
        """Count rows, once they are committed."""
        self.written += rows

    @property
    def seconds(self) -> float:
        return (self.ended or profile_timer()) - self.begun


_run: ContextVar[Run | None] = ContextVar("run", default=None)


def current_run() -> Run | None:
    return _run.get()


@contextmanager
def run() -> Iterator[Run]:
    """A new run, for a block and its threads."""
    begun = Run(profile_timer())
    token = _run.set(begun)
    try:
        yield begun
    finally:
        begun.ended = profile_timer()
        _run.reset(token)
