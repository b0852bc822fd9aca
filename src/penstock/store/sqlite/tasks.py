"""How tasks are planned on SQLite: whoever writes a record and its job is the only one who writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.clock import Clock
from penstock.config import FOR_EVER
from penstock.jobs.job import Mark, Settlement
from penstock.jobs.states import JobEvent, JobState
from penstock.reactive.planning import RowPlan
from penstock.store.contract.changes import Changes
from penstock.store.contract.session import Row, Session
from penstock.store.nouns.noun import Access
from penstock.store.nouns.tasks import StoredTasks
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.jobs import SqliteJobs
from penstock.store.sqlite.taskends import SqliteTaskEnds

_LAST = 2**62  # no row has changed so often


class SqliteTasks(StoredTasks):
    """See `store.contract.Tasks`."""

    def __init__(self, access: Access, changes: Changes, jobs: SqliteJobs, ends: SqliteTaskEnds, clock: Clock) -> None:
        super().__init__(access, changes)
        self._jobs = jobs
        self._ends = ends
        self._clock = clock

    async def end_pending(self, session: Session, rows: Sequence[Row], state: JobState, now: datetime) -> set[bytes]:
        """End the pending jobs of rows of tasks, which nobody wants any more; the ids of those that were pending."""
        if not rows:
            return set()
        pending = {row[0] for row in await self._fetch(session, "pending", ids=[UUID(bytes=row[2]) for row in rows])}
        event = JobEvent.SKIPPED if state is JobState.SKIPPED else JobEvent.CANCELED
        for task, key, job_id, *_ in (row for row in rows if row[2] in pending):
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
