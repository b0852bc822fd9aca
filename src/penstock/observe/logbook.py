"""The logbook: what functions did and what was logged, since a backend wrote it to the database the last time.

Owns the numbers and the events in memory, and how many these may be. `calls/run/engine` writes them, and
`store/nouns/logbook` keeps them for the dashboard and the doctor of any process.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from itertools import count, islice
from typing import Any
from uuid import UUID

from penstock.clock import Clock, SystemClock, layout_uuid7
from penstock.dataclass import dataclass
from penstock.errors import ApplicationError, LeaseLost, Snooze, TaskConditionFailed, TryAgain
from penstock.observe.errortext import error_text, trace_text
from penstock.observe.following import current_part, trace_id
from penstock.observe.timing import STEPS, Spent, bucket_of, current_spent

Numbers = dict[str, dict[str, float]]  # by name, such as `function shop:pay`, then by how it went
RAN, LEAST_LEVEL = 1, 2  # the level of a run of a function, and the least one of what was logged
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_MOST_NAMES, _MOST_EVENTS, _RUNS_OF_ONE = 500, 200, 5  # that are written at once
_LONGEST, _LONGEST_TRACE, _LONGEST_ERROR = 2_000, 8_000, 300
_NO_FAULT = (ApplicationError, LeaseLost, Snooze, TaskConditionFailed, TryAgain)  # they are raised in the normal course
_LEADS = ("function", "fnName", "job", "workId", "trace", "request_id", "key")  # facts by which an event is found
_OWN, _WRONG = re.compile(r"/dashboard(/|$)"), 500

_opened: list[Logbook] = []
_of_task: ContextVar[Logbook | None] = ContextVar("penstock_logbook", default=None)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A log event; or a run of a function, if its level is `RAN`."""

    id: UUID  # later ones of a process have greater ones
    at: datetime
    level: int
    name: str  # such as `job.failed`, or that of the logger
    function: str  # that it is about, or that has logged it
    words: str  # the names and ids by which it is found, each between spaces
    facts: Mapping[str, Any]

    @property
    def level_name(self) -> str:
        return logging.getLevelName(self.level).lower()


class Logbook:
    """The logbook of one backend."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ids = count(SystemClock().seed())
        self._numbers = defaultdict[str, dict[str, float]](dict)
        self._slowest = dict[str, tuple[float, Callable[[], LogEvent]]]()  # runs, by function, with their seconds
        # Runs, plain events and warnings are apart, so that no flood of one hides the others.
        # Most of a flood are dropped before they are written, so events are made when they are taken.
        self._events = [deque[Callable[[], LogEvent]](maxlen=_MOST_EVENTS) for _ in range(3)]

    def add(self, name: str, part: str, number: float = 1) -> None:
        found = self._numbers[name]
        found[part] = found.get(part, 0) + number

    def ran(self, spent: Spent, seconds: float, error: BaseException | None) -> None:
        """Count a run of a function, and keep it if it is one of the first since the last time, or the slowest."""
        outcome = "success" if error is None else "error" if isinstance(error, Exception) else "canceled"
        found, bucket = self._numbers[f"function {spent.function}"], bucket_of(seconds)
        found[outcome] = runs = found.get(outcome, 0) + 1
        found[bucket] = found.get(bucket, 0) + 1
        found["all"] = found.get("all", 0) + seconds
        if spent.waits or spent.database or spent.retries:
            for step in STEPS:
                if took := getattr(spent, step):
                    found[step] = found.get(step, 0) + took
        if outcome == "error" and not isinstance(error, _NO_FAULT):
            self.add(f"function {spent.function}", "fault")
        is_slowest = spent.function not in self._slowest or seconds > self._slowest[spent.function][0]
        if runs <= _RUNS_OF_ONE or is_slowest:
            run = self._run_of(spent, seconds, outcome, error)
            if runs <= _RUNS_OF_ONE:
                self._queue(RAN).append(partial(run, "function.failed" if outcome == "error" else "function.ran"))
            if is_slowest:
                self._slowest[spent.function] = seconds, partial(run, "function.slow")

    def _run_of(
        self, spent: Spent, seconds: float, outcome: str, error: BaseException | None
    ) -> Callable[[str], LogEvent]:
        """Read the facts of a run; the result makes its event, of a name."""
        told = "" if error is None else error_text(error)[:_LONGEST_ERROR]
        facts = {step: getattr(spent, step) for step in STEPS} | {"outcome": outcome, "error": told, "all": seconds}
        if (part := current_part()) is not None:
            facts |= {"job": next(iter(part.jobs), None), "trace": trace_id(part.trace) if part.leads else None}
        at, words = self._clock.now(), f" {spent.function} "
        return lambda name: _make(next(self._ids), at, RAN, name, spent.function, words, facts)

    def log(
        self, name: str, level: int, facts: Mapping[str, Any], error: BaseException | None, jobs: Sequence[str] = ()
    ) -> None:
        """Keep a log event. Requests for pages of the dashboard leave no trace."""
        is_own = name == "http.request" and "function" not in facts and _OWN.search(str(facts.get("path")))
        if is_own and facts.get("status", _WRONG) < _WRONG:
            return
        said = facts if error is None else {**facts, "traceback": trace_text(error)[-_LONGEST_TRACE:]}
        level, at = max(level, LEAST_LEVEL), self._clock.now()
        self._queue(level).append(partial(self._event_of, next(self._ids), at, level, name, said, jobs))

    def _event_of(
        self, number: int, at: datetime, level: int, name: str, facts: Mapping[str, Any], jobs: Sequence[str]
    ) -> LogEvent:
        said = {one: value[:_LONGEST] if isinstance(value, str) else value for one, value in facts.items()}
        if "traceback" in facts:
            said["traceback"] = facts["traceback"]
        function = str(facts.get("function") or facts.get("fnName") or "")
        words = " ".join([*(str(facts[one]) for one in _LEADS if facts.get(one)), *jobs])
        return _make(number, at, level, name, function, f" {words} ", said)

    def take(self) -> tuple[Numbers, list[LogEvent]]:
        """The lines to be written now. Numbers of names beyond a bound wait for the next time."""
        numbers = {name: self._numbers.pop(name) for name in [*islice(self._numbers, _MOST_NAMES)]}
        slowest = [self._slowest.pop(name)[1] for name in [*islice(self._slowest, _MOST_NAMES)]]
        return numbers, [
            *(make() for make in slowest),
            *(queue.popleft()() for queue in self._events for _ in range(len(queue))),
        ]

    def put_back(self, numbers: Numbers, events: Sequence[LogEvent]) -> None:
        """Keep what could not be written for the next time: numbers, and events for which there is room."""
        for name, found in numbers.items():
            for part, number in found.items():
                self.add(name, part, number)
        for one in reversed(events):
            self._queue(one.level).appendleft(partial(_same, one))

    @contextmanager
    def attach(self) -> Iterator[None]:
        """Have the tasks that begin in a block log here, and until `close` all that belongs to no backend."""
        _opened.append(self)
        token = _of_task.set(self)
        try:
            yield
        finally:
            _of_task.reset(token)

    def close(self) -> None:
        if self in _opened:
            _opened.remove(self)

    def _queue(self, level: int) -> deque[Callable[[], LogEvent]]:
        return self._events[(level > RAN) + (level >= logging.WARNING)]


def _make(
    number: int, at: datetime, level: int, name: str, function: str, words: str, facts: Mapping[str, Any]
) -> LogEvent:
    id_ = UUID(int=layout_uuid7(int(at.timestamp() * 1000), number))
    return LogEvent(id_, at, level, _storable(name), _storable(function), _storable(words), facts)


def _same(event: LogEvent) -> LogEvent:
    return event


def _storable(text: str) -> str:
    return text[:_LONGEST_TRACE].replace("\0", "").encode(errors="replace").decode()


def note_event(name: str, level: int, facts: Mapping[str, Any], error: BaseException | None) -> None:
    """Keep an event of penstock's in the logbook of the backend that it comes from."""
    spent = current_spent()
    book = (None if spent is None else spent.book) or _of_task.get() or next(reversed(_opened), None)
    if book is not None:
        book.log(name, level, facts, error)


def note_record(record: logging.LogRecord, text: str) -> None:
    """Keep what a function logs while it runs."""
    spent, part = current_spent(), current_part()
    if spent is None or spent.book is None:
        return
    jobs = [] if part is None else part.jobs
    facts = {"function": spent.function, "job": next(iter(jobs), None), "message": text}
    if spent.step:
        facts["step"] = spent.step
    if part is not None and part.leads:
        facts["trace"] = trace_id(part.trace)
    error = record.exc_info[1] if record.exc_info else None
    spent.book.log(record.name, record.levelno, facts, error, jobs[1:])
