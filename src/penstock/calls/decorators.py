"""What the decorators of an app take and give, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar, overload

from penstock.calls.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx
from penstock.functions.function import ActionFunction, MutationFunction, QueryFunction

P = ParamSpec("P")
R = TypeVar("R")


class QueryDecorator(Protocol):
    """What `App.query` gives: it declares a function."""

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
