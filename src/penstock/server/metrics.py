"""``/metrics``: what this process has counted, and how the pools stand in the database, as Prometheus reads it.

Owns who may see it: on the server's own port who sends the token, or anybody in development; on a port of its own
whoever reaches that. Leaves the metrics to `observe/meters`.
"""

from __future__ import annotations

import asyncio
import importlib
from datetime import datetime
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.outbox.views import OutboxStatus, look_at
from penstock.app import Backend
from penstock.config import Config
from penstock.errors import TryAgain
from penstock.observe.meters import Labels, Meters
from penstock.server.access import brings, exchange_of
from penstock.server.answers import answer_error
from penstock.server.opening import Opening
from penstock.server.requests import Refused
from penstock.store.contract.feed import FeedSeen, see_feed
from penstock.store.contract.pools import Backlog
from penstock.store.contract.records import TaskBacklog
from penstock.wire.outgoing import Format

_MOST = 100_000
_MOST_CHANGES = 10_000
_SECONDS = 5.0
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def metrics_route(opening: Opening) -> Route:
    async def metrics(request: Request) -> Response:
        _admit(request, opening.config)
        try:
            backend = await opening.backend()
        except (Refused, TryAgain) as error:
            answer = answer_error(error, exchange_of(request), Format.CLEAN, dev=False)
            return Response(answer.body, answer.status, {**_HEADERS, **answer.headers}, "application/json")
        return await _answer(request, backend)

    return Route("/metrics", metrics)


def metrics_app(backend: Backend) -> Starlette:
    """The metrics on a port of their own, without a token."""

    async def metrics(request: Request) -> Response:
        return await _answer(request, backend)

    return Starlette(routes=[Route("/metrics", metrics)])


def _admit(request: Request, config: Config) -> None:
    """Refuse with 404 if nobody may see metrics, with 401 if the token is missing or wrong."""
    if not config.metrics_token:
        if not config.dev:
            raise HTTPException(404)
        return
    if not brings(request, config.metrics_token):
        raise HTTPException(401, headers={"www-authenticate": "Bearer"})


async def _answer(request: Request, backend: Backend) -> Response:
    gauges = await _gauges(backend)
    # It imports prometheus-client, which takes a while the first time.
    exposition: Any = await asyncio.to_thread(importlib.import_module, "penstock.observe.exposition")
    meters = backend.engine.journal.meters or Meters()
    text, content_type = exposition.exposed(meters, gauges, request.headers.get("accept", ""))
    return Response(text, 200, {**_HEADERS, "content-type": content_type})


async def _gauges(backend: Backend) -> dict[str, dict[Labels, float]]:
    """Gauges of the process and the database; if that does not answer, only that it does not."""
    meters = backend.engine.journal.meters
    gauges = meters.read_gauges() if meters is not None else {}
    try:
        async with asyncio.timeout(_SECONDS):
            found = await backend.engine.store.pools.backlog(_MOST)
            tasks = await backend.engine.store.records.backlog(_MOST)
            feed = await see_feed(backend.engine.store.changes, _MOST_CHANGES)
            outboxes = await _outboxes(backend)
    except (TryAgain, TimeoutError):
        return gauges | {"penstock_database_up": {(): 0.0}}
    up: dict[str, dict[Labels, float]] = {"penstock_database_up": {(): 1.0}}
    read = (
        _of_database(list(found), backend),
        _of_tasks(tasks, backend),
        _of_feed(feed, backend),
        _of_outboxes(outboxes),
    )
    for some in read:
        gauges |= some
    return gauges | up


async def _outboxes(backend: Backend) -> list[OutboxStatus]:
    store = backend.engine.store
    rows = await store.outboxes.list()
    return await look_at(store, rows, backend.engine.clock.now(), lambda _name: True, _MOST_CHANGES) if rows else []


def _of_outboxes(found: list[OutboxStatus]) -> dict[str, dict[Labels, float]]:
    return {
        "penstock_outbox_messages": {(one.name,): one.messages for one in found},
        "penstock_outbox_seconds": {(one.name,): one.seconds for one in found},
        "penstock_outbox_failing": {(one.name,): (one.error is not None) + one.waits_for for one in found},
        "penstock_outbox_halted": {(one.name,): float(one.halted) for one in found},
        "penstock_outbox_parked": {(one.name,): one.parked for one in found},
        "penstock_outbox_paused": {(one.name,): float(one.paused) for one in found},
    }


def _of_database(found: list[Backlog], backend: Backend) -> dict[str, dict[Labels, float]]:
    now = backend.engine.clock.now()
    return {
        "penstock_jobs_ready": {(one.pool,): one.ready for one in found},
        "penstock_jobs_scheduled": {(one.pool,): one.scheduled for one in found},
        "penstock_oldest_ready_seconds": {(one.pool,): _since(one.oldest, now) for one in found},
        "penstock_max_parallelism": {
            (one.pool,): one.max_parallelism for one in found if one.max_parallelism is not None
        },
    }


def _of_tasks(tasks: list[TaskBacklog], backend: Backend) -> dict[str, dict[Labels, float]]:
    now = backend.engine.clock.now()
    return {
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
    }


def _since(moment: datetime | None, now: datetime) -> float:
    """Seconds since something was due, at least 0."""
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())


def _of_feed(feed: FeedSeen, backend: Backend) -> dict[str, dict[Labels, float]]:
    now, readers = backend.engine.clock.now(), [reader for _row, reader in feed.readers]
    oldest = feed.oldest_transaction
    return {
        "penstock_change_reader_rows": {(one.name,): one.rows for one in readers},
        "penstock_change_reader_seconds": {(one.name,): one.age(now).total_seconds() for one in readers},
        "penstock_change_bytes": {(): feed.size},
        "penstock_oldest_transaction_seconds": {} if oldest is None else {(): oldest.total_seconds()},
    }
