"""Reactive tasks on PostgreSQL: records are written, and their jobs made, by one statement each for many rows.

A record that is new has its job in the same statement; who has waited for another one reads its job as it is only in
the next.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from asyncpg.pgproto.pgproto import UUID as _UUID  # made six times as fast

from penstock.clock import Clock
from penstock.jobs.job import Job
from penstock.reactive.planning import RowPlan
from penstock.reactive.reconciling import Kept
from penstock.store.contract.session import OpenTransaction, Row
from penstock.store.contract.tasks import HELD, Move, Progress, RecordRow, TaskPlan, TaskRow
from penstock.store.postgres.changes import PostgresChanges
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.jobs import run
from penstock.store.postgres.session import BEGIN_INTERNAL, PostgresSession, begin
from penstock.store.postgres.taskends import PostgresTaskEnds
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


class PostgresTasks:
    """See `store.tasks.Tasks`."""

    def __init__(
        self, connections: Connections, changes: PostgresChanges, ends: PostgresTaskEnds, clock: Clock
    ) -> None:
        self._connections = connections
        self._changes = changes
        self._ends = ends
        self._clock = clock
        self._queries = load_queries("tasks", POSTGRES)

    async def declare(self, plans: Sequence[TaskPlan], now: datetime) -> builtins.list[TaskRow]:
        """Make the tasks of a program known."""
        known = {row.plan.name: row for row in await self.list()} if plans else {}
        for plan in sorted(plans, key=lambda plan: plan.name):
            new, reconciling = newly(plan, known.get(plan.name))
            if not new:  # who finds all as it is needs no right to write
                continue
            values = {"now": now, "reconciling": None if reconciling is None else reconciling.text()}
            row = known.get(plan.name)
            if row is None:
                await run(self._connections, self._queries["add"], plan_values(plan, None) | values)
                row = next(one for one in await self.list() if one.plan.name == plan.name)
            await self._declare(plan, row, plan_values(plan, row.id) | values)
        names = {plan.name for plan in plans}
        return [row for row in await self.list() if row.plan.name in names] if plans else []

    async def list(self) -> builtins.list[TaskRow]:
        """All tasks by name."""
        rows = await run(self._connections, self._queries["list"], {})
        return [task_of(row, row[12], row[20], row[13], row[15], row[17]) for row in rows]

    async def plan(
        self,
        rows: Sequence[RowPlan],
        move: Move | None,
        now: datetime,
        progress: Sequence[Progress] = (),
    ) -> int | None:
        """Write what is planned, and move the reader on with it; how many jobs there are more."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            launched = await self._plan(session, rows, now) if rows else 0
            if move is not None and not await self._changes.move(
                session, move.reader, move.lease, move.before, move.after, now
            ):
                return None
            for one in progress:
                if not await self._fetch(
                    session, "progress", **progress_values(one), now=now, declared_at=one.task.declared_at
                ):
                    return None
            await session.commit()
        finally:
            await session.rollback()
        return launched

    async def hold(self, task: int, until: datetime) -> None:
        """Let none of a task's jobs start until a time."""
        await run(self._connections, self._queries["hold"], {"task": task, "until": until})

    async def held(self, now: datetime) -> dict[int, datetime | None]:
        """The tasks of which no jobs start."""
        rows = await run(self._connections, self._queries["held"], {"now": now})
        return {row[0]: None if row[1] else row[2] for row in rows}

    async def pause(self, name: str, *, paused: bool) -> int | None:
        """Let none of a task's jobs start, or let them again; the number of the task."""
        rows = await run(self._connections, self._queries["pause"], {"name": name, "paused": paused})
        return rows[0][0] if rows else None

    async def release(self, task: int, now: datetime, limit: int) -> int:
        """Make jobs of a task due that were put off while it was held."""
        values = {"task": task, "now": now, "held": HELD, "limit": limit}
        return len(await run(self._connections, self._queries["release"], values))

    async def find(self, session: OpenTransaction, task: int, key: str) -> RecordRow | None:
        """The record of a row; None if there is none."""
        rows = await self._fetch(session, "find", task=task, key=key)
        return record_of(rows[0], rows[0][2], rows[0][8], rows[0][9]) if rows else None

    async def signature(self, session: OpenTransaction, task: int) -> str:
        """Filter and watch of a task as they are kept."""
        ((found,),) = await self._fetch(session, "signature", task=task)
        return str(found)

    async def find_many(self, session: OpenTransaction | None, task: int, keys: Sequence[str]) -> dict[str, RecordRow]:
        """The records of rows of one task, by their keys."""
        values: dict[str, Any] = {"task": task, "keys": [*keys]}
        if session is None:
            rows = await run(self._connections, self._queries["find_many"], values)
        else:
            rows = await self._fetch(session, "find_many", **values)
        return {row[1]: record_of(row, row[2], row[8], row[9]) for row in rows}

    async def mark(self, transaction: OpenTransaction, lease: int, job: Job) -> bool:
        """Say in a transaction that a running job is done."""
        query, values = self._queries["mark"], {"id": job.id, "lease": lease, "started_at": job.started_at}
        return await transaction.execute(query.statement, query.args(values)) == 1

    async def marked(self, lease: int, jobs: Sequence[UUID]) -> dict[UUID, bool | None]:
        """Of jobs that the lease holds, whether that was said."""
        rows = await run(self._connections, self._queries["marked"], {"ids": [*jobs], "lease": lease})
        return {row[0]: row[1] for row in rows}

    async def failed(self, task: int, times: Sequence[datetime], most: int) -> builtins.list[datetime]:
        """Note that attempts of a task have failed; the times of the last ones on all machines."""
        values = {"task": task, "times": [*times], "most": most}
        rows = await run(self._connections, self._queries["failed"], values)
        return [time for row in rows for time in row[0]]

    async def open(self, task: int, until: datetime) -> bool:
        """Let none of a task's jobs start until a time, and forget what has failed."""
        return bool(await run(self._connections, self._queries["open"], {"task": task, "until": until}))

    async def records(self, session: OpenTransaction, task: int, keys: Sequence[str]) -> dict[str, Kept]:
        """What is kept of some rows, by key."""
        rows = await self._fetch(session, "records", task=task, keys=list(keys))
        return {row[0]: Kept(row[1], row[2]) for row in rows}

    async def slice(self, session: OpenTransaction, task: int, after: str, limit: int) -> dict[str, Kept]:
        """What is kept of rows after a key, in the order of keys."""
        rows = await self._fetch(session, "slice", task=task, after=after, limit=limit)
        return {row[0]: Kept(*row[1:]) for row in rows}

    async def forget(self, now: datetime, limit: int) -> int:
        """Forget records whose time is over; how many."""
        rows = await run(self._connections, self._queries["forget"], {"now": now, "limit": limit})
        return int(rows[0][0])

    # ----- steps

    async def _fetch(self, session: OpenTransaction, name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await session.fetch(query.statement, query.args(values))

    async def _declare(self, plan: TaskPlan, row: TaskRow, values: dict[str, Any]) -> None:
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            await self._fetch(session, "declare", **values)
            if runs_otherwise(plan, row):
                await self._fetch(session, "redeclare", task=row.id, unkeyed=is_unkeyed(plan, row))
            await session.commit()
        finally:
            await session.rollback()
        if is_unkeyed(plan, row):  # apart, as planners lock records before tasks
            await run(self._connections, self._queries["unkey"], {"task": row.id})

    async def _plan(self, session: PostgresSession, plans: Sequence[RowPlan], now: datetime) -> int:
        running = sum(plan.runs for plan in plans)
        rows = await self._fetch(session, "record", **self._arrays(plans), now=now)
        if not rows:  # all are new, and have their jobs
            return running
        drops = {(plan.task, plan.key) for plan in plans if plan.drops}
        runs = {(plan.task, plan.key) for plan in plans if plan.runs}
        launched = [(row[0], row[1], row[3]) for row in rows if (row[0], row[1]) in runs]
        if launched:
            await self._ends.launch(session, launched, now)
        dropped = [(row[0], row[1], row[2]) for row in rows if (row[0], row[1]) in drops and row[4]]
        if dropped:
            await self._ends.skip(session, dropped, now)
        return running - sum(not idle for _, _, idle in launched)

    def _arrays(self, plans: Sequence[RowPlan]) -> dict[str, Any]:
        return {
            "tasks": [plan.task for plan in plans],
            "keys": [plan.key for plan in plans],
            "ids": [_UUID(self._clock.uuid7().to_bytes(16)) for _ in plans],
            "runs": [plan.runs for plan in plans],
            "changes": [plan.change for plan in plans],
            "befores": _or_none([plan.before for plan in plans]),
            "afters": [plan.after for plan in plans],
            "partitions": _or_none([plan.partition for plan in plans]),
            "places": [plan.place for plan in plans],
            "changed_ats": [plan.changed_at for plan in plans],
            "due_ats": [plan.due_at for plan in plans],
            "latest_ats": _or_none([plan.latest_at for plan in plans]),
            "gones": _or_none([plan.gone for plan in plans]),
            "forget_ats": _or_none([plan.forgets_at for plan in plans]),
            "for_versions": [plan.version for plan in plans],
        }


def _or_none(values: builtins.list[Any]) -> builtins.list[Any] | None:
    """Values, if there are any: unnest takes NULL for an array of nulls, which costs nothing to send."""
    return None if values.count(None) == len(values) else values
