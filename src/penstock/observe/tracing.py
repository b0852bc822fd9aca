"""Spans of OpenTelemetry: of a call, of enqueuing work, and of the work itself, which may run elsewhere much later.

Owns their names and attributes, after the conventions for messaging, and the text in which a trace travels with a job.
Imports nothing of OpenTelemetry before a program has set it up.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import UUID

_HEADERS = ("traceparent", "tracestate", "baggage")
_MOST_BAGGAGE = 8192  # bytes, as W3C has it
_MOST_ROWS = 10_000


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
        baggage = importlib.import_module("opentelemetry.baggage.propagation")
        both = module.TraceContextTextMapPropagator(), baggage.W3CBaggagePropagator()
        composite = importlib.import_module("opentelemetry.propagators.composite")
        self._propagator = composite.CompositePropagator(both)
        self._writers: OrderedDict[tuple[str, str], Any] = OrderedDict()  # by row: the span that wrote it last

    def call(self, kind: str, function: str, step: str) -> Any:
        attributes = {"code.function.name": function, "penstock.kind": kind}
        if step:
            attributes["penstock.workflow.step"] = step
        return self._tracer.start_as_current_span(f"{kind} {function}", attributes=attributes)

    def send(self, pool: str, function: str) -> Any:
        """The span of enqueuing; jobs that are made in its block are its children."""
        attributes = _messaging("send", "enqueue", pool) | {"penstock.job.function": function}
        kind = self._trace.SpanKind.PRODUCER
        return self._tracer.start_as_current_span(f"enqueue {pool}", kind=kind, attributes=attributes)

    def note_ids(self, span: Any, ids: str | list[Any]) -> None:
        if isinstance(ids, str):
            span.set_attribute("messaging.message.id", ids)
        else:
            span.set_attribute("messaging.batch.message_count", len(ids))

    def work(
        self, trace: str | None, job: str, pool: str, function: str, attempt: int, row: tuple[str, str] | None = None
    ) -> AbstractContextManager[Any]:
        """The span of one attempt of a job, as a child of the span that enqueued it, with its baggage.

        The run of a task for a row is linked to the span that wrote the row, if that was in this process.
        """
        attributes = _messaging("process", "run", pool) | {
            "messaging.message.id": job,
            "penstock.job.function": function,
            "penstock.job.attempt": attempt,
        }
        return self._consumer(f"run {pool}", trace, attributes, () if row is None else (row,))

    def deliver(
        self, outbox: str, messages: Iterable[tuple[str | None, tuple[str, str] | None]]
    ) -> AbstractContextManager[Any]:
        """The span of one attempt to deliver messages: each with the trace that sent it, or the row that it is about.

        One that was sent is delivered in the trace of its sender, with its baggage. Others are linked.
        """
        told = list(messages)
        sent = [trace for trace, _ in told if trace is not None]
        attributes = _messaging("process", "deliver", outbox) | {"messaging.batch.message_count": len(told)}
        alone, rows = sent[0] if len(told) == len(sent) == 1 else None, [row for _, row in told if row is not None]
        return self._consumer(f"deliver {outbox}", alone, attributes, rows, () if alone else sent)

    @contextmanager
    def _consumer(
        self, name: str, trace: str | None, attributes: Any, rows: Iterable[tuple[str, str]], traces: Iterable[str] = ()
    ) -> Iterator[Any]:
        spans = [self._trace.get_current_span(self._extract(one)).get_span_context() for one in traces]
        spans += [self._writers[row] for row in rows if row in self._writers]
        links, parent = [self._trace.Link(span) for span in spans], self._extract(trace)
        token = self._context.attach(parent)
        try:
            with self._tracer.start_as_current_span(
                name, parent, self._trace.SpanKind.CONSUMER, attributes, links
            ) as span:
                yield span
        finally:
            self._context.detach(token)

    def wrote(self, span: Any, rows: Iterable[tuple[str, Any]]) -> None:
        """Remember the span that has written rows, each a table and a key."""
        for table, key in rows:
            row = row_of(table, key if isinstance(key, tuple) else (key,))
            self._writers[row] = span
            self._writers.move_to_end(row)
        while len(self._writers) > _MOST_ROWS:
            self._writers.popitem(last=False)

    def span(self) -> Any:
        """The current span, as others are linked to it."""
        return self._trace.get_current_span().get_span_context()

    @contextmanager
    def within(self, trace: str) -> Iterator[None]:
        """Go on in a span that may have ended, given as `current` gave it."""
        token = self._context.attach(self._extract(trace))
        try:
            yield
        finally:
            self._context.detach(token)

    @contextmanager
    def incoming(self, carrier: Mapping[str, str]) -> Iterator[None]:
        """Be part of the trace that a caller names, unless one is current already."""
        if self._trace.get_current_span().get_span_context().is_valid:
            yield
            return
        token = self._context.attach(self._extract_context(carrier))
        try:
            yield
        finally:
            self._context.detach(token)

    def note_failure(self, span: Any, error: str) -> None:
        """Note that an attempt failed; the span of the call, inside of it, has the exception."""
        span.set_attribute("error.type", error.partition(":")[0])
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))

    def current(self) -> str | None:
        """The current trace, span and baggage, as a job carries them: traceparent, tracestate and baggage."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        if len(bags := carrier.get("baggage", "")) > _MOST_BAGGAGE:
            carrier["baggage"] = bags[: _MOST_BAGGAGE + 1].rpartition(",")[0]
        if "traceparent" not in carrier and carrier.get("baggage"):
            with self._tracer.start_as_current_span("enqueue", kind=self._trace.SpanKind.PRODUCER):
                return self.current()
        return " ".join(carrier.get(name, "") for name in _HEADERS).rstrip() or None

    def _extract(self, trace: str | None) -> Any:
        return self._extract_context(dict(zip(_HEADERS, (trace or "").split(" ", 2), strict=False)))

    def _extract_context(self, carrier: Mapping[str, str]) -> Any:
        return self._propagator.extract(carrier, self._nowhere)


def _messaging(kind: str, verb: str, to: str) -> dict[str, Any]:
    return {
        "messaging.system": "penstock",
        "messaging.operation.type": kind,
        "messaging.operation.name": verb,
        "messaging.destination.name": to,
    }


def trace_of_run(run: UUID) -> str:
    """Make a trace for a run of a workflow that nobody started in one: all of its activations give the same."""
    return f"00-{run.int:032x}-{run.int % 2**64:016x}-01"


def row_of(table: str, key: Iterable[Any]) -> tuple[str, str]:
    """A row by its table and its key, however the values of the key are spelled."""
    return table, json.dumps([str(value) for value in key])
