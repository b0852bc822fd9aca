"""What is said of a job in a pool: where it stands, and how it has ended.

The words are those of Convex's Workpool: a result is a success, a failure or canceled; a status counts the attempts
before the one that is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from penstock.jobs.job import JobId, JobStatus
from penstock.jobs.progress import Progress
from penstock.jobs.states import FINISHED, JobState

T = TypeVar("T")
WorkId = JobId


@dataclass(frozen=True)
class Success(Generic[T]):
    """A job's function returned.

    Attributes:
        value: What it returned.
    """

    value: T
    kind: Literal["success"] = "success"


@dataclass(frozen=True)
class Failed:
    """A job's function raised, in its last attempt, or its worker was lost.

    Attributes:
        error: Type and message of what it raised.
    """

    error: str
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True)
class Canceled:
    """A job was canceled before it had ended."""

    kind: Literal["canceled"] = "canceled"


WorkResult = Success[T] | Failed | Canceled


@dataclass(frozen=True)
class Pending:
    """A job waits, for its first attempt or for another one.

    Attributes:
        previous_attempts: How many attempts have ended.
    """

    previous_attempts: int


@dataclass(frozen=True)
class Running:
    """A job runs, or its on_complete does.

    Attributes:
        previous_attempts: How many attempts have ended before this one.
        progress: How far it has come, if it has said so.
    """

    previous_attempts: int
    progress: Progress | None = None


@dataclass(frozen=True)
class Finished:
    """A job has ended, and its on_complete has been called if it has one.

    Attributes:
        result: How it ended; the value of a success as JSON says it.
    """

    result: WorkResult[Any]


WorkStatus = Pending | Running | Finished


@dataclass(frozen=True)
class Completion:
    """What came of an outside system saying how work has ended.

    Attributes:
        accepted: Whether it counts; if not, something was said or done before.
        kind: What counts: a success, a failure (after which the work may be tried again), or that it was canceled.
    """

    accepted: bool
    kind: Literal["success", "failed", "canceled"]


def work_status(job: JobStatus) -> WorkStatus:
    if job.state in FINISHED:
        return Finished(_result(job))
    if job.state is JobState.PENDING:
        return Pending(job.attempt)
    return Running(max(0, job.attempt - 1), job.progress)


def _result(job: JobStatus) -> WorkResult[Any]:
    if job.state is JobState.SUCCESS:
        return Success(job.result)
    return Failed(job.error or "") if job.state is JobState.FAILED else Canceled()
