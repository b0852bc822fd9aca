"""A job under way: the state that all functions of one attempt share, and its permit to start.

A claimed job starts only while the limit of its claim stands. The claim permits a start for a moment. A job that starts
later asks the database first, so nothing starts under an old limit once that moment is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import datetime
from functools import cached_property
from typing import Any

from penstock.clock import Clock
from penstock.errors import ContextError, TryAgain
from penstock.functions.function import AnyFunction
from penstock.identity.caller import ANONYMOUS, SYSTEM, Caller
from penstock.jobs.job import Job, Outcome, Settlement, Work, job_id
from penstock.jobs.progress import Progress
from penstock.store.session import Session, reading
from penstock.store.store import Store

Moment = tuple[datetime, int]  # the time and the seed of a mutation, which its retries repeat

_HOLDS = 0.3  # seconds after the claim was sent
NONE_HOLDS_AFTER = 0.5  # seconds after a change, by which jobs with an old permit have started


class Cancellation:
    """A request to stop. It makes an event only once somebody waits for it, since most jobs never do."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    @property
    def event(self) -> asyncio.Event:
        if self._event is None:
            self._event = asyncio.Event()
            if self._is_set:
                self._event.set()
        return self._event


class Withdrawn(Exception):
    """A job does not start: its pool's limit has changed since the claim, or the database does not answer."""


class Permit:
    """Lets the jobs of one pool and one claim start; `epoch` numbers the limit, `since` is when the claim was sent.

    It is withdrawn if the lease is no longer `held`: the process was suspended, and others may have its slots.
    """

    def __init__(
        self, store: Store, machine: Clock, pool: str, epoch: int, since: float, held: Callable[[], bool]
    ) -> None:
        self._store, self._machine, self._held = store, machine, held
        self._pool, self._epoch, self._since = pool, epoch, since
        self._withdrawn = False
        self._asking: asyncio.Task[None] | None = None

    async def check(self, session: Session | None = None) -> None:
        """Raise Withdrawn if a job must not start now. It asks in the job's transaction, if that has one."""
        if not self._withdrawn and self._machine.monotonic() - self._since >= _HOLDS:
            await (self._answer() if session is None else self._ask(session))
        if self._withdrawn or not self._held():
            raise Withdrawn

    def _answer(self) -> Awaitable[None]:
        """One answer for all that wait: while the event loop lags, answers would be stale before the next job."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_alone())
        return asyncio.shield(self._asking)

    async def _ask_alone(self) -> None:
        try:
            async with reading(self._store.begin_read) as session:
                await self._ask(session)
        except TryAgain as error:
            raise Withdrawn from error

    async def _ask(self, session: Session) -> None:
        since = self._machine.monotonic()
        self._withdrawn = await self._store.pools.epoch(session, self._pool) != self._epoch
        self._since = since


class JobRun:
    """A job under way: one attempt at it, or the call of its on_complete.

    Args:
        job: The job; it has its ending once only the on_complete is left.
        function: Its function; None if the program declares none of this name.
        lease: The lease that it runs under.
        noticed: Gets the progress that the job reports.
        needs_slot: Whether it holds a slot. A job that only waits for its on_complete needs none.
        permit: The permit to start, of a pool with a limit.
    """

    # What most jobs leave as it is stays with the class, since each job has one of these.
    begun = False  # whether its function has begun
    stopped = False  # whether the worker has stopped it
    outcome: Outcome | None = None  # of a stopped job, as far as it is known
    moment: Moment | None = None  # time and chance of its function, to run it again
    deadline: datetime | None = None  # when its attempt is stopped
    issued = False  # whether a token was asked for
    held = False  # whether there is one, so that an external system may complete the job
    cancels_itself = False  # whether the mutation that it runs asks for its own cancel
    doubtful = False  # whether an open transaction may have marked it as completed
    decided: Settlement | None = None  # of its attempt, if that ended it here and its on_complete comes next
    trace: str | None = None  # the span of its attempt, which its on_complete is a part of
    step = ""  # the number of the step, if it is one of a workflow's run
    asleep = False  # whether it was a run of a workflow, and sleeps
    woken = False  # whether there may be something new in the inbox of the run that it is
    look: Callable[[], None] | None = None  # has the run of a workflow look: it was woken, or is to be canceled
    task: asyncio.Task[None]  # runs it, from when it is started

    def __init__(
        self,
        job: Job,
        function: AnyFunction | None,
        lease: int,
        noticed: Callable[[JobRun, Progress], None],
        *,
        needs_slot: bool,
        permit: Permit | None = None,
    ) -> None:
        self.job, self.function, self.lease, self.noticed = job, function, lease, noticed
        self.needs_slot, self.permit = needs_slot, permit
        self.lingering: list[Future[Any]] = []  # threads in which it goes on after it has ended

    @cached_property
    def cancelled(self) -> Cancellation:
        """The request to stop."""
        return Cancellation()

    def wake(self) -> None:
        """Have it look, if it is the run of a workflow."""
        if self.look is not None:
            self.look()

    @property
    def work(self) -> Work:
        """The attempt as functions see it."""
        number = job_id(self.job.id)
        return Work(
            number, self.job.attempt, self.deadline, self.begin, f"{number}/{self.step}" if self.step else number
        )

    async def begin(self, session: Session | None = None) -> None:
        """Begin to run, if the limit of its pool still lets it; called right before its function is.

        Raises:
            Withdrawn: The limit does not let it.
        """
        if not self.begun:
            if self.permit is not None:
                await self.permit.check(session)
            self.begun = True


def caller_of_job(function: AnyFunction) -> Caller:
    """The caller that a job of a function runs for: a public one as if called from outside."""
    return ANONYMOUS if function.public else SYSTEM


def no_work() -> ContextError:
    """The error of ``ctx.work`` where no job runs."""
    return ContextError(
        "ctx.work was used in a call that is not a job.", fix="Look at ctx.is_job first, or enqueue the function."
    )
