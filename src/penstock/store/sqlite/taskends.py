"""The ends of jobs of reactive tasks on SQLite: whoever ends one looks whether its row has changed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.job import Settlement
from penstock.jobs.states import FINISHED
from penstock.store.contract import OpenTransaction, Row
from penstock.store.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime

Launch = tuple[int, str, bool]  # a task, the key of a row, and whether there is no job for it


class SqliteTaskEnds:
    """Ends jobs of tasks, and begins new ones, in the transactions of others."""

    def __init__(self) -> None:
        self._queries = load_queries("penstock.store.sqlite", "tasks", "?")

    async def ended(self, session: OpenTransaction, settlements: Sequence[Settlement]) -> None:
        """Look whether the rows of jobs have changed that have ended, or are to run again; then begin anew."""
        rows = [
            (item.mark.task, item.mark.key, item.mark.generation, item.state in FINISHED)
            for item in settlements
            if item.mark is not None
        ]
        if not rows:
            return
        text = json.dumps(rows)
        changed = await self._fetch(session, "ended", rows=text)
        await self._execute(session, "idle", rows=text)
        if changed:
            launched = [(row[0], row[1], bool(row[2])) for row in changed]
            await self.launch(session, launched, settlements[0].finished_at)

    async def launch(self, session: OpenTransaction, rows: Sequence[Launch], now: datetime) -> None:
        """See to it that there is a pending job for the last generation of rows."""
        values = {"rows": json.dumps(rows), "now": encode_datetime(now)}
        if not all(idle for _, _, idle in rows):
            await self._execute(session, "informed", **values)
            await self._execute(session, "put_off", **values)
        if any(idle for _, _, idle in rows):
            for name in ("launch", "launch_due", "forgotten"):
                await self._execute(session, name, **values)
        await self._execute(session, "uncanceled", rows=values["rows"])

    async def revive(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> set[UUID]:
        """Let jobs run again that have failed or were canceled; which of them are of tasks, and do."""
        texts = json.dumps([one.hex for one in ids])
        rows = await self._fetch(session, "revive", ids=texts, now=encode_datetime(now))
        if rows:
            await self.launch(session, [(row[0], row[1], True) for row in rows], now)
        return {UUID(bytes=row[2]) for row in rows}

    async def _fetch(self, session: OpenTransaction, name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await session.fetch(query.statement, query.args(values))

    async def _execute(self, session: OpenTransaction, name: str, /, **values: Any) -> None:
        query = self._queries[name]
        await session.execute(query.statement, query.args(values))
