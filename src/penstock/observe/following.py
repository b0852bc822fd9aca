"""The trace of a call: what it enqueues, and what that enqueues in turn, bears it. For programs without OpenTelemetry.

Owns its form, which is W3C's traceparent, so that a worker with OpenTelemetry goes on with it. The trace of a request
is an id with its time; that of a job which has none is the id of the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from uuid import UUID

_trace: ContextVar[str | None] = ContextVar("trace", default=None)
_SPAN = 2**64 - 1


def current_trace() -> str | None:
    """The traceparent of what runs here; None if nobody follows it."""
    return _trace.get()


@contextmanager
def following(trace: str | None) -> Iterator[None]:
    """Be part of a trace, for a block and its threads."""
    token = _trace.set(trace)
    try:
        yield
    finally:
        _trace.reset(token)


def traceparent(number: int, parent: str | None = None) -> str:
    """The traceparent of a call or a job with this id, as a part of its parent's trace if it has one."""
    return f"00-{trace_id(parent) if parent else f'{number:032x}'}-{number & _SPAN:016x}-01"


def trace_id(trace: str) -> str:
    """The id that all parts of a trace share."""
    return trace[3:35]


def parent_span(trace: str) -> str:
    """The part of a trace that enqueued a job; for a job as parent `span_of` its id."""
    return trace[36:52]


def span_of(number: int) -> str:
    return f"{number & _SPAN:016x}"


def began_at(trace: str) -> datetime | None:
    """When the trace with this id began; None if OpenTelemetry has made it."""
    number = UUID(trace)
    return datetime.fromtimestamp((number.int >> 80) / 1000, UTC) if number.version == 7 else None  # noqa: PLR2004
