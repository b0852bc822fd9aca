"""Plans tasks on SQLite, where one transaction at a time writes a record and its job."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from penstock.clock import Clock
from penstock.jobs.states import JobState
from penstock.reactive.planning import RowPlan
from penstock.store.contract.session import Session
from penstock.store.nouns.changes import Changes
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.noun import Access
from penstock.store.nouns.tasks import Tasks
from penstock.store.sqlite.jobrows import time_texts
from penstock.store.sqlite.taskends import SqliteTaskEnds


class SqliteTasks(Tasks):
    """See `store.nouns.Tasks`."""

    def __init__(self, access: Access, changes: Changes, jobs: Jobs, ends: SqliteTaskEnds, clock: Clock) -> None:
        super().__init__(access, changes, jobs)
        self._ends = ends
        self._clock = clock

    async def _plan(self, session: Session, plans: Sequence[RowPlan], now: datetime) -> int:
        texts = time_texts()
        rows = await self._fetch(session, "record", rows=json.dumps([self._row(plan, texts) for plan in plans]))
        drops = {(plan.task, plan.key) for plan in plans if plan.drops}
        runs = {(plan.task, plan.key) for plan in plans if plan.runs}
        launched = [(row[0], row[1], bool(row[3]), row[5] == 1) for row in rows if (row[0], row[1]) in runs]
        new = [row[:3] for row in launched if row[3]]
        await self._ends.launch_idle(session, new, now)  # of which nobody else can know
        await self._ends.launch(session, [row[:3] for row in launched if not row[3]], now)
        dropped = [row for row in rows if (row[0], row[1]) in drops and row[4]]
        await self.end_pending(session, dropped, JobState.SKIPPED, now)
        return sum(row[2] for row in launched)

    def _row(self, plan: RowPlan, text: Callable[[datetime], str]) -> tuple[Any, ...]:
        latest_at, forgets_at = (time and text(time) for time in (plan.latest_at, plan.forgets_at))
        job_id = f"{self._clock.uuid7():032x}"
        texts = (plan.change, plan.before, plan.after, plan.partition)
        when = (plan.place, text(plan.changed_at), text(plan.due_at), latest_at)
        return (plan.task, plan.key, job_id, plan.runs, *texts, *when, plan.gone, forgets_at, plan.version)
