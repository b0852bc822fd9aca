"""A filter of jobs, for lists, retries and cancels of many jobs."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from penstock.dataclass import dataclass
from penstock.errors import ValueInvalid
from penstock.jobs.job import JobStatus
from penstock.jobs.states import CANCELABLE, FINISHED, RETRIABLE, STAGES, JobState
from penstock.values import check_text

ENDED = tuple(state.value for state in JobState if state in FINISHED)
MOST_LISTED = 10_000
_TIMES = ("since", "before")
_RETRIABLE = tuple(state.value for state in JobState if state in RETRIABLE)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Jobs that meet all of these conditions; all jobs if there is none.

    Args:
        pool: Name of their pool; ``"default"`` for those of the scheduler.
        function: Name of their function.
        state: Pending, running, completing, success, failed, canceled or skipped; or the stage of a pending job: ready,
            scheduled or retrying.
        name: Their name: the option `name`, or else the name of their function.
        key: The `key` they were enqueued with.
        concurrency_key: The `concurrency_key` they were enqueued with.
        error: Text that their last error contains, upper and lower case told apart.
        since: The earliest time of their end, or of their enqueueing if they have not ended.
        before: An end of the same time, exclusive.
        on_complete_error: Text that the last error of their on_complete contains, which has failed for good; an empty
            text for any.
        prefix: The beginning of the name of their function, such as that of a component.

    Raises:
        ValueInvalid: There is no such state; a time has no zone; a text is none that a database can hold.
    """

    pool: str | None = None
    function: str | None = None
    state: str | None = None
    name: str | None = None
    key: str | None = None
    concurrency_key: str | None = None
    error: str | None = None
    since: datetime | None = None
    before: datetime | None = None
    on_complete_error: str | None = None
    prefix: str | None = None

    def __post_init__(self) -> None:
        for word in [one.name for one in fields(self) if one.name not in _TIMES]:
            value: Any = getattr(self, word)
            if value is None:
                continue
            if not isinstance(value, str):
                raise ValueInvalid(f"{word} takes a text, not {value!r}.")
            check_text(value, word)
        for word in _TIMES:
            value = getattr(self, word)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                raise ValueInvalid(f"{word} takes an aware datetime, not {value!r}.", fix="Attach a time zone.")
        if self.state not in {None, *STAGES}:
            raise ValueInvalid(f"There is no state {self.state!r}.", fix=f"They are {', '.join(STAGES)}.")

    def meets_new(self, job: JobStatus) -> bool:
        """Whether a job meets this filter that its transaction has not stored yet: it is pending, and has no error."""
        asked, options = self, job.options
        equal = (
            (asked.pool, job.pool),
            (asked.function, job.function),
            (asked.name, options.name or job.function),
            (asked.key, options.key),
            (asked.concurrency_key, options.concurrency_key),
        )
        return (
            all(wanted is None or wanted == found for wanted, found in equal)
            and asked.state in {None, job.state.value, job.stage}
            and (asked.prefix is None or job.function.startswith(asked.prefix))
            and asked.error is asked.on_complete_error is None
            and (asked.since is None or asked.since <= job.enqueued_at)
            and (asked.before is None or job.enqueued_at < asked.before)
        )


ALL_JOBS = JobFilter()


def check_limit(limit: object) -> None:
    if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
        raise ValueInvalid(f"limit is an integer from 1 to {MOST_LISTED}, not {limit!r}.")


def retriable(where: JobFilter) -> JobFilter:
    """This filter, of failed jobs unless it names another state."""
    if where.state is None:
        return replace(where, state=JobState.FAILED.value)
    if where.state not in _RETRIABLE:
        raise ValueInvalid(f"Jobs in state {where.state!r} cannot be retried.", fix=f"Name {' or '.join(_RETRIABLE)}.")
    return where


def recallable(where: JobFilter) -> JobFilter:
    """This filter for a repeated on_complete, which has failed for good."""
    if where.state not in {None, *(state.value for state in FINISHED)}:
        raise ValueInvalid(f"Jobs in state {where.state!r} have not ended.", fix=f"Name {', '.join(ENDED)}.")
    return where if where.on_complete_error is not None else replace(where, on_complete_error="")


def cancelable(where: JobFilter) -> JobFilter:
    if where.on_complete_error is not None:
        raise ValueInvalid("Jobs whose on_complete has failed have ended.", fix="Leave out on_complete_error.")
    if where.state not in {None, *CANCELABLE}:
        raise ValueInvalid(f"Jobs in state {where.state!r} cannot be canceled.", fix="Name pending or running.")
    return where
