"""The last runs of each function: how long they took, how they ended, and where their time went. Of this process only.

Owns the numbers. `calls` measures the waits and the retries, `transaction` the database. In development also the rows
of a run, which `calls.journal` logs.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from penstock.clock import profile_timer

KEPT = 256  # runs of a function
_KEPT_OF_ALL = 1024

Step = Literal["waits", "database", "retries"]
Mark = tuple[float, float, float]


@dataclass(slots=True)
class Spent:
    """Seconds that a run has spent, with all that it called; the rest is the function's own code and what it awaits.

    Attributes:
        waits: For its turn, a thread, or a transaction: on SQLite for other writers.
        database: In statements, and to commit.
        retries: In attempts that conflicted, and in the pauses after them.
    """

    waits: float = 0.0
    database: float = 0.0
    retries: float = 0.0

    def mark(self) -> Mark:
        """The beginning of an attempt."""
        return profile_timer(), self.waits, self.database

    def retry_since(self, mark: Mark) -> None:
        """All since the beginning of an attempt was in vain."""
        begun, self.waits, self.database = mark
        self.retries += profile_timer() - begun

    def add(self, other: Spent) -> None:
        self.waits += other.waits
        self.database += other.database
        self.retries += other.retries


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that has ended: `outcome` is success, error or canceled."""

    ended_at: datetime
    seconds: float
    outcome: str
    error: str
    spent: Spent


@dataclass(frozen=True, slots=True)
class Timing:
    """The last runs of a function, and for how long its last jobs were due before they started."""

    runs: deque[PastRun] = field(default_factory=lambda: deque(maxlen=KEPT))
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))


class Timings:
    """The last runs of all functions by name, and the durations of the last ones of all."""

    def __init__(self) -> None:
        self.of: defaultdict[str, Timing] = defaultdict(Timing)
        self.seconds: deque[float] = deque(maxlen=_KEPT_OF_ALL)


def percentiles(seconds: Collection[float], *shares: float) -> Sequence[float | None]:
    """For each share the least duration that at least this share of them do not exceed; None without any."""
    in_order = sorted(seconds)
    return [in_order[max(0, math.ceil(share * len(in_order)) - 1)] if in_order else None for share in shares]


_UNMEASURED = nullcontext()
_spent: ContextVar[Spent | None] = ContextVar("penstock_spent", default=None)


def current_spent() -> Spent | None:
    """What the current run has spent; None if nobody wants to know."""
    return _spent.get()


@contextmanager
def spending() -> Iterator[Spent]:
    """Measure a block as one run; a run around it has spent the same."""
    spent, around = Spent(), _spent.get()
    token = _spent.set(spent)
    try:
        yield spent
    finally:
        _spent.reset(token)
        if around is not None:
            around.add(spent)


def spent_on(step: Step) -> AbstractContextManager[None]:
    """Count a block as a step of the current run."""
    spent = _spent.get()
    return _UNMEASURED if spent is None else _spent_on(spent, step)


@contextmanager
def _spent_on(spent: Spent, step: Step) -> Iterator[None]:
    begun = profile_timer()
    try:
        yield
    finally:
        setattr(spent, step, getattr(spent, step) + profile_timer() - begun)


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
