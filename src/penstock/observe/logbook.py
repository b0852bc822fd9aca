"""The logbook: what functions did and what was logged, since a backend wrote it to the database the last time.

Owns the numbers and the events in memory, and how many these may be. `calls/run/engine` writes them, and
`store/nouns/logbook` keeps them for the dashboard and the doctor of any process.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from itertools import count, islice
from typing import Any
from uuid import UUID

from penstock.clock import Clock, SystemClock, layout_uuid7
from penstock.observe.errortext import trace_text
from penstock.observe.following import current_part, trace_id
from penstock.observe.timing import Spent, bucket_of, current_spent

Key = tuple[str, str, str]  # a kind of thing, the name of one, and how it went
RAN, LEAST_LEVEL = 1, 2  # the level of a run of a function, and the least one of what was logged
_MOST_NUMBERS, _MOST_EVENTS, _MOST_RUNS, _RUNS_OF_ONE = 5_000, 200, 200, 20  # that are written at once
_LONGEST, _LONGEST_TRACE, _LONGEST_NAME = 2_000, 8_000, 200
_LEADS = ("function", "fnName", "job", "workId", "trace", "request_id", "key")  # facts by which an event is found
_OWN, _WRONG = re.compile(r"/dashboard(/|$)"), 500

_opened: list[Logbook] = []
_of_task: ContextVar[Logbook | None] = ContextVar("penstock_logbook", default=None)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A log event; or a run of a function, if its level is `RAN`.

    Attributes:
        id: Its id; later ones of a process have greater ones.
        at: When it was.
        level: The number of its level.
        name: Its name, such as ``job.failed``, or that of the logger.
        function: The function that it is about, or that has logged it; may be empty.
        words: The names and ids by which it is found, each between spaces.
        facts: What it says.
    """

    id: UUID
    at: datetime
    level: int
    name: str
    function: str
    words: str
    facts: Mapping[str, Any]

    @property
    def level_name(self) -> str:
        return logging.getLevelName(self.level).lower()


class Logbook:
    """The logbook of one backend."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = defaultdict[Key, float](float)
        self._plain = deque[LogEvent](maxlen=_MOST_EVENTS)
        self._warnings = deque[LogEvent](maxlen=_MOST_EVENTS)  # apart, so that no flood of others hides them
        self._runs = defaultdict[str, deque[tuple[datetime, Mapping[str, Any]]]](lambda: deque(maxlen=_RUNS_OF_ONE))
        self._ids = count(SystemClock().seed())

    def add(self, kind: str, name: str, part: str = "", number: float = 1) -> None:
        self._numbers[kind, name, part] += number

    def ran(self, function: str, outcome: str, seconds: float, spent: Spent, error: str) -> None:
        """Count a run of a function, and keep it as one of its last ones."""
        parts = {"database": spent.database, "waits": spent.waits, "retries": spent.retries}
        self.add("calls", function, outcome)
        self.add("seconds", function, bucket_of(seconds))
        self.add("spent", function, "all", seconds)
        for part, took in parts.items():
            if took:
                self.add("spent", function, part, took)
        self._runs[function].append(
            (self._clock.now(), {"outcome": outcome, "seconds": seconds, "error": error, **parts})
        )

    def log(
        self, name: str, level: int, facts: Mapping[str, Any], error: BaseException | None, jobs: Sequence[str] = ()
    ) -> None:
        """Keep a log event. Requests for pages of the dashboard leave no trace."""
        is_own = name == "http.request" and "function" not in facts and _OWN.search(str(facts.get("path")))
        if is_own and facts.get("status", _WRONG) < _WRONG:
            return
        said = {one: value[:_LONGEST] if isinstance(value, str) else value for one, value in facts.items()}
        if error is not None:
            said["traceback"] = trace_text(error)[-_LONGEST_TRACE:]
        function = str(facts.get("function") or facts.get("fnName") or "")
        words = f" {' '.join([*(str(facts[one]) for one in _LEADS if facts.get(one)), *jobs])} "
        into = self._warnings if level >= logging.WARNING else self._plain
        if len(into) == _MOST_EVENTS:
            self.add("events", "", "left out")
        into.append(self._event(self._clock.now(), max(level, LEAST_LEVEL), name, function, words, said))

    def take(self) -> tuple[Mapping[Key, float], list[LogEvent]]:
        """What is to be written now. Numbers beyond a bound wait for the next time."""
        numbers = {key: self._numbers.pop(key) for key in [*islice(self._numbers, _MOST_NUMBERS)]}
        events = [queue.popleft() for queue in (self._plain, self._warnings) for _ in range(len(queue))]
        runs, self._runs = self._runs, defaultdict(self._runs.default_factory)
        each = max(1, _MOST_RUNS // max(1, len(runs)))
        for function, last in islice(runs.items(), _MOST_RUNS):
            events += [
                self._event(at, RAN, "function.ran", function, f" {function} ", facts) for at, facts in [*last][-each:]
            ]
        return numbers, sorted(events, key=lambda one: one.id)

    def put_back(self, numbers: Mapping[Key, float], events: Sequence[LogEvent]) -> None:
        """Keep what could not be written for the next time: numbers, and events for which there is room."""
        for key, number in numbers.items():
            self._numbers[key] += number
        for one in reversed([one for one in events if one.level > RAN]):
            into = self._warnings if one.level >= logging.WARNING else self._plain
            if len(into) < _MOST_EVENTS:
                into.appendleft(one)

    @contextmanager
    def opened(self) -> Iterator[None]:
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

    def _event(
        self, at: datetime, level: int, name: str, function: str, words: str, facts: Mapping[str, Any]
    ) -> LogEvent:
        number = layout_uuid7(int(at.timestamp() * 1000), next(self._ids))
        return LogEvent(UUID(int=number), at, level, name, function, words, facts)


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
    jobs = [] if part is None else part.jobs()
    facts: dict[str, Any] = {"function": spent.function}
    if jobs:
        facts["job"] = jobs[0]
    if part is not None and part.leads:
        facts["trace"] = trace_id(part.trace)
    error = record.exc_info[1] if record.exc_info else None
    spent.book.log(record.name[:_LONGEST_NAME], record.levelno, {**facts, "message": text}, error, jobs[1:])
