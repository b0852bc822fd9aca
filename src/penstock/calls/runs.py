"""The protocol of the runner, for ctx, jobs and locks, so that none of them imports it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, ParamSpec, Protocol, TypeVar

from penstock.calls.locks.locks import Locks
from penstock.calls.run.engine import Engine
from penstock.calls.run.running import Running
from penstock.functions.function import ActionFunction, AnyFunction, MutationFunction, QueryFunction
from penstock.jobs.job import NewJob, Work
from penstock.transaction.transaction import Scope, Transaction

P = ParamSpec("P")
R = TypeVar("R")


class Runs(Protocol):
    """Runs functions of one engine; see `run.runner.Runner`."""

    @property
    def engine(self) -> Engine:
        """The parts of the running app."""

    @property
    def locks(self) -> Locks:
        """The locks of the running app."""

    def now(self) -> datetime:
        """The app's time."""

    def write(self, write: Callable[[Transaction], Awaitable[R]]) -> Coroutine[Any, Any, R]:
        """Write in a transaction of its own, again if it conflicts."""

    def enqueue(self, job: NewJob) -> Coroutine[Any, Any, None]:
        """Enqueue a job in a transaction of its own."""

    def patiently(self, once: Callable[[], Awaitable[R]], *, for_ever: bool = False) -> Coroutine[Any, Any, R]:
        """Run an idempotent step, again if the database was lost."""

    def run_query(
        self,
        function: QueryFunction[Any, P, R, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        depth: int = 0,
        work: Work | None = None,
    ) -> Coroutine[Any, Any, R]:
        """Run a query in a snapshot of its own."""

    def run_mutation(
        self,
        function: MutationFunction[Any, P, R, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        depth: int = 0,
        work: Work | None = None,
    ) -> Coroutine[Any, Any, R]:
        """Run a mutation in a transaction of its own, again if it conflicts."""

    def run_action(
        self,
        function: ActionFunction[Any, P, R, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        depth: int = 0,
        attempt: Running | None = None,
    ) -> Coroutine[Any, Any, R]:
        """Run an action."""

    def nested_query(
        self, scope: Scope, depth: int, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Run a query in the transaction of another function."""

    def nested_mutation(
        self, scope: Scope, depth: int, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Run a mutation as a sub-transaction of another."""
