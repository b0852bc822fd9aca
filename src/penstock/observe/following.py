"""The trace of a call: what it enqueues, and what that enqueues in turn, bears it. For programs without OpenTelemetry.

Owns its form, which is W3C's traceparent, so that a worker with OpenTelemetry goes on with it. The trace of a request
is an id with its time; that of a job which has none is the id of the job. What a batch of jobs enqueues bears the trace
of the first one, and names those of others in its tracestate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from uuid import UUID

_part: ContextVar[Following | None] = ContextVar("part", default=None)
_SPAN = 2**64 - 1
_STATE = " penstock="
_MOST_OTHERS = 7  # ids that a tracestate has room for


class Following:
    """A part of a trace, for a block and its threads. Its text is made when somebody asks, as most jobs enqueue none.

    Args:
        number: The id of the call or the job.
        parent: The trace of its parent, as `current_trace` gave it; None if it begins the trace.
        others: The same of the jobs that run together with it.
        jobs: Gives the ids of the jobs that run here.
        leads: Whether what is enqueued here bears the trace.
    """

    __slots__ = ("_number", "_others", "_parent", "_token", "jobs", "leads")

    def __init__(
        self,
        number: int,
        parent: str | None = None,
        others: Sequence[tuple[int, str | None]] = (),
        *,
        jobs: Callable[[], list[str]] = list,
        leads: bool = True,
    ) -> None:
        self.jobs = jobs
        self.leads = leads
        self._number = number
        self._parent = parent
        self._others = others
        self._token: Token[Following | None] | None = None

    def __enter__(self) -> None:
        self._token = _part.set(self)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _part.reset(self._token)

    @property
    def trace(self) -> str:
        parts = ((self._number, self._parent), *self._others)
        first, *others = dict.fromkeys(one for number, parent in parts for one in _ids(number, parent))
        state = f"{_STATE}{';'.join(others[:_MOST_OTHERS])}" if others else ""
        bags = f"{'' if state else ' '} {found}" if not self._others and (found := baggage_of(self._parent)) else ""
        return f"00-{first}-{span_of(self._number)}-01{state}{bags}"


def current_trace() -> str | None:
    """The traceparent of what runs here, perhaps with a tracestate; None if nobody follows it."""
    part = _part.get()
    return None if part is None or not part.leads else part.trace


current_part = _part.get  # what runs here: a call or jobs; None outside of both


def trace_id(trace: str) -> str:
    """The id that all parts of a trace share."""
    return trace[3:35]


def parent_span(trace: str) -> str:
    """The part of a trace that enqueued a job; for a job as parent `span_of` its id."""
    return trace[36:52]


def baggage_of(trace: str | None) -> str:
    """The baggage of OpenTelemetry that a job carries behind its traceparent and tracestate."""
    return (trace or "").partition(" ")[2].partition(" ")[2]


def span_of(number: int) -> str:
    return f"{number & _SPAN:016x}"


def began_at(trace: str) -> datetime | None:
    """When the trace with this id began; None if OpenTelemetry has made it."""
    number = UUID(trace)
    return datetime.fromtimestamp((number.int >> 80) / 1000, UTC) if number.version == 7 else None  # noqa: PLR2004 - that has a time


def _ids(number: int, parent: str | None) -> Iterator[str]:
    """The ids of the traces that a part belongs to."""
    yield trace_id(parent) if parent else f"{number:032x}"
    _, _, others = (parent or "").partition(_STATE)
    yield from filter(None, others.partition(" ")[0].split(";"))
