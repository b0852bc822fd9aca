"""Where the time of a run goes, and how durations are counted.

`calls` measures the waits and the retries, `transaction` the database; the logbook keeps the numbers. In development
also the rows of a run, which `calls.journal` logs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from penstock.clock import profile_timer

_SHORTEST = 1e-6

Step = Literal["waits", "database", "retries"]
Mark = tuple[float, float, float]


@dataclass(slots=True)
class Spent:
    """Seconds that a run has spent, with all that it called; the rest is the function's own code and what it awaits.

    Attributes:
        waits: For its turn, a thread, or a transaction: on SQLite for other writers.
        database: In statements, and to commit.
        retries: In attempts that conflicted, and in the pauses after them.
        function: The function.
        book: The logbook of its backend.
    """

    waits: float = 0.0
    database: float = 0.0
    retries: float = 0.0
    function: str = field(default="", compare=False)
    book: Any = field(default=None, compare=False)

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


def bucket_of(seconds: float) -> str:
    """The name of the durations that are counted as one: the longest of them is 1.41 times as long as the shortest."""
    return str(math.ceil(2 * math.log2(max(seconds, _SHORTEST))))


def percentiles(counts: Mapping[str, float], *shares: float) -> Sequence[float | None]:
    """For each share a duration that at least this share of them do not exceed by much; None without any.

    Args:
        counts: How many durations are in each bucket.
        *shares: Such as 0.5.
    """
    in_order = sorted((int(bucket), number) for bucket, number in counts.items())
    below = list(accumulate(number for _, number in in_order))
    return [
        None if not below else 2 ** (in_order[bisect_left(below, share * below[-1])][0] / 2 - 0.25) for share in shares
    ]


_UNMEASURED = nullcontext()
_spent: ContextVar[Spent | None] = ContextVar("penstock_spent", default=None)


def current_spent() -> Spent | None:
    """What the current run has spent; None if nobody wants to know."""
    return _spent.get()


@contextmanager
def spending(function: str = "", book: Any = None) -> Iterator[Spent]:
    """Measure a block as one run; a run around it has spent the same."""
    spent, around = Spent(function=function, book=book), _spent.get()
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
