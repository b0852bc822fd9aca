"""The state machine of a job: every move leads somewhere, and only who asks for it leads out of an end."""

from __future__ import annotations

from stage.jobmoves import moves

from penstock.jobs.states import FINISHED, MOVES, RETRIABLE, JobEvent, JobState, next_state


def reachable(state: JobState) -> set[JobState]:
    found, left = {state}, [state]
    while left:
        here = left.pop()
        left += [to for start, _, to in moves() if start is here and to not in found]
        found |= set(left)
    return found


def test_every_state_can_be_reached_and_comes_to_an_end() -> None:
    assert reachable(JobState.PENDING) == set(JobState)
    for state in JobState:
        assert reachable(state) & FINISHED


def test_only_who_asks_leads_out_of_an_end_and_out_of_success_only_to_its_on_complete() -> None:
    assert frozenset({JobState.SUCCESS, JobState.FAILED, JobState.CANCELED, JobState.SKIPPED}) == FINISHED
    out = [(state, event, to) for state, event, to in moves() if state in FINISHED]
    assert out == [
        *((state, JobEvent.RETRIED, JobState.PENDING) for state in (JobState.FAILED, JobState.CANCELED)),
        *((state, JobEvent.RECALLED, JobState.COMPLETING) for state in JobState if state in FINISHED),
    ]
    assert frozenset(state for state, event, _ in out if event is JobEvent.RETRIED) == RETRIABLE


def test_every_event_moves_something_and_only_a_claim_starts_a_job() -> None:
    assert {event for _, event, _ in moves()} == set(JobEvent)
    assert [key for key, to in MOVES.items() if to is JobState.RUNNING] == [
        (JobState.PENDING, JobEvent.CLAIMED), (JobState.RUNNING, JobEvent.HELD),
    ]  # fmt: skip
    assert [event for state, event in MOVES if state is JobState.PENDING] == [
        JobEvent.CLAIMED, JobEvent.CANCELED, JobEvent.SKIPPED,
    ]  # fmt: skip


def test_with_an_on_complete_no_job_ends_before_it_was_called() -> None:
    for (state, event), to in MOVES.items():
        assert next_state(state, event, on_complete=False) is to
        assert next_state(state, event, on_complete=True) is (JobState.COMPLETING if to in FINISHED else to)
    assert {start for start, _, to in moves() if to in FINISHED} == {
        JobState.PENDING, JobState.RUNNING, JobState.COMPLETING,
    }  # fmt: skip
