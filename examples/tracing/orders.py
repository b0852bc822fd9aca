"""One trace over an HTTP request, its mutation, the job that this enqueues, and the job's on_complete.

Run it with ``python orders.py``. It keeps its spans in memory and prints them as a tree, each job with the command that
shows it. To send them to a collector instead, install ``opentelemetry-exporter-otlp-proto-http`` and set
``OTEL_EXPORTER_OTLP_ENDPOINT``. It needs ``penstock-backend[client,tracing]`` and ``opentelemetry-sdk``.
"""

import asyncio
import importlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import httpx
from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock import ActionCtx, App, Id, Index, MutationCtx, QueryCtx, Table, WorkId, WorkResult, asgi_app, public

app = App()
mail = app.workpool("mail")


class Order(Table):
    customer: str
    status: str = "new"

    by_status = Index("status")


@app.mutation(access=public)
async def place(ctx: MutationCtx, customer: str) -> Id[Order]:
    order = await ctx.db.insert(Order(customer=customer))
    await mail.with_options(on_complete=mailed, context={"order": order}).enqueue(ctx, send, customer=customer)
    return order


@app.internal_action
async def send(ctx: ActionCtx, customer: str) -> str:
    with trace.get_tracer("orders").start_as_current_span("smtp"):  # a span of your own, part of the same trace
        return f"sent to {customer}"


@app.internal_mutation
async def mailed(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: dict[str, Any]) -> None:
    await ctx.db.patch(Order, context["order"], status="mailed")


@app.query(access=public)
async def mailed_orders(ctx: QueryCtx) -> int:
    return await ctx.db.query(Order).with_index(Order.by_status, status="mailed").count()


def set_up_traces() -> InMemorySpanExporter | None:
    """Set up OpenTelemetry, before the app is opened; spans stay in memory unless a collector is named."""
    provider, memory = TracerProvider(resource=Resource.create({"service.name": "orders"})), InMemorySpanExporter()
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        otlp: Any = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        provider.add_span_processor(BatchSpanProcessor(otlp.OTLPSpanExporter()))
    else:
        provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    return None if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") else memory


def tree(spans: list[ReadableSpan], parent: int | None = None, depth: int = 0) -> Iterator[str]:
    """Spans below their parents; each attempt of a job leads to its job."""
    for span in sorted(spans, key=lambda one: one.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent:
            job = (span.attributes or {}).get("messaging.message.id", "") if span.name.startswith("run ") else ""
            yield f"{'  ' * depth}{span.name}" + (f"  -> penstock jobs show {job}" if job else "")
            yield from tree(spans, span.context.span_id if span.context else None, depth + 1)


async def main() -> None:
    memory = set_up_traces()
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/orders.db"
        async with app.open(database, services=["worker"]) as backend:
            web = httpx.ASGITransport(app=asgi_app(app, backend=backend))
            async with httpx.AsyncClient(transport=web, base_url="http://orders") as http:
                with trace.get_tracer("shop").start_as_current_span("POST /api/mutation"):  # the caller's own span
                    headers: dict[str, str] = {}
                    propagate.inject(headers)
                    body = {"path": "orders:place", "args": {"customer": "Ada"}}
                    answer = await http.post("/api/mutation", json=body, headers=headers)
                    answer.raise_for_status()
            while not await backend.run_query(mailed_orders):
                await asyncio.sleep(0.02)
    spans = [] if memory is None else list(memory.get_finished_spans())
    found = next((one.context.trace_id for one in spans if one.name.startswith("POST") and one.context), None)
    for line in tree([one for one in spans if one.context and one.context.trace_id == found]):
        print(line)


if __name__ == "__main__":
    asyncio.run(main())
