"""What becomes of a job when an attempt has ended, the states it has, and the order of jobs that age."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from conformance.moves import moves
from hypothesis import given
from hypothesis import strategies as st

from penstock.jobs.job import NO_OPTIONS, Job, Options, Outcome
from penstock.jobs.order import NO_AGEING, PRIORITIES, rank
from penstock.jobs.retry import Retry
from penstock.jobs.settle import MAX_LOSSES, settle
from penstock.jobs.states import FINISHED, MOVES, RETRIABLE, JobEvent, JobState, next_state

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = Job(
    id=UUID(int=1), function="shop:send", kind="action", args="{}", run_at=NOW - timedelta(hours=1), pool="default",
    priority=0, options=NO_OPTIONS, on_complete=None, ending=None,
    attempt=1, enqueued_at=NOW - timedelta(hours=2), started_at=NOW - timedelta(minutes=1),
)  # fmt: skip
RETRY = Retry(max_attempts=3, initial_backoff=10, base=2)


def settled(event: JobEvent, job: Job = JOB, chance: float = 0.5, **outcome: Any) -> Any:
    return settle(job, Outcome(event, **outcome), NOW, chance)


def test_a_job_that_returned_has_succeeded() -> None:
    found = settled(JobEvent.RETURNED, result='{"x": 1}')
    assert (found.id, found.state, found.event, found.attempt) == (JOB.id, JobState.SUCCESS, JobEvent.RETURNED, 1)
    assert (found.result, found.error, found.finished_at, found.run_at) == ('{"x": 1}', None, NOW, JOB.run_at)
    assert found.expires_at == NOW + timedelta(days=7)
    kept = settle(JOB, Outcome(JobEvent.RETURNED), NOW, 0.5, timedelta(seconds=5))
    assert kept.expires_at == NOW + timedelta(seconds=5)


def test_a_job_that_raised_is_tried_until_its_attempts_are_used_up() -> None:
    waits = []
    for attempt in (1, 2):
        found = settled(JobEvent.RAISED, replace(JOB, options=Options(retry=RETRY), attempt=attempt), error="x")
        assert (found.state, found.event, found.attempt) == (JobState.PENDING, JobEvent.RAISED, attempt)
        waits.append(found.run_at - NOW)
    assert waits == [timedelta(seconds=10), timedelta(seconds=20)]
    last = settled(JobEvent.RAISED, replace(JOB, options=Options(retry=RETRY), attempt=3), error="x")
    assert (last.state, last.event, last.attempt) == (JobState.FAILED, JobEvent.EXHAUSTED, 3)


@pytest.mark.parametrize("event", [JobEvent.SNOOZED, JobEvent.HANDED_BACK])
def test_what_is_no_failure_uses_no_attempt(event: JobEvent) -> None:
    found = settled(event, replace(JOB, attempt=2), delay=timedelta(minutes=5))
    assert (found.state, found.event, found.attempt) == (JobState.PENDING, event, 1)
    assert found.run_at == NOW + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("kind", "retry", "most"), [("action", None, 1), ("action", RETRY, 3), ("mutation", None, MAX_LOSSES)]
)
def test_a_lost_job_runs_again_if_that_can_do_no_harm(kind: Any, retry: Retry | None, most: int) -> None:
    events = [
        settled(JobEvent.LOST, replace(JOB, kind=kind, options=Options(retry=retry), attempt=n)).event
        for n in range(1, most + 2)
    ]
    assert events == [JobEvent.LOST] * (most - 1) + [JobEvent.ABANDONED] * 2
    ended = settled(
        JobEvent.LOST, replace(JOB, kind=kind, options=Options(retry=retry), attempt=most), error="WorkerLost: …"
    )
    assert (ended.state, ended.error) == (JobState.FAILED, "WorkerLost: …")


def test_a_job_lost_once_runs_at_once_and_one_lost_again_waits() -> None:
    mutation = replace(JOB, kind="mutation")
    waits = [settled(JobEvent.LOST, replace(mutation, attempt=n)).run_at - NOW for n in range(1, MAX_LOSSES)]
    assert waits == [timedelta(0), *(timedelta(seconds=seconds) for seconds in (2, 4, 8))]


def test_every_event_of_a_running_job_has_its_move() -> None:
    outcomes = {event for state, event in MOVES if state is JobState.RUNNING} - {JobEvent.EXHAUSTED, JobEvent.ABANDONED}
    for event in outcomes:
        for job in (JOB, replace(JOB, options=Options(retry=RETRY)), replace(JOB, kind="mutation", attempt=99)):
            found = settled(event, job)
            assert found.state is MOVES[JobState.RUNNING, found.event]
            assert (found.run_at >= NOW) == (found.state is JobState.PENDING)


@pytest.mark.parametrize("event", [JobEvent.RAISED, JobEvent.LOST])
def test_a_job_gives_up_when_its_time_is_over_and_remembers_when_that_began(event: JobEvent) -> None:
    policy = Options(retry=Retry.fixed(60, max_duration=timedelta(hours=1)))
    job = replace(JOB, options=policy)
    first = settled(event, job, error="x")
    assert (first.state, first.failed.failing_since) == (JobState.PENDING, NOW)
    for since, state in ((timedelta(hours=1), JobState.PENDING), (timedelta(hours=1, seconds=1), JobState.FAILED)):
        found = settled(event, replace(job, attempt=2, failing_since=NOW - since), error="x")
        assert (found.state, found.failed.failing_since) == (state, NOW - since)
    unknown = settled(event, replace(job, attempt=2), error="x")
    assert (unknown.state, unknown.failed.failing_since) == (JobState.PENDING, NOW), "it begins now"
    plain = settled(event, replace(JOB, options=Options(retry=RETRY)), error="x")
    assert plain.failed.failing_since is None


def test_a_lost_job_with_unlimited_attempts_waits_longer_each_time() -> None:
    job = replace(JOB, options=Options(retry=Retry.fixed(0, max_attempts=None)))
    waits = [(settled(JobEvent.LOST, replace(job, attempt=n)).run_at - NOW).total_seconds() for n in (1, 2, 3, 50)]
    assert waits == [0, 2, 4, 60]


@pytest.mark.parametrize("kind", ["action", "mutation"])
def test_of_options_that_cannot_be_read_no_end_follows(kind: Any) -> None:
    job = replace(JOB, kind=kind, options=Options(unread='{"retry": 5}'), attempt=99)
    for event in (JobEvent.RAISED, JobEvent.LOST):
        found = settled(event, job, error="x")
        assert (found.state, found.run_at) == (JobState.PENDING, NOW + timedelta(seconds=60))
    assert settled(JobEvent.RAISED, job, error="x", retryable=False).state is JobState.FAILED


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


def test_with_an_on_complete_no_job_ends_before_it_was_called() -> None:
    for (state, event), to in MOVES.items():
        assert next_state(state, event, lambda _end: False) is to
        assert next_state(state, event, lambda _end: True) is (JobState.COMPLETING if to in FINISHED else to)
    assert {start for start, _, to in moves() if to in FINISHED} == {
        JobState.PENDING, JobState.RUNNING, JobState.COMPLETING,
    }  # fmt: skip


TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis adds it
STEPS = st.integers(PRIORITIES[0], PRIORITIES[-1])
AGEING = st.timedeltas(timedelta(milliseconds=1), NO_AGEING)


@given(TIMES, STEPS, st.none() | AGEING)
def test_a_rank_fits_a_column(run_at: datetime, priority: int, ageing: timedelta | None) -> None:
    assert -(2**63) <= rank(run_at, priority, ageing) < 2**63


@given(TIMES, TIMES, TIMES, STEPS, STEPS, AGEING)
def test_the_most_urgent_of_any_moment_comes_first(
    one: datetime, other: datetime, moment: datetime, high: int, low: int, ageing: timedelta
) -> None:
    def urgency(run_at: datetime, priority: int) -> int:
        """Priority and waiting time, in microseconds of waiting."""
        return priority * (ageing // timedelta.resolution) + (moment - run_at) // timedelta.resolution

    before = rank(one, high, ageing) < rank(other, low, ageing)
    assert before == (urgency(one, high) > urgency(other, low))
