"""Jobs as rows of SQLite: ids as bytes, times as text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from penstock.jobs.job import NewJob, Settlement
from penstock.store.nouns.jobtext import attempts_text
from penstock.store.sqlite.dialect import encode_datetime


def time_texts() -> Callable[[datetime], str]:
    """Writes times, of which many are the same."""
    known: dict[datetime, str] = {}
    return lambda time: known.get(time) or known.setdefault(time, encode_datetime(time))


def new_row(job: NewJob, options: str | None, run_at: str, now: str, *, due: bool) -> dict[str, Any]:
    """A new job as the values of the queries that enqueue."""
    gated = job.concurrency_key is not None
    return {
        "id": job.id.bytes,
        "pool": job.pool,
        "function": job.function,
        "kind": job.kind,
        "args": job.args,
        "priority": job.priority,
        "rank": job.rank,
        "run_at": run_at,
        "options": options,
        "on_complete": job.on_complete,
        "ending": None,
        "attempt": 0,
        "enqueued_at": now,
        "error": None,
        "attempts": None,
        "gated": gated,
        "waiting": gated and due,
        "concurrency_key": job.concurrency_key or "",
        "blocks_key": False,
    }


def ended_row(settlement: Settlement) -> dict[str, Any]:
    """The row of a job that has ended."""
    return {
        "finished_at": encode_datetime(settlement.finished_at),
        "expires_at": encode_datetime(settlement.expires_at),
        "state": settlement.state.value,
        "result": settlement.result,
        "error": settlement.error,
        "traceback": settlement.traceback,
        "on_complete_error": settlement.on_complete_error,
        "on_complete_attempts": attempts_text(settlement.on_complete_attempts),
    }
