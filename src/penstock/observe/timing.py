"""Where the time of a run goes, and how durations are counted.

`calls` measures the waits and the retries, `transaction` the database; the logbook keeps the numbers. In development
also the rows of a run, which `calls.journal` logs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import accumulate
from typing import Any, Literal, Self

from penstock.clock import profile_timer
from penstock.dataclass import dataclass

_BUCKETS = range(-39, 64)  # from a microsecond on
_LONGEST = [2 ** (bucket / 2) for bucket in _BUCKETS[:-1]]  # duration in each of them, but for the last
_NAMES = [str(bucket) for bucket in _BUCKETS]

Step = Literal["waits", "database", "retries"]
STEPS: tuple[Step, ...] = ("waits", "database", "retries")
Mark = tuple[float, float, float]


class Spent:
    """A run of a function, and the seconds that it has spent with all that it called. Use it in ``with``.

    Args:
        function: The function.
        book: The logbook that counts the run.
        step: The number of the step of a workflow's run that it is.

    Attributes:
        waits: For its turn, a thread, or a transaction: on SQLite for other writers.
        database: In statements, and to commit.
        retries: In attempts that conflicted, and in the pauses after them.
    """

    __slots__ = ("_around", "_begun", "_token", "book", "database", "function", "retries", "step", "waits")

    def __init__(self, function: str = "", book: Any = None, step: str = "") -> None:
        self.function, self.book, self.step = function, book, step
        self.waits = self.database = self.retries = 0.0

    def __enter__(self) -> Self:
        self._around, self._token, self._begun = _spent.get(), _spent.set(self), profile_timer()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        seconds = profile_timer() - self._begun
        _spent.reset(self._token)
        if self._around is not None:
            self._around.add(self)
        if self.book is not None:
            self.book.ran(self, seconds, error)

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
    return _NAMES[bisect_left(_LONGEST, seconds)]


def percentiles(counts: Mapping[str, float], *shares: float, prefix: str = "") -> Sequence[float | None]:
    """For each share a duration that at least this share of them do not exceed by much; None without any.

    Args:
        counts: How many durations are in each bucket, among other numbers.
        *shares: Such as 0.5.
        prefix: What the names of the buckets begin with.
    """
    buckets = {name.removeprefix(prefix): number for name, number in counts.items() if name.startswith(prefix)}
    in_order = sorted((int(name), number) for name, number in buckets.items() if name.lstrip("-").isdecimal())
    below = list(accumulate(number for _, number in in_order))
    return [
        None if not below else 2 ** (in_order[bisect_left(below, share * below[-1])][0] / 2 - 0.25) for share in shares
    ]


_UNMEASURED = nullcontext()
_spent: ContextVar[Spent | None] = ContextVar("penstock_spent", default=None)


current_spent = _spent.get  # what the current run has spent; None if nobody wants to know


def time_step(step: Step) -> AbstractContextManager[None]:
    """Count a block as a step of the current run."""
    spent = _spent.get()
    return _UNMEASURED if spent is None else _SpentOn(spent, step)


class _SpentOn(AbstractContextManager[None]):
    __slots__ = ("_begun", "_spent", "_step")

    def __init__(self, spent: Spent, step: Step) -> None:
        self._spent, self._step = spent, step

    def __enter__(self) -> None:
        self._begun = profile_timer()

    def __exit__(self, *_: object) -> None:
        spent, step = self._spent, self._step
        setattr(spent, step, getattr(spent, step) + profile_timer() - self._begun)


@dataclass(slots=True)
class CallStats:
    """The rows that a run has read and written so far; `error` is the last one that a function raised in it."""

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


_run: ContextVar[CallStats | None] = ContextVar("run", default=None)


current_run = _run.get


@contextmanager
def run(begun: CallStats | None = None) -> Iterator[CallStats]:
    """A new run, or one that goes on, for a block and its threads."""
    begun = begun or CallStats(profile_timer())
    token = _run.set(begun)
    try:
        yield begun
    finally:
        begun.ended = profile_timer()
        _run.reset(token)
