"""A watched query: its answer as of the last tick, the read set of that, and its watchers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from penstock.changes.readset import Read, ReadSet
from penstock.dataclass import dataclass
from penstock.functions.function import AnyFunction
from penstock.identity.caller import Caller
from penstock.jobs.job import JobStatus

Key = tuple[str, str, str, str | None]  # the name of the function, its arguments as text, for whom, and the journal
ANYBODY = ""  # for whom an entry is whose query has not read who calls
QUICK = 0.05  # seconds: for the runs of a tick, before the remaining ones are late
_CAUSES, _SESSIONS = 5, 10


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Answer:
    """How a run of a query ended."""

    reads: ReadSet
    result: Any = None
    error: Exception | None = None
    digest: bytes = b""  # equal for equal answers
    size: int = 0  # bytes of its result, about
    jobs: Mapping[UUID, JobStatus] | None = None  # the statuses that it read, if any
    given: str | None = None  # the ends of pages that it was given
    journal: str | None = None  # those of the pages that it read, which the next run gets
    lines: Sequence[str] = ()  # what the run has logged, if somebody may be told


class EntryReport(NamedTuple):
    """How a watched query fares."""

    function: str  # its name
    arguments: str  # its arguments, as text
    caller: str | None  # for whom it runs, masked; None if it has not asked, so that its answer is everybody's
    watchers: int  # how many watch it
    watched_for: float  # seconds since it was first watched
    runs: int  # how often it ran
    seconds: float  # the time that its runs took together, in seconds
    causes: tuple[str, ...]  # the causes of its last runs, the newest one last
    stale: bool  # whether it has no answer as of the newest tick yet
    sessions: tuple[str, ...]  # who watches, masked, and from where; up to ten of them


@dataclass(slots=True, eq=False)
class Entry:
    """A query with its arguments, once for all who watch it.

    After each tick its answer is that of the tick's snapshot: nothing that it read has changed since it last ran.
    """

    key: Key
    function: AnyFunction
    arguments: dict[str, Any]
    caller: Caller  # who it runs for
    journal: str | None  # of its next run
    seed: int  # of its random numbers, the same at each run
    since: float  # by the monotonic clock
    answer: Answer | None = None
    noted: list[Read] = field(default_factory=list)  # the reads by which it is found
    stale: bool = True  # whether it has no answer as of the newest tick
    runs: int = 0
    conflicts: int = 0  # that have ended its runs since its last answer
    took: float = QUICK  # seconds, of the quicker one of its last two runs: one may have had bad luck
    last: float = QUICK  # seconds of the last one
    seconds: float = 0.0  # of all
    causes: tuple[str, ...] = ()  # of its last runs
    watchers: set[tuple[Any, int]] = field(default_factory=set)  # views, each with the number of the query there
    next_run_at: float = math.inf  # by the monotonic clock: the end of its time, or the next poll
    pause: float = 0.0  # between polls

    @property
    def size(self) -> int:
        """The bytes of its answer, about."""
        return 0 if self.answer is None else self.answer.size

    def note_run(self, cause: str, seconds: float) -> None:
        """Count a run."""
        self.runs, self.seconds, self.conflicts = self.runs + 1, self.seconds + seconds, 0
        self.took, self.last = min(seconds, self.last), seconds
        self.causes = (*self.causes[1 - _CAUSES :], cause)

    def report(self, now: float, told: Callable[[AnyFunction, Mapping[str, Any]], str]) -> EntryReport:
        """How it fares now; `told` gives the text of its arguments."""
        given, callers = told(self.function, self.arguments), (view.caller for view, _ in self.watchers)
        sessions = tuple(f"{one.short_name} {one.address}".strip() for one in islice(callers, _SESSIONS))
        watchers, watched_for, causes = len(self.watchers), now - self.since, self.causes
        name, caller, stale = self.function.name, None if self.key[2] == ANYBODY else self.caller.short_name, self.stale
        return EntryReport(name, given, caller, watchers, watched_for, self.runs, self.seconds, causes, stale, sessions)


def as_text(_function: AnyFunction, arguments: Mapping[str, Any]) -> str:
    """The arguments of a query as Python writes them."""
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
