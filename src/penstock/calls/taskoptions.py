"""What a reactive task may be asked for beside its filter and its watch, and what its jobs are asked for then."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypedDict

from penstock.calls.workpool import Workpool
from penstock.errors import DeclarationError
from penstock.jobs.job import DEFAULT_POOL, Options
from penstock.jobs.retry import Retry
from penstock.jobs.settle import FOR_EVER
from penstock.reactive.breaker import CircuitBreaker
from penstock.reactive.task import Cause, Cleanup, OnVersionChange

RETRY = Retry(max_attempts=5, initial_backoff=10.0, base=2.0, max_backoff=86_400.0)
_OF_TASK = (
    "debounce", "max_wait", "run_at", "key", "priority", "history", "cleanup", "keep_for", "version",
    "on_version_change",
)  # fmt: skip


class TaskOptions(TypedDict, total=False):
    """What a reactive task may be asked for; see `ReactiveTasks.reactive_task`."""

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


def given_of(options: TaskOptions) -> dict[str, Any]:
    """What was asked for, as `ReactiveTask` takes it.

    Raises:
        DeclarationError: There is no such option.
    """
    unknown = sorted(options.keys() - TaskOptions.__annotations__.keys())
    if unknown:
        raise DeclarationError(f"@app.reactive_task: there is no option {unknown[0]}.")
    given: dict[str, Any] = {word: options[word] for word in _OF_TASK if word in options}  # type: ignore[literal-required]
    if "on" in options:
        given["on"] = tuple(options["on"])
    pool = options.get("pool")
    given["pool"] = DEFAULT_POOL if pool is None else pool.name
    given["resets"] = options.get("reset_retries_on_data_change", True)
    given["reconciles"] = options.get("reconcile_on_trigger_change", True)
    return given


def job_options(options: TaskOptions) -> Options:
    """What the jobs of a task are asked for.

    Raises:
        DeclarationError: It cannot be.
    """
    retry: Any = options.get("retry", RETRY)
    if retry is not None and not isinstance(retry, Retry):
        raise DeclarationError(f"@app.reactive_task: retry is a Retry or None, not {retry!r}.")
    return Options(retry=retry, timeout=_seconds(options.get("timeout")), keep=FOR_EVER.total_seconds())


def breaker_of(options: TaskOptions) -> CircuitBreaker | None:
    """The circuit breaker that was asked for.

    Raises:
        DeclarationError: It is none.
    """
    breaker: Any = options.get("breaker")
    if breaker is not None and not isinstance(breaker, CircuitBreaker):
        raise DeclarationError(f"@app.reactive_task: breaker is a CircuitBreaker or None, not {breaker!r}.")
    return breaker


def _seconds(timeout: timedelta | None) -> float | None:
    if timeout is None:
        return None
    given: Any = timeout
    if not isinstance(given, timedelta) or given <= timedelta(0):
        raise DeclarationError(f"@app.reactive_task: timeout is a timedelta greater than 0, not {timeout!r}.")
    return given.total_seconds()
