"""The status and the result of a job in a pool.

The words are those of Convex's Workpool: a result is a success, a failure or canceled. A status counts the attempts
before the one that is meant. On the wire both are unions that their `kind` tells apart, with `previousAttempts`.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from penstock.codec import CODEC_FIX, Ciphertext
from penstock.dataclass import dataclass
from penstock.errors import Undecryptable
from penstock.jobs.job import JobId, JobStatus
from penstock.jobs.progress import Progress
from penstock.jobs.states import FINISHED, JobState

T = TypeVar("T")
WorkId = JobId
_WIRE = ConfigDict(alias_generator=to_camel, populate_by_name=True)


@dataclass(frozen=True)
class Success(Generic[T]):
    """A job's function returned.

    Attributes:
        value: Its result.
    """

    value: T
    kind: Literal["success"] = "success"


@dataclass(frozen=True)
class Failed:
    """A job's function raised, in its last attempt, or its worker was lost.

    Attributes:
        error: Type and message of its error.
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
        previous_attempts: The number of attempts that have ended.
    """

    __pydantic_config__ = _WIRE

    previous_attempts: int
    kind: Literal["pending"] = "pending"


@dataclass(frozen=True)
class Running:
    """A job runs, or its on_complete does.

    Attributes:
        previous_attempts: The number of attempts that have ended before this one.
        progress: Its progress, if it has reported any.
    """

    __pydantic_config__ = _WIRE

    previous_attempts: int
    progress: Progress | None = None
    kind: Literal["running"] = "running"


@dataclass(frozen=True)
class Finished:
    """A job has ended, and its on_complete has been called if it has one.

    Attributes:
        result: Its result; the value of a success has the type that its function's annotation names.
    """

    result: WorkResult[Any]
    kind: Literal["finished"] = "finished"


WorkStatus = Pending | Running | Finished


@dataclass(frozen=True)
class Completion:
    """The answer to an outside system that completes work.

    Attributes:
        accepted: Whether it counts; if not, the work had ended before.
        kind: The outcome that counts: a success, a failure (perhaps with a retry), or canceled.
    """

    accepted: bool
    kind: Literal["success", "failed", "canceled"]


def work_status(job: JobStatus) -> WorkStatus:
    if job.state is JobState.SUCCESS:
        if isinstance(job.result, Ciphertext):
            raise Undecryptable(f"The result of {job.id} cannot be decrypted.", fix=CODEC_FIX)
        return Finished(Success(job.result))
    if job.state in FINISHED:
        return Finished(Failed(job.error or "") if job.state is JobState.FAILED else Canceled())
    if job.state is JobState.PENDING:
        return Pending(job.attempt)
    return Running(max(0, job.attempt - 1), job.progress)
