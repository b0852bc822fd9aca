"""Public methods for all kinds of callers: they return a coroutine to callers that await, and a result to the others.

A method is written once: it takes the jobs of its caller and returns a coroutine. The decorators here turn it into the
method that users call with a ctx, a backend or a connection. Type checkers know a connection by what it can do, so no
driver is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from penstock.calls.enqueue.jobs import JobCalls, calls_of
from penstock.store.guest.connections import AsyncConnection, AsyncpgConnection, SyncConnection

if TYPE_CHECKING:
    from penstock.api.backend import CallerBackend
    from penstock.api.syncwords import SyncCallerBackend
    from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
    from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
Async_contra = TypeVar("Async_contra", contravariant=True)
Sync_contra = TypeVar("Sync_contra", contravariant=True)
Body: TypeAlias = Callable[Concatenate[Any, JobCalls, P], Coroutine[Any, Any, T_co]]  # of a method, for all its callers


if TYPE_CHECKING:
    AsyncWaiter: TypeAlias = ActionCtx | CallerBackend
    SyncWaiter: TypeAlias = SyncActionCtx | SyncCallerBackend
    AsyncInside: TypeAlias = MutationCtx | AsyncWaiter
    SyncInside: TypeAlias = SyncMutationCtx | SyncWaiter
    AsyncWriter: TypeAlias = AsyncInside | AsyncConnection | AsyncpgConnection
    SyncWriter: TypeAlias = SyncInside | SyncConnection
    AsyncReader: TypeAlias = QueryCtx | AsyncWaiter | AsyncConnection | AsyncpgConnection
    SyncReader: TypeAlias = SyncQueryCtx | SyncWaiter | SyncConnection


class Bound(Protocol[Async_contra, Sync_contra, P, T_co]):
    """A public method bound to an object. The type of the ctx decides the type of the result."""

    @overload
    def __call__(self, ctx: Async_contra, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T_co]: ...
    @overload
    def __call__(self, ctx: Sync_contra, /, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class Method(Generic[Async_contra, Sync_contra, P, T_co]):
    """A public method, written once for all callers.

    Args:
        run: The method's body; its first argument is the `JobCalls` of the caller.
        writes: Whether it refuses the ctx of a query.
        connections: Whether it takes connections, which the `_guests` of its object know.
        outside: The verb for the error, if the method is refused in a transaction of a function.
    """

    def __init__(
        self,
        run: Body[P, T_co],
        *,
        writes: bool = False,
        connections: bool = False,
        outside: str = "",
    ) -> None:
        self._run = run
        self._writes = writes
        self._connections = connections
        self._outside = outside
        self.__doc__ = run.__doc__

    def __get__(self, owner: Any, _kind: type) -> Bound[Async_contra, Sync_contra, P, T_co]:
        def call(ctx: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            otherwise = owner._guests.calls if self._connections else None  # noqa: SLF001 - as said above
            calls = calls_of(ctx, writes=self._writes, otherwise=otherwise)
            if self._outside:
                calls.check_outside(self._outside)
            return calls.answer(self._run(owner, calls, *args, **kwargs))

        call.__name__, call.__doc__ = self._run.__name__, self.__doc__
        return call


def for_writers(run: Body[P, T_co]) -> Method[AsyncWriter, SyncWriter, P, T_co]:
    """A method that writes: for mutations, actions, programs, and connections of the user's."""
    return Method(run, writes=True, connections=True)


def for_readers(run: Body[P, T_co]) -> Method[AsyncReader, SyncReader, P, T_co]:
    """A method that reads: for queries, actions, programs, and connections of the user's."""
    return Method(run, connections=True)


def for_ctx_readers(run: Body[P, T_co]) -> Method[QueryCtx | AsyncWaiter, SyncQueryCtx | SyncWaiter, P, T_co]:
    """A method for queries, actions and programs; with the ctx of a mutation as well."""
    return Method(run)


def for_functions(run: Body[P, T_co]) -> Method[AsyncInside, SyncInside, P, T_co]:
    """A method for mutations, actions and programs."""
    return Method(run, writes=True)


def for_programs(
    outside: str = "", *, connections: bool = False
) -> Callable[[Body[P, T_co]], Method[AsyncWaiter, SyncWaiter, P, T_co]]:
    """A method for actions and programs; `outside` is the verb for the error in a transaction of a function."""
    return lambda run: Method(run, outside=outside, connections=connections)
