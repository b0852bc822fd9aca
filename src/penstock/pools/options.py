"""The options of work in a pool, and the checks of their values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, cast, get_args

from penstock.crons.schedule import LocalTime
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, UsageError, ValueInvalid
from penstock.functions.function import AnyFunction, FunctionKind, MutationFunction
from penstock.jobs.order import FARTHEST, PRIORITIES
from penstock.jobs.retry import Retry
from penstock.pools.pool import PoolDefinition
from penstock.values import is_storable

_CALLED_WITH = ("work_id", "result", "context")
_LONGEST_NAME = 200


OnDuplicate = Literal["return", "reject", "replace", "debounce"]
End = Literal["success", "failed", "canceled"]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The policy when there is work with the same key."""

    # return its id; refuse the new one; or, while it is pending, put the new one in its place: ``replace``, and
    # ``debounce``, which restarts the delay
    does: OnDuplicate = "return"
    max_wait: timedelta | None = None  # how long it may be put off by that, from when the first was enqueued

    @property
    def until_start(self) -> bool:
        """Whether the key is free as soon as the work starts, and not only when it has ended."""
        return self.does in {"replace", "debounce"}


class WorkOptions(TypedDict, total=False):
    """Options of work in a pool; `Workpool.with_options` documents them."""

    retry: bool | Retry | None
    on_complete: MutationFunction[Any, ..., Any, Any] | None
    on_complete_retry: Retry | None
    on_complete_only: tuple[End, ...] | None
    context: Any
    run_at: datetime | LocalTime | None
    run_after: timedelta | None
    name: str | None
    priority: int
    timeout: timedelta | None
    start_deadline: timedelta | None
    deadline: timedelta | None
    concurrency_key: str | None
    key: str | None
    on_duplicate: OnDuplicate
    max_wait: timedelta | None


def change_options(known: WorkOptions, options: Mapping[str, Any]) -> WorkOptions:
    """Options with others in their place; they are checked."""
    names = WorkOptions.__annotations__
    if unknown := sorted(options.keys() - names.keys()):
        raise UsageError(
            f"Work in a pool has no option {unknown[0]!r}.", fix=f"Options are {', '.join(sorted(names))}."
        )
    for name, value in options.items():
        if not (_is_allowed(name, value) if value is not None else name not in _NEVER_NONE):
            raise ValueInvalid(f"{name} takes {_WORDS[name]}, not {value!r}.")
    if options.get("on_complete") is not None:
        _check_on_complete(options["on_complete"])
    changed = {**known, **options}
    given = {name for name, value in changed.items() if value is not None}
    if given >= {"run_at", "run_after"}:
        raise UsageError("run_at and run_after were both given.", fix="Give one of them.")
    if "key" not in given and ("on_duplicate" in options or "max_wait" in given):
        raise UsageError("on_duplicate and max_wait need a key.", fix="Give key too.")
    if changed.get("on_duplicate") == "debounce" and "run_after" not in given:
        raise UsageError("A debounce needs a delay.", fix="Give run_after=timedelta(seconds=…).")
    if "max_wait" in given and changed.get("on_duplicate") != "debounce":
        raise UsageError("max_wait needs a debounce.", fix='Give on_duplicate="debounce".')
    if "on_complete" not in given and (alone := given & {"context", "on_complete_retry", "on_complete_only"}):
        needs = f"{' and '.join(sorted(alone))} need{'s' * (len(alone) == 1)}"
        raise UsageError(f"{needs} an on_complete.", fix="Give on_complete too.")
    return cast("WorkOptions", changed)


def retry_of(asked: bool | Retry | None, function: AnyFunction, pool: PoolDefinition) -> Retry | None:
    """The retry policy of a function's work in a pool; None if it is not retried."""
    if function.kind is not FunctionKind.ACTION:
        if asked:
            raise UsageError(
                f"{function.name} is a {function.kind.value}, which is not retried when it raises. "
                "Conflicts and lost connections are always retried.",
                fix="Leave out retry, or make the call that may fail in an action.",
            )
        return None
    asked = pool.retry_actions_by_default if asked is None else asked
    return asked if isinstance(asked, Retry) else pool.default_retry if asked else None


_NEVER_NONE = frozenset({"priority", "on_duplicate"})
_WORDS = {
    "retry": "True, False or a Retry",
    "on_complete_retry": "a Retry",
    "on_complete_only": f"a tuple of some of {', '.join(get_args(End))}",
    "priority": f"a whole number from {PRIORITIES[0]:,} to {PRIORITIES[-1]:,}",
    "timeout": "a timedelta greater than 0, and of at most five years",
    "start_deadline": "a timedelta greater than 0, and of at most five years",
    "deadline": "a timedelta greater than 0, and of at most five years",
    "name": f"a text of 1 to {_LONGEST_NAME} characters",
    "concurrency_key": f"a text of 1 to {_LONGEST_NAME} characters",
    "key": f"a text of 1 to {_LONGEST_NAME} characters",
    "on_duplicate": f"one of {', '.join(get_args(OnDuplicate))}",
    "max_wait": "a timedelta greater than 0, and of at most five years",
}


def _is_allowed(name: str, value: Any) -> bool:
    match name:
        case "retry" | "on_complete_retry":
            return isinstance(value, Retry) or (name == "retry" and isinstance(value, bool))
        case "on_complete_only":
            return isinstance(value, tuple) and 0 < sum(one in get_args(End) for one in value) == len(value)
        case "priority":
            return type(value) is int and value in PRIORITIES
        case "timeout" | "start_deadline" | "deadline" | "max_wait":
            return isinstance(value, timedelta) and timedelta(0) < value <= FARTHEST
        case "name" | "concurrency_key" | "key":
            return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and is_storable(value)
    return name != "on_duplicate" or value in get_args(OnDuplicate)


def _check_on_complete(function: Any) -> None:
    if not isinstance(function, MutationFunction):
        raise DeclarationError(
            f"on_complete must be a mutation, not {function!r}.", fix="Decorate it with @app.internal_mutation."
        )
    function.check_job("on_complete")
    taken = function.signature.parameters
    if taken != _CALLED_WITH:
        raise DeclarationError(
            f"{function.name} takes {', '.join(taken) or 'nothing'} after its ctx; an on_complete takes "
            f"{', '.join(_CALLED_WITH)}.",
            fix="Write (ctx: MutationCtx, work_id: WorkId, result: WorkResult[…], context: …).",
        )
