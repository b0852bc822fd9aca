"""New jobs on their way to PostgreSQL: one by one, some in one statement, and many by COPY.

Owns their columns. Leaves transactions, and the choice of the way, to `jobs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from penstock.jobs.job import NewJob
from penstock.store.postgres.binary import (
    BIGINT,
    BOOLEAN,
    INTEGER,
    SMALLINT,
    TEXT,
    TIME,
    count_of,
    field,
    fields,
    pieces,
)
from penstock.store.postgres.session import PostgresSession
from penstock.store.rows.jobs import options_text

COPY_FROM = 100  # jobs; for fewer one statement is faster
_COLUMNS = (
    "id", "args", "pool", "function", "kind", "priority", "rank", "run_at", "options", "on_complete", "attempt",
    "enqueued_at",
)  # fmt: skip
_PLACE = ("gated", "waiting", "concurrency_key")
_TYPES = {
    **dict.fromkeys(("pool", "function", "kind", "options", "on_complete", "concurrency_key"), TEXT),
    **dict.fromkeys(("run_at", "enqueued_at"), TIME),
    **dict.fromkeys(_PLACE[:2], BOOLEAN),
    "priority": SMALLINT,
    "rank": BIGINT,
    "attempt": INTEGER,
}


def arrays(jobs: Sequence[NewJob], now: datetime) -> dict[str, Any]:
    """New jobs as the values of the query `enqueue`."""
    return {
        "ids": [job.id for job in jobs],
        "pools": [job.pool for job in jobs],
        "functions": [job.function for job in jobs],
        "kinds": [job.kind for job in jobs],
        "args": [job.args for job in jobs],
        "priorities": [job.priority for job in jobs],
        "ranks": [job.rank for job in jobs],
        "run_ats": [job.run_at for job in jobs],
        "options": _options_texts(jobs),
        "on_completes": [job.on_complete for job in jobs],
        "concurrency_keys": [job.concurrency_key for job in jobs],
        "now": now,
    }


async def copy(session: PostgresSession, jobs: Sequence[NewJob], now: datetime) -> None:
    """Store many jobs by COPY, in half the time that the statement `enqueue` would take."""
    ready: list[tuple[Any, ...]] = []
    later: list[tuple[Any, ...]] = []
    for job, options in zip(jobs, _options_texts(jobs), strict=True):
        row, place = (job.id, job.args, *_other_columns(job, options, now)), _place(job, now)
        if place is None:
            ready.append(row)
        else:
            later.append((*row, *place))
    if ready:
        await session.copy("ready_job", _COLUMNS, ready)
    if later:
        await session.copy("scheduled_job", (*_COLUMNS, *_PLACE), later)


async def copy_alike(session: PostgresSession, first: Sequence[NewJob], left: Iterator[NewJob], now: datetime) -> None:
    """Store many jobs that are alike: one is made while those before it are on their way."""
    one = first[0]
    place, (options,) = _place(one, now), _options_texts([one])
    others = (*_other_columns(one, options, now), *(place or ()))
    table, columns = ("ready_job", _COLUMNS) if place is None else ("scheduled_job", (*_COLUMNS, *_PLACE))
    head = count_of(columns) + len(one.id.bytes).to_bytes(4)
    tail = fields(dict(zip(columns[2:], others, strict=True)), _TYPES)
    rows = (head + job.id.bytes + field(job.args.encode()) + tail for job in chain(first, left))
    await session.copy_binary(table, columns, pieces(rows))


def alone(job: NewJob, now: datetime) -> dict[str, Any] | None:
    """A job that may start at once as the values of the query `enqueue_one`; None if it is to wait."""
    if _place(job, now) is not None:
        return None
    (options,) = _options_texts([job])
    columns = (job.id, job.args, *_other_columns(job, options, now))
    return {**dict(zip(_COLUMNS, columns, strict=True)), "now": now}


def _other_columns(job: NewJob, options: str | None, now: datetime) -> tuple[Any, ...]:
    """The columns of a new job beside its id and arguments."""
    return (
        job.pool, job.function, job.kind, job.priority, job.rank, job.run_at, options, job.on_complete, 0, now
    )  # fmt: skip


def _place(job: NewJob, now: datetime) -> tuple[bool, bool, str] | None:
    """More columns of a new job that cannot start yet: whether it is gated, and waits, and its key; None if it can."""
    gated, due = job.concurrency_key is not None, job.run_at <= now
    return (gated, gated and due, job.concurrency_key or "") if gated or not due else None


def _options_texts(jobs: Sequence[NewJob]) -> list[str | None]:
    """The options of jobs as stored; those of a batch are mostly the same object."""
    known: dict[int, str | None] = {}
    for job in jobs:
        if id(job.options) not in known:
            known[id(job.options)] = options_text(job.options)
    return [known[id(job.options)] for job in jobs]
