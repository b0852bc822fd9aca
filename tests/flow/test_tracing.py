"""Spans: one trace from the call that enqueues to the job, to its on_complete, and to what that enqueues."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from stage.processes import run_example

from penstock import (
    ActionCtx,
    App,
    JobId,
    MutationCtx,
    QueryCtx,
    Retry,
    Table,
    TaskCtx,
    WorkflowCtx,
    WorkId,
    WorkResult,
    asgi_app,
)
from penstock.calls.run.syncctx import SyncMutationCtx
from penstock.observe.tracing import find_tracing
from penstock.store.nouns.jobtext import options_of, options_text
from penstock.testing import TestApp

app = App()
sms = app.workpool("sms", default_retry=Retry(max_attempts=2, initial_backoff=1, base=2))

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
failures: list[Exception] = []


@app.internal_query
async def look(ctx: QueryCtx) -> int:
    return 1


@app.internal_action
async def send(ctx: ActionCtx, text: str) -> str:
    if failures:
        raise failures.pop(0)
    await ctx.run_query(look)
    return text


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    await sms.enqueue(ctx, note)


@app.internal_mutation
async def note(ctx: MutationCtx) -> None: ...


@app.mutation
async def book(ctx: MutationCtx, text: str) -> WorkId:
    return await sms.with_options(on_complete=told, retry=True).enqueue(ctx, send, text=text)


@app.mutation
def book_in_a_thread(ctx: SyncMutationCtx, text: str) -> list[WorkId]:
    return sms.enqueue_batch(ctx, send, [{"text": text}, {"text": text}])


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans that have ended, with an SDK that is set up for one test."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()
    failures.clear()


def tree(exporter: InMemorySpanExporter) -> list[str]:
    """All spans, each below and behind its parent, in the order in which they began."""
    found = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def below(parent: ReadableSpan | None, depth: int) -> Iterator[str]:
        for span in found:
            if (span.parent and span.parent.span_id) == (parent and parent.context and parent.context.span_id):
                yield f"{'  ' * depth}{span.name}"
                yield from below(span, depth + 1)

    return list(below(None, 0))


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


async def test_a_trace_leads_from_the_call_to_each_attempt_at_the_job_and_to_its_callback(
    database_url: str, spans: InMemorySpanExporter
) -> None:
    async with TestApp(app, database_url) as backend:
        work = await backend.run_mutation(book, "a")
        await backend.run_until_idle()
    assert tree(spans) == [
        "mutation test_tracing:book",
        "  enqueue sms",
        "    run sms",
        "      action test_tracing:send",
        "        query test_tracing:look",
        "      mutation test_tracing:told",
        "        enqueue sms",
        "          run sms",
        "            mutation test_tracing:note",
    ]
    assert len({span.context.trace_id for span in spans.get_finished_spans() if span.context}) == 1
    sent, run = named(spans, "enqueue sms")[0], named(spans, "run sms")[0]
    assert (sent.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    shared = {"messaging.system": "penstock", "messaging.destination.name": "sms", "messaging.message.id": work}
    shared |= {"penstock.job.function": "test_tracing:send"}
    operation = "messaging.operation.type", "messaging.operation.name", "penstock.job.attempt"
    assert sent.attributes == shared | dict(zip(operation, ("send", "enqueue"), strict=False))
    assert run.attributes == shared | dict(zip(operation, ("process", "run", 1), strict=True))
    called = named(spans, "mutation test_tracing:book")[0].attributes
    assert called == {"code.function.name": "test_tracing:book", "penstock.kind": "mutation"}
    spans.clear()
    failures[:] = [ValueError("no")]
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(book, "a")
        await backend.run_until_idle()
    first, second, _ = named(spans, "run sms")
    assert [(one.attributes or {})["penstock.job.attempt"] for one in (first, second)] == [1, 2]
    assert first.parent == second.parent
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "ValueError: no")
    assert (first.attributes or {})["error.type"] == "ValueError"
    assert second.status.status_code is StatusCode.UNSET
    call = named(spans, "action test_tracing:send")[0]
    assert call.status.status_code is StatusCode.ERROR
    assert [event.name for event in call.events] == ["exception"]


def test_the_example_leads_from_a_request_to_its_job_and_callback(database_url: str) -> None:
    said = run_example("tracing/orders", database_url)
    assert re.sub(r"job_\w+", "JOB", said).splitlines() == [
        "POST /api/mutation",
        "  mutation orders:place",
        "    enqueue mail",
        "      run mail  -> penstock jobs show JOB",
        "        action orders:send",
        "          smtp",
        "        mutation orders:mailed",
    ]


async def test_a_batch_from_a_thread_is_one_span_and_a_program_has_traces_too(
    database_url: str, spans: InMemorySpanExporter
) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(book_in_a_thread, "a")
        await backend.run_until_idle()
        job = ["    run sms", "      action test_tracing:send", "        query test_tracing:look"]
        assert sorted(tree(spans)) == sorted(["mutation test_tracing:book_in_a_thread", "  enqueue sms", *job, *job])
        (sent,) = named(spans, "enqueue sms")
        assert (sent.attributes or {})["messaging.batch.message_count"] == 2
        spans.clear()
        tracer = trace.get_tracer_provider().get_tracer("program")
        with tracer.start_as_current_span("program"):
            await sms.enqueue(backend, send, "a")
        await asyncio.gather(sms.enqueue(backend, note), sms.enqueue(backend, note))
        await backend.run_until_idle()
    roots = [line for line in tree(spans) if not line.startswith(" ")]
    assert sorted(roots) == ["enqueue sms", "enqueue sms", "program"]


async def test_without_an_sdk_nothing_is_stored_and_no_span_is_made(database_url: str) -> None:
    assert find_tracing() is None
    async with TestApp(app, database_url) as backend:
        assert backend.engine.journal.tracing is None
        job = backend.job_calls.new_job(note, {}, backend.clock.now())
        assert options_text(job.options) is None
        await backend.run_mutation(book, "a")
        await backend.run_until_idle()


def test_a_trace_with_a_state_travels_whole(spans: InMemorySpanExporter) -> None:
    tracing: Any = find_tracing()
    state = "a=1,b=2"
    with tracing.work(f"{PARENT} {state}", "job_1", "sms", "m:f", 1) as span:
        assert span.parent.trace_state.to_header() == state
        current = str(tracing.current())
    assert (current[:35], current[-len(state) :]) == (PARENT[:35], state)
    with tracing.work("nonsense", "job_1", "sms", "m:f", 1) as span:
        assert span.parent is None, "what nobody can read begins a trace of its own"
    assert options_text(options_of('{"trace": "00-1-2-01"}')) == '{"trace": "00-1-2-01"}'


# ----- baggage, and the writers of rows


carried = App()
pool = carried.workpool("carrying")
seen: dict[str, list[Any]] = {}


class Order(Table):
    number: int


def see(road: str) -> None:
    seen.setdefault(road, []).append(baggage.get_baggage("tenant"))


@carried.internal_action
async def carry(ctx: ActionCtx, road: str) -> None:
    see(road)
    if road == "retry" and len(seen[road]) == 1:
        raise OSError("not now")


@carried.internal_mutation
async def carry_in_group(ctx: MutationCtx, tenant: str) -> None:
    see(f"group {tenant}")


@carried.internal_mutation
async def ended(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    see("on_complete")
    await pool.enqueue(ctx, carry, road="child")


@carried.mutation
async def place(ctx: MutationCtx) -> None:
    await ctx.db.insert(Order(number=1))
    await pool.with_options(on_complete=ended).enqueue(ctx, carry, road="pool")
    await pool.with_options(retry=Retry(max_attempts=2)).enqueue(ctx, carry, road="retry")
    await ctx.scheduler.run_after(timedelta(hours=1), carry, road="later")
    await ctx.outbox.send("placed", "an order")


@carried.cron(timedelta(minutes=10), name="by cron")
async def by_cron(ctx: MutationCtx) -> None:
    see("cron")


@carried.outbox(Order, name="rows")
async def of_row(ctx: ActionCtx, order: Order) -> None:
    see("outbox")


@carried.outbox("placed")
async def of_message(ctx: ActionCtx, text: str) -> None:
    see("message")


@carried.reactive_task(Order, name="task")
async def of_task(ctx: TaskCtx[Order]) -> None:
    see("task")


@contextmanager
def tenant(name: str) -> Iterator[None]:
    token = context.attach(baggage.set_baggage("tenant", name))
    try:
        yield
    finally:
        context.detach(token)


async def test_baggage_is_in_all_work_and_in_no_work_of_others(database_url: str, spans: InMemorySpanExporter) -> None:
    seen.clear()
    async with TestApp(carried, database_url) as test:
        with tenant("ada"):
            await test.run_mutation(place)
        with tenant("bob"):
            await pool.enqueue(test, carry_in_group, tenant="bob")
        with tenant("eve"):
            await pool.enqueue(test, carry_in_group, tenant="eve")
            await test.scheduler.run_after(timedelta(0), carry, road="program")
        with tenant("x" * 9000):
            await pool.enqueue(test, carry, road="too large")
        await pool.enqueue(test, carry_in_group, tenant="none")
        with tenant("zoe"):  # of the program that runs a worker
            await test.run_until(test.clock.now() + timedelta(hours=2))
    wanted: dict[str, list[Any]] = {road: ["ada"] for road in ("pool", "on_complete", "child", "later", "message")}
    wanted |= {
        "retry": ["ada", "ada"],
        "group bob": ["bob"],
        "group eve": ["eve"],
        "group none": [None],
        "program": ["eve"],
    }
    assert seen.items() >= (wanted | {"outbox": [None], "task": [None], "too large": [None]}).items()
    assert set(seen["cron"]) == {None}
    by_name = {span.name: span for span in spans.get_finished_spans()}
    writer = by_name[f"mutation {__name__}:place"].context
    (link,) = by_name["deliver rows"].links
    assert link.context.span_id == writer.span_id
    (link,) = next(one for one in spans.get_finished_spans() if one.name == "run default" and one.links).links
    assert link.context.span_id == writer.span_id
    delivered = next(one for name, one in by_name.items() if name.startswith("deliver ") and "rows" not in name)
    assert delivered.context.trace_id == writer.trace_id


@dataclass
class Parcel:
    number: int


@carried.internal_action(batch=10, of=Parcel)
async def carry_together(ctx: ActionCtx, items: list[Parcel]) -> list[None]:
    see("batch")
    return [None for _ in items]


async def test_baggage_is_in_a_batch_if_all_its_jobs_have_the_same(
    database_url: str, spans: InMemorySpanExporter
) -> None:
    async with TestApp(carried, database_url) as test:
        for names in (["ada", "ada"], ["ada", "bob"], ["ada", ""]):
            seen.clear()
            for name in names:
                with tenant(name) if name else nullcontext():
                    await pool.enqueue(test, carry_together, number=1)
            await test.run_until_idle()
            assert set(seen["batch"]) == ({"ada"} if names == ["ada", "ada"] else {None})


async def test_a_call_over_http_goes_on_with_the_trace_and_the_baggage_of_its_caller(
    sqlite_url: str, spans: InMemorySpanExporter
) -> None:
    seen.clear()
    place_call = {"path": f"{__name__}:place", "args": {}}
    async with TestApp(carried, sqlite_url) as test:
        web = httpx.ASGITransport(asgi_app(carried, backend=test))
        async with httpx.AsyncClient(base_url="http://shop", transport=web) as http:
            for headers in (
                {"traceparent": PARENT, "baggage": "tenant=ada,x=1;y=2"},
                {"traceparent": "nonsense", "baggage": "tenant=" + "x" * 9000},
            ):
                assert (await http.post("/api/mutation", json=place_call, headers=headers)).status_code == 200
        await test.run_until_idle()
    assert seen["pool"] == ["ada", None]
    first, second = named(spans, f"mutation {__name__}:place")
    assert first.parent is not None
    assert f"{first.parent.trace_id:032x}-{first.parent.span_id:016x}" == PARENT[3:-3]
    assert second.parent is None


# ----- workflows

answered = app.event("answered", str)


@app.workflow
async def ask(ctx: WorkflowCtx, text: str) -> str:
    await ctx.run_action(send, text)
    return await ctx.wait_for(answered)


@app.workflow
async def trip(ctx: WorkflowCtx) -> str:
    await ctx.run_mutation(note)
    await ctx.with_options(pool=sms).run_action(send, "pooled")
    await ctx.sleep(timedelta(days=1))
    return await ctx.run_workflow(ask, "child")


@app.mutation
async def begin(ctx: MutationCtx) -> JobId[str]:
    return await ctx.scheduler.run_after(timedelta(0), trip)


@app.mutation
async def answer(ctx: MutationCtx, run: JobId) -> None:
    await answered.send(ctx, run, "yes")


async def test_a_run_of_a_workflow_is_one_tree_over_its_waits_and_its_workers(
    database_url: str, spans: InMemorySpanExporter
) -> None:
    """(WF155)"""
    async with TestApp(app, database_url) as backend, TestApp(app, database_url, clock=backend.clock) as other:
        run = await backend.run_mutation(begin)
        await backend.run_until_idle(advance=False)
        await other.run_until_idle()
        ((child, _),) = [(one.id, one) for one in await backend.jobs(None, 10) if one.function == ask.name]
        await backend.run_mutation(answer, child)
        await other.run_until_idle()
        status = await backend.job(run)
        assert status is not None
        assert status.result == "yes"
    drawn = tree(spans)
    assert drawn[:2] == ["mutation test_tracing:begin", "  enqueue default"]
    own = [line for line in drawn if not line.startswith("mutation test_tracing:answer")]
    once = ("mutation test_tracing:note", "run sms", "action test_tracing:send", "query test_tracing:look")
    assert [sum(line.strip() == one for line in own) for one in once] == [1, 1, 2, 2], (
        "a replay makes no span of a step"
    )
    roots = {span.context.trace_id for span in spans.get_finished_spans() if span.context and span.parent is None}
    assert len(roots) == 2, "that of the call that began it, and that of the call that sent the event"
    numbered = [one for one in spans.get_finished_spans() if "penstock.workflow.step" in (one.attributes or {})]
    assert sorted(
        (one.name.rpartition(":")[2], (one.attributes or {})["penstock.workflow.step"]) for one in numbered
    ) == [
        ("look", "1"),
        ("note", "1"),
        ("send", "1"),
    ], "each step has its number in the waterfall, and what it calls too"
    activations = [one for one in named(spans, "run default") if (one.attributes or {})["messaging.message.id"] == run]
    assert len(activations) >= 3
    (sent,) = named(spans, "enqueue default")
    assert {one.parent and one.parent.span_id for one in activations} == {sent.context and sent.context.span_id}
    children = [one for one in named(spans, "run default") if (one.attributes or {})["messaging.message.id"] == child]
    assert {one.parent and one.parent.span_id for one in children} <= {
        one.context and one.context.span_id for one in activations
    }


async def test_a_run_that_no_trace_began_has_one_of_its_own(database_url: str, spans: InMemorySpanExporter) -> None:
    async with TestApp(app, database_url) as backend:
        with context_without_spans(backend):
            run = await backend.scheduler.run_after(timedelta(0), trip)
        await backend.run_until_idle()
    found = [one for one in named(spans, "run default") if (one.attributes or {})["messaging.message.id"] == run]
    assert len(found) >= 3
    assert len({span.context.trace_id for span in spans.get_finished_spans() if span.context}) == 1


@contextmanager
def context_without_spans(backend: TestApp) -> Iterator[None]:
    """Enqueue as plain SQL does, without a trace."""
    journal = backend.engine.journal
    tracing, journal.tracing = journal.tracing, None
    try:
        yield
    finally:
        journal.tracing = tracing
