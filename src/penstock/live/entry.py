"""A watched query: its answer as of the last tick, the read set of that, and its watchers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from penstock.changes.readset import ReadSet
from penstock.functions.function import AnyFunction
from penstock.jobs.job import JobStatus

Key = tuple[str, str, str | None]  # the name of the function, its arguments as text, and the journal


@dataclass(frozen=True, slots=True)
class Answer:
    """How a run of a query ended."""

    reads: ReadSet
    result: Any = None
    error: Exception | None = None
    encoded: bytes = b""  # equal for equal answers
    jobs: Mapping[UUID, JobStatus] = field(default_factory=dict)  # the statuses that it read
    journal: str | None = None  # the ends of the pages that it read, which the next run gets


@dataclass(slots=True, eq=False)
class Entry:
    """A query with its arguments, once for all who watch it.

    After each tick its answer is that of the tick's snapshot: nothing that it read has changed since it last ran.
    """

    key: Key
    function: AnyFunction
    arguments: dict[str, Any]
    journal: str | None  # of its next run
    seed: int  # of its random numbers, the same at each run
    answer: Answer | None = None
    changed_at: int = 0  # the tick at which its answer became another one
    runs: int = 0
    why: str = ""  # the cause of its last run
    watchers: set[Any] = field(default_factory=set)
    next_run_at: float = math.inf  # by the monotonic clock: the end of its time, or the next poll
    pause: float = 0.0  # between polls
