"""`WorkflowCtx`: the first argument of a workflow, by which its body makes steps and waits. Each call is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, Protocol, overload
from uuid import UUID

from typing_extensions import TypeVar

from penstock.calls.workflows.body import Body, Restart, StepOptions
from penstock.calls.workflows.events import Event
from penstock.clock import Random
from penstock.errors import ContextError, EventTimeout, LimitExceeded, UsageError, ValueInvalid
from penstock.functions.component import own_function, own_name
from penstock.functions.function import (
    ActionFunction,
    AnyFunction,
    FunctionKind,
    MutationFunction,
    QueryFunction,
    WorkflowFunction,
    expect,
)
from penstock.functions.registry import Registry
from penstock.functions.signature import encode_any
from penstock.jobs.job import DEFAULT_POOL, JobId, job_uuid
from penstock.jobs.order import FARTHEST
from penstock.jobs.retry import Retry
from penstock.pools.pool import PoolDefinition
from penstock.transaction.tracking import OfCall, track_calls
from penstock.transaction.words import refuses_other_words
from penstock.values import decode_json, encode_json, text_bytes
from penstock.workflows.record import LONGEST_ARGUMENTS, RecordKind

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E")
S = TypeVar("S", default=Any)  # the state that the run publishes

_STEPS = {
    FunctionKind.QUERY: RecordKind.QUERY,
    FunctionKind.MUTATION: RecordKind.MUTATION,
    FunctionKind.ACTION: RecordKind.ACTION,
    FunctionKind.WORKFLOW: RecordKind.JOB,
}


class Pool(Protocol):
    """A pool, as `App.workpool` makes it."""

    @property
    def definition(self) -> PoolDefinition:
        """Its declaration."""


@refuses_other_words
class WorkflowCtx(OfCall, Generic[S]):
    """The ctx of a workflow: steps and waits, each recorded once it has ended.

    After a crash the body runs again from its start, and is given what was recorded. So it must do the same again: it
    asks the ctx for time and chance, and the outside world in steps. ``asyncio.gather``, ``TaskGroup``, ``wait``,
    ``timeout`` and ``sleep`` may be used; their time is recorded too. ``WorkflowCtx[State]`` says what it publishes.
    """

    of_kind = FunctionKind.WORKFLOW

    def __init__(self, body: Body, registry: Registry, run: JobId, asked: Mapping[str, Any] | None = None) -> None:
        self._body = body
        self._calls = body.calls
        self._registry = registry
        self._run = run
        self._asked = dict(asked or {})  # options of `with_options` that are not None
        self._options = self._step_options(**self._asked)

    @property
    def id(self) -> JobId:
        """The id of the run: that of its job."""
        return self._run

    def now(self) -> datetime:
        """The time at which the body last learned something, aware, in UTC: the same in a replay."""
        return self._body.now

    @property
    def random(self) -> Random:
        """Random numbers of this run: a replay gets the same ones."""
        self._body.check_inside()
        return self._body.random

    def uuid(self) -> UUID:
        """A random UUID: a replay gets the same one."""
        return UUID(int=self.random.getrandbits(128), version=4)

    def patched(self, name: str, *, activate: bool = True) -> bool:
        """Whether the run takes the new code at this place: False if it passed here before the change.

        Args:
            name: The name of the change, such as ``"fraud-check"``.
            activate: Whether runs that come here take up the change. With False none does, but this code goes on with
                runs that have: deploy it so to all workers first, if old ones shall not park runs of new ones.
        """
        return self._body.patched(name, activate=activate)

    def with_options(
        self,
        *,
        pool: Pool | None = None,
        retry: bool | Retry | None = None,
        timeout: timedelta | None = None,
        name: str | None = None,
        unstable_args: bool | None = None,
    ) -> WorkflowCtx[S]:
        """This ctx, with other options for the steps that are made through it. Options that are left out stay.

        Args:
            pool: The pool in which they run, each as a job. Otherwise they run within the run, in its slot.
            retry: For actions: a `Retry` says when to try again after one raised; True is the default policy. False
                never begins one a second time: if its worker dies, it raises `StepLost`.
            timeout: The longest time of one attempt at an action.
            name: The name of a step in a pool, in log events.
            unstable_args: Whether a replay may give other arguments, such as a text that changes with a deploy: they
                are not compared, and runs that such a change has parked go on. By default they are.

        Raises:
            UsageError: An option cannot be, or two exclude each other.
        """
        given: object = timeout
        if given is not None and not (isinstance(given, timedelta) and timedelta(0) < given <= FARTHEST):
            raise UsageError(f"timeout is a timedelta greater than 0, and of at most five years, not {timeout!r}.")
        policy: object = retry
        if not isinstance(policy, bool | Retry | None):
            raise UsageError(f"retry is True, False or a Retry, not {retry!r}.")
        unstable: object = unstable_args
        if not isinstance(unstable, bool | None):
            raise UsageError(f"unstable_args is True or False, not {unstable!r}.")
        asked = {"pool": pool, "retry": retry, "timeout": timeout, "name": name, "unstable_args": unstable_args}
        changed = {word: value for word, value in asked.items() if value is not None}
        return WorkflowCtx(self._body, self._registry, self._run, {**self._asked, **changed})

    def _step_options(
        self,
        pool: Pool | None = None,
        retry: bool | Retry | None = None,
        timeout: timedelta | None = None,
        name: str | None = None,
        *,
        unstable_args: bool = False,
    ) -> StepOptions:
        definition = None if pool is None else pool.definition
        chosen = retry if isinstance(retry, Retry) else None
        if retry is True:
            chosen = Retry() if definition is None else definition.default_retry
        return StepOptions(
            None if definition is None else own_name(self._body.function.component, definition.name),
            chosen,
            retry is False,
            None if timeout is None else timeout.total_seconds(),
            name,
            unstable_args,
        )

    @track_calls
    async def run_query(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a query in a snapshot of its own."""
        result: R = await self._step(function, FunctionKind.QUERY, args, kwargs)
        return result

    @track_calls
    async def run_mutation(self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a mutation: its effects and the record of the step commit together, once."""
        result: R = await self._step(function, FunctionKind.MUTATION, args, kwargs)
        return result

    @track_calls
    async def run_action(self, function: ActionFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an action at least once. ``ctx.work.key`` of the action is the same if it begins again.

        Raises:
            StepLost: Its worker died, and its options say ``retry=False``.
        """
        result: R = await self._step(function, FunctionKind.ACTION, args, kwargs)
        return result

    @track_calls
    async def run_workflow(self, function: WorkflowFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run another workflow, as a job of its own. If this call is canceled, so is that."""
        result: R = await self._step(function, FunctionKind.WORKFLOW, args, kwargs)
        return result

    @track_calls
    async def sleep(self, delay: timedelta) -> None:
        """Wait for a time, which may be years. A longer wait holds no slot and no worker.

        Raises:
            ValueInvalid: The delay is no timedelta, or longer than five years.
        """
        given: object = delay
        if not isinstance(given, timedelta) or given > FARTHEST:
            raise ValueInvalid(f"sleep takes a timedelta of up to five years, not {delay!r}.")
        await self._until(self.now() + delay)

    @track_calls
    async def sleep_until(self, time: datetime) -> None:
        """Wait until a time; not at all if it is past.

        Raises:
            ValueInvalid: The time is not aware, or more than five years ahead.
        """
        given: object = time
        if not isinstance(given, datetime) or given.tzinfo is None or given > self.now() + FARTHEST:
            raise ValueInvalid(f"sleep_until takes an aware datetime of the next five years, not {time!r}.")
        await self._until(time)

    @overload
    def wait_for(self, event: Event[E], /, *, timeout: timedelta | None = None) -> Coroutine[Any, Any, E]: ...
    @overload
    def wait_for(
        self, event: Event[Any], other: Event[Any], /, *others: Event[Any], timeout: timedelta | None = None
    ) -> Coroutine[Any, Any, tuple[Event[Any], Any]]: ...
    def wait_for(self, *events: Event[Any], timeout: timedelta | None = None) -> Coroutine[Any, Any, Any]:
        """Wait for an event, and give its payload; of several for the first, and give the event and its payload.

        An event that was sent before is received at once. Each is received once, in the order in which they were sent.

        Args:
            *events: The events.
            timeout: The longest wait; None for any.

        Raises:
            EventTimeout: None was sent in time. It can still be received later.
            UsageError: No event is given.
        """
        return self._calls.track(self._wait_for(events, timeout))

    def event_token(self, event: Event[Any], valid_for: timedelta) -> str:
        """Give a token with which somebody sends one event to this run, such as by a link in a mail.

        Its bearer needs no other right: `Event.redeem` takes it, and ``POST /api/event/{token}``. It counts once.
        A replay gives the same one.

        Args:
            event: The event.
            valid_for: The time for which it is good, from now on; up to five years.

        Raises:
            UsageError: It is no event.
            ValueInvalid: The time is none, or is not greater than 0.
        """
        given: object = valid_for
        if not isinstance(given, timedelta) or not timedelta(0) < given <= FARTHEST:
            raise ValueInvalid(f"event_token takes a timedelta of up to five years, not {valid_for!r}.")
        of: object = event
        if not isinstance(of, Event):
            raise UsageError(f"{event!r} is no event.", fix='Declare it with app.event("name", type).')
        return self._body.make_token(job_uuid(self._run), event.name, self.now() + valid_for)

    def publish(self, state: S) -> None:
        """Show a state to others, in place of the last one: ``published`` of the run's status, which live queries read.

        It is stored with the next effect, before the next step begins, or when the run waits or ends. A replay
        publishes nothing again.

        Args:
            state: Anything that JSON can say; or, of a ``WorkflowCtx[State]``, a value of that type.

        Raises:
            LimitExceeded: It is larger than a result may be.
            ValueInvalid: JSON cannot say it, or it is of another type.
        """
        kind = self._body.function.signature.publishes
        text = encode_json(state, "A published state") if kind is Any else encode_any(state, "A published state", kind)
        limit = self._body.most_bytes
        if (size := text_bytes(text)) > limit:
            raise LimitExceeded(
                f"A published state has {size} bytes; it may have {limit}.",
                fix="Store the data in a table, and publish its id.",
                limit=limit,
            )
        self._body.publish(text)

    def restart(self, *args: Any, **kwargs: Any) -> Any:
        """Give what the body returns to begin again with other arguments, such as ``return ctx.restart(page + 1)``.

        The run keeps its id, its published state and the events that it has not received. Its records are deleted, so
        that it can go on for ever. Compensations do not run.

        Args:
            *args: The arguments.
            **kwargs: The arguments by name.

        Raises:
            ArgumentsInvalid: The workflow does not take them.
            LimitExceeded: They are larger than a job's may be.
        """
        self._body.check_inside()
        signature = self._body.function.signature
        return Restart(signature.encode(signature.check(signature.bind(args, kwargs))))

    def compensate(
        self,
        function: MutationFunction[Any, P, Any, Any] | ActionFunction[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Run a mutation or an action as a step if this run fails or is canceled: the last one first.

        Args:
            function: The mutation or action that undoes the step before it.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Raises:
            ContextError: It is another function.
        """
        kind: Any = getattr(function, "kind", None)
        if kind not in {FunctionKind.MUTATION, FunctionKind.ACTION}:
            raise ContextError(f"{function!r} is neither a mutation nor an action, so it undoes nothing.")
        self._body.compensate(lambda: self._step(function, kind, args, kwargs))

    # ----- steps

    async def _wait_for(self, events: tuple[Event[Any], ...], timeout: timedelta | None) -> Any:  # noqa: ASYNC109 - a word of the field
        given: tuple[object, ...] = events
        known = {event.name: event for event in given if isinstance(event, Event)}
        if not events or len(known) < len(events):
            raise UsageError("wait_for takes events, each once.", fix='Declare them with app.event("name", type).')
        names = tuple(known)
        waiting = self._body.call(RecordKind.EVENT, ", ".join(names), events=known)
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                text = await waiting
        except TimeoutError:
            raise EventTimeout(
                f"No event {' or '.join(names)} was sent within {timeout}.", fix="Catch it, or wait longer."
            ) from None
        found = decode_json(text)
        event = known[found["name"]]
        payload = event.decode(encode_json(found["payload"], "A payload"))
        return payload if len(events) == 1 else (event, payload)

    async def _until(self, time: datetime) -> None:
        self._body.check_inside()
        loop = asyncio.get_running_loop()
        when = time.timestamp()
        if when > loop.time():
            woken = loop.create_future()
            timer = loop.call_at(when, _wake, woken)
            try:
                await woken
            finally:
                timer.cancel()

    async def _step(self, function: Any, kind: FunctionKind, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._body.check_inside()
        expect(function, kind)
        function = own_function(self._body.function.component, function)
        self._check(function)
        signature, options = function.signature, self._options
        text = signature.encode(signature.check(signature.bind(args, kwargs)))
        in_pool = options.pool is not None or kind is FunctionKind.WORKFLOW
        if in_pool and options.pool is None:
            options = replace(options, pool=DEFAULT_POOL)
        step = RecordKind.JOB if in_pool else _STEPS[kind]
        return await self._body.call(step, function.name, text, _show(signature.encoder.mask, text), function, options)

    def _check(self, function: AnyFunction) -> None:
        function.check_job("A step")
        if self._registry.find(function.name) is not function:
            raise ContextError(f"{function.name} is not a function of this app.")
        options = self._options
        if (options.retry or options.once) and function.kind is not FunctionKind.ACTION:
            raise UsageError(
                f"{function.name} is {function.kind.with_article}, which is not retried when it raises.",
                fix="Leave out retry, or make the call that may fail in an action.",
            )


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _show(mask: Callable[[Any], Any], text: str) -> str:
    """Arguments as they are shown with a record."""
    return encode_json(mask(decode_json(text)), "Arguments")[:LONGEST_ARGUMENTS]
