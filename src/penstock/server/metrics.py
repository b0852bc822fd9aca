"""``/metrics``: the counts of this process, and the state of the pools in the database, for Prometheus.

Owns access: on the server's own port callers with the token, or everybody in development; on a port of its own
everybody who reaches it. Leaves the metrics to `observe/meters`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.outbox.views import OutboxStatus, look_at
from penstock.app import Backend
from penstock.errors import TryAgain
from penstock.observe.meters import Labels, Meters
from penstock.server.access import admit, exchange_of
from penstock.server.answers import answer_error
from penstock.server.http import HEADERS, send_answer
from penstock.server.opening import Opening
from penstock.server.requests import Refused
from penstock.store.nouns.changes import see_feed

_MOST = 100_000
_MOST_CHANGES = 10_000
_SECONDS = 5.0


def metrics_route(opening: Opening) -> Route:
    async def metrics(request: Request) -> Response:
        if opening.config.metrics_token or not opening.config.dev:
            admit(request, opening.config.metrics_token)
        try:
            backend = await opening.backend()
        except (Refused, TryAgain) as error:
            return send_answer(answer_error(error, exchange_of(request)))
        return await _answer(request, backend)

    return Route("/metrics", metrics)


def metrics_app(backend: Backend) -> Starlette:
    """The metrics on a port of their own, without a token."""

    async def metrics(request: Request) -> Response:
        return await _answer(request, backend)

    return Starlette(routes=[Route("/metrics", metrics)])


async def _answer(request: Request, backend: Backend) -> Response:
    gauges = await _gauges(backend)
    # It imports prometheus-client, which takes a while the first time.
    exposition: Any = await asyncio.to_thread(importlib.import_module, "penstock.observe.exposition")
    meters = backend.engine.journal.meters or Meters()
    text, content_type = exposition.expose(meters, gauges, request.headers.get("accept", ""))
    return Response(text, 200, {**HEADERS, "content-type": content_type})


async def _gauges(backend: Backend) -> dict[str, dict[Labels, float]]:
    """Gauges of the process and the database; if that does not answer, only that it does not."""
    meters = backend.engine.journal.meters
    gauges = meters.read_gauges() if meters is not None else {}
    try:
        async with asyncio.timeout(_SECONDS):
            return gauges | await _read(backend) | await _read_workflows(backend)
    except (TryAgain, TimeoutError):
        return gauges | {"penstock_database_up": {(): 0.0}}


async def _read(backend: Backend) -> dict[str, dict[Labels, float]]:
    store, now = backend.engine.store, backend.engine.clock.now()
    pools = list(await store.pools.backlog(_MOST))
    tasks = await store.records.backlog(_MOST)
    feed = await see_feed(store.changes, _MOST_CHANGES)
    rows = await store.outboxes.list()
    outboxes = await look_at(store, rows, now, lambda _name: True, _MOST_CHANGES) if rows else []
    readers, oldest = [reader for _row, reader in feed.readers], feed.oldest_transaction
    return {
        "penstock_database_up": {(): 1.0},
        "penstock_jobs_ready": {(one.pool,): one.ready for one in pools},
        "penstock_jobs_scheduled": {(one.pool,): one.scheduled for one in pools},
        "penstock_oldest_ready_seconds": {(one.pool,): _since(one.oldest, now) for one in pools},
        "penstock_max_parallelism": {
            (one.pool,): one.max_parallelism for one in pools if one.max_parallelism is not None
        },
        "penstock_task_ready": {(one.name,): one.ready for one in tasks},
        "penstock_task_scheduled": {(one.name,): one.scheduled for one in tasks},
        "penstock_task_running": {(one.name,): one.running for one in tasks},
        "penstock_task_failed": {(one.name,): one.failed for one in tasks},
        "penstock_task_oldest_due_seconds": {(one.name,): _since(one.oldest, now) for one in tasks},
        "penstock_task_lag_seconds": {(one.name,): _since(one.due_first, now) for one in tasks},
        "penstock_task_reconciled_timestamp_seconds": {
            (one.name,): one.reconciled_at.timestamp() for one in tasks if one.reconciled_at
        },
        "penstock_task_paused": {(one.name,): float(one.paused) for one in tasks},
        "penstock_change_reader_rows": {(one.name,): one.rows for one in readers},
        "penstock_change_reader_seconds": {(one.name,): one.age(now).total_seconds() for one in readers},
        "penstock_change_bytes": {(): feed.size},
        "penstock_oldest_transaction_seconds": {} if oldest is None else {(): oldest.total_seconds()},
        **_of_outboxes(outboxes),
    }


def _of_outboxes(outboxes: Sequence[OutboxStatus]) -> dict[str, dict[Labels, float]]:
    return {
        "penstock_outbox_messages": {(one.name,): one.messages for one in outboxes},
        "penstock_outbox_seconds": {(one.name,): one.seconds for one in outboxes},
        "penstock_outbox_failing": {(one.name,): (one.error is not None) + one.waits_for for one in outboxes},
        "penstock_outbox_halted": {(one.name,): float(one.halted) for one in outboxes},
        "penstock_outbox_parked": {(one.name,): one.parked for one in outboxes},
        "penstock_outbox_paused": {(one.name,): float(one.paused) for one in outboxes},
    }


async def _read_workflows(backend: Backend) -> dict[str, dict[Labels, float]]:
    names = backend.app.registry.workflows
    active = await backend.engine.store.workflows.count_active(names, _MOST) if names else []
    runs = {(one.function, one.waits): one.number for one in active}
    kinds = {"penstock_workflow_running": False, "penstock_workflow_waiting": True}
    return {gauge: {(name,): runs.get((name, waits), 0) for name in names} for gauge, waits in kinds.items()}


def _since(moment: datetime | None, now: datetime) -> float:
    """Seconds since something was due, at least 0."""
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
