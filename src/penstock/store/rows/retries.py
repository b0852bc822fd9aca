"""Retry policies as JSON: as they are stored with jobs, and as they are shown.

A policy as plain SQL writes it is a list: max_attempts, initial_backoff, base, max_backoff. All others are objects,
whose keys are the arguments with which they are declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import DeclarationError
from penstock.jobs.retry import LONGEST, Exponential, Fixed, Linear, Retry, Series, Ticks

_WAITS = (1, 3)
UNREADABLE = (DeclarationError, TypeError, ValueError)
_MAKERS: Mapping[str, Callable[..., Retry]] = {
    "exponential": Retry,
    "fixed": Retry.fixed,
    "linear": Retry.linear,
    "series": Retry.series,
    "cron": Retry.cron,
}


def retry_form(policy: Retry) -> Any:
    """A policy as it is stored."""
    waits = policy.waits
    if isinstance(waits, Exponential) and policy.max_attempts is not None and policy.max_duration is None:
        return [policy.max_attempts, waits.initial_backoff, waits.base, waits.max_backoff]
    return retry_parts(policy)


def retry_parts(policy: Retry) -> dict[str, Any]:
    """The parts of a policy by name; lengths of time are in seconds."""
    parts: dict[str, Any] = {**_waits(policy), "max_attempts": policy.max_attempts}
    if policy.max_duration is not None:
        parts["max_duration"] = policy.max_duration.total_seconds()  # the SQL that claims looks for this name
    return parts


def retry_of(form: Any) -> Retry:
    """A policy, from its stored form; waits that plain SQL has written too long become the longest allowed.

    Raises:
        DeclarationError, TypeError or ValueError: It is none that this version knows.
    """
    if isinstance(form, list):
        return Retry(*map(_bounded, form, range(len(form))))
    if not isinstance(form, dict) or form.get("type") not in _MAKERS:
        raise ValueError("no known retry policy")
    given = {name: value for name, value in form.items() if name != "type"}
    return _MAKERS[form["type"]](**given)


def _bounded(part: Any, place: int) -> Any:
    """A part of a list, of which the second and the last are waits."""
    return min(part, LONGEST) if place in _WAITS and type(part) in {int, float} else part


def _waits(policy: Retry) -> dict[str, Any]:
    match policy.waits:
        case Exponential(initial_backoff, base, max_backoff):
            parts = {"initial_backoff": initial_backoff, "base": base, "max_backoff": max_backoff}
            return {"type": "exponential", **parts}
        case Fixed(wait, jitter):
            return {"type": "fixed", "wait": wait, "jitter": jitter}
        case Linear(wait, jitter):
            return {"type": "linear", "wait": wait, "jitter": jitter}
        case Series(waits, jitter):
            return {"type": "series", "waits": list(waits), "jitter": jitter}
        case Ticks(cron, jitter):
            return {"type": "cron", "expression": cron.expression, "timezone": cron.timezone, "jitter": jitter}
