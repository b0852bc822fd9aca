"""Every error that penstock raises: one tree, each with a stable code, its facts and the next step.

PenstockError
├── UsageError                    you: the program is written or configured wrongly
│   ├── DeclarationError          a wrong declaration of a table, an index or a function
│   │   └── ProgramClash          another program on the database declares something of this name
│   ├── ConfigError               a wrong setting, project file or database URL, or a missing right on the database
│   ├── SchemaMismatch            the declared tables do not fit the stored ones; a change would lose data
│   ├── TopicNotFound             a message to a topic without any outbox
│   ├── PracticeBroken            the program breaks a best practice, and practices = error
│   ├── ContextError              a ctx, or a connection of yours, used in the wrong place or at the wrong time
│   │   └── UnawaitedCall         a function ended before calls of its ctx did
│   └── ResultInvalid             a result that the return annotation does not allow
├── InputError                    they: a caller sent something that penstock cannot take
│   ├── FunctionNotFound          no public function has this name
│   ├── ArgumentsInvalid          arguments that the signature refuses
│   ├── IdInvalid                 a malformed id, or one of another table
│   ├── ValueInvalid              a value that cannot be stored
│   ├── CursorInvalid             a malformed pagination cursor, or one of another query
│   ├── TokenInvalid              an unknown token of an externally completed job
│   ├── TokenExpired              a token whose time or attempt is over
│   ├── Unauthenticated           a token that is malformed, expired, forged, or of an unknown issuer
│   └── LimitExceeded             more rows, bytes or jobs than allowed
├── DataError                     the data differs from what the function expected
│   ├── RowNotFound               the row to patch, replace or delete does not exist
│   ├── NotUnique                 unique() found more than one row
│   ├── UniqueViolation           a unique index already holds this key
│   ├── DuplicateJob              an unfinished job has this key already
│   ├── TaskNotFound              no reactive task has this name
│   ├── OutboxNotFound            no outbox has this name
│   ├── LockLost                  the holder of a lock has lost it
│   ├── ConstraintViolation       a constraint of a user-owned table refused the row
│   └── RowInvalid                a stored row does not fit its declared table
│       └── Undecryptable         no key of the app's codec fits a stored value
├── ApplicationError              your functions raise it for their callers, who get its data
│   ├── NotSignedIn               the call is for users who have signed in
│   ├── AccessDenied              the caller may not call this, or may not write this row
│   └── RateLimited               the caller has made too many calls of this kind
├── WorkflowError                 what the body of a workflow learns of its steps and waits
│   ├── StepFailed                a step raised an error whose class this program does not have
│   ├── StepLost                  the worker died during a step that must not run twice
│   └── EventTimeout              the event that a run waited for did not come in time
├── TryAgain                      nothing is wrong with the call; it may succeed later
│   ├── Conflict                  every retry conflicted with another transaction
│   ├── DatabaseUnavailable       the database is unreachable, starting or stopping
│   ├── DatabaseBusy              a database lock, or a statement, took too long
│   ├── DatabaseFull              the database has no space left
│   ├── LockTaken                 another holder kept the lock for too long
│   ├── CallTimeout               the call took longer than allowed
│   ├── SearchNotReady            a search index is being filled, or has too many rows to catch up with
│   ├── ProviderUnavailable       the keys of a provider of identities cannot be fetched
│   └── Overloaded                this process has too many waiting calls
└── JobError                      why a job ended
    ├── NonRetryableError         raise it in a job: the job fails without another attempt
    ├── Snooze                    raise it in a job: it runs again later and uses no attempt
    ├── TaskConditionFailed       the row of a reactive task is gone or has changed
    ├── WorkerLost                the worker died or lost its lease during the job
    └── LeaseLost                 a worker tried to settle a job that it no longer holds
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, ClassVar

from penstock.distribution import install

_LONGEST_SNOOZE = timedelta(days=5 * 366)


class PenstockError(Exception):
    """The root of the tree.

    Args:
        what: What happened, and to what; a whole sentence.
        fix: What to do next; a whole sentence, or empty.
        facts: The same as data, for programs.

    Attributes:
        code: Stable name of the error, for programs.
        raised_in: The function that raised it, if Python code called that.
        from_function: Whether a function raised it by itself: then it says nothing about a transaction or a lease.
    """

    code: ClassVar[str] = "error"
    raised_in: str = ""
    from_function: bool = False

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:  # errors of users have the code of the kind that they are
            cls.code = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, what: str, *, fix: str = "", **facts: Any) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.facts = facts

    def __str__(self) -> str:
        return f"{self.what} {self.fix}".rstrip()


class UsageError(PenstockError):
    """The program is written or configured wrongly."""


class DeclarationError(UsageError):
    """A declaration is wrong. Raised at import."""


class ProgramClash(DeclarationError):
    """Another program declares something of the same name. Raised when an app opens."""


class ConfigError(UsageError):
    """A setting is wrong, or a right on the database is missing."""


@contextmanager
def of_extra(extra: str, needing: str, packages: Collection[str]) -> Iterator[None]:
    """Say how to install the extra, if an import in this block lacks one of its packages."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise ConfigError(f"{needing} needs {error.name}, which is not installed.", fix=install(extra)) from error


class SchemaMismatch(UsageError):
    """A change of the tables would lose or break data."""


class TopicNotFound(UsageError):
    """No program declared an outbox for this topic. Nothing was sent."""


class PracticeBroken(UsageError):
    """The program breaks a best practice, and ``practices`` is ``error``.

    Facts: rule and place.
    """


class ContextError(UsageError):
    """A ctx or your own connection was used at the wrong place or time."""


class UnawaitedCall(ContextError):
    """A function ended before calls or tasks with its ctx. Its transaction was rolled back."""


class ResultInvalid(UsageError):
    """A result does not fit its return annotation. Its transaction was rolled back."""


class InputError(PenstockError):
    """A caller sent something unacceptable. Nothing was done.

    Attributes:
        at_the_door: Whether a call from outside was refused before its function ran, so that its caller may read why.
            An error from inside a function is the function's own, and its text may contain data.
    """

    at_the_door: bool = False


class _AtTheDoor(AbstractContextManager[None]):
    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, InputError):
            error.at_the_door = True


_AT_THE_DOOR = _AtTheDoor()


def at_the_door() -> AbstractContextManager[None]:
    """Mark the errors of a check as the caller's, who is outside of all functions."""
    return _AT_THE_DOOR


class FunctionNotFound(InputError):
    """No public function has this name.

    For callers from outside, internal functions do not exist.
    """


class ArgumentsInvalid(InputError):
    """The arguments are unknown, missing or of the wrong type."""


class IdInvalid(InputError):
    """The id is malformed, or belongs to another table."""


class ValueInvalid(InputError):
    """The value cannot be stored, such as NaN or a naive datetime.

    Nor can a NUL character, or an integer over 64 bits.
    """


class CursorInvalid(InputError):
    """The pagination cursor is malformed, or belongs to another query.

    Attributes:
        data: The ``errorData`` that clients get. Convex's then load their list again from its beginning.
    """

    data: ClassVar[dict[str, Any]] = {"isConvexSystemError": True, "paginationError": "InvalidCursor"}


class TokenInvalid(InputError):
    """No job has this completion token."""


class TokenExpired(InputError):
    """The completion token's time or attempt is over."""


class Unauthenticated(InputError):
    """The caller's token is malformed, expired, forged, revoked, or of an unknown issuer."""


class LimitExceeded(InputError):
    """More rows, bytes, nesting or jobs than one transaction, row or call may have."""


class DataError(PenstockError):
    """The data differs from what the function expected."""


class RowNotFound(DataError):
    """The row to patch, replace or delete does not exist."""


class NotUnique(DataError):
    """``unique()`` found more than one row."""


class UniqueViolation(DataError):
    """A unique index already holds this key."""


class DuplicateJob(DataError):
    """An unfinished job has this key already. ``facts["job"]`` is its id."""


class TaskNotFound(DataError):
    """No reactive task has this name, or the short name fits several."""


class OutboxNotFound(DataError):
    """No outbox has this name, or the short name fits several."""


class LockLost(DataError):
    """A lock was renewed too late, or somebody released it.

    ``facts`` has its ``key`` and ``fence``.
    """


class ConstraintViolation(DataError):
    """A constraint of a user-owned table refused the row."""


class RowInvalid(DataError):
    """A stored row does not fit its declared table."""


class Undecryptable(RowInvalid):
    """No key of the app's codec fits a stored value, or there is no codec. Nothing was lost."""


class ApplicationError(PenstockError):
    """Your functions raise it, and its data reaches their callers.

    Args:
        data: Any value that JSON can say; the client sees it as ``errorData``.
        status: The HTTP status below ``/rest`` and in web frameworks; by default that of the class, 400. Convex's
            clients get 200 in any case.
    """

    status: int = 400

    def __init__(self, data: Any, *, status: int | None = None) -> None:
        super().__init__(data if isinstance(data, str) else repr(data))
        self.data = data
        if status is not None:
            self.status = status


class NotSignedIn(ApplicationError):
    """The call is for users who have signed in.

    Its caller gets ``{"code": "NotSignedIn", "message": …}`` as data.
    """

    status = 401

    def __init__(self) -> None:
        super().__init__({"code": "NotSignedIn", "message": "Sign in to do this."})
        self.what = "Nobody has signed in."
        self.fix = "Call with a token. A program calls with_identity(…), the command line with --identity."


class AccessDenied(ApplicationError):
    """The caller may not do this, and does not learn the reason.

    It gets ``{"code": "AccessDenied", "message": …}`` as data.
    """

    status = 403

    def __init__(self, what: str) -> None:
        super().__init__({"code": "AccessDenied", "message": "You may not do this."})
        self.what = what

    def __str__(self) -> str:
        return self.what


class RateLimited(ApplicationError):
    """The caller's rate limit has no token left. Nothing was done.

    It gets ``{"code": "RateLimited", "message": …, "retryAfter": …}`` as data; over HTTP, status 429 and `Retry-After`.

    Attributes:
        retry_after: Seconds after which the same call gets a token, if no other one takes it.
    """

    status = 429

    def __init__(self, retry_after: float) -> None:
        message = "Too many calls of this kind. Try again later."
        super().__init__({"code": "RateLimited", "message": message, "retryAfter": retry_after})
        self.retry_after = retry_after


class WorkflowError(PenstockError):
    """A step or a wait of a workflow failed."""


class StepFailed(WorkflowError):
    """A step raised an error whose class this program does not have.

    ``facts`` has its ``type``, as ``module:Class``, and its ``text``.
    """


class StepLost(WorkflowError):
    """The worker died during a step that must not run twice. Nobody knows how far it came."""


class EventTimeout(WorkflowError):
    """An event did not come in time. If it comes later, the next wait receives it."""


class TryAgain(PenstockError):
    """The call may succeed later."""


class Conflict(TryAgain):
    """Another transaction changed rows that this one read, at every retry."""


class DatabaseUnavailable(TryAgain):
    """The database is unreachable, starting or stopping.

    ``facts["uncertain"]`` is true if the connection was lost while a commit was under way, so that nobody
    can tell whether the transaction took effect.
    """


class DatabaseBusy(TryAgain):
    """A database lock was held, or a statement ran, too long.

    ``facts["slow"]`` is true if it was the statement: another attempt will take as long.
    """


class DatabaseFull(TryAgain):
    """The database has no space left."""


class LockTaken(TryAgain):
    """Another holder kept the lock.

    ``facts`` has its ``key``, its ``holder``, the holder's ``fence``, and ``until``: when it runs out if that dies.
    """


class CallTimeout(TryAgain):
    """The call took longer than allowed.

    ``facts["limit"]`` has the allowed seconds, if one function took them.
    """

    @classmethod
    def of(cls, what: str, seconds: float) -> CallTimeout:
        """An error in the words that Convex's clients know."""
        return cls(f"{what} execution timed out (maximum duration {seconds:g} s).", limit=seconds)


class SearchNotReady(TryAgain):
    """A search index is being filled, or too many changes are not indexed."""


class ProviderUnavailable(TryAgain):
    """An identity provider's keys cannot be fetched, so no token can be verified."""


class Overloaded(TryAgain):
    """This process has too many waiting calls."""


class JobError(PenstockError):
    """Why a job ended."""


class NonRetryableError(JobError):
    """Raise it in a job: the job fails without another attempt."""


class TaskConditionFailed(JobError):
    """The row is gone, no longer matches, or has changed since the run was planned.

    `get_document` raises it. A handler that lets it pass ends as *skipped*: if there is something to do, another run
    is on its way.
    """


class Snooze(JobError):
    """Raise it in a job to run it later, without using an attempt.

    The writes of a mutation are undone.

    Args:
        delay: The wait.
        until: The end of the wait, instead; an aware datetime.
        reason: The reason, for the job's status.

    Raises:
        UsageError: Neither `delay` nor `until` was given, or both were.
        ValueInvalid: The delay is negative or over five years, or the time is not aware.
    """

    def __init__(self, delay: timedelta | None = None, *, until: datetime | None = None, reason: str = "") -> None:
        if (delay is None) is (until is None):
            raise UsageError("Snooze takes either a delay or until.", fix="Write Snooze(timedelta(minutes=5)).")
        given: object = delay
        if given is not None and not (isinstance(given, timedelta) and timedelta(0) <= given <= _LONGEST_SNOOZE):
            raise ValueInvalid(f"Snooze takes a timedelta from 0 to five years, not {delay!r}.")
        moment: object = until
        if moment is not None and not (isinstance(moment, datetime) and moment.tzinfo is not None):
            raise ValueInvalid(f"Snooze: until takes an aware datetime, not {until!r}.", fix="Attach a time zone.")
        seconds = None if delay is None else delay.total_seconds()
        end = None if until is None else until.isoformat()
        super().__init__(reason or (f"for {delay}" if end is None else f"until {end}"), delay=seconds, until=end)
        self.delay, self.until = delay, until

    def wait(self, now: datetime) -> timedelta:
        """The wait of the job from now on."""
        if self.until is None:
            return self.delay or timedelta(0)
        return min(max(self.until - now, timedelta(0)), _LONGEST_SNOOZE)


class WorkerLost(JobError):
    """The worker died or lost its lease before the job ended."""


class LeaseLost(JobError):
    """A worker no longer holds this job. Its transaction was rolled back."""
