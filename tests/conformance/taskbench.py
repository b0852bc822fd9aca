"""Words for tests of reactive tasks: tasks, plans of rows, and ways in which their runs end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from conformance.bench import AGAIN, KEEP, NOW, Bench, after
from conformance.interests import declare, insert, note, run
from penstock.changes.position import Position
from penstock.config import FOR_EVER
from penstock.jobs.job import Job, Options, Outcome, Settlement
from penstock.jobs.settle import settle
from penstock.jobs.states import JobEvent
from penstock.reactive.planning import RowPlan
from penstock.reactive.task import Change, TaskSpec
from penstock.store.nouns.jobs import Room
from penstock.store.nouns.tasks import Move, RecordRow, TaskPlan, TaskRow

HISTORY = 3
POOL = "default"
SPEC = TaskSpec(
    table="conformance_note",
    key=("id",),
    on=("enter", "change"),
    exact=True,
    filter=None,
    watch=None,
    debounce=0.0,
    max_wait=None,
    run_at=None,
    partition=None,
    cleanup="source_deleted",
    keep_for=86400.0,
)


def task_plan(name: str = "task", **declared: Any) -> TaskPlan:
    given: dict[str, Any] = {
        "name": name, "function": "conformance:task", "kind": "mutation", "pool": POOL, "priority": 0,
        "options": Options(retry=AGAIN, keep=FOR_EVER.total_seconds()), "resets": True, "history": HISTORY,
        "version": 1, "signature": "s", "spec": SPEC,
    }  # fmt: skip
    return TaskPlan(**given | declared)


async def task_of(bench: Bench, **declared: Any) -> int:
    rows: Sequence[TaskRow] = await bench.store.tasks.declare([task_plan(**declared)], NOW)
    return rows[0].id


def row(
    task: int,
    key: str,
    change: Change = "enter",
    *,
    runs: bool = True,
    drops: bool = False,
    due: float = 0,
    latest: float | None = None,
    before: str | None = "1",
    after: str | None = "1",
    partition: str | None = None,
    place: int = 0,
    gone: Any = None,
    now: datetime = NOW,
) -> RowPlan:
    """What is to be written about a row; times are seconds from now on."""
    return RowPlan(
        task=task,
        key=key,
        runs=runs,
        drops=drops,
        change=change,
        before=before,
        after=after,
        partition=partition,
        place=place,
        changed_at=now,
        due_at=now + timedelta(seconds=due),
        latest_at=None if latest is None else now + timedelta(seconds=latest),
        gone=gone,
        forgets_at=None,
    )


async def plan(bench: Bench, *rows: RowPlan, at: float = 0) -> int:
    launched = await bench.store.tasks.plan(rows, None, after(at))
    assert launched is not None
    return launched


async def find(bench: Bench, task: int, key: str) -> RecordRow | None:
    return await bench.reading(lambda session: bench.store.tasks.find(session, task, key))


async def found(bench: Bench, task: int, key: str) -> RecordRow:
    record = await find(bench, task, key)
    assert record is not None
    return record


async def claim(bench: Bench, lease: int, pool: str, at: float = 0) -> list[Job]:
    epoch = None if pool == POOL else 1
    return (await bench.store.jobs.claim(lease, 9, [Room(pool, 9, epoch)], after(at))).jobs


def end(job: Job, event: JobEvent = JobEvent.RETURNED, *, at: float = 0) -> Settlement:
    return settle(job, Outcome(event, error="E"), after(at), 0.5, KEEP)


async def a_move(bench: Bench) -> Move:
    await declare(bench, note("all"))
    assert await bench.store.changes.register("tasks", NOW)
    lease = await bench.lease()
    position: Position | None = await bench.store.changes.take("tasks", lease)
    assert position is not None
    await run(bench, insert("a", 1))
    return Move("tasks", lease, position, (await bench.store.changes.read(position, 10)).position)
