"""A declared cron: the checks of its function, arguments and options, and the plan that is stored of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypedDict

from penstock.api.declaring import KINDS
from penstock.api.pools.workpool import Workpool
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.ctxkinds import annotation_of, named, word_of
from penstock.crons.cron import CatchUp, Cron, Overlap
from penstock.crons.plan import CronPlan, plan_of
from penstock.crons.schedule import EPOCH, CronExpression, Interval, Schedule
from penstock.errors import DeclarationError, UsageError
from penstock.functions.function import AnyFunction, Function, FunctionKind
from penstock.jobs.job import NewJob, Options
from penstock.jobs.retry import Retry
from penstock.store.rows.crons import job_text
from penstock.values import decode_json, encode_json

AnySchedule = str | timedelta | Schedule

_PLANNED_AT = "planned_at"


class CronOptions(TypedDict, total=False):
    """The options of a cron beside its schedule; see `Crons.declare`."""

    timezone: str | None
    catch_up: CatchUp
    overlap: Overlap | None
    jitter: timedelta
    pool: Workpool | None
    retry: Retry | None


@dataclass(frozen=True, slots=True)
class DeclaredCron:
    """A declaration with a valid name, schedule and policies."""

    cron: Cron
    function: AnyFunction
    args: Mapping[str, Any]
    pool: Workpool | None
    retry: Retry | None


def declared_cron(
    name: str,
    schedule: AnySchedule,
    function: AnyFunction,
    args: Mapping[str, Any] | None,
    options: CronOptions,
) -> DeclaredCron:
    """Check a declaration of a cron."""
    found: Any = function
    if not isinstance(found, Function) or found.kind is FunctionKind.QUERY:
        raise DeclarationError(
            f"Cron {name!r}: it runs a mutation or an action, not {function!r}.",
            fix="Decorate the function with @app.internal_mutation or @app.internal_action.",
        )
    unknown = sorted(options.keys() - CronOptions.__annotations__.keys())
    if unknown:
        raise DeclarationError(
            f"Cron {name!r}: there is no option {unknown[0]!r}.",
            fix=f"Options are {', '.join(sorted(CronOptions.__annotations__))}.",
        )
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
    return DeclaredCron(cron, function, dict(args or {}), pool, retry)


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


def plan_of_declared(calls: JobCalls, declared: DeclaredCron, *, known: bool = False) -> CronPlan:
    """The plan to store; `known` says that the program declares the cron, instead of creating it at run time."""
    function, args = declared.function, declared.args
    takes = _PLANNED_AT in function.signature.parameters and _PLANNED_AT not in args
    job = _job(calls, declared, {**args, _PLANNED_AT: EPOCH} if takes else args)
    if takes:
        given = decode_json(job.args)
        del given[_PLANNED_AT]
        job = replace(job, args=encode_json(given, "The arguments"))
    return plan_of(declared.cron, function=function.name, job=job_text(job), takes_planned_at=takes, declared=known)


def _job(calls: JobCalls, declared: DeclaredCron, arguments: Mapping[str, Any]) -> NewJob:
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


def kind_of(handler: Any) -> Any:
    """The kind of function that a handler is, by the type of its ctx."""
    parameters = list(inspect.signature(handler).parameters.values()) if callable(handler) else []
    kind = KINDS.get(word_of(annotation_of(handler, parameters[0])) if parameters else "")
    if kind is None:
        raise DeclarationError(
            f"@app.cron: {named(handler)} does not say whether it is a mutation or an action.",
            fix="Write (ctx: MutationCtx) or (ctx: ActionCtx), or put @app.internal_mutation between.",
        )
    return kind
