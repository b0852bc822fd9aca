"""Meters: the counts and times of a process, as plain numbers that cost little to move.

Owns the list of meters. `calls/journal` moves them, and `exposition` shows them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Literal

from penstock.dataclass import dataclass

Labels = tuple[str, ...]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True, slots=True)
class Meter:
    kind: Literal["counter", "gauge", "histogram"]
    labels: Labels  # its labels. They are names that a program declares, so there are few of them
    meaning: str  # its help text


METERS = {
    "penstock_jobs_enqueued": Meter("counter", ("pool",), "Jobs that this process enqueued and committed."),
    "penstock_jobs_started": Meter("counter", ("pool",), "Attempts that this process started."),
    "penstock_jobs_completed": Meter(
        "counter", ("pool", "status"), "Jobs that ended as success, failed, canceled or skipped."
    ),
    "penstock_attempts_failed": Meter("counter", ("pool",), "Attempts that raised or were lost."),
    "penstock_on_complete_failed": Meter("counter", ("pool",), "Calls of an on_complete that raised or were lost."),
    "penstock_start_lag_seconds": Meter(
        "histogram", ("pool",), "Time from a job's due time to the start of its attempt."
    ),
    "penstock_run_seconds": Meter("histogram", ("pool",), "Duration of an attempt, with its on_complete."),
    "penstock_jobs_running": Meter("gauge", ("pool",), "Jobs that this process runs now."),
    "penstock_slots_held": Meter("gauge", ("pool",), "Slots of the pool that this process's worker holds."),
    "penstock_jobs_ready": Meter("gauge", ("pool",), "Backlog: jobs that may start, up to 100,000."),
    "penstock_jobs_scheduled": Meter("gauge", ("pool",), "Jobs that start later, up to 100,000 in all pools."),
    "penstock_oldest_ready_seconds": Meter("gauge", ("pool",), "Time since the oldest ready job was due."),
    "penstock_max_parallelism": Meter("gauge", ("pool",), "The pool's own limit; 0 while paused."),
    "penstock_change_reader_rows": Meter("gauge", ("reader",), "Unread changes of a reader, up to 10,000."),
    "penstock_change_reader_seconds": Meter("gauge", ("reader",), "Age of the reader's oldest unread change."),
    "penstock_change_bytes": Meter("gauge", (), "Bytes of the change feed; an estimate on SQLite."),
    "penstock_oldest_transaction_seconds": Meter(
        "gauge", (), "Age of the oldest open transaction on PostgreSQL, if the role may see it."
    ),
    "penstock_interests_broken": Meter("gauge", ("state",), "Interests that capture no changes."),
    "penstock_task_runs": Meter("counter", ("task", "outcome"), "Runs that ended in this process."),
    "penstock_task_retries": Meter("counter", ("task",), "Failed attempts that are retried."),
    "penstock_task_run_seconds": Meter("histogram", ("task",), "Duration of attempts, failed ones included."),
    "penstock_task_audit_found": Meter("counter", ("task",), "Rows with a wrong record that an audit repaired."),
    "penstock_task_ready": Meter("gauge", ("task",), "Runs that may start, up to 100,000 per pool."),
    "penstock_task_scheduled": Meter("gauge", ("task",), "Runs that start later, up to 100,000 of all jobs."),
    "penstock_task_running": Meter("gauge", ("task",), "Runs in progress, in all processes."),
    "penstock_task_failed": Meter("gauge", ("task",), "Rows whose last run failed, up to 100,000."),
    "penstock_task_oldest_due_seconds": Meter(
        "gauge", ("task",), "Time since the oldest ready run was due; 0 without one."
    ),
    "penstock_task_lag_seconds": Meter(
        "gauge",
        ("task",),
        "Time since the oldest waiting run was first due, retries and deferrals included. Reads up to 100,000 runs.",
    ),
    "penstock_task_reconciled_timestamp_seconds": Meter(
        "gauge", ("task",), "Unix time of the last check of all rows; absent before the first."
    ),
    "penstock_task_paused": Meter("gauge", ("task",), "1 while the task is paused."),
    "penstock_workflow_started": Meter("counter", ("workflow",), "Runs that began in this process."),
    "penstock_workflow_ended": Meter(
        "counter", ("workflow", "outcome"), "Runs that ended as success, failed or canceled."
    ),
    "penstock_workflow_steps": Meter("counter", ("workflow", "outcome"), "Steps that ended as success or error."),
    "penstock_workflow_replay_seconds": Meter("histogram", ("workflow",), "Duration of a replay."),
    "penstock_workflow_running": Meter("gauge", ("workflow",), "Active runs, in all processes."),
    "penstock_workflow_waiting": Meter(
        "gauge", ("workflow",), "Runs that wait or are parked, up to 100,000 scheduled jobs."
    ),
    "penstock_outbox_delivered": Meter("counter", ("outbox",), "Messages that this process delivered."),
    "penstock_outbox_failed": Meter("counter", ("outbox",), "Failed attempts in this process."),
    "penstock_outbox_messages": Meter(
        "gauge",
        ("outbox",),
        "Messages to deliver, up to 10,000 of each kind, without parked ones and the backfill.",
    ),
    "penstock_outbox_seconds": Meter("gauge", ("outbox",), "Age of the oldest of these messages; 0 without one."),
    "penstock_outbox_failing": Meter("gauge", ("outbox",), "Failed messages that block the outbox or their key."),
    "penstock_outbox_halted": Meter(
        "gauge", ("outbox",), "1 while the outbox or a key waits for a message without attempts left."
    ),
    "penstock_outbox_parked": Meter("gauge", ("outbox",), "Parked messages, up to 10,000."),
    "penstock_outbox_paused": Meter("gauge", ("outbox",), "1 while the outbox is paused."),
    "penstock_live_clients": Meter("gauge", (), "Sockets, event streams and iterators that watch queries."),
    "penstock_live_watched": Meter("gauge", (), "Queries that these watch."),
    "penstock_live_entries": Meter("gauge", (), "Different queries, watched or kept for a while."),
    "penstock_live_bytes": Meter("gauge", (), "Bytes of their answers, as JSON."),
    "penstock_live_runs": Meter("counter", ("function", "outcome"), "Runs of watched queries, as changed or equal."),
    "penstock_live_transitions": Meter("counter", (), "Transitions sent over web sockets."),
    "penstock_live_tick_seconds": Meter("histogram", (), "Duration of a tick of all watched queries."),
    "penstock_database_up": Meter("gauge", (), "1 if the database answered this scrape."),
    "penstock_calls": Meter("counter", ("function", "outcome"), "Runs of functions, as success, error or canceled."),
    "penstock_call_seconds": Meter("histogram", ("kind",), "Duration of runs of functions."),
    "penstock_conflicts": Meter("counter", ("function",), "Transactions that conflicted and ran again."),
}


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self.bounds = bounds  # the upper bounds of the buckets, without the last one, which has none
        self.counts = [0] * (len(bounds) + 1)  # how many values fell into each
        self.total = 0.0  # their sum

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Meters:
    def __init__(self) -> None:
        # for each counter its numbers, by labels
        self.counters: dict[str, Counter[Labels]] = {name: Counter() for name in _names("counter")}
        # for each histogram its values, by labels
        self.histograms = {name: defaultdict[Labels, Histogram](Histogram) for name in _names("histogram")}
        # for each gauge that this process knows by itself: the functions that read it, by its one label, or by ""
        self.gauges: dict[str, Callable[[], Mapping[str, float]]] = {}

    def add(self, name: str, *labels: str, number: int = 1) -> None:
        self.counters[name][labels] += number

    def observe(self, name: str, value: float, *labels: str) -> None:
        self.histograms[name][labels].observe(value)

    def read_gauges(self) -> dict[str, dict[Labels, float]]:
        return {
            name: {(label,) if label else (): value for label, value in read().items()}
            for name, read in self.gauges.items()
        }


def _names(kind: str) -> list[str]:
    return [name for name, meter in METERS.items() if meter.kind == kind]
