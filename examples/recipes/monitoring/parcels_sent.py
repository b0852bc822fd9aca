"""Parcels, with traces for a collector and metrics for Prometheus. ``penstock serve --services`` runs the program."""

import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from penstock import ActionCtx, App, Id, MutationCtx, Table, public

provider = TracerProvider(resource=Resource.create({"service.name": os.environ.get("SERVICE", "parcels")}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # to OTEL_EXPORTER_OTLP_ENDPOINT
trace.set_tracer_provider(provider)

app = App()
printer = app.workpool("printer", max_parallelism=2)


class Parcel(Table):
    address: str


@app.mutation(access=public)
async def send(ctx: MutationCtx, address: str) -> Id[Parcel]:
    parcel = await ctx.db.insert(Parcel(address=address))
    await printer.enqueue(ctx, print_label, address)
    return parcel


@app.internal_action
async def print_label(ctx: ActionCtx, address: str) -> str:
    return f"label for {address}"
