"""`ctx.work`: what the function of a job may know of its attempt, and say of it.

Owns the state that all functions of one attempt share, and the checks at the door. Writing progress is the worker's,
many jobs at once; what comes of a token is `calls/tokens`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.calls.permit import Permit
from penstock.clock import secret
from penstock.errors import ContextError, LeaseLost, ValueInvalid
from penstock.functions.function import AnyFunction
from penstock.jobs.job import Job, JobId, Outcome, job_id, job_uuid
from penstock.jobs.progress import Progress, progress_of
from penstock.jobs.token import token_of, token_text
from penstock.jobs.work import Work
from penstock.store.contract import Session

if TYPE_CHECKING:
    from penstock.calls.run import Runner
    from penstock.calls.syncctx import Bridge
    from penstock.transaction.tracking import Calls

Moment = tuple[datetime, int]  # the time and the seed of an execution, which its retries repeat

LONGEST_WAIT = timedelta(days=366)


class Cancellation:
    """Whether someone asked for something to stop. Of the many that nobody waits for, none makes an event."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        """Whether someone did."""
        return self._is_set

    def set(self) -> None:
        """Ask for it to stop."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    @property
    def event(self) -> asyncio.Event:
        """The same, to be waited for."""
        if self._event is None:
            self._event = asyncio.Event()
            if self._is_set:
                self._event.set()
        return self._event


@dataclass(slots=True, eq=False)
class Running:
    """A job under way: one attempt at it, or the call of its on_complete.

    Attributes:
        job: The job; with its ending, once that is known and only its on_complete is left.
        function: Its function; None if the program declares none of this name.
        lease: The lease it runs under.
        noticed: Is told of it, and how far it has come.
        cancelled: Set when someone asked for it to stop.
        permit: Lets it start, if its pool has a limit.
        begun: Whether its function has begun to run.
        stopped: Whether the worker has stopped it.
        outcome: If it was stopped: what became of it, as far as is known.
        needs_slot: Whether it holds a slot of its pool; what only waits for its on_complete does not.
        moment: Time and chance of its function, if that has been run and is to be run again.
        deadline: When its attempt is stopped; None if it may take as long as it takes.
        issued: Whether a token was asked for.
        held: Whether there is one, so that an outside system may complete the job.
        doubtful: Whether its handler may have marked it as done, in a transaction of which nobody tells the end.
        going_on: What goes on of it in threads when it has ended, as nothing ends these from outside.
        task: In which it runs, from when it is started.
    """

    job: Job
    function: AnyFunction | None
    lease: int
    noticed: Callable[[Running, Progress], None]
    needs_slot: bool
    permit: Permit | None = None
    cancelled: Cancellation = field(default_factory=Cancellation)
    begun: bool = False
    stopped: bool = False
    outcome: Outcome | None = None
    moment: Moment | None = None
    deadline: datetime | None = None
    issued: bool = False
    held: bool = False
    doubtful: bool = False
    going_on: Sequence[Future[Any]] = ()
    task: asyncio.Task[None] = field(init=False)

    @property
    def work(self) -> Work:
        """What functions see of the attempt."""
        return Work(job_id(self.job.id), self.job.attempt, self.deadline, self.begin)

    async def begin(self, session: Session | None = None) -> None:
        """Begin to run, if the limit of its pool still lets it; called right before its function is.

        Raises:
            Withdrawn: It does not.
        """
        if not self.begun:
            if self.permit is not None:
                await self.permit.check(session)
            self.begun = True


class ActionWork:
    """``ctx.work`` of an action: the attempt at a job that it runs in."""

    __slots__ = ("_attempt", "_calls", "_runner")

    def __init__(self, attempt: Running, runner: Runner, calls: Calls) -> None:
        self._attempt = attempt
        self._runner = runner
        self._calls = calls

    @property
    def id(self) -> JobId:
        """The id of the job."""
        return self._attempt.work.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._attempt.work.attempt

    @property
    def deadline(self) -> datetime | None:
        """When the attempt is stopped; None if it may take as long as it takes."""
        return self._attempt.work.deadline

    @property
    def cancelled(self) -> bool:
        """Whether someone asked for the job to stop."""
        return self._attempt.cancelled.is_set()

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> Coroutine[Any, Any, None]:
        """Say how far the job has come; its status shows it, about once a second.

        It costs nothing to say it often: only the last one is written.

        Args:
            done: How much is done.
            total: Of how much, if that is known.
            note: What it is at.

        Raises:
            ValueInvalid: A number is none, or negative, or more is done than there is; or the note is too long.
        """
        return self._calls.track(self._progress(done, total, note))

    def complete_later(self, timeout: timedelta = timedelta(hours=1)) -> Coroutine[Any, Any, str]:
        """Let an outside system say how the job ends; the token with which it does.

        Once the action has returned None, the job goes on running, without a worker and with its slot in its pool,
        until the token is brought: to `Workpool.complete` or `Workpool.fail`, or over HTTP. If nobody does in time,
        the attempt has failed.

        Args:
            timeout: For how long it waits, from now on.

        Raises:
            ValueInvalid: The time is not between 0 and a year.
            ContextError: This attempt has a token already.
            LeaseLost: The job no longer belongs to this worker.
        """
        return self._calls.track(self._complete_later(timeout))

    # ----- steps

    async def _progress(self, done: float, total: float | None, note: str | None) -> None:
        self._attempt.noticed(self._attempt, progress_of(done, total, note))

    async def _complete_later(self, timeout: timedelta) -> str:  # noqa: ASYNC109 - a word of the field
        if not _is_wait(timeout):
            raise ValueInvalid(f"complete_later takes a timedelta of up to a year, not {timeout!r}.")
        attempt, runner = self._attempt, self._runner
        if attempt.issued:
            raise ContextError("This attempt has a token already.", fix="Call complete_later once, and keep the token.")
        text = token_text(job_uuid(self.id), self.attempt, secret())
        token, deadline = token_of(text), runner.now() + timeout
        attempt.issued = True  # an answer that is lost may be one
        store = runner.engine.store
        if not await runner.patiently(lambda: store.tokens.issue(attempt.lease, token, deadline)):
            raise LeaseLost(f"{self.id} no longer belongs to this worker.")
        attempt.held = True
        return text


class SyncActionWork:
    """``ctx.work`` of an action written with def; see `ActionWork`."""

    __slots__ = ("_wait", "_work")

    def __init__(self, work: ActionWork, wait: Bridge) -> None:
        self._work = work
        self._wait = wait

    @property
    def id(self) -> JobId:
        """See `ActionWork.id`."""
        return self._work.id

    @property
    def attempt(self) -> int:
        """See `ActionWork.attempt`."""
        return self._work.attempt

    @property
    def deadline(self) -> datetime | None:
        """See `ActionWork.deadline`."""
        return self._work.deadline

    @property
    def cancelled(self) -> bool:
        """See `ActionWork.cancelled`."""
        return self._work.cancelled

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """See `ActionWork.progress`."""
        self._wait(self._work.progress(done, total, note))

    def complete_later(self, timeout: timedelta = timedelta(hours=1)) -> str:
        """See `ActionWork.complete_later`."""
        return self._wait(self._work.complete_later(timeout))


def _is_wait(value: object) -> bool:
    return isinstance(value, timedelta) and timedelta(0) < value <= LONGEST_WAIT


def no_work() -> ContextError:
    """What ``ctx.work`` raises where no job runs."""
    return ContextError(
        "ctx.work was used in a call that is not a job.", fix="Look at ctx.is_job first, or enqueue the function."
    )
