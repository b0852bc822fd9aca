"""New jobs on their way to PostgreSQL: one by one, some in one statement, and many by COPY.

Owns their columns, and COPY's binary form of their types: the equal part of many rows that are alike is written once.
Leaves transactions, and the choice of the way, to `jobs`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from penstock.jobs.job import NewJob
from penstock.store.nouns.jobtext import options_text
from penstock.store.postgres.session import PostgresSession

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, and nothing more in the header
_END = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)
_PIECE_BYTES = 64 * 1024
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

Write = Callable[[Any], bytes]


def _time(value: datetime) -> bytes:
    return BIGINT((value - _EPOCH) // timedelta.resolution)


TEXT: Write = str.encode
TIME: Write = _time
SMALLINT: Write = struct.Struct(">h").pack
INTEGER: Write = struct.Struct(">i").pack
BIGINT: Write = struct.Struct(">q").pack
BOOLEAN: Write = struct.Struct(">?").pack


def fields(values: Mapping[str, Any], types: Mapping[str, Write]) -> bytes:
    """Columns of a row, in the order of the values."""
    return b"".join(_NULL if value is None else field(types[name](value)) for name, value in values.items())


def field(value: bytes) -> bytes:
    """One column of a row."""
    return len(value).to_bytes(4) + value


def pieces(rows: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes to send for these rows, in pieces that are not too small."""
    piece, size = [_HEADER], 0
    for row in rows:
        piece.append(row)
        size += len(row)
        if size >= _PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join([*piece, _END])


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
    head = len(columns).to_bytes(2) + len(one.id.bytes).to_bytes(4)  # each row begins with its number of columns
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
    """The columns of a new job other than its id and arguments."""
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
