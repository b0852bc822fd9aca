"""The state machine of a job, as data. The diagram in the docs, the CHECK in SQL and the tests are read from it."""

from __future__ import annotations

import enum


class JobState(enum.Enum):
    """Where a job stands. "Scheduled" is only pending with a later `run_at`."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELED = "canceled"


class JobEvent(enum.Enum):
    """What may happen to a job."""

    CLAIMED = "claimed"  # a worker took it under its lease
    CANCELED = "canceled"  # someone asked for it to stop, in time
    RETURNED = "returned"  # its function returned
    RAISED = "raised"  # its function raised, and an attempt is left
    EXHAUSTED = "exhausted"  # its function raised, and no attempt is left
    SNOOZED = "snoozed"  # it asked to run later; no attempt is used
    HANDED_BACK = "handed_back"  # its worker stopped cleanly before starting it
    LOST = "lost"  # its worker died or lost its lease, and it may run again
    ABANDONED = "abandoned"  # its worker died or lost its lease, and it may not run again


P, R, S, F, C = JobState

MOVES: dict[tuple[JobState, JobEvent], JobState] = {
    (P, JobEvent.CLAIMED): R,
    (P, JobEvent.CANCELED): C,
    (R, JobEvent.RETURNED): S,
    (R, JobEvent.RAISED): P,
    (R, JobEvent.EXHAUSTED): F,
    (R, JobEvent.SNOOZED): P,
    (R, JobEvent.HANDED_BACK): P,
    (R, JobEvent.LOST): P,
    (R, JobEvent.ABANDONED): F,
    (R, JobEvent.CANCELED): C,
}

FINISHED = frozenset(set(JobState) - {state for state, _ in MOVES})


def diagram() -> str:
    """The state machine as a Mermaid diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> pending: enqueued"]
    lines += [f"    {state.value} --> {to.value}: {event.value}" for (state, event), to in MOVES.items()]
    lines += [f"    {state.value} --> [*]" for state in JobState if state in FINISHED]
    return "\n".join(lines)
