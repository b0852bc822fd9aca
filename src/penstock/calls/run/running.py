"""A job under way: the state that all functions of one attempt share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.calls.jobs.permit import Permit
from penstock.errors import ContextError
from penstock.functions.function import AnyFunction
from penstock.jobs.job import Job, Outcome, job_id
from penstock.jobs.progress import Progress
from penstock.jobs.work import Work
from penstock.store.contract.session import Session

Moment = tuple[datetime, int]  # the time and the seed of an execution, which its retries repeat


class Cancellation:
    """A request to stop. It makes an event only once somebody waits for it, since most jobs never do."""

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
        lingering: The threads in which it goes on after it has ended, as nothing ends these from outside.
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
    lingering: Sequence[Future[Any]] = ()
    task: asyncio.Task[None] = field(init=False)

    @property
    def work(self) -> Work:
        """The attempt as functions see it."""
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


def no_work() -> ContextError:
    """The error of ``ctx.work`` where no job runs."""
    return ContextError(
        "ctx.work was used in a call that is not a job.", fix="Look at ctx.is_job first, or enqueue the function."
    )
