"""Plans tasks on SQLite, where one transaction at a time writes a record and its job, and ends their jobs.

The end of a job checks whether its row has changed meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.job import Settlement
from penstock.jobs.states import FINISHED
from penstock.reactive.planning import RowPlan
from penstock.store.nouns.tasks import HELD, Launch, TaskEnds, Tasks, choose, launch, row_key
from penstock.store.session import OpenTransaction, Row, Session
from penstock.store.sqlite.dialect import time_texts


class SqliteTaskEnds(TaskEnds):
    """See `store.nouns.TaskEnds`."""

    async def note_ends(self, session: OpenTransaction, settlements: Sequence[Settlement]) -> None:
        rows = [
            (item.mark.task, item.mark.key, item.mark.generation, item.state in FINISHED, item.mark.version)
            for item in settlements
            if item.mark is not None
        ]
        if not rows:
            return
        text = json.dumps(rows)
        if await self._execute(session, "idle", rows=text) < len(rows):
            changed = await self._fetch(session, "ended", rows=text)
            await self.launch(session, [launch(row) for row in changed], settlements[0].finished_at)
        if again := [row for row in rows if not row[3]]:
            await self._execute(session, "follow", rows=json.dumps(again))

    async def launch(self, session: OpenTransaction, rows: Sequence[Launch], now: datetime) -> None:
        if not rows:
            return
        values = {"rows": json.dumps(rows), "now": now, "held": HELD}
        if idle := [row for row in rows if row.idle]:
            await self.launch_idle(session, idle, now)
            await self._execute(session, "forgotten", **values)
        if len(idle) < len(rows):
            postponed = await self._fetch(session, "postpone", **values)
            if postponed:
                await self._execute(session, "postponed", ids=[UUID(bytes=row["id"]) for row in postponed])
            await self._fetch(session, "informed", **values)
        await self._execute(session, "uncanceled", rows=values["rows"])

    async def launch_idle(self, session: OpenTransaction, rows: Sequence[Launch], now: datetime) -> None:
        """Make jobs for rows for which there is none."""
        if rows:
            values = {"rows": json.dumps(rows), "now": now}
            if await self._execute(session, "launch_due", **values) < len(rows):  # some are due later, or pass a gate
                await self._execute(session, "launch", **values)


class SqliteTasks(Tasks):
    """See `store.nouns.Tasks`."""

    _ends: SqliteTaskEnds

    async def _record(self, session: Session, plans: Sequence[RowPlan], now: datetime) -> tuple[int, Sequence[Row]]:
        texts = time_texts()
        rows = await self._fetch(session, "record", rows=json.dumps([self._row(plan, texts) for plan in plans]))
        run = choose(rows, plans, lambda plan: plan.runs)
        new = {row_key(row): launch(row) for row in run if row["generation"] == 1}
        await self._ends.launch_idle(session, [*new.values()], now)  # nobody else can know of these
        return len(new), [row for row in rows if row_key(row) not in new]

    def _row(self, plan: RowPlan, text: Callable[[datetime], str]) -> tuple[Any, ...]:
        latest_at, forgets_at = (time and text(time) for time in (plan.latest_at, plan.forgets_at))
        job_id = f"{self._clock.uuid7():032x}"
        texts = (plan.change, plan.before, plan.after, plan.partition)
        when = (plan.place, text(plan.changed_at), text(plan.due_at), latest_at)
        return (plan.task, plan.key, job_id, plan.runs, *texts, *when, plan.gone, forgets_at, plan.version)
