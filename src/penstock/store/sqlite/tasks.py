"""Plans tasks on SQLite, where one transaction at a time writes a record and its job."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from penstock.clock import Clock
from penstock.reactive.planning import RowPlan
from penstock.store.nouns.changes import Changes
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.noun import Access
from penstock.store.nouns.taskends import launch
from penstock.store.nouns.tasks import Tasks, chosen
from penstock.store.session import Session
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
        run = chosen(rows, plans, lambda plan: plan.runs)
        new, others = ([launch(row) for row in run if (row["generation"] == 1) is is_new] for is_new in (True, False))
        await self._ends.launch_idle(session, new, now)  # nobody else can know of these
        await self._ends.launch(session, others, now)
        await self._drop(session, rows, plans, now)
        return sum(one.idle for one in (*new, *others))

    def _row(self, plan: RowPlan, text: Callable[[datetime], str]) -> tuple[Any, ...]:
        latest_at, forgets_at = (time and text(time) for time in (plan.latest_at, plan.forgets_at))
        job_id = f"{self._clock.uuid7():032x}"
        texts = (plan.change, plan.before, plan.after, plan.partition)
        when = (plan.place, text(plan.changed_at), text(plan.due_at), latest_at)
        return (plan.task, plan.key, job_id, plan.runs, *texts, *when, plan.gone, forgets_at, plan.version)
