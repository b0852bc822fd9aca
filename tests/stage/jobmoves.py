"""All moves of a job, with its on_complete: what `jobs.states` says of most of them, and tests of the others."""

from __future__ import annotations

from penstock.jobs.states import FINISHED, MOVES, JobEvent, JobState

# The events of a job whose on_complete is due or under way. COMPLETED leads to the end that was known before,
# and RECALLED back from there, if the on_complete had raised for the last time.
STAYS = (JobEvent.RAISED, JobEvent.SNOOZED, JobEvent.HANDED_BACK, JobEvent.LOST)


def moves() -> list[tuple[JobState, JobEvent, JobState]]:
    """All moves there are, with and without an on_complete: from, event, to."""
    return [
        *((state, event, to) for (state, event), to in MOVES.items()),
        *((state, event, JobState.COMPLETING) for (state, event), to in MOVES.items() if to in FINISHED),
        *((JobState.COMPLETING, event, JobState.COMPLETING) for event in STAYS),
        *((JobState.COMPLETING, JobEvent.COMPLETED, to) for to in JobState if to in FINISHED),
        *((end, JobEvent.RECALLED, JobState.COMPLETING) for end in JobState if end in FINISHED),
    ]
