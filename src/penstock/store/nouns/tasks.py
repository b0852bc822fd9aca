"""Reactive tasks at rest, and the records of their rows. Each store plans in its own way."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.job import Job
from penstock.reactive.planning import RowPlan
from penstock.reactive.reconciling import Kept
from penstock.store.contract.changes import Changes
from penstock.store.contract.session import OpenTransaction, Session
from penstock.store.contract.tasks import HELD, Move, Progress, RecordRow, TaskPlan, TaskRow
from penstock.store.nouns.noun import Access, Noun
from penstock.store.rows.tasks import (
    is_unkeyed,
    newly,
    plan_values,
    progress_values,
    record_of,
    runs_otherwise,
    task_of,
)


class StoredTasks(Noun, ABC):
    """See `store.contract.Tasks`."""

    def __init__(self, access: Access, changes: Changes) -> None:
        super().__init__(access, "tasks")
        self._changes = changes

    async def declare(self, plans: Sequence[TaskPlan], now: datetime) -> builtins.list[TaskRow]:
        known = {row.plan.name: row for row in await self.list()} if plans else {}
        for plan in sorted(plans, key=lambda plan: plan.name):
            new, reconciling = newly(plan, known.get(plan.name))
            if not new:  # an unchanged declaration takes no lock, and needs no right to write
                continue
            values = {"now": now, "reconciling": None if reconciling is None else reconciling.text()}
            row = known.get(plan.name)
            if row is None:
                await self._run("add", **plan_values(plan, None), **values)
                row = next(one for one in await self.list() if one.plan.name == plan.name)
            await self._declare(plan, row, plan_values(plan, row.id) | values)
        names = {plan.name for plan in plans}
        return [row for row in await self.list() if row.plan.name in names] if plans else []

    async def list(self) -> builtins.list[TaskRow]:
        items, time = self._access.items, self._access.time
        return [
            task_of(row, sorted(items(row[12])), items(row[20]), time(row[13]), time(row[15]), time(row[17]))
            for row in await self._look("list")
        ]

    async def plan(
        self, rows: Sequence[RowPlan], move: Move | None, now: datetime, progress: Sequence[Progress] = ()
    ) -> int | None:
        session = await self._access.begin_write()
        try:
            launched = await self._plan(session, rows, now) if rows else 0
            if move is not None and not await self._changes.move(
                session, move.reader, move.lease, move.before, move.after, now
            ):
                return None
            for one in progress:
                values = progress_values(one) | {"declared_at": one.task.declared_at}
                if not await self._fetch(session, "progress", **values, now=now):
                    return None
            await session.commit()
        finally:
            await session.rollback()
        return launched

    async def hold(self, task: int, until: datetime) -> None:
        await self._run("hold", task=task, until=until)

    async def held(self, now: datetime) -> dict[int, datetime | None]:
        rows = await self._look("held", now=now)
        return {row[0]: None if row[1] else self._access.time(row[2]) for row in rows}

    async def pause(self, name: str, *, paused: bool) -> int | None:
        rows = await self._run("pause", name=name, paused=paused)
        return rows[0][0] if rows else None

    async def release(self, task: int, now: datetime, limit: int) -> int:
        return len(await self._run("release", task=task, now=now, held=HELD, limit=limit))

    async def find(self, session: OpenTransaction, task: int, key: str) -> RecordRow | None:
        rows = await self._fetch(session, "find", task=task, key=key)
        if not rows:
            return None
        job, *times = self._access.uuid(rows[0][2]), *map(self._access.time, rows[0][8:10])
        return record_of(rows[0], job, *times)

    async def signature(self, session: OpenTransaction, task: int) -> str:
        ((found,),) = await self._fetch(session, "signature", task=task)
        return str(found)

    async def generations(self, session: OpenTransaction | None, task: int, keys: Sequence[str]) -> dict[str, int]:
        values: dict[str, Any] = {"task": task, "keys": [*keys]}
        if session is None:
            return {key: number for key, number in await self._look("generations", **values)}  # noqa: C416 - records
        return {key: number for key, number in await self._fetch(session, "generations", **values)}  # noqa: C416

    async def mark(self, transaction: OpenTransaction, lease: int, job: Job) -> bool:
        query, values = self._queries["mark"], {"id": job.id, "lease": lease, "started_at": job.started_at}
        return await transaction.execute(query.statement, self._access.args(query, values)) == 1

    async def marked(self, lease: int, jobs: Sequence[UUID]) -> dict[UUID, bool | None]:
        rows = await self._run("marked", ids=[*jobs], lease=lease)  # SQLite: after a transaction that may be marking it
        return {self._access.uuid(row[0]): None if row[1] is None else bool(row[1]) for row in rows}

    async def failed(self, task: int, times: Sequence[datetime], most: int) -> builtins.list[datetime]:
        rows = await self._run("failed", task=task, times=[*times], most=most)
        return [self._access.time(time) for row in rows for time in self._access.items(row[0])]

    async def open(self, task: int, until: datetime) -> bool:
        return bool(await self._run("open", task=task, until=until))

    async def records(self, session: OpenTransaction, task: int, keys: Sequence[str]) -> dict[str, Kept]:
        rows = await self._fetch(session, "records", task=task, keys=[*keys])
        return {row[0]: Kept(row[1], row[2]) for row in rows}

    async def slice(self, session: OpenTransaction, task: int, after: str, limit: int) -> dict[str, Kept]:
        rows = await self._fetch(session, "slice", task=task, after=after, limit=limit)
        return {key: Kept(after, gone, state, bool(runs), *rest) for key, after, gone, state, runs, *rest in rows}

    async def forget(self, now: datetime, limit: int) -> int:
        return int((await self._run("forget", now=now, limit=limit))[0][0])

    # ----- steps

    @abstractmethod
    async def _plan(self, session: Session, plans: Sequence[RowPlan], now: datetime) -> int:
        """Write plans; the number of new jobs."""

    async def _declare(self, plan: TaskPlan, row: TaskRow, values: dict[str, Any]) -> None:
        async with self._writing() as session:
            await self._fetch(session, "declare", **values)
            if runs_otherwise(plan, row):
                await self._fetch(session, "redeclare", task=row.id, unkeyed=is_unkeyed(plan, row))
        if is_unkeyed(plan, row):  # apart, as planners lock records before tasks
            await self._run("unkey", task=row.id)
