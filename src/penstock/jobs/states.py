"""The state machine of a job, as data. The diagram in the docs and the CHECK in SQL are tested against it."""

from __future__ import annotations

import enum
from collections.abc import Callable


class JobState(enum.Enum):
    """The state of a job. "Scheduled" is only pending with a later `run_at`."""

    __hash__ = object.__hash__  # there is one of each; Enum's own is written in Python, and asked many times for a job

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"  # its end is known, and its on_complete is still to run
    SUCCESS = "success"
    FAILED = "failed"
    CANCELED = "canceled"
    SKIPPED = "skipped"  # there was nothing to do any more: the row that it was for is gone, or has changed


class JobEvent(enum.Enum):
    """The events of a job."""

    __hash__ = object.__hash__

    CLAIMED = "claimed"  # a worker took it under its lease
    CANCELED = "canceled"  # someone asked for it to stop, in time
    RETURNED = "returned"  # its function returned
    SKIPPED = "skipped"  # its row is gone or has changed: of reactive tasks only
    RAISED = "raised"  # its function raised, and an attempt is left
    EXHAUSTED = "exhausted"  # its function raised, and no attempt is left
    SNOOZED = "snoozed"  # it asked to run later; no attempt is used
    HELD = "held"  # its function returned, and an outside system will complete it; it keeps its slot, but no worker
    HANDED_BACK = "handed_back"  # its worker stopped cleanly before starting it
    LOST = "lost"  # its worker died or lost its lease, and it may run again
    ABANDONED = "abandoned"  # its worker died or lost its lease, and it may not run again
    COMPLETED = "completed"  # its on_complete has returned, or raised for the last time
    RECALLED = "recalled"  # someone asked for its on_complete to be called again, which had raised for the last time
    RETRIED = "retried"  # someone asked for it to run again, after it had failed or was canceled


P, R, E, S, F, C, K = JobState

MOVES: dict[tuple[JobState, JobEvent], JobState] = {
    (P, JobEvent.CLAIMED): R,
    (P, JobEvent.CANCELED): C,
    (P, JobEvent.SKIPPED): K,
    (R, JobEvent.RETURNED): S,
    (R, JobEvent.RAISED): P,
    (R, JobEvent.EXHAUSTED): F,
    (R, JobEvent.SNOOZED): P,
    (R, JobEvent.HELD): R,
    (R, JobEvent.HANDED_BACK): P,
    (R, JobEvent.LOST): P,
    (R, JobEvent.ABANDONED): F,
    (R, JobEvent.CANCELED): C,
    (R, JobEvent.SKIPPED): K,
    (F, JobEvent.RETRIED): P,
    (C, JobEvent.RETRIED): P,
}

# The words of filters: states, and stages of a pending job, which starts now, later, or later as it has failed.
STAGES = tuple(dict.fromkeys(["pending", "ready", "scheduled", "retrying", *(state.value for state in JobState)]))
CANCELABLE = ("pending", "ready", "scheduled", "retrying", "running")
FINISHED = frozenset({S, F, C, K})
RETRIABLE = frozenset({F, C})
FAILED_ATTEMPT = frozenset({JobEvent.RAISED, JobEvent.EXHAUSTED, JobEvent.LOST, JobEvent.ABANDONED})


def next_state(state: JobState, event: JobEvent, is_followed: Callable[[JobState], bool]) -> JobState:
    """The state that an event leads to, from anywhere but completing; an on_complete may follow an end."""
    to = MOVES[state, event]
    return JobState.COMPLETING if to in FINISHED and is_followed(to) else to
