"""What the decorators of an app take and give, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Concatenate, ParamSpec, Protocol, TypeVar, overload

from penstock.calls.handlers.synctasks import SyncMutationTaskCtx, SyncTaskBatchCtx, SyncTaskCtx
from penstock.calls.handlers.taskctx import MutationTaskCtx, TaskBatchCtx, TaskCtx
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx
from penstock.functions.function import ActionFunction, MutationFunction, QueryFunction, Runtime
from penstock.schema.table import Table

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
TaskRow = TypeVar("TaskRow", bound=Table)


class QueryDecorator(Protocol):
    """What `App.query` gives: it declares a function."""

    @overload
    def __call__(self) -> QueryDecorator: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[QueryCtx, P], Awaitable[R]], /
    ) -> QueryFunction[QueryCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[SyncQueryCtx, P], R], /
    ) -> QueryFunction[SyncQueryCtx, P, R, R]: ...


class MutationDecorator(Protocol):
    """What `App.mutation` gives: it declares a function."""

    @overload
    def __call__(self) -> MutationDecorator: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[MutationCtx, P], Awaitable[R]], /
    ) -> MutationFunction[MutationCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[SyncMutationCtx, P], R], /
    ) -> MutationFunction[SyncMutationCtx, P, R, R]: ...


class ActionDecorator(Protocol):
    """What `App.action` gives: it declares a function."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[ActionCtx, P], Awaitable[R]], /
    ) -> ActionFunction[ActionCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[SyncActionCtx, P], R], /
    ) -> ActionFunction[SyncActionCtx, P, R, R]: ...


class BatchDecorator(Protocol[P, T]):
    """What ``App.action(batch=…, of=…)`` gives: it declares a function whose handler takes many calls at once."""

    @overload
    def __call__(
        self, handler: Callable[[ActionCtx, list[T]], Awaitable[Sequence[R | Exception]]], /
    ) -> ActionFunction[ActionCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[[SyncActionCtx, list[T]], Sequence[R | Exception]], /
    ) -> ActionFunction[SyncActionCtx, P, R, R]: ...


class ActionDeclaration(Protocol):
    """What `App.action` gives: it declares a function, or takes options and gives what declares one."""

    @overload
    def __call__(self) -> ActionDecorator: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[ActionCtx, P], Awaitable[R]], /
    ) -> ActionFunction[ActionCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[SyncActionCtx, P], R], /
    ) -> ActionFunction[SyncActionCtx, P, R, R]: ...
    @overload
    def __call__(self, handler: None = None, /, *, runtime: Runtime) -> ActionDecorator: ...
    @overload
    def __call__(
        self, handler: None = None, /, *, batch: int, of: Callable[P, T], linger: timedelta = ...
    ) -> BatchDecorator[P, T]: ...


class TaskDecorator(Protocol[TaskRow]):
    """What `App.reactive_task` gives: it declares a reactive task, and leaves its handler as it is."""

    @overload
    def __call__(
        self, handler: Callable[[TaskCtx[TaskRow]], Awaitable[None]], /
    ) -> Callable[[TaskCtx[TaskRow]], Awaitable[None]]: ...
    @overload
    def __call__(
        self, handler: Callable[[MutationTaskCtx[TaskRow]], Awaitable[None]], /
    ) -> Callable[[MutationTaskCtx[TaskRow]], Awaitable[None]]: ...
    @overload
    def __call__(
        self, handler: Callable[[SyncTaskCtx[TaskRow]], None], /
    ) -> Callable[[SyncTaskCtx[TaskRow]], None]: ...
    @overload
    def __call__(
        self, handler: Callable[[SyncMutationTaskCtx[TaskRow]], None], /
    ) -> Callable[[SyncMutationTaskCtx[TaskRow]], None]: ...
    @overload
    def __call__(
        self, handler: Callable[[TaskBatchCtx[TaskRow]], Awaitable[None]], /
    ) -> Callable[[TaskBatchCtx[TaskRow]], Awaitable[None]]: ...
    @overload
    def __call__(
        self, handler: Callable[[SyncTaskBatchCtx[TaskRow]], None], /
    ) -> Callable[[SyncTaskBatchCtx[TaskRow]], None]: ...


class CronDecorator(Protocol):
    """What `Crons.cron` gives: it declares a function, unless that is done below it, and has it run by a cron."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[MutationCtx, P], Awaitable[R]], /
    ) -> MutationFunction[MutationCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[ActionCtx, P], Awaitable[R]], /
    ) -> ActionFunction[ActionCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[SyncMutationCtx, P], R], /
    ) -> MutationFunction[SyncMutationCtx, P, R, R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[SyncActionCtx, P], R], /
    ) -> ActionFunction[SyncActionCtx, P, R, R]: ...
