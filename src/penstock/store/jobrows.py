"""Jobs as rows: the conversion that both stores share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.jobs.job import Job, JobStatus, job_id
from penstock.jobs.retry import Retry
from penstock.jobs.states import JobState
from penstock.values import decode_json

SLOTS = 16
LONG_SLOT = -1
_LONGEST_IN_RING = timedelta(days=SLOTS - 3)
_EPOCH_ORDINAL = datetime(1970, 1, 1).toordinal()  # noqa: DTZ001 - only its day is used


def retry_text(retry: Retry | None) -> str | None:
    """A retry policy as stored."""
    return None if retry is None else json.dumps(astuple(retry))


def retry_of(text: str | None) -> Retry | None:
    """A stored retry policy."""
    return None if text is None else Retry(*json.loads(text))


def job_of(row: Sequence[Any]) -> Job:
    """A job from its row: id, function, kind, args, run_at, pool, priority, retry, attempt, enqueued_at, started_at."""
    job_uuid, function, kind, args, run_at, pool, priority, retry, attempt, enqueued_at, started_at = row
    return Job(
        job_uuid,
        function,
        kind,
        args,
        run_at,
        pool,
        priority,
        retry_of(retry),
        attempt,
        enqueued_at,
        started_at,
    )


def status_of(row: Sequence[Any]) -> JobStatus:
    """A job's status from its row, in the order of the query `find`."""
    (
        uuid,
        function,
        args,
        state,
        attempt,
        run_at,
        enqueued_at,
        started_at,
        finished_at,
        result,
        error,
        traceback,
    ) = row
    return JobStatus(
        id=job_id(UUID(int=uuid.int)),
        function=function,
        args=decode_json(args),
        state=JobState(state),
        attempt=attempt,
        run_at=run_at,
        enqueued_at=enqueued_at,
        started_at=started_at,
        finished_at=finished_at,
        result=None if result is None else decode_json(result),
        error=error,
        traceback=traceback,
    )


def slot_of(expires_at: datetime, now: datetime) -> int:
    """The partition of a finished job, by the day on which its status expires."""
    if expires_at - now > _LONGEST_IN_RING:
        return LONG_SLOT
    return (expires_at.toordinal() - _EPOCH_ORDINAL) % SLOTS


def expired_slot(now: datetime) -> int:
    """The partition in which every status has expired, and into which none is being written: yesterday's."""
    return (now.toordinal() - _EPOCH_ORDINAL - 1) % SLOTS
