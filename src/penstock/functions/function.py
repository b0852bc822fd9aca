"""Functions as a user declares them: a kind, a visibility, a handler, and the check of its arguments and result.

Owns the declaration. Leaves running to `calls`, and the decorators to `app`.
"""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, get_args

from penstock.errors import ContextError, DeclarationError, LimitExceeded
from penstock.functions.access import Access, Guard, access_of
from penstock.functions.batch import Batch, check_batch
from penstock.functions.component import Component
from penstock.functions.signature import Signature, check_declaration
from penstock.observe.places import place_of_handler

C = TypeVar("C", contravariant=True)
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
X = TypeVar("X", covariant=True)

Runtime = Literal["thread", "process"]


class FunctionKind(enum.Enum):
    __hash__ = object.__hash__  # as for `jobs.states`

    QUERY = "query"
    MUTATION = "mutation"
    ACTION = "action"
    WORKFLOW = "workflow"

    @property
    def with_article(self) -> str:
        return "an action" if self is FunctionKind.ACTION else f"a {self.value}"

    @property
    def job_kind(self) -> Literal["query", "mutation", "action"]:
        """The kind of its jobs, as the database knows it.

        Workers of all releases let a lost mutation run again, and so a lost run of a workflow.
        """
        return "mutation" if self is FunctionKind.WORKFLOW else self.value


_NO_HELPERS = {
    (FunctionKind.QUERY, FunctionKind.MUTATION): "Declare the caller as a mutation.",
    (FunctionKind.QUERY, FunctionKind.ACTION): "Call it from an action.",
    (FunctionKind.MUTATION, FunctionKind.ACTION): "A mutation may run again. Write "
    "await ctx.scheduler.run_after(timedelta(0), {}, …), or call it from an action.",
    (FunctionKind.ACTION, FunctionKind.QUERY): "Write await ctx.run_query({}, …).",
    (FunctionKind.ACTION, FunctionKind.MUTATION): "Write await ctx.run_mutation({}, …).",
    **{
        (FunctionKind.WORKFLOW, kind): f"Write await ctx.run_{kind.value}({{}}, …), which records it."
        for kind in (FunctionKind.QUERY, FunctionKind.MUTATION, FunctionKind.ACTION)
    },
    **{
        (kind, FunctionKind.WORKFLOW): "Write await ctx.scheduler.run_after(timedelta(0), {}, …)."
        for kind in (FunctionKind.QUERY, FunctionKind.MUTATION, FunctionKind.ACTION)
    },
}


class Function(Generic[C, P, R, X]):
    """A declared function. Calling it with a ctx runs the handler as a plain helper, in the caller's transaction.

    Attributes:
        name: ``module:function``, or the given name: the name in calls from outside and in stored jobs.
        kind: Query, mutation or action.
        public: Whether callers from outside may call it.
        is_async: Whether the handler is ``async def``; a ``def`` handler runs in a thread, with a synchronous ctx.
        runtime: A ``def`` handler runs in a thread, or in a process of its own for CPU-bound actions.
        batch: For a batch function: how it takes the calls of many jobs at once; `handler` takes a single one.
        access: Who may call it; None if its declaration says nothing.
        rate_limit: The rate limit that each call from outside takes a token of; None for none.
        timeout: How long a call from outside may take; None for the setting `call_timeout`.
        restartable: Whether its job runs again if its worker is lost, though it has no retry policy.
        declared: The function as it was written.
        component: The use of an app that it is of; None for the program's own.
        version: For the handler of a reactive task: its version; -1 for none.
    """

    kind: FunctionKind
    version = -1
    component: Component | None = None

    def __init__(
        self,
        handler: Callable[..., X],
        *,
        public: bool,
        name: str | None = None,
        runtime: Runtime = "thread",
        batch: Batch | None = None,
        access: Access | Guard | None = None,
        rate_limit: str | None = None,
        timeout: timedelta | None = None,
        restartable: bool = False,
    ) -> None:
        self.name = name_of(handler) if name is None else name
        self.handler = handler
        self.public = public
        self.is_async = inspect.iscoroutinefunction(handler)
        self.runtime = runtime
        if runtime not in get_args(Runtime):
            raise DeclarationError(
                f"{self.name}: there is no runtime {runtime!r}.",
                fix=f"Write one of {', '.join(map(repr, get_args(Runtime)))}.",
            )
        check_declaration(handler, self.name, self.kind.value, public)
        if runtime == "process" and (self.is_async or self.kind is not FunctionKind.ACTION):
            raise DeclarationError(
                f'{self.name}: runtime="process" is for CPU-bound actions written with def, not async def.'
            )
        functools.update_wrapper(self, handler)
        self.declared = handler
        self.batch = batch
        if batch is not None:
            check_batch(batch, self.name, runtime, len(inspect.signature(handler).parameters) - 1)
            self.handler = batch.single(self.name, is_async=self.is_async)
        self.rate_limit = rate_limit
        self.timeout = timeout
        self._check_timeout(handler, timeout)
        self.restartable = restartable
        self.access = None if access is None else access_of(access)
        self._check_access(handler)

    def within(self, component: Component, name: str, rate_limit: str | None, *, public: bool) -> Self:
        """This function in one use of its app, under a name in the program."""
        found = copy.copy(self)
        found.__dict__.pop("signature", None)  # whose errors name the function
        found.acts_for_caller = self.acts_for_caller
        found.name, found.rate_limit, found.component, found.public = name, rate_limit, component, public
        return found

    @functools.cached_property
    def acts_for_caller(self) -> bool:
        """Whether the rules of tables hold for it, unless the system calls: also if the program does not expose it."""
        return self.public or self.access is not None

    def seconds(self, by_default: float) -> float:
        """How long a call from outside may take."""
        return by_default if self.timeout is None else self.timeout.total_seconds()

    @property
    def title(self) -> str:
        """Its kind and its name in its module, for its callers."""
        return f"{self.kind.value.title()} `{self.name.rpartition(':')[2]}`"

    @property
    def access_text(self) -> str:
        """Its access, as the program says it: ``signed_in``; empty if it says nothing."""
        return "" if self.access is None else str(self.access)

    def check_job(self, what: str = "A job", *, guards: bool = True) -> None:
        """Refuse jobs of a public function that only lets in users; without `guards`, also one that asks a function."""
        access = self.access if self.public else None
        if access is not None and (access.needs_identity or (access.guards and not guards)):
            raise DeclarationError(
                f"{what}: the access of {self.name} is {access}, which asks who calls, and a job has no user.",
                fix="Declare an internal function that does the work, and call it from both.",
            )

    def _check_timeout(self, handler: Callable[..., X], timeout: object) -> None:
        if timeout is not None and not (isinstance(timeout, timedelta) and timedelta(0) < timeout <= LONGEST):
            raise DeclarationError(
                f"{self.name} ({place_of_handler(handler)}): timeout is a timedelta greater than 0, and of at most "
                f"{LONGEST.days} days, not {timeout!r}.",
                fix="Write timeout=timedelta(minutes=20).",
            )

    def _check_access(self, handler: Callable[..., X]) -> None:
        takes = [*inspect.signature(self.handler).parameters][1:]
        if self.access is not None and (unknown := self.access.takes.difference(takes)):
            raise DeclarationError(
                f"{self.name} ({place_of_handler(handler)}): access looks at {', '.join(sorted(unknown))}, which is no "
                "argument of the function.",
                fix=f"Its arguments are {', '.join(takes)}." if takes else "It has no arguments.",
            )

    def __call__(self, ctx: C, /, *args: P.args, **kwargs: P.kwargs) -> X:
        """Run the handler as a plain helper, if the caller has access; ContextError if it needs another kind of ctx."""
        if self.component is not None:
            raise ContextError(
                f"{self.name} runs with a ctx of its component, and was called with another one.",
                fix=f"Write await ctx.run_{self.kind.value}({self.component.name}[…], …).",
            )
        caller = getattr(type(ctx), "of_kind", self.kind)
        if caller is not self.kind and (caller, self.kind) in _NO_HELPERS:
            raise ContextError(
                f"{self.name} is {self.kind.with_article}, and was called in {caller.with_article}.",
                fix=_NO_HELPERS[caller, self.kind].format(self.name.rpartition(":")[2]),
            )
        if self.batch is not None:
            args, kwargs = (), self.signature.bind(args, kwargs)  # type: ignore[assignment]
        if self.access is None:
            return self.handler(ctx, *args, **kwargs)
        check = ctx.check_access  # type: ignore[attr-defined]  # what has a kind but cannot check is refused here
        if self.is_async:
            return self._check_and_call(ctx, check, args, kwargs)  # type: ignore[return-value]
        if (checked := check(self, *args, **kwargs)) is not None:  # it waits to be awaited
            checked.close()
            raise ContextError(f"{self.name} is written with def.", fix="Call it in a function written with def.")
        return self.handler(ctx, *args, **kwargs)

    def args(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The arguments of a call by name, for `Workpool.enqueue_batch`, so that type checkers see them.

        Raises:
            ArgumentsInvalid: There are too many, or one is given twice. Their types are checked later.
        """
        return self.signature.bind(args, kwargs)

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, its defaults among them; not checked."""
        bound = self._parameters.bind(None, *args, **kwargs)
        bound.apply_defaults()
        return dict([*bound.arguments.items()][1:])

    async def _check_and_call(self, ctx: Any, check: Any, args: Any, kwargs: Any) -> Any:
        await check(self, *args, **kwargs)
        return await self.handler(ctx, *args, **kwargs)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<{'' if self.public else 'internal '}{self.kind.value} {self.name}>"

    @functools.cached_property
    def _parameters(self) -> inspect.Signature:
        return inspect.signature(self.handler)

    @functools.cached_property
    def signature(self) -> Signature:
        """The check of its arguments and result; built on first use, when all types it names exist."""
        return Signature(self.declared, self.name, None if self.batch is None else self.batch.of)


class QueryFunction(Function[C, P, R, X]):
    kind = FunctionKind.QUERY


class MutationFunction(Function[C, P, R, X]):
    kind = FunctionKind.MUTATION


class ActionFunction(Function[C, P, R, X]):
    kind = FunctionKind.ACTION


class WorkflowFunction(Function[C, P, R, X]):
    """A function that survives crashes and long waits. It only runs as a job; see `calls/workflows`."""

    kind = FunctionKind.WORKFLOW
    outside: Access | None = None  # which callers from outside start it; None for none


AnyFunction = Function[Any, Any, Any, Any]
DEEPEST = 64
LONGEST = timedelta(days=7)  # that a call from outside may take


def name_of(handler: Callable[..., Any]) -> str:
    """The public name of a handler, ``module:function``. Methods are refused, as no other process could find them."""
    if not hasattr(handler, "__globals__"):
        raise DeclarationError(f"{handler!r} is not a function.", fix="Decorate a function: def or async def.")
    if "." in handler.__qualname__ and "<locals>" not in handler.__qualname__:
        raise DeclarationError(f"{handler.__qualname__} is a method; declare functions at the top of a module.")
    return f"{module_name(handler.__module__)}:{handler.__name__}"


def find_named(known: Iterable[T], name: object, name_of_one: Callable[[T], str]) -> T | None:
    """The one with a name, or else the only one that has it after its module; None if there is none."""
    if not isinstance(name, str):
        return None
    names = {name_of_one(one): one for one in known}
    if name in names:
        return names[name]
    found = [one for whole, one in names.items() if whole.endswith(f":{name}")]
    return found[0] if len(found) == 1 else None


def module_name(module: str) -> str:
    """The name of a module as other processes import it."""
    if module != "__main__":
        return module
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).stem if file else "__main__"


def check_depth(function: AnyFunction, depth: int) -> None:
    if depth >= DEEPEST:
        raise LimitExceeded(
            f"{function.name}: calls are nested deeper than {DEEPEST} levels.",
            fix="Look for a function that runs itself.",
            limit=DEEPEST,
        )


def expect(function: AnyFunction, kind: FunctionKind) -> None:
    if not isinstance(function, Function):
        raise ContextError(f"{function!r} is not a function of an app.", fix=f"Decorate it with @app.{kind.value}.")
    if function.kind is not kind:
        raise ContextError(
            f"{function.name} is {function.kind.with_article}.", fix=f"Run it with run_{function.kind.value}."
        )


_MODULES = re.compile(r"""(?<!['"\w.])(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])""")


def signature_text(function: AnyFunction) -> str:
    """A function's parameters and result as they are written, without its ctx."""
    signature = inspect.signature(function.handler)
    parameters = list(signature.parameters.values())[1:]
    result = signature.return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {annotation_text(result)}"
    return f"({', '.join(map(_parameter, parameters))}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {annotation_text(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {parameter.default!r}" if ":" in text else f"={parameter.default!r}"
    return text


def annotation_text(annotation: Any) -> str:
    """An annotation, without the modules of its names."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _MODULES.sub("", text)
