"""Reactive tasks on SQLite: whoever writes a record and its job is the only one who writes."""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.clock import Clock
from penstock.config import FOR_EVER
from penstock.jobs.job import Job, Mark, Settlement
from penstock.jobs.states import JobEvent, JobState
from penstock.reactive.planning import RowPlan
from penstock.reactive.reconciling import Kept
from penstock.store.contract.session import OpenTransaction, Row, Session, reading, writing
from penstock.store.contract.tasks import HELD, Move, Progress, RecordRow, TaskPlan, TaskRow
from penstock.store.rows.tasks import (
    is_unkeyed,
    newly,
    plan_values,
    progress_values,
    record_of,
    runs_otherwise,
    task_of,
)
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.changes import SqliteChanges
from penstock.store.sqlite.dialect import SQLITE, encode_datetime
from penstock.store.sqlite.jobrows import time_of
from penstock.store.sqlite.jobs import SqliteJobs
from penstock.store.sqlite.session import Begin
from penstock.store.sqlite.taskends import SqliteTaskEnds

_LAST = 2**62  # no row has changed so often


class SqliteTasks:
    """See `store.tasks.Tasks`."""

    def __init__(
        self,
        begin_read: Begin,
        begin_write: Begin,
        changes: SqliteChanges,
        jobs: SqliteJobs,
        ends: SqliteTaskEnds,
        clock: Clock,
    ) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._changes = changes
        self._jobs = jobs
        self._ends = ends
        self._clock = clock
        self._queries = load_queries("tasks", SQLITE)

    async def declare(self, plans: Sequence[TaskPlan], now: datetime) -> builtins.list[TaskRow]:
        """Make the tasks of a program known."""
        if not plans:
            return []
        known = {row.plan.name: row for row in await self.list()}
        if any(newly(plan, known.get(plan.name))[0] for plan in plans):  # who finds all as it is takes no lock
            async with writing(self._begin_write) as session:
                known = {row.plan.name: row for row in await self._list(session)}
                for plan in plans:
                    await self._declare(session, plan, known.get(plan.name), now)
        names = {plan.name for plan in plans}
        return [row for row in await self.list() if row.plan.name in names]

    async def list(self) -> builtins.list[TaskRow]:
        """All tasks by name."""
        async with reading(self._begin_read) as session:
            return await self._list(session)

    async def plan(
        self,
        rows: Sequence[RowPlan],
        move: Move | None,
        now: datetime,
        progress: Sequence[Progress] = (),
    ) -> int | None:
        """Write what is planned, and move the reader on with it; how many jobs there are more."""
        session = await self._begin_write()
        try:
            launched = await self._plan(session, rows, now) if rows else 0
            if move is not None and not await self._changes.move(
                session, move.reader, move.lease, move.before, move.after, now
            ):
                return None
            for one in progress:
                if not await self._fetch(
                    session,
                    "progress",
                    **progress_values(one),
                    now=encode_datetime(now),
                    declared_at=encode_datetime(one.task.declared_at),
                ):
                    return None
            await session.commit()
        finally:
            await session.rollback()
        return launched

    async def hold(self, task: int, until: datetime) -> None:
        """Let none of a task's jobs start until a time."""
        async with writing(self._begin_write) as session:
            await self._execute(session, "hold", task=task, until=encode_datetime(until))

    async def held(self, now: datetime) -> dict[int, datetime | None]:
        """The tasks of which no jobs start."""
        async with reading(self._begin_read) as session:
            rows = await self._fetch(session, "held", now=encode_datetime(now))
        return {row[0]: None if row[1] else time_of(row[2]) for row in rows}

    async def pause(self, name: str, *, paused: bool) -> int | None:
        """Let none of a task's jobs start, or let them again; the number of the task."""
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "pause", name=name, paused=paused)
        return rows[0][0] if rows else None

    async def release(self, task: int, now: datetime, limit: int) -> int:
        """Make jobs of a task due that were put off while it was held."""
        async with writing(self._begin_write) as session:
            values: dict[str, Any] = {"task": task, "now": encode_datetime(now), "held": HELD, "limit": limit}
            return len(await self._fetch(session, "release", **values))

    async def find(self, session: OpenTransaction, task: int, key: str) -> RecordRow | None:
        """The record of a row; None if there is none."""
        rows = await self._fetch(session, "find", task=task, key=key)
        return _record(rows[0]) if rows else None

    async def signature(self, session: OpenTransaction, task: int) -> str:
        """Filter and watch of a task as they are kept."""
        ((found,),) = await self._fetch(session, "signature", task=task)
        return str(found)

    async def find_many(self, session: OpenTransaction | None, task: int, keys: Sequence[str]) -> dict[str, RecordRow]:
        """The records of rows of one task, by their keys."""
        if session is None:
            async with reading(self._begin_read) as own:
                return await self.find_many(own, task, keys)
        rows = await self._fetch(session, "find_many", task=task, keys=json.dumps([*keys]))
        return {row[1]: _record(row) for row in rows}

    async def mark(self, transaction: OpenTransaction, lease: int, job: Job) -> bool:
        """Say in a transaction that a running job is done."""
        query = self._queries["mark"]
        values = {"id": job.id.bytes, "lease": lease, "started_at": encode_datetime(job.started_at)}
        return await transaction.execute(query.statement, query.args(values)) == 1

    async def marked(self, lease: int, jobs: Sequence[UUID]) -> dict[UUID, bool | None]:
        """Of jobs that the lease holds, whether that was said."""
        async with writing(self._begin_write) as session:  # after whoever may be saying it
            rows = await self._fetch(session, "marked", ids=json.dumps([job.hex for job in jobs]), lease=lease)
        return {UUID(bytes=row[0]): bool(row[1]) for row in rows}

    async def failed(self, task: int, times: Sequence[datetime], most: int) -> builtins.list[datetime]:
        """Note that attempts of a task have failed; the times of the last ones."""
        texts = json.dumps([encode_datetime(time) for time in times])
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "failed", task=task, times=texts, most=most)
        return [datetime.fromisoformat(time) for row in rows for time in json.loads(row[0])]

    async def open(self, task: int, until: datetime) -> bool:
        """Let none of a task's jobs start until a time, and forget what has failed."""
        async with writing(self._begin_write) as session:
            return bool(await self._fetch(session, "open", task=task, until=encode_datetime(until)))

    async def end_pending(self, session: Session, rows: Sequence[Row], state: JobState, now: datetime) -> set[bytes]:
        """End the pending jobs of rows of tasks, which nobody wants any more; the ids of those that were pending."""
        if not rows:
            return set()
        ids = json.dumps([row[2].hex() for row in rows])
        pending = {row[0] for row in await self._fetch(session, "pending", ids=ids)}
        ended = [row for row in rows if row[2] in pending]
        event = JobEvent.SKIPPED if state is JobState.SKIPPED else JobEvent.CANCELED
        for task, key, job_id, *_ in ended:
            settlement = Settlement(
                id=UUID(bytes=job_id),
                state=state,
                event=event,
                attempt=0,
                run_at=now,
                finished_at=now,
                expires_at=now + FOR_EVER,
                mark=Mark(task, key, _LAST),
            )
            await self._jobs.settle_pending(session, settlement)
        return pending

    async def records(self, session: OpenTransaction, task: int, keys: Sequence[str]) -> dict[str, Kept]:
        """What is kept of some rows, by key."""
        rows = await self._fetch(session, "records", task=task, keys=json.dumps(list(keys)))
        return {row[0]: Kept(row[1], row[2]) for row in rows}

    async def slice(self, session: OpenTransaction, task: int, after: str, limit: int) -> dict[str, Kept]:
        """What is kept of rows after a key, in the order of keys."""
        rows = await self._fetch(session, "slice", task=task, after=after, limit=limit)
        return {key: Kept(after, gone, state, bool(runs), *rest) for key, after, gone, state, runs, *rest in rows}

    async def forget(self, now: datetime, limit: int) -> int:
        """Forget records whose time is over; how many."""
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "forget", now=encode_datetime(now), limit=limit)
            if rows:
                await self._execute(session, "ends", ids=json.dumps([row[0].hex() for row in rows]))
        return len(rows)

    # ----- steps

    async def _list(self, session: OpenTransaction) -> builtins.list[TaskRow]:
        rows = await self._fetch(session, "list")
        return [
            task_of(
                row,
                sorted(json.loads(row[12])),
                json.loads(row[20]),
                datetime.fromisoformat(row[13]),
                time_of(row[15]),
                time_of(row[17]),
            )
            for row in rows
        ]

    async def _declare(self, session: Session, plan: TaskPlan, known: TaskRow | None, now: datetime) -> None:
        new, reconciling = newly(plan, known)
        if not new:
            return
        values = {"now": encode_datetime(now), "reconciling": None if reconciling is None else reconciling.text()}
        number = None if known is None else known.id
        if number is None:
            ((number,),) = await self._fetch(session, "add", **plan_values(plan, None), **values)
        await self._execute(session, "declare", **plan_values(plan, number), **values)
        if known is not None and runs_otherwise(plan, known):
            for name in ("unready", "unready_taken"):
                await self._execute(session, name, task=number)
            await self._execute(session, "redeclare", task=number, unkeyed=is_unkeyed(plan, known))
            if is_unkeyed(plan, known):
                await self._execute(session, "unkey", task=number)

    async def _plan(self, session: Session, plans: Sequence[RowPlan], now: datetime) -> int:
        rows = await self._fetch(session, "record", rows=json.dumps([self._row(plan) for plan in plans]))
        drops = {(plan.task, plan.key) for plan in plans if plan.drops}
        runs = {(plan.task, plan.key) for plan in plans if plan.runs}
        launched = [(row[0], row[1], bool(row[3])) for row in rows if (row[0], row[1]) in runs]
        if launched:
            await self._ends.launch(session, launched, now)
        dropped = [row for row in rows if (row[0], row[1]) in drops and row[4]]
        await self.end_pending(session, dropped, JobState.SKIPPED, now)
        return sum(idle for _, _, idle in launched)

    def _row(self, plan: RowPlan) -> tuple[Any, ...]:
        times = (plan.changed_at, plan.due_at, plan.latest_at, plan.forgets_at)
        changed_at, due_at, latest_at, forgets_at = (None if time is None else encode_datetime(time) for time in times)
        job_id = UUID(int=self._clock.uuid7()).hex
        texts = (plan.change, plan.before, plan.after, plan.partition)
        when = (plan.place, changed_at, due_at, latest_at)
        return (plan.task, plan.key, job_id, plan.runs, *texts, *when, plan.gone, forgets_at, plan.version)

    async def _fetch(self, session: OpenTransaction, name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await session.fetch(query.statement, query.args(values))

    async def _execute(self, session: OpenTransaction, name: str, /, **values: Any) -> None:
        query = self._queries[name]
        await session.execute(query.statement, query.args(values))


def _record(row: Row) -> RecordRow:
    return record_of(row, UUID(bytes=row[2]), *map(datetime.fromisoformat, row[8:10]))
