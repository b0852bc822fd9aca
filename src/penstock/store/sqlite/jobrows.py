"""Jobs as rows of SQLite: ids as bytes, times as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.job import Job, NewJob, Settlement
from penstock.store.rows.jobs import attempts_text, job_of
from penstock.store.sqlite.dialect import encode_datetime

_JOB = ("id", "pool", "function", "kind", "args", "priority", "rank", "run_at", "options", "on_complete")
READY = (*_JOB, "ending", "attempt", "enqueued_at", "error", "attempts")
CLAIMED = (
    "id", "function", "kind", "args", "run_at", "pool", "priority", "options", "on_complete", "ending", "attempt",
    "enqueued_at", "error", "rank", "attempts", "failing_since", "concurrency_key",
)  # fmt: skip
TAKEN = (*_JOB, "enqueued_at", "started_at", "error", "gated", "concurrency_key", "attempts")
CANCELED = (*_JOB, "attempt", "enqueued_at", "attempts")
_ENDED = ("id", "pool", "function", "kind", "args", "priority", "options", "on_complete")
RETRIED = (*_ENDED, "enqueued_at", "error", "attempts")
RECALLED = (*_ENDED, "attempt", "enqueued_at", "attempts", "ending")


def claimed_job(row: Sequence[Any], now: datetime) -> Job:
    """A job from its row of the query `claim`."""
    run_at, enqueued_at = datetime.fromisoformat(row[6]), datetime.fromisoformat(row[13])
    return job_of((UUID(bytes=row[2]), *row[3:6], run_at, *row[7:13], enqueued_at, now, row[14]))


def by_rank(row: Sequence[Any]) -> tuple[int, int]:
    """The order of rows of the query `claim`: the most urgent first."""
    return row[1], row[0]


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


def job_from(row: Sequence[Any]) -> Job:
    """A job from its row, with times and the id in SQLite's form."""
    run_at, enqueued_at, started_at = (datetime.fromisoformat(row[place]) for place in (4, 11, 12))
    return job_of((UUID(bytes=row[0]), *row[1:4], run_at, *row[5:11], enqueued_at, started_at, *row[13:]))
