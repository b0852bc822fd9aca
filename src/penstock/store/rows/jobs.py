"""Jobs as rows: the conversion that both stores share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from penstock.codec import Ciphertext, is_encrypted
from penstock.jobs.job import NO_OPTIONS, Attempt, Ending, Job, JobStatus, Options, job_id
from penstock.jobs.progress import progress_from
from penstock.jobs.states import JobState
from penstock.store.rows.retries import UNREADABLE, retry_form, retry_of
from penstock.values import decode_json

_DAYS = 16
LONG_DAY = -1
_LEFT_OVER = ("unread", "broken")
_OPTIONS = tuple(field.name for field in fields(Options) if field.name not in _LEFT_OVER)
_RETRIES = ("retry", "on_complete_retry")
_TIMES_OF_ENDING = ("finished_at", "started_at", "run_at", "failing_since")
_NONE = type(None)
_TAKE: Mapping[str, tuple[type, ...]] = {  # `keep` takes anything: a value that is no time means for ever
    **dict.fromkeys(("name", "context", "concurrency_key", "key", "trace", "program"), (str, _NONE)),
    "timeout": (int, float, _NONE),
    "until_start": (bool, _NONE),
    "task": (int, _NONE),
}
_SHORT = 500
_LONGEST_IN_RING = timedelta(days=_DAYS - 3)
_EPOCH_ORDINAL = datetime(1970, 1, 1).toordinal()  # noqa: DTZ001 - only its day is used


def options_text(options: Options) -> str | None:
    """A job's options as stored; None for those of most jobs, which have none."""
    if options is NO_OPTIONS:
        return None
    own = options.context or options.concurrency_key or options.key or options.trace
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
    given: dict[str, Any] = asdict(ending) | {"state": ending.state.value}
    given |= {word: _time_text(getattr(ending, word)) for word in _TIMES_OF_ENDING}
    given["attempts"] = [_attempt_form(attempt) for attempt in ending.attempts]
    return json.dumps(given, ensure_ascii=False)


def ending_of(text: str | None) -> Ending | None:
    """The ending of a job, from its stored form."""
    if text is None:
        return None
    given = json.loads(text)
    times: dict[str, Any] = {word: time_of(given.pop(word, None)) for word in _TIMES_OF_ENDING}
    attempts = tuple(map(_attempt_of, given.pop("attempts", None) or ()))
    return Ending(state=JobState(given.pop("state")), attempts=attempts, **times, **given)


def attempt_text(attempt: Attempt | None) -> str | None:
    """An attempt that failed, as stored."""
    return None if attempt is None else json.dumps(_attempt_form(attempt), ensure_ascii=False)


def attempts_text(attempts: Sequence[Attempt]) -> str | None:
    """Attempts that failed, as stored."""
    return json.dumps([_attempt_form(one) for one in attempts], ensure_ascii=False) if attempts else None


def _attempt_form(attempt: Attempt) -> dict[str, Any]:
    times = {"started_at": attempt.started_at.isoformat(), "ended_at": attempt.ended_at.isoformat()}
    given = asdict(attempt) | times | {"failing_since": _time_text(attempt.failing_since)}
    if attempt.failing_since is None:
        del given["failing_since"]
    return given


def attempts_of(text: str | None) -> tuple[Attempt, ...]:
    """Attempts that failed, from their stored form."""
    return () if text is None else tuple(map(_attempt_of, json.loads(text)))


def _attempt_of(given: dict[str, Any]) -> Attempt:
    times = {word: datetime.fromisoformat(given[word]) for word in ("started_at", "ended_at")}
    return Attempt(**{**given, **times, "failing_since": time_of(given.get("failing_since"))})


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def time_of(text: str | None) -> datetime | None:
    """A point in time, from its stored form."""
    return None if text is None else datetime.fromisoformat(text)


def job_of(row: Sequence[Any]) -> Job:
    """A job from its row, in the order of the query `running`."""
    uuid, function, kind, args, run_at, pool, priority, options, on_complete, ending, *rest = row
    attempt, enqueued_at, started_at, failing_since, *marked = rest
    return Job(
        uuid,
        function,
        kind,
        args,
        run_at,
        pool,
        priority,
        options_of(options),
        on_complete,
        ending_of(ending),
        attempt,
        enqueued_at,
        started_at,
        None if failing_since is None else datetime.fromisoformat(failing_since),
        marked=bool(marked and marked[0]),
    )


def status_of(row: Sequence[Any], reveal: Callable[[str], str]) -> JobStatus:
    """A job's status from its row, in the order of the query `find`; `reveal` decrypts."""
    uuid, function, args, state, attempt, run_at, enqueued_at, started_at, finished_at, result, error, *rest = row
    traceback, pool, on_complete_error, attempts, priority, options, on_complete, progress, calls = rest
    return JobStatus(
        id=job_id(UUID(int=uuid.int)),
        function=function,
        args=decode_json(reveal(args)),
        state=JobState(state),
        attempt=attempt,
        run_at=run_at,
        enqueued_at=enqueued_at,
        started_at=started_at,
        finished_at=finished_at,
        result=None if result is None else _shown(reveal(result)),
        error=error,
        traceback=traceback,
        pool=pool,
        on_complete_error=on_complete_error,
        attempts=attempts_of(attempts),
        priority=priority,
        options=options_of(options).with_context(reveal),
        on_complete=on_complete,
        progress=progress_from(progress),
        on_complete_attempts=attempts_of(calls),
    )


def _shown(text: str) -> Any:
    return Ciphertext(decode_json(text)) if is_encrypted(text) else decode_json(text)


def day_of(expires_at: datetime, now: datetime) -> int:
    """The partition of a finished job, by the day on which its status expires."""
    if expires_at - now > _LONGEST_IN_RING:
        return LONG_DAY
    return (expires_at.toordinal() - _EPOCH_ORDINAL) % _DAYS


def expired_day(now: datetime) -> int:
    """The partition in which every status has expired, and into which none is being written: yesterday's."""
    return (now.toordinal() - _EPOCH_ORDINAL - 1) % _DAYS
