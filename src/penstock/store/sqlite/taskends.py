"""Ends jobs of reactive tasks on SQLite: the end of a job checks whether its row has changed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from penstock.jobs.job import Settlement
from penstock.jobs.states import FINISHED, RETRIABLE
from penstock.store.contract.records import RowKey
from penstock.store.contract.session import OpenTransaction, Row
from penstock.store.contract.tasks import HELD
from penstock.store.nouns.noun import Access, Noun

_RETRIABLE = {state.value for state in RETRIABLE}
Launch = tuple[int, str, bool]  # a task, the key of a row, and whether there is no job for it


class SqliteTaskEnds(Noun):
    """Ends jobs of tasks, and begins new ones, in the transactions of others."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "records", "tasks")

    async def ended(self, session: OpenTransaction, settlements: Sequence[Settlement]) -> None:
        """Compare the generations of jobs that have ended or are to run again; begin changed rows anew."""
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
            launched = [(row[0], row[1], bool(row[2])) for row in changed]
            await self.launch(session, launched, settlements[0].finished_at)
        if again := [row for row in rows if not row[3]]:
            await self._execute(session, "follow", rows=json.dumps(again))

    async def launch(self, session: OpenTransaction, rows: Sequence[Launch], now: datetime) -> None:
        """See to it that there is a pending job for the last generation of rows."""
        if not rows:
            return
        values = {"rows": json.dumps(rows), "now": now, "held": HELD}
        if idle := [row for row in rows if row[2]]:
            await self.launch_idle(session, idle, now)
            await self._execute(session, "forgotten", **values)
        if len(idle) < len(rows):
            postponed = await self._fetch(session, "postpone", **values)
            if postponed:
                await self._execute(session, "postponed", ids=[UUID(bytes=row[0]) for row in postponed])
            await self._execute(session, "informed", **values)
            await self._execute(session, "put_off", **values)
        await self._execute(session, "uncanceled", rows=values["rows"])

    async def launch_idle(self, session: OpenTransaction, rows: Sequence[Launch], now: datetime) -> None:
        """Make jobs for rows for which there is none."""
        if rows:
            values = {"rows": json.dumps(rows), "now": now}
            if await self._execute(session, "launch_due", **values) < len(rows):  # some are due later, or pass a gate
                await self._execute(session, "launch", **values)

    async def hold(self, session: OpenTransaction, rows: Sequence[RowKey]) -> Sequence[Row]:
        """The records of rows: their tasks, keys and jobs, whether these are live, and their states."""
        return await self._fetch(session, "held_records", rows=json.dumps(rows)) if rows else []

    async def rerun(
        self, session: OpenTransaction, rows: Sequence[RowKey], now: datetime, states: Collection[str] | None = None
    ) -> list[RowKey]:
        """Run rows again, or only those whose jobs have these states; the rows run."""
        held = [row for row in await self.hold(session, rows) if states is None or row[4] in states]
        if not held:
            return []
        keys: list[RowKey] = [(row[0], row[1]) for row in held]
        again = await self._fetch(session, "rerun", rows=json.dumps(keys), now=now)
        await self._execute(session, "forgive", ids=[UUID(bytes=row[2]) for row in held])
        await self.launch(session, [(row[0], row[1], bool(row[2])) for row in again], now)
        return keys

    async def retry(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> dict[UUID, bool]:
        """The jobs of tasks among failed or canceled ones, and whether their rows run again."""
        rows = await self._fetch(session, "of_tasks", ids=[*ids])
        found: dict[UUID, RowKey] = {UUID(bytes=row[0]): (row[1], row[2]) for row in rows}
        again = await self.rerun(session, list(found.values()), now, _RETRIABLE) if found else []
        return {job: row in again for job, row in found.items()}
