"""A watched query: its answer as of the last tick, the read set of that, and its watchers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from penstock.changes.readset import ReadSet
from penstock.functions.function import AnyFunction
from penstock.jobs.job import JobStatus

Key = tuple[str, str]  # the name of the function, and its arguments as text
QUICK = 0.05  # seconds: for the runs of a tick, before those that are left are late
_CAUSES = 5


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Answer:
    """How a run of a query ended."""

    reads: ReadSet
    result: Any = None
    error: Exception | None = None
    encoded: bytes = b""  # equal for equal answers
    jobs: Mapping[UUID, JobStatus] = field(default_factory=dict)  # the statuses that it read


class EntryReport(NamedTuple):
    """How a watched query fares.

    Attributes:
        function: Its name.
        arguments: Its arguments, as text.
        watchers: How many watch it.
        runs: How often it ran.
        seconds: The time that its runs took together, in seconds.
        causes: The causes of its last runs, the newest one last.
        stale: Whether it has no answer as of the newest tick yet.
    """

    function: str
    arguments: str
    watchers: int
    runs: int
    seconds: float
    causes: tuple[str, ...]
    stale: bool


@dataclass(slots=True, eq=False)
class Entry:
    """A query with its arguments, once for all who watch it.

    After each tick its answer is that of the tick's snapshot: nothing that it read has changed since it last ran.
    """

    key: Key
    function: AnyFunction
    arguments: dict[str, Any]
    seed: int  # of its random numbers, the same at each run
    answer: Answer | None = None
    stale: bool = True  # whether it has no answer as of the newest tick
    runs: int = 0
    took: float = QUICK  # seconds of its last run; before it, those that are known to be quicker go first
    seconds: float = 0.0  # of all
    causes: deque[str] = field(default_factory=lambda: deque(maxlen=_CAUSES))  # of its last runs
    watchers: set[tuple[Any, int]] = field(default_factory=set)  # views, each with the number of the query there
    next_run_at: float = math.inf  # by the monotonic clock: the end of its time, or the next poll
    pause: float = 0.0  # between polls

    @property
    def size(self) -> int:
        """The bytes of its answer, about."""
        return 0 if self.answer is None else len(self.answer.encoded)

    def note_run(self, cause: str, seconds: float) -> None:
        """Count a run."""
        self.runs, self.took, self.seconds = self.runs + 1, seconds, self.seconds + seconds
        self.causes.append(cause)

    def report(self) -> EntryReport:
        """How it fares now."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        watchers, causes = len(self.watchers), tuple(self.causes)
        return EntryReport(self.function.name, given, watchers, self.runs, self.seconds, causes, self.stale)
