"""The trace of a call: what it enqueues, and what that enqueues in turn, bears it. For programs without OpenTelemetry.

Owns its form, which is W3C's traceparent, so that a worker with OpenTelemetry goes on with it. The trace of a request
is an id with its time; that of a job which has none is the id of the job. What a batch of jobs enqueues bears the trace
of the first one, and names those of others in its tracestate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from uuid import UUID

_part: ContextVar[Following | None] = ContextVar("part", default=None)
_SPAN = 2**64 - 1
_STATE = " penstock="
_MOST_OTHERS = 7  # ids that a tracestate has room for


class Following:
    """A part of a trace, for a block and its threads. A subclass is that of jobs; `number` is the id of a call.

    Its text is made when somebody asks, as most jobs enqueue none.
    """

    __slots__ = ("_number", "_token")

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        self._token = _part.set(self)

    def __exit__(self, *_: object) -> None:
        _part.reset(self._token)

    @property
    def leads(self) -> bool:
        """Whether what is enqueued here bears the trace."""
        return True

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs that run here."""
        return []

    @property
    def parts(self) -> Sequence[tuple[int, str | None]]:
        """The id of the call, or of each job, and the trace of its parent, as `current_trace` gave it.

        The trace is None for what begins one.
        """
        return [(self._number, None)]

    @property
    def trace(self) -> str:
        """Its traceparent, perhaps with a tracestate."""
        parts = self.parts
        number, parent = parts[0]
        first, *others = dict.fromkeys(one for part in parts for one in _ids(*part))
        state = f"{_STATE}{';'.join(others[:_MOST_OTHERS])}" if others else ""
        bags = f"{'' if state else ' '} {found}" if len(parts) == 1 and (found := baggage_of(parent)) else ""
        return f"00-{first}-{span_of(number)}-01{state}{bags}"


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
