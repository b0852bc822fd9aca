"""What work in a pool is asked for beside its function: which options there are, and which values they may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

from penstock.errors import DeclarationError, UsageError, ValueInvalid
from penstock.functions.function import AnyFunction, MutationFunction
from penstock.jobs.retry import Retry

_CALLED_WITH = ("work_id", "result", "context")
_PRIORITIES = range(-32_000, 32_001)
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """Options of work in a pool; `calls.workpool.Workpool.with_options` says what each means."""

    retry: bool | Retry | None = None
    on_complete: AnyFunction | None = None
    on_complete_retry: Retry | None = None
    context: Any = None
    run_at: datetime | None = None
    run_after: timedelta | None = None
    name: str | None = None
    priority: int = 0
    timeout: timedelta | None = None

    def changed(self, options: Mapping[str, Any]) -> WorkOptions:
        """The same with these changed.

        Raises:
            UsageError: There is no such option, or two exclude each other.
            ValueInvalid: An option cannot have this value.
            DeclarationError: on_complete is no mutation that takes what it is called with.
        """
        unknown = sorted(options.keys() - _NAMES)
        if unknown:
            raise UsageError(
                f"Work in a pool has no option {unknown[0]!r}.", fix=f"Options are {', '.join(sorted(_NAMES))}."
            )
        for name, value in options.items():
            if value is not None and not _allowed(name, value):
                raise ValueInvalid(f"{name} takes {_WORDS[name]}, not {value!r}.")
        if options.get("on_complete") is not None:
            _check_on_complete(options["on_complete"])
        changed = replace(self, **options)
        if changed.run_at is not None and changed.run_after is not None:
            raise UsageError("run_at and run_after were both given.", fix="Give one of them.")
        return changed


_NAMES = frozenset(field.name for field in fields(WorkOptions))
_WORDS = {
    "retry": "True, False or a Retry",
    "on_complete_retry": "a Retry",
    "priority": f"a whole number from {_PRIORITIES[0]:,} to {_PRIORITIES[-1]:,}",
    "timeout": "a timedelta greater than 0",
    "name": f"a text of 1 to {_LONGEST_NAME} characters",
}


def _allowed(name: str, value: Any) -> bool:
    match name:
        case "retry":
            return isinstance(value, bool | Retry)
        case "on_complete_retry":
            return isinstance(value, Retry)
        case "priority":
            return type(value) is int and value in _PRIORITIES
        case "timeout":
            return isinstance(value, timedelta) and value > timedelta(0)
        case "name":
            return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME
    return True


def _check_on_complete(function: Any) -> None:
    if not isinstance(function, MutationFunction):
        raise DeclarationError(
            f"on_complete must be a mutation, not {function!r}.", fix="Decorate it with @app.internal_mutation."
        )
    taken = function.signature.parameters
    if taken != _CALLED_WITH:
        raise DeclarationError(
            f"{function.name} takes {', '.join(taken) or 'nothing'} beside its ctx; an on_complete takes "
            f"{', '.join(_CALLED_WITH)}.",
            fix="Write (ctx: MutationCtx, work_id: WorkId, result: WorkResult[…], context: …).",
        )
