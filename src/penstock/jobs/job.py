"""The values of a job: as enqueued, as claimed, the outcome of an attempt, and the settlement to write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import field, replace
from datetime import datetime, timedelta
from json.decoder import scanstring  # type: ignore[attr-defined]  # is not in its stubs
from typing import Any, Generic, Literal, TypeAlias
from uuid import UUID

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypeVar

from penstock.dataclass import dataclass
from penstock.jobs.progress import Progress
from penstock.jobs.retry import Retry
from penstock.jobs.states import JobEvent, JobState
from penstock.schema.ids import JOB_PREFIX, Id, format_id, format_ids, is_id, parse_id
from penstock.values import decode_json

DEFAULT_POOL = "default"
_MARK, _KEY = '{"generation":', ',"key":"'

Kind = Literal["query", "mutation", "action"]
R = TypeVar("R", covariant=True, default=Any)


class JobId(Id[Any], Generic[R]):
    """The id of a job: a string such as ``job_01jd3k4v5w6x7y8z9a0b1c2d3e``; checked where it enters, as `Id` is.

    Type checkers know of `JobId[str]` that the job's result is a `str`; `JobId` may be one with any result.
    """

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            _check, core_schema.str_schema(strict=True), serialization=core_schema.to_string_ser_schema()
        )


def job_id(uuid: UUID) -> JobId[Any]:
    return JobId(format_id(JOB_PREFIX, uuid.int))


def job_ids(uuids: Iterable[UUID]) -> list[JobId[Any]]:
    return [JobId(text) for text in format_ids(JOB_PREFIX, (uuid.int for uuid in uuids))]


def job_uuid(text: str) -> UUID:
    return UUID(int=parse_id(JOB_PREFIX, text))


def _check(text: str) -> JobId[Any]:
    if not is_id(JOB_PREFIX, text):
        raise PydanticCustomError("id_of_no_job", "Input should be an id of a job, like job_01jd3k4v5w6x7y8z9a0b1c2d3e")
    return JobId(text)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a job, as stored with it."""

    retry: Retry | None = None  # when to try again after a failure; None for one attempt
    name: str | None = None  # its name in log events; its function's name by default
    timeout: float | None = None  # seconds that one attempt may take; None for no limit
    start_deadline: float | None = None  # seconds after it was due by which it has to start; None for no limit
    keep: float | None = None  # seconds for which its status is kept once it has ended; None for the setting's value
    on_complete_retry: Retry | None = None  # when to call on_complete again after it raised
    on_complete_only: str | None = None  # the ends after which on_complete is called, with commas between; None for all
    restartable: bool | None = None  # whether an action runs again if its worker is lost, and a run after five losses
    context: str | None = None  # the `context` of on_complete, as JSON
    concurrency_key: str | None = None  # of its pool's jobs with the same one only so many run at once
    key: str | None = None  # of its pool's jobs with the same one there is only one
    # whether another job may have its key as soon as it starts, and not only when it has ended
    until_start: bool | None = None
    trace: str | None = None  # the trace that it belongs to and the span that enqueued it, as W3C writes them
    # the number of the reactive task that it belongs to; its arguments then begin with those of `Mark`
    task: int | None = None
    program: str | None = None  # the program that enqueued it, if its app has a name
    run: str | None = None  # the id of the run of a workflow that waits for its end
    depth: int | None = None  # of a child of a workflow's run: the number of runs above it
    deadline: float | None = None  # for a run of a workflow: seconds after its beginning, waits included
    starter: str | None = None  # the mark of the caller who started it, if it is a run that callers from outside see
    # options of another version that this one cannot read, as JSON. A worker leaves such a job to others
    unread: str | None = None
    broken: str | None = None  # options that no version stores like this, as JSON. A worker ends such a job

    def calls_after(self, end: JobState) -> bool:
        """Whether an on_complete is called after an end."""
        kind = JobState.CANCELED if end is JobState.SKIPPED else end  # as it is told
        return self.on_complete_only is None or kind.value in self.on_complete_only.split(",")

    def with_context(self, change: Callable[[str], str]) -> Options:
        """This completion with a changed context, if there is one."""
        return self if self.context is None else replace(self, context=change(self.context))


NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a job whose on_complete is still to run."""

    state: JobState  # success, failed or canceled
    finished_at: datetime  # when its last attempt ended
    result: str | None = None  # for success: the result as JSON
    error: str | None = None  # for failed: type and message
    traceback: str | None = None  # for failed: the traceback
    started_at: datetime | None = None  # when its last attempt began, if one did
    run_at: datetime | None = None  # when that might have run at the earliest
    calls: int = 0  # how often on_complete has raised so far
    failing_since: datetime | None = None  # when it did for the first time
    attempts: tuple[Attempt, ...] = ()  # calls of it that raised or were lost, the last ones of many


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a job that failed or was lost, as it is kept with the job.

    Attributes:
        number: Its number, from 1. After a retry of the whole job they are counted from one.
        started_at: When it began.
        ended_at: When it ended; if it was lost, when that was noticed.
        what: Its outcome: raised or exhausted if it raised, lost or abandoned if its worker was lost; exhausted
            and abandoned if no further attempt was left.
        error: Type and message of the error; its beginning, if it is very long.
        traceback: The traceback; its end, if it is long.
        failing_since: When the first attempt that is counted with it failed. It is kept if the retry policy
            has a max_duration.
    """

    number: int
    started_at: datetime
    ended_at: datetime
    what: str
    error: str | None = None
    traceback: str | None = None
    failing_since: datetime | None = None


@dataclass(slots=True)
class NewJob:
    id: UUID
    function: str
    kind: Kind
    args: str  # arguments as a JSON object, checked against the function's signature
    run_at: datetime
    rank: int  # its place among the jobs of its pool; see `jobs.order`
    pool: str = DEFAULT_POOL
    priority: int = 0  # those with a higher one start first
    options: Options = NO_OPTIONS
    on_complete: str | None = None  # name of the mutation that is run once, when it has ended
    # for a job that passes a gate before it starts: the key in whose turn it does, or an empty one
    concurrency_key: str | None = None


@dataclass(slots=True)
class Job:
    """A job that a worker holds under its lease."""

    id: UUID
    function: str
    kind: Kind
    args: str
    run_at: datetime
    pool: str
    priority: int
    options: Options
    on_complete: str | None
    ending: Ending | None  # its end, if only its on_complete is left to run
    attempt: int  # which attempt this is, from 1
    enqueued_at: datetime  # when the transaction that enqueued it ran
    started_at: datetime
    failing_since: datetime | None = None  # when its first attempt failed, if that matters to its retry policy
    failed: Attempt | None = None  # its attempt that has just failed, until that is stored with the job
    # whether its handler has marked it as completed, so that it ends as success even if the handler raises
    marked: bool = False
    version: int = -1  # the version of the handler that runs it, if it is of a reactive task; -1 if nobody knows

    def is_followed(self, end: JobState) -> bool:
        """Whether its on_complete is called after an end."""
        return self.on_complete is not None and self.options.calls_after(end)

    @property
    def is_late(self) -> bool:
        """Whether its first attempt starts later than it may."""
        most = self.options.start_deadline
        if most is None or self.attempt > 1 or self.ending is not None:
            return False
        return (self.started_at - self.run_at).total_seconds() > most


@dataclass(slots=True)
class Mark:
    """The row, and the state of the row, that a job of a reactive task handles."""

    task: int  # the number of the task
    key: str  # the key of the row, as the change feed spells it
    generation: int  # the generation: the number of the row's state
    version: int = -1  # the version of the handler that has handled it, well or not; -1 for none


def mark_of(task: int, args: str, version: int = -1) -> Mark:
    """The mark of a job of a task, from its arguments, which begin with it."""
    end = args.index(",", len(_MARK))
    key, _ = scanstring(args, end + len(_KEY))
    return Mark(task, key, int(args[len(_MARK) : end]), version)


@dataclass(slots=True)
class Outcome:
    """The outcome of one attempt."""

    # one of returned, skipped, raised, snoozed, held, handed back, lost or canceled; whether an attempt is left is not
    # yet considered
    event: JobEvent
    result: str | None = None  # for returned: the result as JSON
    error: str | None = None  # for raised and lost: type and message. For snoozed: the reason
    traceback: str | None = None  # for raised: the traceback
    retryable: bool = True  # for raised: whether a further attempt makes sense
    delay: timedelta = timedelta(0)  # for snoozed: the wait
    blocks_key: bool = False  # for snoozed: whether the next rows of its key wait as well, if it is of a reactive task
    cause: BaseException | None = None  # for raised: the error itself


@dataclass(slots=True)
class Settlement:
    """The settlement of a job whose attempt has ended: the values to write."""

    id: UUID
    state: JobState  # its new state
    event: JobEvent
    attempt: int  # attempts that count so far
    run_at: datetime  # for pending and completing: when it may run again
    finished_at: datetime
    expires_at: datetime
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    ending: Ending | None = None  # for completing: its end
    on_complete_error: str | None = None  # type and message of the last error of its on_complete
    on_complete_attempts: tuple[Attempt, ...] = ()  # calls of its on_complete that raised or were lost
    frees_key: bool = False  # whether another job may have its key from now on
    failed: Attempt | None = None  # the attempt, if it failed or was lost; it is added to the kept ones
    mark: Mark | None = None  # for a job of a reactive task: its row and generation
    blocks_key: bool = False  # whether no other job of its concurrency key starts before it, if it has one
    keeps_rank: bool = False  # whether it starts before newer jobs when its time has come
    run: str | None = None  # the run of a workflow that waits for its end, if this is it
    cause: BaseException | None = None  # its error itself, for that run and the log

    @property
    def is_plain(self) -> bool:
        """Whether it has a result only, and no further step follows."""
        return self.event is JobEvent.RETURNED and self.state is JobState.SUCCESS and not self.frees_key


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as seen from outside.

    Attributes:
        id: Its id.
        function: Name of its function.
        args: Its arguments.
        state: Its state.
        attempt: Attempts begun so far.
        run_at: When it may run, or might have run, at the earliest.
        enqueued_at: When it was enqueued.
        started_at: When its last attempt began, if one did.
        finished_at: When it ended, if it has.
        result: The result of its function, if it succeeded; as JSON over HTTP, with integers as numbers.
        error: Type and message of its last error, or the reason why it waits.
        traceback: The traceback of that error, once the job has ended.
        pool: The pool it belongs to.
        on_complete_error: Type and message of the error of its on_complete, if it raised each time.
        attempts: Its attempts that failed or were lost, the last ones of many, in order.
        priority: Its priority. Jobs with a higher one start first.
        options: Its options.
        on_complete: Name of the mutation that is run when it has ended.
        progress: Its progress, if it runs and has reported any.
        on_complete_attempts: Calls of its on_complete that raised or were lost, the last ones of many, in order.
        published: The state that it has published last, if it is a run of a workflow.
        stage: Its state; of a pending job ``ready``, ``scheduled`` or ``retrying``, which has failed and starts later.
    """

    id: JobId
    function: str
    args: dict[str, Any]
    state: JobState
    attempt: int
    run_at: datetime
    enqueued_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: Any = None
    error: str | None = None
    traceback: str | None = None
    pool: str = DEFAULT_POOL
    on_complete_error: str | None = None
    attempts: tuple[Attempt, ...] = ()
    priority: int = 0
    options: Options = NO_OPTIONS
    on_complete: str | None = None
    progress: Progress | None = None
    on_complete_attempts: tuple[Attempt, ...] = ()
    published: Any = None
    stage: str = JobState.PENDING.value


JobStatuses: TypeAlias = list[JobStatus]  # for classes with a method named list


def status_of_new(job: NewJob, now: datetime, decrypt: Callable[[str], str]) -> JobStatus:
    """The status of a job that its transaction has not stored yet."""
    return JobStatus(
        id=job_id(job.id),
        function=job.function,
        args=decode_json(decrypt(job.args)),
        state=JobState.PENDING,
        attempt=0,
        run_at=job.run_at,
        enqueued_at=now,
        pool=job.pool,
        priority=job.priority,
        options=job.options.with_context(decrypt),
        on_complete=job.on_complete,
        stage="ready" if job.run_at <= now else "scheduled",
    )


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt at a job, as its function sees it in ``ctx.work``.

    Attributes:
        id: The id of the job.
        attempt: The number of this attempt, from 1.
        deadline: The time at which the attempt is stopped; None if it has no limit.
        begin: For penstock itself: called in the attempt's transaction, before its function.
        key: A key by which an outside system can tell that it is asked again: the same in each attempt, and of each
            step of a workflow another one.
    """

    id: JobId
    attempt: int
    deadline: datetime | None
    begin: Callable[[Any], Awaitable[None]] | None = field(default=None, repr=False, compare=False)
    key: str = ""
