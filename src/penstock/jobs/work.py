"""One attempt at a job, as the function that runs sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.jobs.job import JobId


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt at a job, as its function sees it in ``ctx.work``.

    Attributes:
        id: The id of the job.
        attempt: The number of this attempt, from 1.
        deadline: The time at which the attempt is stopped; None if it has no limit.
        begin: For penstock itself: called in the attempt's transaction, before its function.
    """

    id: JobId
    attempt: int
    deadline: datetime | None
    begin: Callable[[Any], Awaitable[None]] | None = field(default=None, repr=False, compare=False)
