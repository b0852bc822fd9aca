"""One call of a function: what runs, with which arguments, for whom, and inside of what.

Owns what all doors share. A door that reads its arguments otherwise, or writes something more with a mutation, has a
subclass. Requests are in `run/dispatch`, jobs in `jobs/job`, messages in `handlers/deliveries`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar
from uuid import UUID

from penstock.calls.run.jobrun import Cancellation, JobRun, Moment
from penstock.dataclass import dataclass
from penstock.errors import InputError
from penstock.functions.component import own_function
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.identity.caller import SYSTEM, Caller
from penstock.jobs.job import Work
from penstock.store.session import Session
from penstock.values import copier

Arguments = dict[str, Any]
Given = tuple[tuple[Any, ...], Mapping[str, Any]]  # the arguments of a call: by place, and by name


@dataclass(slots=True)
class Call:
    """One call of a function, which stays the same when it is tried again."""

    function: AnyFunction  # the function
    arguments: Any  # its checked arguments by name; in a subclass as they came to its door
    caller: Caller = SYSTEM  # who it runs for
    depth: int = 0  # the number of calls around it
    job: JobRun | None = None  # the attempt at a job that it runs in
    moment: Moment | None = None  # its time and the seed of its random numbers, if it has run before

    for_ever: ClassVar[bool] = False  # whether a mutation is tried without end, since `seal` shows what was committed

    @property
    def work(self) -> Work | None:
        """The attempt at a job, as its function sees it."""
        return None if self.job is None else self.job.work

    @property
    def step(self) -> str:
        """The number of the step of a workflow's run that it is a part of; empty outside of runs."""
        return "" if self.job is None else self.job.step

    @property
    def works(self) -> Sequence[Work]:
        """The attempts at jobs that it is, and not only a part of."""
        return () if self.job is None or self.depth else (self.job.work,)

    @property
    def cancellation(self) -> Cancellation:
        """The request to stop that its ctx shows."""
        return Cancellation() if self.job is None else self.job.cancelled

    @property
    def lingering(self) -> list[Future[Any]] | None:
        """Gets the threads in which its function goes on after it was given up."""
        return None if self.job is None else self.job.lingering

    @property
    def handler(self) -> Callable[..., Any]:
        """The function that runs."""
        return self.function.handler

    @property
    def takes_token(self) -> bool:
        """Whether it takes a token of its function's rate limit: a call from outside does."""
        return not self.depth and self.job is None

    def inner(self, function: AnyFunction, given: Given) -> PythonCall:
        """The call that this one makes of another function."""
        own = own_function(self.function.component, function)
        return PythonCall(own, given, self.caller, self.depth + 1, self.job)

    async def check(self, *, again: bool = False) -> Arguments:  # noqa: ARG002 - for calls that look before they run
        """Give the checked arguments; no attempt gets an object that another one may have changed.

        Args:
            again: Whether an attempt was made before.
        """
        arguments: Arguments = self.arguments
        return arguments

    async def begin(self, session: Session | None = None) -> None:
        """Begin the attempt at a job that it runs in, right before the handler.

        Raises:
            Withdrawn: The limit of its pool does not let it.
        """
        if self.job is not None:
            await self.job.begin(session)

    def asks(self, arguments: Arguments) -> Sequence[Arguments]:
        """The arguments that its access is asked about."""
        return (arguments,)

    def note_cancels(self, asked: Collection[UUID]) -> None:
        """Note the jobs whose cancels its mutation asks for."""
        if self.job is not None:
            self.job.cancels_itself = self.job.job.id in asked

    def check_result(self, result: Any) -> Any:
        """Check what the handler returned."""
        return self.function.signature.check_result(result)

    def finish(self, result: Any) -> Any:
        """Turn the result into the answer, before the commit: if this raises, nothing is committed."""
        return result

    async def seal(self, session: Session, answer: Any) -> None:
        """Write last in the transaction of a mutation."""


@dataclass(slots=True)
class PythonCall(Call):
    """A call from Python code: `arguments` are those by place, and those by name."""

    async def check(self, *, again: bool = False) -> Arguments:  # noqa: ARG002 - each attempt does the same
        """Check the arguments; a mutation gets copies, as it may run again."""
        return self.read(copies=self.function.kind is FunctionKind.MUTATION)

    def read(self, *, copies: bool = False) -> Arguments:
        """Check the arguments. They are the caller's fault if the call comes from outside of all functions."""
        signature = self.function.signature
        try:
            bound = signature.bind(*self.arguments)
            return signature.check(copier(bound)(bound) if copies else bound)
        except InputError as error:
            error.at_the_door = not self.depth
            raise
