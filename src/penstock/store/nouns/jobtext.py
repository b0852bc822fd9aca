"""The parts of a job that are stored as JSON: its options with their retry policies, its ending, and its attempts.

A policy as plain SQL writes it is a list: max_attempts, initial_backoff, base, max_backoff. All others are objects,
whose keys are the arguments with which they are declared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from penstock.errors import DeclarationError
from penstock.jobs.job import NO_OPTIONS, Attempt, Ending, Options
from penstock.jobs.progress import Progress, progress_from
from penstock.jobs.retry import LONGEST, Exponential, Fixed, Linear, Retry, Series, Ticks
from penstock.jobs.states import JobState
from penstock.workflows.record import RecordKind

_LEFT_OVER = ("unread", "broken")
_OPTIONS = tuple(field.name for field in fields(Options) if field.name not in _LEFT_OVER)
_RETRIES = ("retry", "on_complete_retry")
_TIMES_OF_ENDING = ("finished_at", "started_at", "run_at", "failing_since")
_OF_ENDING, _OF_ATTEMPT = (tuple(field.name for field in fields(kind)) for kind in (Ending, Attempt))
_NONE = type(None)
_TAKE: Mapping[str, tuple[type, ...]] = {  # `keep` takes anything: a value that is no time means for ever
    **dict.fromkeys(
        ("name", "context", "concurrency_key", "key", "trace", "program", "run", "on_complete_only", "starter"),
        (str, _NONE),
    ),
    **dict.fromkeys(("timeout", "start_deadline", "deadline"), (int, float, _NONE)),
    **dict.fromkeys(("until_start", "restartable"), (bool, _NONE)),
    **dict.fromkeys(("task", "depth"), (int, _NONE)),
}
_SHORT = 500
_WAITS = (1, 3)
UNREADABLE = (DeclarationError, TypeError, ValueError)
_MAKERS: Mapping[str, Callable[..., Retry]] = {
    "exponential": Retry,
    "fixed": Retry.fixed,
    "linear": Retry.linear,
    "series": Retry.series,
    "cron": Retry.cron,
}


def options_text(options: Options) -> str | None:
    """A job's options as stored; None for those of most jobs, which have none."""
    if options is NO_OPTIONS:
        return None
    own = options.context or options.concurrency_key or options.key or options.trace or options.starter
    return _options_text(options) if own else _common_text(options)


def _options_text(options: Options) -> str:
    given = {field: value for field in _OPTIONS if (value := getattr(options, field)) is not None}
    given |= {field: retry_form(given[field]) for field in _RETRIES if field in given}
    for left in _LEFT_OVER:
        if (text := getattr(options, left)) is not None:
            given |= json.loads(text)
    return json.dumps(given)


_common_text = lru_cache(1024)(_options_text)  # those of a pool's jobs are mostly the same


def options_of(text: str | None) -> Options:
    """A job's stored options."""
    if text is None:
        return NO_OPTIONS
    return _few_options(text) if len(text) <= _SHORT else _options(text)


def _options(text: str) -> Options:
    try:
        given = json.loads(text, parse_constant=_refuse)
    except ValueError:
        given = None
    if not isinstance(given, dict):  # left to a version that can read it, as any other options
        return Options(unread=json.dumps({"options": text}))
    unread = {name: given.pop(name) for name in [*given] if name not in _OPTIONS}
    for field in _RETRIES:
        if field in given:
            try:
                given[field] = retry_of(given[field])
            except UNREADABLE:
                unread[field] = given.pop(field)
    broken = {name: given.pop(name) for name, types in _TAKE.items() if type(given.get(name)) not in types}
    if "key" in broken:
        given["key"] = str(broken["key"])  # for others to have the key that it holds, it has to know that it has one
    return Options(**given, unread=_text(unread), broken=_text(broken))


def _text(left: Mapping[str, Any]) -> str | None:
    return json.dumps(left) if left else None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON to databases")


_few_options = lru_cache(1024)(_options)  # those of a pool's jobs are mostly the same


def ending_text(ending: Ending | None) -> str | None:
    """The ending of a job, as stored."""
    if ending is None:
        return None
    given: dict[str, Any] = {name: getattr(ending, name) for name in _OF_ENDING} | {"state": ending.state.value}
    given |= {word: _time_text(getattr(ending, word)) for word in _TIMES_OF_ENDING}
    given["attempts"] = [_attempt_form(attempt) for attempt in ending.attempts]
    return json.dumps(given, ensure_ascii=False)


def ending_of(text: str | None) -> Ending | None:
    """The ending of a job, from its stored form."""
    if text is None:
        return None
    given = json.loads(text)
    times: dict[str, Any] = {word: _time_of(given.pop(word, None)) for word in _TIMES_OF_ENDING}
    attempts = tuple(map(_attempt_of, given.pop("attempts", None) or ()))
    return Ending(state=JobState(given.pop("state")), attempts=attempts, **times, **given)


def attempt_text(attempt: Attempt | None) -> str | None:
    """An attempt that failed, as stored."""
    return None if attempt is None else json.dumps(_attempt_form(attempt), ensure_ascii=False)


def attempts_text(attempts: Sequence[Attempt]) -> str | None:
    """Attempts that failed, as stored."""
    return json.dumps([_attempt_form(one) for one in attempts], ensure_ascii=False) if attempts else None


def _attempt_form(attempt: Attempt) -> dict[str, Any]:
    given = {name: getattr(attempt, name) for name in _OF_ATTEMPT}
    given |= {"started_at": attempt.started_at.isoformat(), "ended_at": attempt.ended_at.isoformat()}
    given["failing_since"] = _time_text(attempt.failing_since)
    if attempt.failing_since is None:
        del given["failing_since"]
    return given


def attempts_of(text: str | None) -> tuple[Attempt, ...]:
    """Attempts that failed, from their stored form."""
    return () if text is None else tuple(map(_attempt_of, json.loads(text)))


def _attempt_of(given: dict[str, Any]) -> Attempt:
    times = {word: datetime.fromisoformat(given[word]) for word in ("started_at", "ended_at")}
    return Attempt(**{**given, **times, "failing_since": _time_of(given.get("failing_since"))})


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _time_of(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


# ----- retry policies


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
        return Retry(*map(_limit_wait, form, range(len(form))))
    if not isinstance(form, dict) or form.get("type") not in _MAKERS:
        raise ValueError("no known retry policy")
    given = {name: value for name, value in form.items() if name != "type"}
    return _MAKERS[form["type"]](**given)


def _limit_wait(part: Any, place: int) -> Any:
    """A part of a list whose second and last parts are waits."""
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


FORMS: Mapping[Any, Callable[[Any], Any]] = {  # by type, what reads such parts from their columns
    Options: options_of,
    Ending: ending_of,
    tuple[Attempt, ...]: attempts_of,
    Progress: progress_from,
    JobState: JobState,
    RecordKind: RecordKind,
}
