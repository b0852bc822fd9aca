"""How functions are declared: the decorators of an app with their types, and the registry that they fill."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from penstock.api.guests import Guests
from penstock.calls.handlers.synctasks import SyncMutationTaskCtx, SyncTaskBatchCtx, SyncTaskCtx
from penstock.calls.handlers.taskctx import MutationTaskCtx, TaskBatchCtx, TaskCtx
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.ctxkinds import annotation_of, check_ctx, label, word_of
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx, SyncWorkflowCtx
from penstock.calls.workflows.context import WorkflowCtx
from penstock.calls.workflows.doors import make_event_door, make_run_doors
from penstock.calls.workflows.events import Event
from penstock.errors import DeclarationError
from penstock.functions.access import Access, Guard
from penstock.functions.batch import Batch
from penstock.functions.function import (
    ActionFunction,
    AnyFunction,
    MutationFunction,
    QueryFunction,
    Runtime,
    WorkflowFunction,
)
from penstock.functions.httpaction import HttpAction, place_of
from penstock.functions.registry import Registry
from penstock.observe.places import place_of_handler
from penstock.schema.table import Table

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.calls.run.syncrequest import SyncRequest

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
C = TypeVar("C")
TaskRow = TypeVar("TaskRow", bound=Table)
Awaits: TypeAlias = Callable[Concatenate[C, P], Awaitable[R]]  # a handler written with async def, by its ctx
Returns: TypeAlias = Callable[Concatenate[C, P], R]  # one written with def
AsyncTask: TypeAlias = Callable[[C], Awaitable[None]]
SyncTask: TypeAlias = Callable[[C], None]

_BATCH_OPTIONS = ("batch", "of", "linger")
_QUERY_OPTIONS = ("access", "name", "timeout")
_MUTATION_OPTIONS = (*_QUERY_OPTIONS, "rate_limit", *_BATCH_OPTIONS)
_ACTION_OPTIONS = ("runtime", "restartable", *_MUTATION_OPTIONS)

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


def check_options(what: str, options: Mapping[str, Any], known: type) -> None:
    """Refuse an option that a declaration does not take."""
    if unknown := sorted(options.keys() - known.__annotations__.keys()):
        listed = ", ".join(sorted(known.__annotations__))
        raise DeclarationError(f"{what}: there is no option {unknown[0]!r}.", fix=f"Options are {listed}.")


class Declaring:
    """Declares functions, into a registry."""

    guests: Guests

    def __init__(self) -> None:
        self.registry = Registry()
        self.events: dict[str, Event[Any]] = self.registry.events
        self.requires_access = False  # whether each public function has to say who has access

    @property
    def query(self) -> QueryDecorator:
        """Declare a public query: it reads one snapshot, and anyone who reaches the server may call it.

        With ``access=`` only some may: ``signed_in``, ``owner_of(…)``, or a function of a `QueryCtx` and of arguments
        of the query that says whether the caller may. Joined with ``&`` and ``|``. ``access=public`` says that anyone
        may, on purpose.

        ``name="http:fetch"`` is the name it is called by, ``module:function`` otherwise.
        ``timeout=timedelta(seconds=2)`` is how long a call from outside may take, in place of the setting
        ``call_timeout``.
        """
        return cast("QueryDecorator", self._declare(QueryFunction, *_QUERY_OPTIONS, public=True))

    @property
    def internal_query(self) -> QueryDecorator:
        """Declare a query that only this program may call. With ``access=`` it acts for its caller; see `query`."""
        return cast("QueryDecorator", self._declare(QueryFunction, *_QUERY_OPTIONS, public=False))

    @property
    def mutation(self) -> MutationDecorator:
        """Declare a public mutation: it reads and writes in one serializable transaction, and anyone may call it.

        With ``access=`` only some may; see `query`. With ``rate_limit="login"`` each call from outside takes a token of
        that rate limit, for its user or else its address, even if the mutation fails. With ``batch=100, of=Item`` its
        jobs run many at once, in one transaction; see `action`. ``name=`` and ``timeout=``: see `query`.
        """
        return cast("MutationDecorator", self._declare(MutationFunction, *_MUTATION_OPTIONS, public=True))

    @property
    def internal_mutation(self) -> MutationDecorator:
        """Declare a mutation that only this program may call. With ``access=`` it acts for its caller; see `query`."""
        return cast(
            "MutationDecorator", self._declare(MutationFunction, *_QUERY_OPTIONS, *_BATCH_OPTIONS, public=False)
        )

    @property
    def action(self) -> ActionDecorator:
        """Declare a public action: it may call the outside world, has no transaction, and anyone may call it.

        It also takes options: ``runtime="process"``, for CPU-bound actions written with def, which then run in a
        process of their own. ``batch=100, of=Item``: the handler takes a list of items, one for each call, and returns
        a list of as many results or exceptions. The arguments of a call make an item. A mutation's batch commits with
        the ends of all its jobs: what it wrote stays, also for those to which it gave an exception.
        ``linger``: how long the first job of a batch waits for more. ``restartable=True``: it does no harm if it runs
        again, so a job without a retry policy whose worker dies or stops goes back to its queue, five times at most.
        ``access=`` and ``rate_limit=``: see `mutation`. ``name=`` and ``timeout=``: see `query`.
        """
        return cast("ActionDecorator", self._declare(ActionFunction, *_ACTION_OPTIONS, public=True))

    @property
    def internal_action(self) -> ActionDecorator:
        """Declare an action that only this program may call; see `action`."""
        return cast("ActionDecorator", self._declare(ActionFunction, *_ACTION_OPTIONS, public=False))

    @property
    def workflow(self) -> WorkflowDecorator:
        """Declare a workflow: a function that survives crashes, deploys and long waits.

        It makes steps and waits by its ctx; each is recorded, and after a crash it runs again from its start with what
        was recorded. Start it as a job. With ``def`` it takes a `sync.WorkflowCtx`, and makes one call after another.

        With ``access=`` callers from outside start it too, by the mutation ``module.workflow:start``, and see it by the
        query ``module.workflow:status``: the caller who started the run, and those whom a function or a row in
        ``access`` lets in with its arguments. ``name=`` and ``access=``: see `query`.
        """
        return cast(
            "WorkflowDecorator", self._declare(WorkflowFunction, "name", "access", public=False, word="workflow")
        )

    def event(self, name: str, kind: type[T], /, *, access: Access | Guard | None = None) -> Event[T]:
        """Declare an event, which runs of workflows wait for, and others send.

        Args:
            name: Its name.
            kind: The type of its payload, such as a pydantic model, a dataclass or ``str``; NoneType for none.
            access: The guard that says which callers from outside may send it, by the mutation ``events:name``, to runs
                that they see; None for none. See `query`.

        Raises:
            DeclarationError: There is an event of this name already, or the name cannot be.
        """
        event: Event[T] = Event(name, kind, self.guests.calls)
        if name in self.events:
            raise DeclarationError(f"There are two events called {name!r}.", fix="Give one of them another name.")
        if access is not None:
            self._add(make_event_door(event, access))
        self.events[name] = event
        return event

    def http(
        self,
        method: str,
        path: str,
        *,
        access: Access | Guard | None = None,
        rate_limit: str | None = None,
        max_body: int | None = None,
        timeout: timedelta | None = None,
    ) -> HttpDecorator:
        """Declare an HTTP action: it takes Starlette's request, and returns a response of Starlette's.

        It is an action, so it has no transaction, and may call the outside world. With def it takes a `sync.Request`.

        Args:
            method: One of GET, POST, PUT, PATCH, DELETE and OPTIONS. GET answers HEAD, too.
            path: The exact path, such as ``"/hooks/payments"``. ``"/files/{rest:path}"`` is all below ``/files/``; the
                rest is in ``request.path_params["rest"]``. Exact paths come first, then the longest beginning.
            access: The guard that says who may call it, or `public`; has to be said. It may look at the request; see
                `query`.
            rate_limit: The rate limit that each request takes a token of.
            max_body: The most bytes of a request's body; by default the setting ``max_argument_bytes``.
            timeout: The longest time of a request with its response; by default the setting ``call_timeout``.

        Raises:
            DeclarationError: The method or path cannot be, another action has them, or access is not said.
        """
        place = place_of(method, path)

        def declare(handler: Callable[..., Any]) -> Any:
            action: HttpAction[Any, ..., Any, Any] = HttpAction(
                handler, place, access=access, rate_limit=rate_limit, max_body=max_body, timeout=timeout
            )
            check_ctx(action)
            given = annotation_of(handler, [*inspect.signature(handler).parameters.values()][1])
            fits = "Request" if isinstance(given, str) or action.is_async else "SyncRequest"
            if word_of(given) not in {fits, "Any"}:
                raise DeclarationError(
                    f"{label(handler)} is an HTTP action written with {'async def' if action.is_async else 'def'}, and "
                    f"takes {given}.",
                    fix=f"Write request: {'Request, from starlette.requests' if action.is_async else 'sync.Request'}.",
                )
            self.registry.add_http(action)
            return action

        return declare

    def _declare(self, kind: type[AnyFunction], *allowed: str, public: bool, word: str = "") -> Any:
        word = word or f"{'' if public else 'internal_'}{kind.kind.value}"

        def declare(*handler: Callable[..., Any], **options: Any) -> Any:
            if unknown := [name for name in options if name not in allowed]:
                raise DeclarationError(
                    f"@app.{word}: there is no option {unknown[0]}.", fix=f"There is {', '.join(allowed)}."
                )
            if len(handler) > 1:
                raise DeclarationError(
                    f"@app.{word} takes one function.", fix=f"Write @app.{word} on the line above the function."
                )

            def add(given: Callable[..., Any]) -> Any:
                asked = dict(options)
                if type(again := asked.get("restartable", False)) is not bool:
                    raise DeclarationError(f"@app.{word}: restartable is True or False, not {again!r}.")
                size, of, linger = (asked.pop(name, None) for name in _BATCH_OPTIONS)
                if size is not None:
                    asked["batch"] = Batch(given, size, of, timedelta(0) if linger is None else linger)
                outside = asked.pop("access", None) if kind is WorkflowFunction else None
                function = self._add(kind(given, public=public, **asked))
                for door in () if outside is None else make_run_doors(function, outside):
                    self._add(door)
                return function

            return add(*handler) if handler else add if options else declare

        return declare

    def _add(self, function: Any) -> Any:
        check_ctx(function)
        if self.requires_access:
            check_says_access(function)
        self.registry.add(function)
        return function


def check_says_access(function: AnyFunction) -> None:
    """Refuse a public function that does not say who has access."""
    if function.public and function.access is None:
        raise DeclarationError(
            f"{function.name} ({place_of_handler(function.declared)}) is public, and does not say who may call it.",
            fix=f"Write @app.{function.kind.value}(access=signed_in), or access=public if anyone may.",
        )


# ----- the types of decorators


class QueryDecorator(Protocol):
    """The type of `App.query`: it declares a function, or takes options and returns a decorator."""

    @overload
    def __call__(
        self, *, access: Access | Guard = ..., name: str = ..., timeout: timedelta = ...
    ) -> QueryDecorator: ...
    @overload
    def __call__(self, handler: Awaits[QueryCtx, P, R], /) -> QueryFunction[QueryCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(self, handler: Returns[SyncQueryCtx, P, R], /) -> QueryFunction[SyncQueryCtx, P, R, R]: ...


class MutationDecorator(Protocol):
    """The type of `App.mutation`: it declares a function, or takes options and returns a decorator."""

    @overload
    def __call__(
        self, *, access: Access | Guard = ..., rate_limit: str = ..., name: str = ..., timeout: timedelta = ...
    ) -> MutationDecorator: ...
    @overload
    def __call__(self, handler: Awaits[MutationCtx, P, R], /) -> MutationFunction[MutationCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(self, handler: Returns[SyncMutationCtx, P, R], /) -> MutationFunction[SyncMutationCtx, P, R, R]: ...
    @overload
    def __call__(
        self,
        handler: None = None,
        /,
        *,
        batch: int,
        of: Callable[P, T],
        linger: timedelta = ...,
        access: Access | Guard = ...,
        rate_limit: str = ...,
        name: str = ...,
        timeout: timedelta = ...,
    ) -> MutationBatchDecorator[P, T]: ...


class MutationBatchDecorator(Protocol[P, T]):
    """The type of ``App.mutation(batch=…, of=…)``: its handler takes many calls at once, in one transaction."""

    @overload
    def __call__(
        self, handler: Callable[[MutationCtx, list[T]], Awaitable[Sequence[R | Exception]]], /
    ) -> MutationFunction[MutationCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(
        self, handler: Callable[[SyncMutationCtx, list[T]], Sequence[R | Exception]], /
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
    def __call__(self, handler: Awaits[ActionCtx, P, R], /) -> ActionFunction[ActionCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(self, handler: Returns[SyncActionCtx, P, R], /) -> ActionFunction[SyncActionCtx, P, R, R]: ...
    @overload
    def __call__(
        self,
        handler: None = None,
        /,
        *,
        runtime: Runtime = ...,
        restartable: bool = ...,
        access: Access | Guard = ...,
        rate_limit: str = ...,
        name: str = ...,
        timeout: timedelta = ...,
    ) -> ActionDecorator: ...
    @overload
    def __call__(
        self,
        handler: None = None,
        /,
        *,
        batch: int,
        of: Callable[P, T],
        linger: timedelta = ...,
        restartable: bool = ...,
        access: Access | Guard = ...,
        rate_limit: str = ...,
        name: str = ...,
        timeout: timedelta = ...,
    ) -> BatchDecorator[P, T]: ...


class WorkflowDecorator(Protocol):
    """The type of `App.workflow`: it declares a function, or takes options and returns a decorator."""

    @overload
    def __call__(self, *, access: Access | Guard = ..., name: str = ...) -> WorkflowDecorator: ...
    @overload
    def __call__(self, handler: Awaits[WorkflowCtx, P, R], /) -> WorkflowFunction[WorkflowCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(self, handler: Returns[SyncWorkflowCtx, P, R], /) -> WorkflowFunction[SyncWorkflowCtx, P, R, R]: ...


class HttpDecorator(Protocol):
    """The type of ``App.http(…)``: it declares an HTTP action."""

    @overload
    def __call__(
        self, handler: Callable[[ActionCtx, Request], Awaitable[Response]], /
    ) -> HttpAction[ActionCtx, [Request], Response, Awaitable[Response]]: ...
    @overload
    def __call__(
        self, handler: Callable[[SyncActionCtx, SyncRequest], Response], /
    ) -> HttpAction[SyncActionCtx, [SyncRequest], Response, Response]: ...


class TaskDecorator(Protocol[TaskRow]):
    """The type of `App.reactive_task`: it declares a reactive task, and leaves its handler as it is."""

    @overload
    def __call__(self, handler: AsyncTask[TaskCtx[TaskRow]], /) -> AsyncTask[TaskCtx[TaskRow]]: ...
    @overload
    def __call__(self, handler: AsyncTask[MutationTaskCtx[TaskRow]], /) -> AsyncTask[MutationTaskCtx[TaskRow]]: ...
    @overload
    def __call__(self, handler: SyncTask[SyncTaskCtx[TaskRow]], /) -> SyncTask[SyncTaskCtx[TaskRow]]: ...
    @overload
    def __call__(
        self, handler: SyncTask[SyncMutationTaskCtx[TaskRow]], /
    ) -> SyncTask[SyncMutationTaskCtx[TaskRow]]: ...
    @overload
    def __call__(self, handler: AsyncTask[TaskBatchCtx[TaskRow]], /) -> AsyncTask[TaskBatchCtx[TaskRow]]: ...
    @overload
    def __call__(self, handler: SyncTask[SyncTaskBatchCtx[TaskRow]], /) -> SyncTask[SyncTaskBatchCtx[TaskRow]]: ...


class CronDecorator(Protocol):
    """The type of `Crons.cron`: it declares a cron, and its function unless another decorator has declared that."""

    @overload
    def __call__(self, handler: Awaits[MutationCtx, P, R], /) -> MutationFunction[MutationCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(self, handler: Awaits[ActionCtx, P, R], /) -> ActionFunction[ActionCtx, P, R, Awaitable[R]]: ...
    @overload
    def __call__(self, handler: Returns[SyncMutationCtx, P, R], /) -> MutationFunction[SyncMutationCtx, P, R, R]: ...
    @overload
    def __call__(self, handler: Returns[SyncActionCtx, P, R], /) -> ActionFunction[SyncActionCtx, P, R, R]: ...
