"""Spans of OpenTelemetry: of a call, of enqueuing work, and of the work itself, which may run elsewhere much later.

Owns their names and attributes, after the conventions for messaging, and the text in which a trace travels with a job.
Imports nothing of OpenTelemetry before a program has set it up.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_SYSTEM = {"messaging.system": "penstock"}


def find_tracing() -> Tracing | None:
    """The maker of spans, if the program has set up OpenTelemetry by now; else None, which costs nothing."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    trace = importlib.import_module("opentelemetry.trace")
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Tracing(trace, provider.get_tracer("penstock"))


class Tracing:
    def __init__(self, trace: Any, tracer: Any) -> None:
        self._trace = trace
        self._tracer = tracer
        self._context = importlib.import_module("opentelemetry.context")
        self._nowhere = self._context.Context()
        module = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = module.TraceContextTextMapPropagator()

    def call(self, kind: str, function: str) -> Any:
        return self._tracer.start_as_current_span(
            f"{kind} {function}", attributes={"code.function.name": function, "penstock.kind": kind}
        )

    @contextmanager
    def send(self, pool: str, function: str) -> Iterator[Any]:
        """The span of enqueuing; jobs that are made in its block are its children."""
        attributes = _SYSTEM | {
            "messaging.operation.type": "send",
            "messaging.operation.name": "enqueue",
            "messaging.destination.name": pool,
            "penstock.job.function": function,
        }
        kind = self._trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(f"enqueue {pool}", kind=kind, attributes=attributes) as span:
            yield span

    def sent(self, span: Any, ids: str | list[Any]) -> None:
        if isinstance(ids, str):
            span.set_attribute("messaging.message.id", ids)
        else:
            span.set_attribute("messaging.batch.message_count", len(ids))

    @contextmanager
    def work(self, trace: str | None, job: str, pool: str, function: str, attempt: int) -> Iterator[Any]:
        """The span of one attempt of a job, as a child of the span that enqueued it."""
        attributes = _SYSTEM | {
            "messaging.operation.type": "process",
            "messaging.operation.name": "run",
            "messaging.destination.name": pool,
            "messaging.message.id": job,
            "penstock.job.function": function,
            "penstock.job.attempt": attempt,
        }
        with self._tracer.start_as_current_span(
            f"run {pool}", self._parent(trace), self._trace.SpanKind.CONSUMER, attributes
        ) as span:
            yield span

    @contextmanager
    def incoming(self, carrier: Mapping[str, str]) -> Iterator[None]:
        """Be part of the trace that a caller names, unless one is current already."""
        if self._trace.get_current_span().get_span_context().is_valid:
            yield
            return
        token = self._context.attach(self._propagator.extract(carrier, self._nowhere))
        try:
            yield
        finally:
            self._context.detach(token)

    def failed(self, span: Any, error: str) -> None:
        """Note that an attempt failed; the span of the call, inside of it, has the exception."""
        span.set_attribute("error.type", error.partition(":")[0])
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))

    def current(self) -> str | None:
        """The trace and the span that are current, as a job carries them: a traceparent, perhaps with a tracestate."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return " ".join(carrier.values()) or None

    def _parent(self, trace: str | None) -> Any:
        if trace is None:
            return self._nowhere
        carrier = dict(zip(("traceparent", "tracestate"), trace.split(" ", 1), strict=False))
        return self._propagator.extract(carrier, self._nowhere)
