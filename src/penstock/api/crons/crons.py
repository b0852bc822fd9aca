"""Crons as programs use them: declared, or created, paused, run and removed while the program runs.

Owns the checks of a cron's function, arguments and options. `crons/cron` decides what is due, and
`services/scheduler` enqueues it.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack
from uuid import UUID

from penstock.api.callers import for_ctx_readers, for_functions, for_programs
from penstock.api.declaring import KINDS, CronDecorator, check_options, ctx_word
from penstock.api.pools.workpool import Workpool
from penstock.api.use import Use
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.ctxkinds import check_ctx, label, refuse_bare
from penstock.crons.cron import CatchUp, Cron, Overlap
from penstock.crons.plan import CronPlan, KeptCron, plan_of, schedule_of, schedule_words
from penstock.crons.schedule import CronExpression, Interval, Schedule
from penstock.dataclass import dataclass
from penstock.errors import ArgumentsInvalid, ContextError, DataError, DeclarationError, UsageError
from penstock.functions.function import AnyFunction, Function, FunctionKind
from penstock.functions.registry import Registry
from penstock.functions.scope import EVERYTHING, Scope
from penstock.jobs.job import JobId, NewJob, Options, job_id
from penstock.jobs.retry import Retry
from penstock.jobs.states import JobState
from penstock.store.nouns.crons import CronMove, CronScope, job_text, run_of
from penstock.values import EPOCH, decode_json, encode_json

AnySchedule = str | timedelta | Schedule

_PLANNED_AT = "planned_at"


class CronOptions(TypedDict, total=False):
    """The options of a cron, without its schedule; see `Crons.declare`."""

    timezone: str | None
    catch_up: CatchUp
    overlap: Overlap | None
    jitter: timedelta
    pool: Workpool | None
    retry: Retry | None


@dataclass(frozen=True, slots=True)
class _DeclaredCron:
    """A declaration with a valid name, schedule and policies."""

    cron: Cron
    function: AnyFunction
    args: Mapping[str, Any]
    pool: Workpool | None
    retry: Retry | None


@dataclass(frozen=True, slots=True)
class CronStatus:
    """The status of a cron.

    Attributes:
        name: Its name.
        schedule: When it is due, in words.
        timezone: The time zone of its schedule.
        function: Name of the function that it runs.
        declared: Whether a program declares it; if not, it was created at run time.
        kept: Whether this program keeps it: it declares it, or has the function of one created at run time.
        paused: Whether it is paused.
        next_at: The next planned time.
        planned_at: The planned time of its last run, if there was one.
        job: The job of that run.
        state: The state of this job; None once its status has expired.
    """

    name: str
    schedule: str
    timezone: str
    function: str
    declared: bool
    kept: bool
    paused: bool
    next_at: datetime
    planned_at: datetime | None
    job: JobId | None
    state: JobState | None


class Crons:
    """The crons of an app.

    Declared ones are made known when a program starts. Of each, at most one run is under way at a time.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._declared: dict[str, _DeclaredCron] = {}

    # ----- declare

    def cron(
        self,
        schedule: AnySchedule,
        *,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[CronOptions],
    ) -> CronDecorator:
        """Declare the mutation or action below, and run it at the times of a schedule.

        The type of its ctx says which of the two it is. The function is internal, unless a decorator of the app stands
        between. A parameter ``planned_at: datetime`` is given the planned time of each run.

        Args:
            schedule: As for `declare`.
            name: What the cron is called; its function's name by default.
            args: As for `declare`.
            **options: As for `declare`.

        Raises:
            DeclarationError: The schedule, the name, an option or the function cannot be; or the name is taken.
        """
        refuse_bare("cron", schedule, '"0 9 * * *"')

        def decorate(handler: Any) -> Any:
            function = self._function_of(handler)
            self.declare(function.name if name is None else name, schedule, function, args, **options)
            return function

        return decorate

    def declare(
        self,
        name: str,
        schedule: AnySchedule,
        function: Function[Any, Any, Any, Any],
        args: Mapping[str, Any] | None = None,
        **options: Unpack[CronOptions],
    ) -> None:
        """Run a function of this app with these arguments at the times of a schedule.

        Args:
            name: Its name: unique in the database, printable ASCII, at most 100 characters.
            schedule: A cron expression as text, a timedelta, or what `CronExpression`, `Interval`, ``daily(…)`` and
                their like give.
            function: A mutation or an action.
            args: Its arguments by name. If it has a parameter ``planned_at`` that is not among them, it is given the
                planned time of each run.
            **options: Any of these.
                ``timezone``: IANA name, for a cron expression as text; UTC by default.
                ``catch_up``: the policy for planned times that were missed: ``"skip"`` runs none of them,
                ``"one"`` only the latest, ``"all"`` each of them, one after another.
                ``overlap``: the policy for a planned time that comes while a run is under way: ``"skip"`` leaves it
                out, ``"wait"`` decides again when that run has ended, which is the default with ``catch_up="all"``.
                ``jitter``: the longest delay of a run; each cron always waits the same part of it.
                ``pool``: a workpool, with options if need be, in which its jobs run.
                ``retry``: for an action outside of pools, when to try again after it raised.

        Raises:
            DeclarationError: The name, the schedule or an option cannot be; or the name is taken.
        """
        if name in self._declared:
            raise DeclarationError(f"There are two crons called {name!r}.", fix="Give one of them another name.")
        declared = _make_cron(name, schedule, function, args, options)
        function.check_job(f"Cron {name!r}", guards=False)
        if self._registry.find(function.name) is not function:
            raise DeclarationError(f"Cron {name!r}: {function.name} is not a function of this app.")
        self._declared[name] = declared

    def adopt(self, crons: Crons, use: Use) -> None:
        """Declare the crons of a component."""
        for declared in crons._declared.values():
            name, pool = use.name("cron", declared.cron.name, self._declared), declared.pool
            function, own = use.functions[declared.function], None if pool is None else use.pool(pool)
            self._declared[name] = replace(
                declared, cron=replace(declared.cron, name=name), function=function, pool=own
            )

    def plans(self, calls: JobCalls) -> list[CronPlan]:
        """The declared ones, with their arguments checked.

        Raises:
            ArgumentsInvalid: A function does not take its arguments.
            UsageError: An option does not fit its function.
        """
        return [_plan_of_declared(calls, declared, known=True) for declared in self._declared.values()]

    def functions(self) -> builtins.list[tuple[str, str]]:
        """The names of the declared ones, each with that of its function."""
        return [(name, declared.function.name) for name, declared in self._declared.items()]

    def scope(self, within: Scope = EVERYTHING) -> CronScope:
        """The crons that this program keeps, or those of them that a process runs."""
        if within.crons is not None:
            return CronScope(within.crons, ())
        functions = [function.name for function in self._registry if function.kind is not FunctionKind.QUERY]
        return CronScope(list(self._declared), functions)

    # ----- at run time

    @for_functions
    async def create(
        self,
        calls: JobCalls,
        name: str,
        schedule: AnySchedule,
        function: Function[Any, Any, Any, Any],
        args: Mapping[str, Any] | None = None,
        **options: Unpack[CronOptions],
    ) -> None:
        """Create a cron; in a mutation it exists if and only if the transaction commits. It takes what `declare` takes.

        Raises:
            DataError: The name is taken.
            DeclarationError: The name, the schedule or an option cannot be.
            ArgumentsInvalid: The function does not take these arguments.
        """
        declared, name = _make_cron(name, schedule, function, args, options), calls.name(name)
        function.check_job(f"Cron {name!r}", guards=False)
        declared = replace(declared, function=calls.function(function), cron=replace(declared.cron, name=name))
        plan = _plan_of_declared(calls, declared)

        if name in self._declared or not await calls.write(
            lambda one: one.change_cron(one.store.crons.create(one.session, plan, one.now))
        ):
            raise DataError(f"There is a cron called {name!r}.", fix="Remove it first, or choose another name.")

    @for_functions
    async def remove(self, calls: JobCalls, name: str) -> bool:
        """Remove a cron that was created at run time, or that no program declares any more; whether there was one.

        A run that is enqueued or under way goes on.

        Raises:
            UsageError: This program declares it, or another one with a name does.
        """
        name = calls.name(name)
        if name in self._declared:
            raise UsageError(
                f"The cron {name!r} is declared by this program, which would create it again.",
                fix="Remove its declaration, or pause it.",
            )
        for one in await calls.read(calls.store.programs.list):
            if (one.noun, one.name) == ("cron", name) and one.program not in {"", self._registry.program}:
                fix = f"Pause it. If that program is gone: penstock forget {one.program}"
                raise UsageError(f"The cron {name!r} is declared by program {one.program!r}.", fix=fix)

        return await calls.write(lambda one: one.change_cron(one.store.crons.remove(one.session, name)))

    @for_functions
    async def pause(self, calls: JobCalls, name: str) -> None:
        """Run a cron no more, on all machines and over restarts, until `resume`. A run under way goes on.

        Raises:
            DataError: There is no such cron.
        """
        await _pause(calls, calls.name(name), pause=True)

    @for_functions
    async def resume(self, calls: JobCalls, name: str) -> None:
        """Run a cron again, from its next planned time on. Times planned while it was paused are not caught up.

        Raises:
            DataError: There is no such cron.
        """
        await _pause(calls, calls.name(name), pause=False)

    @for_programs()
    async def run(self, calls: JobCalls, name: str) -> JobId:
        """Run a cron now, even while it is paused; the id of the job.

        Raises:
            DataError: There is no such cron, or a run of it is under way.
            ContextError: The ctx is one of a transaction, which cannot see whether a run is under way.
        """
        name = calls.name(name)
        if calls.in_transaction:
            raise ContextError("A cron cannot be run inside a transaction.", fix="Do it in an action.")
        now, uuid = calls.now(), UUID(int=calls.engine.clock.uuid7())

        async def decide(crons: builtins.list[tuple[KeptCron, bool]]) -> builtins.list[CronMove]:
            ((kept, under_way),) = crons
            if under_way and kept.job_id is not None:
                raise DataError(
                    f"A run of the cron {name!r} is under way: {job_id(kept.job_id)}.", fix="Wait for it, or cancel it."
                )
            return [CronMove(replace(kept, job_id=uuid, planned_at=now), run_of(kept.plan, now, now, uuid))]

        if not await calls.store.crons.start(name, now, decide):
            raise _no_such_cron(name)
        calls.store.signals.notify()
        return job_id(uuid)

    @for_ctx_readers
    async def list(self, calls: JobCalls) -> builtins.list[CronStatus]:
        """All crons that the database knows, by name."""
        found = await calls.read(lambda session: calls.store.crons.list(session, calls.now()))
        scope = self.scope()
        return [_status(kept, state, scope) for kept, state in found]

    def _function_of(self, handler: Any) -> AnyFunction:
        if isinstance(handler, Function):
            return handler
        function: AnyFunction = _kind_of(handler)(handler, public=False)
        check_ctx(function)
        self._registry.add(function)
        return function


async def _pause(calls: JobCalls, name: str, *, pause: bool) -> None:
    if not await calls.write(
        lambda one: one.change_cron(one.store.crons.pause(one.session, name, one.now, pause=pause))
    ):
        raise _no_such_cron(name)


def _status(kept: KeptCron, state: str | None, scope: CronScope) -> CronStatus:
    plan = kept.plan
    try:
        schedule, timezone = schedule_words(schedule_of(plan.schedule))
    except DeclarationError:  # such as a time zone that this machine does not know
        schedule, timezone = plan.schedule, ""
    return CronStatus(
        name=plan.name,
        schedule=schedule,
        timezone=timezone,
        function=plan.function,
        declared=plan.declared,
        kept=plan.name in scope.names if plan.declared else plan.function in scope.functions,
        paused=kept.paused,
        next_at=kept.next_at,
        planned_at=kept.planned_at,
        job=None if kept.job_id is None else job_id(kept.job_id),
        state=None if state is None else JobState(state),
    )


def _no_such_cron(name: str) -> DataError:
    return DataError(
        f"The database knows no cron {name!r}.", fix="See penstock crons, or start the program that declares it once."
    )


def _make_cron(
    name: str,
    schedule: AnySchedule,
    function: AnyFunction,
    args: Mapping[str, Any] | None,
    options: CronOptions,
) -> _DeclaredCron:
    found: Any = function
    if not isinstance(found, Function) or found.kind is FunctionKind.QUERY:
        raise DeclarationError(
            f"Cron {name!r}: it runs a mutation or an action, not {function!r}.",
            fix="Decorate the function with @app.internal_mutation or @app.internal_action.",
        )
    check_options(f"Cron {name!r}", options, CronOptions)
    pool, retry, catch_up = options.get("pool"), options.get("retry"), options.get("catch_up", "one")
    cron = Cron(
        name,
        _schedule(name, schedule, options.get("timezone")),
        catch_up,
        options.get("overlap") or ("wait" if catch_up == "all" else "skip"),
        options.get("jitter", timedelta(0)),
    )
    for word, given, kind in (("pool", pool, Workpool), ("retry", retry, Retry)):
        if given is not None and not isinstance(given, kind):
            raise DeclarationError(f"Cron {name!r}: {word} takes a {kind.__name__}, not {given!r}.")
    if pool is not None and retry is not None:
        raise DeclarationError(
            f"Cron {name!r}: pool and retry were both given.", fix="Write pool=pool.with_options(retry=…)."
        )
    if retry is not None and function.kind is not FunctionKind.ACTION:
        raise DeclarationError(
            f"Cron {name!r}: {function.name} is a mutation, which is not retried when it raises.",
            fix="Leave out retry, or make the call that may fail in an action.",
        )
    named: object = {} if args is None else args
    if not isinstance(named, Mapping):
        what = f"{function.name} takes its arguments by name, in a mapping, not {args!r:.200}."
        raise ArgumentsInvalid(f"Cron {name!r}: {what}")
    return _DeclaredCron(cron, function, {**named}, pool, retry)


def _schedule(name: str, given: object, timezone: str | None) -> Schedule:
    if isinstance(given, str):
        return CronExpression(given, "UTC" if timezone is None else timezone)
    if timezone is not None:
        raise DeclarationError(
            f"Cron {name!r}: only a cron expression given as text takes timezone=.",
            fix='Write CronExpression("0 9 * * *", "Europe/Prague"), or daily(…, timezone="Europe/Prague").',
        )
    if isinstance(given, timedelta):
        return Interval(given)
    if isinstance(given, CronExpression | Interval):
        return given
    raise DeclarationError(
        f"Cron {name!r}: {given!r} is no schedule.",
        fix='Write "0 9 * * *", timedelta(hours=1), or daily("report", hour=9).',
    )


def _plan_of_declared(calls: JobCalls, declared: _DeclaredCron, *, known: bool = False) -> CronPlan:
    """The plan to store; `known` says that the program declares the cron, instead of creating it at run time."""
    function, args = declared.function, declared.args
    takes = _PLANNED_AT in function.signature.parameters and _PLANNED_AT not in args
    job = _job(calls, declared, {**args, _PLANNED_AT: EPOCH} if takes else args)
    if takes:
        given = decode_json(calls.store.encryption.decrypt(job.args))
        del given[_PLANNED_AT]
        job = replace(job, args=calls.store.encryption.encrypt(encode_json(given, "The arguments")))
    return plan_of(declared.cron, function=function.name, job=job_text(job), takes_planned_at=takes, declared=known)


def _job(calls: JobCalls, declared: _DeclaredCron, arguments: Mapping[str, Any]) -> NewJob:
    function = declared.function
    if declared.pool is None:
        options = Options(name=declared.cron.name, retry=declared.retry)
        return calls.new_job(function, arguments, calls.now(), options=options)
    job = declared.pool.job(calls, function, arguments)
    if job.options.key is not None:
        raise UsageError(
            f"Cron {declared.cron.name!r}: its pool options have a key, but only one run is in progress at a time.",
            fix="Leave it out.",
        )
    if job.run_at > calls.now():
        raise UsageError(
            f"Cron {declared.cron.name!r}: its pool options have run_at or run_after, which contradict its schedule.",
            fix="Leave them out; to spread its runs, use jitter.",
        )
    return job


def _kind_of(handler: Any) -> Any:
    """The kind of function that a handler is, by the type of its ctx."""
    kind = KINDS.get(ctx_word(handler))
    if kind is None:
        raise DeclarationError(
            f"@app.cron: {label(handler)} does not say whether it is a mutation or an action.",
            fix="Write (ctx: MutationCtx) or (ctx: ActionCtx), or put @app.internal_mutation between.",
        )
    return kind
