"""The doors of workflows: public functions by which callers from outside start runs, see them, and send them events.

They are functions as others are, so each transport, live queries and generated clients have them. Owns who sees a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, cast

from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypeVar

from penstock.calls.run.context import MutationCtx, QueryCtx
from penstock.calls.workflows.events import LONGEST_KEY, Event
from penstock.errors import ApplicationError, DeclarationError, InputError
from penstock.functions.access import Access, Guard, access_of, public
from penstock.functions.function import AnyFunction, MutationFunction, QueryFunction, WorkflowFunction
from penstock.functions.signature import Signature, encoder_of
from penstock.identity.caller import ANONYMOUS, Caller
from penstock.jobs.job import JobId, job_uuid
from penstock.values import encode_json
from penstock.workflows.waterfall import doing_of

R = TypeVar("R", default=Any)
S = TypeVar("S", default=Any)

_Key = Annotated[str, Field(min_length=1, max_length=LONGEST_KEY, pattern=r"^[^\x00]*$")]
_EVENTS = "events"  # the module of the functions that send events


class RunStatus(BaseModel, Generic[R, S]):
    """A run of a workflow, as the callers see it who may.

    Attributes:
        state: What it does, or how it has ended. One that is parked waits for code that fits it.
        published: The value that it published last; None if there is none, or it is not of the type any more.
        result: Its result, if its state is success.
        error: Why it failed, if its code raised an ApplicationError.
    """

    state: Literal["pending", "running", "waiting", "parked", "success", "failed", "canceled"]
    published: S | None
    result: R | None
    error: str | None


def make_run_doors(workflow: WorkflowFunction[Any, Any, Any, Any], access: Access | Guard) -> list[AnyFunction]:
    """Make the functions ``start`` and ``status`` of a workflow, in a module of its name."""
    workflow.outside = access_of(access)
    module = workflow.name.replace(":", ".")

    async def start(ctx: MutationCtx, /, **arguments: Any) -> JobId:
        return await ctx.scheduler.run_after(timedelta(0), workflow, **arguments)

    async def status(ctx: QueryCtx, run: JobId) -> RunStatus | None:
        job = await ctx.job_calls.find(job_uuid(run))
        if job is None or job.function != workflow.name:
            return None
        if not await _may_see(ctx, workflow, job.args, job.options.starter):
            return None
        shown, doing, signature = ctx.job_calls.mask(job), doing_of(job.state.value, job.error), workflow.signature
        result = signature.result_of_json(encode_json(shown.result, "A result")) if doing == "success" else None
        state = "running" if doing == "completing" else cast("Any", doing)
        error = _tell(job.error) if doing == "failed" else None
        published = _read_published(shown.published, signature)
        found: RunStatus = _status_of(signature)(state=state, published=published, result=result, error=error)
        return found

    takes = [*inspect.signature(workflow.declared).parameters.values()][1:]
    status.__doc__ = f"A run of `{workflow.name}`; null if there is none of this id that the caller may see."
    about = inspect.getdoc(workflow.declared) or ""
    _describe(start, f"Start a run of `{workflow.name}`, and give its id. {about}".strip(), takes, workflow.declared)
    seen = Access(f"the starter, or {workflow.outside}", public.lets_in)
    return [
        MutationFunction(start, public=True, name=f"{module}:start", access=workflow.outside),
        _StatusFunction(status, workflow, public=True, name=f"{module}:status", access=seen),
    ]


def make_event_door(event: Event[Any], access: Access | Guard) -> AnyFunction:
    """Make the function by which callers send an event to runs that they see, if they have access."""

    async def send(ctx: MutationCtx, run: JobId, payload: Any = None, key: _Key | None = None) -> bool:
        uuid, find_open = job_uuid(run), ctx.job_calls.store.workflows.find_open
        found = await ctx.job_calls.write(lambda transaction: find_open(uuid, transaction.session))
        workflow = None if found is None else ctx.job_calls.engine.registry.find(found.function)
        if found is None or not isinstance(workflow, WorkflowFunction):
            return False
        if not await _may_see(ctx, workflow, found.args, found.starter):
            return False
        return bool(await event.broadcast(ctx, [run], payload, key=key))

    run, payload, key = [*inspect.signature(send, eval_str=True).parameters.values()][1:]
    payload = payload.replace(annotation=event.type)
    if event.type not in {None, type(None)}:
        payload = payload.replace(default=inspect.Parameter.empty)
    about = f"Send the event {event.name} to a run; false if it has ended, or is not one that the caller may see."
    _describe(send, about, [run, payload, key])
    if not event.name.isidentifier():
        raise DeclarationError(
            f"The event {event.name!r} has access=, and so is sent by a function, which cannot have this name.",
            fix="Name it with letters, digits and underscores.",
        )
    return MutationFunction(send, public=True, name=f"{_EVENTS}:{event.name}", access=access)


class _StatusFunction(QueryFunction[Any, Any, Any, Any]):
    """A query whose result has the type of a workflow's, which is known once all types exist."""

    def __init__(self, handler: Callable[..., Any], workflow: AnyFunction, **options: Any) -> None:
        super().__init__(handler, **options)
        self._workflow = workflow

    @cached_property
    def signature(self) -> Signature:
        self.declared.__annotations__["return"] = _status_of(self._workflow.signature) | None
        return Signature(self.declared, self.name)


def _status_of(signature: Signature) -> Any:
    return RunStatus[signature.returns, signature.publishes]  # type: ignore[name-defined]  # they are types


def _read_published(stored: Any, signature: Signature) -> Any:
    """The state that a run has published, as its type has it; None if it is not of this type, as of older code."""
    if stored is None or signature.publishes is Any:
        return stored
    try:
        return encoder_of(signature.publishes).decode(encode_json(stored, "A published state"))
    except ValidationError:
        return None


def _describe(handler: Any, about: str, takes: list[inspect.Parameter], like: Callable[..., Any] | None = None) -> None:
    """Give a function other parameters than it is written with, and the module where their types are known."""
    signature = inspect.signature(handler, eval_str=True)
    ctx = next(iter(signature.parameters.values()))
    handler.__signature__ = signature.replace(parameters=[ctx, *takes])
    handler.__annotations__ = {one.name: one.annotation for one in (ctx, *takes)} | {
        "return": signature.return_annotation
    }
    handler.__doc__ = about
    if like is not None:
        handler.__wrapped__, handler.__module__ = like, like.__module__


async def _may_see(
    ctx: QueryCtx, workflow: WorkflowFunction[Any, Any, Any, Any], args: Mapping[str, Any], starter: str | None
) -> bool:
    """Whether the caller started a run, or the access of its workflow judges that it may see it."""
    outside, identity = workflow.outside, await ctx.auth.get_user_identity()
    if outside is None:
        return False
    if starter is not None and starter in {ANONYMOUS.mark, Caller(identity).mark}:
        return True
    judged = copy(workflow)
    judged.access = Access(str(outside), outside.judges, outside.takes, outside.guards)
    try:
        await ctx.check_access(judged, **workflow.signature.check_json(encode_json(args, "Arguments")))
    except (ApplicationError, InputError):  # also of a guard; arguments of older code may not be taken any more
        return False
    return True


def _tell(error: str | None) -> str | None:
    """The text of an `ApplicationError`, which is meant for callers; None of other errors."""
    name, _colon, text = (error or "").partition(": ")
    kinds = [ApplicationError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return text if name in {kind.__name__ for kind in kinds} else None
