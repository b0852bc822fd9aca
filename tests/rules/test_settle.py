"""What becomes of a job when an attempt has ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from penstock.jobs.job import NO_OPTIONS, Job, Options, Outcome
from penstock.jobs.retry import Retry
from penstock.jobs.settle import MAX_LOSSES, settle
from penstock.jobs.states import MOVES, JobEvent, JobState

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


def test_a_job_without_retries_that_raised_has_failed() -> None:
    found = settled(JobEvent.RAISED, error="ValueError: x", traceback="File …")
    assert (found.state, found.event, found.error, found.traceback) == (
        JobState.FAILED, JobEvent.EXHAUSTED, "ValueError: x", "File …",
    )  # fmt: skip


def test_a_job_that_raised_is_tried_until_its_attempts_are_used_up() -> None:
    waits = []
    for attempt in (1, 2):
        found = settled(JobEvent.RAISED, replace(JOB, options=Options(retry=RETRY), attempt=attempt), error="x")
        assert (found.state, found.event, found.attempt) == (JobState.PENDING, JobEvent.RAISED, attempt)
        waits.append(found.run_at - NOW)
    assert waits == [timedelta(seconds=10), timedelta(seconds=20)]
    last = settled(JobEvent.RAISED, replace(JOB, options=Options(retry=RETRY), attempt=3), error="x")
    assert (last.state, last.event, last.attempt) == (JobState.FAILED, JobEvent.EXHAUSTED, 3)


def test_an_error_that_is_final_ends_the_job_whatever_is_left() -> None:
    found = settled(JobEvent.RAISED, replace(JOB, options=Options(retry=RETRY)), retryable=False)
    assert (found.state, found.event) == (JobState.FAILED, JobEvent.EXHAUSTED)


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


def test_a_canceled_job_ends_canceled() -> None:
    found = settled(JobEvent.CANCELED, replace(JOB, options=Options(retry=RETRY)))
    assert (found.state, found.event) == (JobState.CANCELED, JobEvent.CANCELED)


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
