"""How functions are declared: the decorators of an app with their types, and the registry that they fill."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from penstock.calls.handlers.synctasks import SyncMutationTaskCtx, SyncTaskBatchCtx, SyncTaskCtx
from penstock.calls.handlers.taskctx import MutationTaskCtx, TaskBatchCtx, TaskCtx
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.ctxkinds import annotation_of, check_ctx, word_of
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx
from penstock.errors import DeclarationError
from penstock.functions.batch import Batch
from penstock.functions.function import ActionFunction, AnyFunction, MutationFunction, QueryFunction, Runtime
from penstock.functions.registry import Registry
from penstock.schema.table import Table

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
TaskRow = TypeVar("TaskRow", bound=Table)

# The kind of function by its ctx, for handlers that no decorator names.
KINDS: dict[str, type[AnyFunction]] = {
    "ActionCtx": ActionFunction,
    "SyncActionCtx": ActionFunction,
    "MutationCtx": MutationFunction,
    "SyncMutationCtx": MutationFunction,
}


def ctx_word(handler: Any, takes: int | None = None) -> str:
    """The name of the type of a handler's ctx; empty if it has none, or takes another number of arguments."""
    parameters = list(inspect.signature(handler).parameters.values()) if callable(handler) else []
    if not parameters or takes not in {None, len(parameters)}:
        return ""
    return word_of(annotation_of(handler, parameters[0]))


class Declaring:
    """Declares functions, into a registry."""

    def __init__(self) -> None:
        self.registry = Registry()

    @property
    def query(self) -> QueryDecorator:
        """Declare a public query: it reads one snapshot, and anyone who reaches the server may call it."""
        return cast("QueryDecorator", self._declare("query", QueryFunction, public=True))

    @property
    def internal_query(self) -> QueryDecorator:
        """Declare a query that only this program may call."""
        return cast("QueryDecorator", self._declare("internal_query", QueryFunction, public=False))

    @property
    def mutation(self) -> MutationDecorator:
        """Declare a public mutation: it reads and writes in one serializable transaction, and anyone may call it."""
        return cast("MutationDecorator", self._declare("mutation", MutationFunction, public=True))

    @property
    def internal_mutation(self) -> MutationDecorator:
        """Declare a mutation that only this program may call."""
        return cast("MutationDecorator", self._declare("internal_mutation", MutationFunction, public=False))

    @property
    def action(self) -> ActionDecorator:
        """Declare a public action: it may call the outside world, has no transaction, and anyone may call it.

        It also takes options: ``runtime="process"``, for CPU-bound actions written with def, which then run in a
        process of their own. ``batch=100, of=Item``: the handler takes a list of items, one for each of up to so many
        calls, and returns a list of as many results or exceptions; the arguments of a call are those that make an item.
        ``linger``: how long the first job of a batch waits for more.
        """
        return cast("ActionDecorator", self._declare_action(public=True))

    @property
    def internal_action(self) -> ActionDecorator:
        """Declare an action that only this program may call; see `action`."""
        return cast("ActionDecorator", self._declare_action(public=False))

    def _declare_action(self, *, public: bool) -> Any:
        def declare(
            handler: Any = None,
            /,
            *,
            runtime: Runtime = "thread",
            batch: int | None = None,
            of: Any = None,
            linger: timedelta = timedelta(0),
        ) -> Any:
            def add(given: Any) -> Any:
                calls = None if batch is None else Batch(given, batch, of, linger)
                return self._add(ActionFunction(given, public=public, runtime=runtime, batch=calls))

            return add if handler is None else add(handler)

        return declare

    def _declare(self, word: str, kind: Callable[..., Any], *, public: bool) -> Any:
        def declare(*handler: Callable[..., Any], **options: Any) -> Any:
            if not handler and not options:
                return declare
            if len(handler) != 1 or options:
                raise DeclarationError(
                    f"@app.{word} takes no arguments.", fix=f"Write @app.{word} on the line above the function."
                )
            return self._add(kind(handler[0], public=public))

        return declare

    def _add(self, function: Any) -> Any:
        check_ctx(function)
        self.registry.add(function)
        return function


# ----- the types of decorators


class QueryDecorator(Protocol):
    """The type of `App.query`: it declares a function."""

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
    """The type of `App.mutation`: it declares a function."""

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


class BatchDecorator(Protocol[P, T]):
    """The type of ``App.action(batch=…, of=…)``: it declares a function whose handler takes many calls at once."""

    @overload
    def __call__(
        self, handler: Callable[[ActionCtx, list[T]], Awaitable[Sequence[R | Exception]]], /
    ) -> ActionFunction[ActionCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[[SyncActionCtx, list[T]], Sequence[R | Exception]], /
    ) -> ActionFunction[SyncActionCtx, P, R, R]: ...


class ActionDecorator(Protocol):
    """The type of `App.action`: it declares a function, or takes options and returns a decorator."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[ActionCtx, P], Awaitable[R]], /
    ) -> ActionFunction[ActionCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[SyncActionCtx, P], R], /
    ) -> ActionFunction[SyncActionCtx, P, R, R]: ...
    @overload
    def __call__(self, handler: None = None, /, *, runtime: Runtime = ...) -> ActionDecorator: ...
    @overload
    def __call__(
        self, handler: None = None, /, *, batch: int, of: Callable[P, T], linger: timedelta = ...
    ) -> BatchDecorator[P, T]: ...


class TaskDecorator(Protocol[TaskRow]):
    """The type of `App.reactive_task`: it declares a reactive task, and leaves its handler as it is."""

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
    """The type of `Crons.cron`: it declares a cron, and its function unless another decorator has declared that."""

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
