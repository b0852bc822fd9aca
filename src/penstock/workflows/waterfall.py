"""The steps and waits of a run, as people look at them: each with its beginning, its end and its outcome.

A sleep has no call in the history: it lasts from the thing before it until its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from penstock.dataclass import dataclass
from penstock.values import decode_json
from penstock.workflows.record import Record, RecordKind

PARKED, WAITS = "WorkflowParked: ", "Waits"  # the beginnings of reasons
_WHAT = {RecordKind.TIMER: "sleep", RecordKind.CANCEL: "told to cancel"}


def doing_of(state: str, reason: str | None) -> str:
    """Say what a run does: it waits, is parked, or has the state of its job.

    Args:
        state: The state of its job.
        reason: The error of its job, or the reason why that waits.
    """
    if state != "pending" or reason is None:
        return state
    return "parked" if reason.startswith(PARKED) else "waiting" if reason.startswith(WAITS) else state


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run, or another thing that its body has learned.

    Attributes:
        number: The number of the call, from 1; below 0 for what is no call.
        kind: The kind of call: query, mutation, action, job, event or patch; timer or cancel for what is none.
        what: The function, the events or the patch.
        state: ``done``, ``failed``, ``retries`` while it waits for its next attempt, or ``runs``.
        began_at: When the body made the call.
        ended_at: When its outcome was known; None if it is not.
        args: Its arguments without secrets; the beginning of their text, if they are long.
        result: Its result as JSON has it.
        error: Type and message of its error.
        attempts: Attempts at it that have failed or begun, if they are counted.
        due_at: When its next attempt begins.
        job: The id of the job that runs it, as a UUID.
    """

    number: int
    kind: str
    what: str
    state: str
    began_at: datetime
    ended_at: datetime | None
    args: Any = None
    result: Any = None
    error: str | None = None
    attempts: int = 0
    due_at: datetime | None = None
    job: str | None = None


Reveal = Callable[
    [Record], Mapping[str, Any] | None
]  # the outcome of a record, as `outcome` writes it, without secrets


def steps_of(records: Iterable[Record], reveal: Reveal) -> list[RunStep]:
    """Make the steps of a run from its records, in the order in which they began."""
    known = [record for record in records if record.kind is not RecordKind.BEGIN]
    return sorted(_steps(known, reveal), key=lambda one: (one.began_at, one.number < 0, one.number))


def _steps(records: list[Record], reveal: Reveal) -> Iterator[RunStep]:
    last = None
    for record in sorted(records, key=lambda one: (one.place is None, one.place or 0)):
        outcome, is_open = reveal(record) or {}, record.outcome is None and record.place is None
        error = outcome.get("error")
        yield RunStep(
            record.number,
            record.kind.value,
            record.function or _WHAT.get(record.kind, ""),
            "failed" if error else "done" if not is_open else "retries" if record.due_at else "runs",
            record.made_at or (last if record.kind is RecordKind.TIMER and last else record.at),
            None if is_open else record.at,
            _arguments(record.args),
            outcome.get("result"),
            None if error is None else f"{_short(error['types'])}: {error['text']}",
            record.attempts,
            record.due_at if is_open else None,
            None if record.job is None else str(record.job),
        )
        last = record.at


def _arguments(text: str | None) -> Any:
    try:
        return None if text is None else decode_json(text)
    except ValueError:
        return text  # it was shortened


def _short(types: list[str]) -> str:
    return types[0].partition(":")[2] if types else "Exception"
