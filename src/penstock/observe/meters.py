"""Meters: what a process counts and times, as plain numbers that cost little to move.

Owns the list of meters. Leaves what moves them to `calls/journal`, and showing them to `exposition`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Labels = tuple[str, ...]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True, slots=True)
class Meter:
    """One meter."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: Labels  # what tells its values apart. They are names that a program declares, so there are few of them
    meaning: str  # what it says


METERS = {
    "penstock_jobs_enqueued": Meter("counter", ("pool",), "Jobs that this process has enqueued and committed."),
    "penstock_jobs_started": Meter("counter", ("pool",), "Attempts that this process has started."),
    "penstock_jobs_completed": Meter(
        "counter", ("pool", "status"), "Jobs that have ended in this process: as success, failed, canceled or skipped."
    ),
    "penstock_attempts_failed": Meter("counter", ("pool",), "Attempts that raised or were lost, the last ones too."),
    "penstock_on_complete_failed": Meter("counter", ("pool",), "Calls of an on_complete that raised or were lost."),
    "penstock_start_lag_seconds": Meter("histogram", ("pool",), "From when a job was due to the start of its attempt."),
    "penstock_run_seconds": Meter(
        "histogram", ("pool",), "How long an attempt took, with an on_complete that follows."
    ),
    "penstock_jobs_running": Meter("gauge", ("pool",), "Jobs that run in this process now."),
    "penstock_slots_held": Meter("gauge", ("pool",), "Slots of the pool that the worker of this process holds."),
    "penstock_jobs_ready": Meter("gauge", ("pool",), "Backlog: jobs in the database that may start, up to 100,000."),
    "penstock_jobs_scheduled": Meter(
        "gauge", ("pool",), "Jobs in the database that start later; counted up to 100,000 of all pools."
    ),
    "penstock_oldest_ready_seconds": Meter("gauge", ("pool",), "For how long the oldest job that may start is due."),
    "penstock_max_parallelism": Meter("gauge", ("pool",), "The pool's own limit; 0 while it is paused."),
    "penstock_change_reader_rows": Meter(
        "gauge", ("reader",), "Changes that the reader of the change feed has still to read, up to 10,000."
    ),
    "penstock_change_reader_seconds": Meter(
        "gauge", ("reader",), "For how long the oldest change that the reader has still to read was written."
    ),
    "penstock_change_bytes": Meter("gauge", (), "Bytes that the change feed takes; on SQLite about that many."),
    "penstock_oldest_transaction_seconds": Meter(
        "gauge", (), "For how long the oldest transaction of the database is open, on PostgreSQL, if that may be seen."
    ),
    "penstock_interests_broken": Meter(
        "gauge", ("state",), "Interests that capture no changes, at the last look of the pruner of this process."
    ),
    "penstock_task_runs": Meter(
        "counter", ("task", "outcome"), "Runs of reactive tasks that have ended in this process, retries not counted."
    ),
    "penstock_task_retries": Meter("counter", ("task",), "Attempts at runs that failed here, and are tried again."),
    "penstock_task_run_seconds": Meter(
        "histogram", ("task",), "How long attempts at runs of the task took in this process, failed ones too."
    ),
    "penstock_task_audit_found": Meter(
        "counter", ("task",), "Rows that the audit of this process found otherwise than they were kept, and mended."
    ),
    "penstock_task_ready": Meter("gauge", ("task",), "Runs of the task that may start, up to 100,000 of a pool."),
    "penstock_task_scheduled": Meter(
        "gauge", ("task",), "Runs that start later: debounced, tried again or put off; up to 100,000 of all jobs."
    ),
    "penstock_task_running": Meter("gauge", ("task",), "Runs of the task that are under way, in all processes."),
    "penstock_task_failed": Meter("gauge", ("task",), "Rows whose last run has failed, up to 100,000."),
    "penstock_task_oldest_due_seconds": Meter(
        "gauge", ("task",), "For how long the oldest run that may start is due; 0 if there is none."
    ),
    "penstock_task_lag_seconds": Meter(
        "gauge",
        ("task",),
        "For how long the oldest run that waits is due, counted from when it was due at first, though it failed or was "
        "put off since; 0 if there is none. It looks at up to 100,000 runs.",
    ),
    "penstock_task_reconciled_timestamp_seconds": Meter(
        "gauge", ("task",), "When all rows of the task were looked at last, as a Unix time; not told before."
    ),
    "penstock_task_paused": Meter("gauge", ("task",), "Whether the task is paused: 1 or 0."),
    "penstock_outbox_delivered": Meter("counter", ("outbox",), "Messages that this process has delivered."),
    "penstock_outbox_failed": Meter("counter", ("outbox",), "Attempts to hand a message over that failed here."),
    "penstock_outbox_messages": Meter(
        "gauge",
        ("outbox",),
        "Messages that are still to be delivered, without those parked and rows that were there before the outbox; of "
        "each kind up to 10,000.",
    ),
    "penstock_outbox_seconds": Meter(
        "gauge", ("outbox",), "For how long the oldest of these was written; 0 if there is none."
    ),
    "penstock_outbox_failing": Meter(
        "gauge", ("outbox",), "Messages that have failed and keep others waiting, all or those of their key."
    ),
    "penstock_outbox_halted": Meter(
        "gauge",
        ("outbox",),
        "Whether the outbox, or a key of it, waits for a message whose attempts are used up: 1 or 0.",
    ),
    "penstock_outbox_parked": Meter("gauge", ("outbox",), "Messages that are parked, up to 10,000."),
    "penstock_outbox_paused": Meter("gauge", ("outbox",), "Whether the outbox is paused: 1 or 0."),
    "penstock_database_up": Meter("gauge", (), "Whether the database has answered what is asked here: 1 or 0."),
    "penstock_calls": Meter(
        "counter", ("function", "outcome"), "Runs of functions, as jobs too: success, error or canceled."
    ),
    "penstock_call_seconds": Meter(
        "histogram", ("kind",), "How long runs of functions took, by query, mutation, action."
    ),
    "penstock_conflicts": Meter("counter", ("function",), "Transactions that conflicted with others and ran again."),
}


class Histogram:
    """How values are spread."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self.bounds = bounds  # the upper bounds of the buckets, without the last one, which has none
        self.counts = [0] * (len(bounds) + 1)  # how many values fell into each
        self.total = 0.0  # their sum

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Meters:
    """The meters of one process."""

    def __init__(self) -> None:
        # for each counter its numbers, by labels
        self.counters: dict[str, Counter[Labels]] = {name: Counter() for name in _names("counter")}
        # for each histogram its values, by labels
        self.histograms: dict[str, dict[Labels, Histogram]] = {name: {} for name in _names("histogram")}
        # for each gauge that this process knows by itself: what reads it, by the one label it has
        self.gauges: dict[str, Callable[[], Mapping[str, float]]] = {}

    def add(self, name: str, *labels: str, number: int = 1) -> None:
        self.counters[name][labels] += number

    def observe(self, name: str, value: float, *labels: str) -> None:
        values = self.histograms[name]
        histogram = values.get(labels)
        if histogram is None:
            histogram = values[labels] = Histogram()
        histogram.observe(value)

    def read_gauges(self) -> dict[str, dict[Labels, float]]:
        return {name: {(label,): value for label, value in read().items()} for name, read in self.gauges.items()}


def _names(kind: str) -> list[str]:
    return [name for name, meter in METERS.items() if meter.kind == kind]
