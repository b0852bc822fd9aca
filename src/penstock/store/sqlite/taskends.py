"""Ends jobs of reactive tasks on SQLite: the end of a job checks whether its row has changed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from penstock.jobs.job import Settlement
from penstock.jobs.states import FINISHED
from penstock.store.nouns.taskends import Launch, TaskEnds, launch
from penstock.store.nouns.tasks import HELD
from penstock.store.session import OpenTransaction


class SqliteTaskEnds(TaskEnds):
    """See `store.nouns.TaskEnds`."""

    async def ended(self, session: OpenTransaction, settlements: Sequence[Settlement]) -> None:
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
