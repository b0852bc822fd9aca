"""The options of a reactive task beside its filter and its watch, and the options of its jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypedDict

from penstock.api.pools.workpool import Workpool
from penstock.config import FOR_EVER
from penstock.errors import DeclarationError
from penstock.functions.batch import LARGEST_BATCH, LONGEST_LINGER
from penstock.jobs.job import DEFAULT_POOL, Options
from penstock.jobs.retry import Retry
from penstock.reactive.task import DEFAULT_ON, LONGEST_WAIT, Cause, CircuitBreaker, Cleanup, OnVersionChange

RETRY = Retry(max_attempts=5, initial_backoff=10.0, base=2.0, max_backoff=86_400.0)
_OF_TASK = (
    "debounce", "max_wait", "run_at", "key", "priority", "history", "cleanup", "keep_for", "version",
    "on_version_change",
)  # fmt: skip


class TaskOptions(TypedDict, total=False):
    """The options of a reactive task; see `ReactiveTasks.reactive_task`."""

    on: Sequence[Cause]
    name: str | None
    debounce: timedelta
    max_wait: timedelta | None
    retry: Retry | None
    reset_retries_on_data_change: bool
    timeout: timedelta | None
    pool: Workpool | None
    priority: int
    key: str | None
    run_at: str | None
    history: int
    cleanup: Cleanup
    keep_for: timedelta
    version: int
    on_version_change: OnVersionChange
    reconcile_on_trigger_change: bool
    batch: int | None
    linger: timedelta
    breaker: CircuitBreaker | None


def given_of(options: TaskOptions, handler: str) -> dict[str, Any]:
    """The options as `ReactiveTask` takes them; the name of the handler is that of the task by default."""
    unknown = sorted(options.keys() - TaskOptions.__annotations__.keys())
    if unknown:
        raise DeclarationError(
            f"@app.reactive_task: there is no option {unknown[0]}.",
            fix=f"Options are {', '.join(sorted(TaskOptions.__annotations__))}.",
        )
    given: dict[str, Any] = {word: options[word] for word in _OF_TASK if word in options}  # type: ignore[literal-required]
    name = options.get("name")
    given["name"] = handler if name is None else name
    for word, (allowed, words) in _OTHERS.items():
        value: Any = options.get(word)
        if word in options and not (allowed(value) or (value is None and "None" in words)):
            raise DeclarationError(f"Reactive task {given['name']!r}: {word} is {words}, not {value!r}.")
    on: Any = options.get("on", DEFAULT_ON)
    given["on"] = tuple(sorted(on, key=str) if isinstance(on, (set, frozenset)) else on) if _is_several(on) else on
    pool = options.get("pool")
    given["pool"] = DEFAULT_POOL if pool is None else pool.name
    given["resets"] = options.get("reset_retries_on_data_change", True)
    given["reconciles"] = options.get("reconcile_on_trigger_change", True)
    return given


def job_options(options: TaskOptions) -> Options:
    """The options of the jobs of a task, from options that `given_of` has checked."""
    timeout = options.get("timeout")
    return Options(
        retry=options.get("retry", RETRY),
        timeout=None if timeout is None else timeout.total_seconds(),
        keep=FOR_EVER.total_seconds(),
    )


def _is_several(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset))


def _is_time(value: Any, longest: timedelta) -> bool:
    return isinstance(value, timedelta) and timedelta(0) <= value <= longest


_OTHERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "retry": (lambda value: isinstance(value, Retry), "a Retry or None"),
    "timeout": (
        lambda value: _is_time(value, LONGEST_WAIT) and bool(value),
        "None or a timedelta greater than 0, up to a year",
    ),
    "pool": (lambda value: isinstance(value, Workpool), "a workpool of the app or None"),
    "batch": (
        lambda value: type(value) is int and 1 <= value <= LARGEST_BATCH,
        f"None or an integer from 1 to {LARGEST_BATCH:,}",
    ),
    "linger": (lambda value: _is_time(value, LONGEST_LINGER), "a timedelta from 0 to a minute"),
    "breaker": (lambda value: isinstance(value, CircuitBreaker), "a CircuitBreaker or None"),
}
