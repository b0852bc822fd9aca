"""Metrics over HTTP: who sees them, and that they say what happened."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from stage.feed import ENTRIES, entry, write

from penstock import ActionCtx, App, MutationCtx, WorkflowCtx, WorkId, WorkResult, asgi_app
from penstock.clock import SystemClock
from penstock.observe.meters import METERS
from penstock.testing import TestApp, TestClock, gate

app = OPENED = App()
sms = app.workpool("sms", max_parallelism=4)
errand_done = app.event("errand_done", type(None))
quiet = app.workpool("quiet", max_parallelism=2, log_level="error")

TOKEN = {"authorization": "Bearer let-me-in"}

failures: list[Exception] = []


@app.internal_action
async def send(ctx: ActionCtx) -> None:
    if failures:
        raise failures.pop(0)


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    if failures:
        raise failures.pop(0)


@app.mutation
async def book(ctx: MutationCtx) -> None:
    await sms.enqueue(ctx, send)


def samples(text: str) -> dict[str, float]:
    """Values of metrics by their names and labels."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {f"{one.name}{{{labels(one.labels)}}}": one.value for one in found}


def labels(given: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(given.items()))


@app.internal_action
async def fetch(ctx: ActionCtx, what: str) -> None:
    if what == "wrong":
        raise ValueError(what)


@app.workflow
async def errand(ctx: WorkflowCtx, what: str) -> None:
    await ctx.run_action(fetch, what)
    await ctx.wait_for(errand_done)
    await ctx.run_action(fetch, what)


@asynccontextmanager
async def scraped(database: str, **settings: Any) -> AsyncIterator[tuple[TestApp, httpx.AsyncClient]]:
    async with TestApp(app, database, **settings) as backend:
        web = asgi_app(app, backend=backend)
        async with httpx.AsyncClient(base_url="http://shop", transport=httpx.ASGITransport(web)) as http:
            yield backend, http


# ----- what they say


async def test_metrics_say_what_happened(database_url: str) -> None:
    async with scraped(database_url, metrics_token="let-me-in") as (backend, http):
        await backend.run_mutation(book)
        await sms.enqueue_batch(backend, send, [{}] * 2)
        backend.clock.advance(timedelta(seconds=3))
        await backend.run_until_idle()
        failures[:] = [ValueError("no"), ValueError("not now")]
        await quiet.with_options(on_complete=told).enqueue(backend, send)
        await quiet.set_max_parallelism(backend, 1)
        await backend.run_until_idle(raise_errors=False)
        await sms.pause(backend)
        await sms.enqueue_batch(backend, send, [{}] * 5)
        await sms.with_options(run_after=timedelta(hours=1)).enqueue(backend, send)
        backend.clock.advance(timedelta(seconds=7))

        answer = await http.get("/metrics", headers=TOKEN)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        found = samples(answer.text)
    expected = {
        "penstock_jobs_enqueued_total{pool=sms}": 9,
        "penstock_jobs_enqueued_total{pool=quiet}": 1,
        "penstock_jobs_started_total{pool=sms}": 3,
        "penstock_jobs_completed_total{pool=sms,status=success}": 3,
        "penstock_jobs_completed_total{pool=quiet,status=failed}": 1,
        "penstock_attempts_failed_total{pool=quiet}": 1,
        "penstock_on_complete_failed_total{pool=quiet}": 1,
        "penstock_calls_total{function=test_metrics:told,outcome=success}": 1,
        "penstock_calls_total{function=test_metrics:told,outcome=error}": 1,
        "penstock_start_lag_seconds_count{pool=sms}": 3,
        "penstock_start_lag_seconds_sum{pool=sms}": 9,
        "penstock_start_lag_seconds_bucket{le=2.5,pool=sms}": 0,
        "penstock_start_lag_seconds_bucket{le=5.0,pool=sms}": 3,
        "penstock_run_seconds_count{pool=sms}": 3,
        "penstock_jobs_running{pool=sms}": 0,
        "penstock_jobs_ready{pool=sms}": 5,
        "penstock_jobs_ready{pool=default}": 0,
        "penstock_jobs_scheduled{pool=sms}": 1,
        "penstock_oldest_ready_seconds{pool=sms}": 7,
        "penstock_max_parallelism{pool=sms}": 0,
        "penstock_max_parallelism{pool=quiet}": 1,
        "penstock_database_up{}": 1,
        "penstock_call_seconds_count{kind=mutation}": 3,
        "penstock_call_seconds_count{kind=action}": 4,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not [name for name in found if "penstock_max_parallelism{pool=default}" in name]


async def test_runs_of_workflows_are_measured(database_url: str) -> None:
    async with scraped(database_url, dev=True) as (backend, http):
        runs = [await backend.scheduler.run_after(timedelta(0), errand, what) for what in ("a", "b", "c", "wrong")]
        await backend.run_until_idle(advance=False, raise_errors=False)
        waiting = samples((await http.get("/metrics")).text)
        await errand_done.broadcast(backend, runs, None)
        await backend.scheduler.cancel(runs[2])
        await backend.run_until_idle(raise_errors=False)
        ended = samples((await http.get("/metrics")).text)
    name = "workflow=test_metrics:errand"
    assert {key: waiting.get(f"penstock_workflow_{key}") for key in (f"waiting{{{name}}}", f"running{{{name}}}")} == {
        f"waiting{{{name}}}": 3,
        f"running{{{name}}}": 0,
    }
    assert f"penstock_workflow_replay_seconds_count{{{name}}}" not in waiting
    expected = {
        f"penstock_workflow_started_total{{{name}}}": 4,
        f"penstock_workflow_steps_total{{outcome=success,{name}}}": 5,
        f"penstock_workflow_steps_total{{outcome=error,{name}}}": 1,
        f"penstock_workflow_ended_total{{outcome=success,{name}}}": 2,
        f"penstock_workflow_ended_total{{outcome=failed,{name}}}": 1,
        f"penstock_workflow_ended_total{{outcome=canceled,{name}}}": 1,
        f"penstock_workflow_replay_seconds_count{{{name}}}": 3,
        f"penstock_workflow_waiting{{{name}}}": 0,
    }
    assert {key: ended.get(key) for key in expected} == expected


async def test_how_the_change_feed_stands(database_url: str) -> None:
    async with scraped(database_url, dev=True, clock=TestClock(SystemClock().now())) as (backend, http):
        store = backend.engine.store
        await write(store, "create table entry (writer integer, n integer, saw text, primary key (writer, n))")
        await store.interests.declare([ENTRIES], backend.clock.now())
        await store.changes.register("mail", backend.clock.now())
        empty = samples((await http.get("/metrics")).text)
        await write(store, *(entry(1, n) for n in range(200)))
        backend.clock.advance(timedelta(seconds=90))
        found = samples((await http.get("/metrics")).text)
        assert empty["penstock_change_reader_rows{reader=mail}"] == 0
        assert found["penstock_change_reader_rows{reader=mail}"] == 200
        assert 60 <= found["penstock_change_reader_seconds{reader=mail}"] <= 91
        assert found["penstock_change_bytes{}"] > empty["penstock_change_bytes{}"]
        assert ("penstock_oldest_transaction_seconds{}" in found) == store.dialect.schemas
        pruner = backend.make_service("pruner")
        await write(store, "drop table entry")
        await pruner.tick()
        found = samples((await http.get("/metrics")).text)
        assert found["penstock_interests_broken{state=gone}"] == 1


async def test_every_metric_is_shown_and_no_other(sqlite_url: str) -> None:
    async with scraped(sqlite_url, dev=True) as (backend, http):
        backend.engine.journal.note_conflict("m:f")
        failures[:] = [ValueError("no")]
        await sms.with_options(on_complete=told).enqueue(backend, send)
        await backend.run_until_idle(raise_errors=False)
        answer = await http.get("/metrics")
        shown = set(re.findall(r"^# TYPE (\w+) (\w+)$", answer.text, re.MULTILINE))
        assert shown == {
            (f"{name}_total" if meter.kind == "counter" else name, meter.kind) for name, meter in METERS.items()
        }
        found = samples(answer.text)
        assert found["penstock_conflicts_total{function=m:f}"] == 1
        assert found["penstock_attempts_failed_total{pool=sms}"] == 1, "once, though on_complete is told at once"
        assert "penstock_on_complete_failed_total{pool=sms}" not in found
        answer = await http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")


async def test_a_database_that_does_not_answer_is_told_beside_what_the_process_knows(sqlite_url: str) -> None:
    async with scraped(sqlite_url, dev=True) as (backend, http):
        await backend.run_mutation(book)

        async def away(most: int) -> Any:
            raise TimeoutError

        backend.engine.store.pools.backlog = away  # type: ignore[method-assign]
        found = samples((await http.get("/metrics")).text)
        assert found["penstock_database_up{}"] == 0
        assert found["penstock_jobs_enqueued_total{pool=sms}"] == 1
        assert not [name for name in found if name.startswith("penstock_jobs_ready")]


# ----- who sees them


async def test_mo4_metrics_are_not_public(sqlite_url: str) -> None:
    async with scraped(sqlite_url) as (backend, http):
        answer = await http.get("/metrics")
        assert (answer.status_code, answer.json()["code"]) == (404, "NotFound")
        assert backend.engine.journal.meters is None, "nothing is counted if nobody may look"
    async with scraped(sqlite_url, metrics_token="let-me-in", dev=True) as (_, http):
        for headers in ({}, {"authorization": "Bearer let-me-in2"}, {"authorization": "Basic let-me-in"}):
            answer = await http.get("/metrics", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "Unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "penstock_" not in answer.text
        assert (await http.get("/metrics", headers=TOKEN)).status_code == 200
        assert (await http.post("/metrics", headers=TOKEN)).status_code == 405
        odd = [(b"authorization", b"Bearer \xff\xfe")]
        assert (await http.get("/metrics", headers=odd)).status_code == 401


async def test_what_runs_is_seen_while_it_runs(database_url: str) -> None:
    async with scraped(database_url, dev=True) as (backend, http):
        await sms.enqueue_batch(backend, send, [{}] * 3)
        with gate("worker.outcome") as held:
            await backend.worker.tick()
            await held.arrived(3)
            found = samples((await http.get("/metrics")).text)
            assert found["penstock_jobs_running{pool=sms}"] == 3
            assert found["penstock_slots_held{pool=sms}"] == 3
            held.open()
        await backend.run_until_idle()
