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
from penstock.jobs.job import Job, Outcome, Work, job_id
from penstock.jobs.progress import Progress
from penstock.store.contract.session import Session

Moment = tuple[datetime, int]  # the time and the seed of an execution, which its retries repeat


class Cancellation:
    """A request to stop. It makes an event only once somebody waits for it, since most jobs never do."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        """Whether someone asked."""
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
    """A job under way: one attempt at it, or the call of its on_complete."""

    job: Job  # has its ending once only the on_complete is left
    function: AnyFunction | None  # None if the program declares none of this name
    lease: int
    noticed: Callable[[Running, Progress], None]  # gets the progress that the job reports
    needs_slot: bool  # a job that only waits for its on_complete needs none
    permit: Permit | None = None  # of a pool with a limit
    cancelled: Cancellation = field(default_factory=Cancellation)
    begun: bool = False  # whether its function has begun
    stopped: bool = False  # whether the worker has stopped it
    outcome: Outcome | None = None  # of a stopped job, as far as it is known
    moment: Moment | None = None  # time and chance of its function, to run it again
    deadline: datetime | None = None  # when its attempt is stopped
    issued: bool = False  # whether a token was asked for
    held: bool = False  # whether there is one, so that an external system may complete the job
    doubtful: bool = False  # whether an open transaction may have marked it as completed
    lingering: Sequence[Future[Any]] = ()  # threads in which it goes on after it has ended
    task: asyncio.Task[None] = field(init=False)  # runs it, from when it is started

    @property
    def work(self) -> Work:
        """The attempt as functions see it."""
        return Work(job_id(self.job.id), self.job.attempt, self.deadline, self.begin)

    async def begin(self, session: Session | None = None) -> None:
        """Begin to run, if the limit of its pool still lets it; called right before its function is.

        Raises:
            Withdrawn: The limit does not let it.
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
