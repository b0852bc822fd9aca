"""Ends jobs of reactive tasks on PostgreSQL: the end of a job checks whether its row has changed meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.config import FOR_EVER
from penstock.jobs.job import Mark, Settlement
from penstock.jobs.states import FINISHED, RETRIABLE, JobState
from penstock.store.contract.records import RowKey
from penstock.store.contract.session import OpenTransaction, Row
from penstock.store.contract.tasks import HELD
from penstock.store.nouns.noun import Access, Noun
from penstock.store.rows.jobs import LONG_SLOT
from penstock.store.sql.queries import load_queries

_RETRIABLE = {state.value for state in RETRIABLE}
_LAST = 2**62  # no row has changed so often
Launch = tuple[int, str, bool]  # a task, the key of a row, and whether there is no job for it


class PostgresTaskEnds(Noun):
    """Ends jobs of tasks, and begins new ones, in the transactions of others."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "records", "tasks")
        self._settle_pending = load_queries("moves", access.dialect)["settle_pending"]

    async def ended(self, session: OpenTransaction, settlements: Iterable[Settlement]) -> None:
        """Compare the generations of jobs that have ended or are to run again; begin changed rows anew."""
        ours = [(item.mark, item.state in FINISHED, item.finished_at) for item in settlements if item.mark is not None]
        if ours:
            await self._end(session, [mark for mark, _, _ in ours], [one for _, one, _ in ours], ours[0][2])
        if again := [mark for mark, finished, _ in ours if not finished]:
            tasks, keys = [mark.task for mark in again], [mark.key for mark in again]
            await self._fetch(session, "follow", tasks=tasks, keys=keys)

    async def launch(self, session: OpenTransaction, rows: Sequence[Launch], now: datetime) -> None:
        """See to it that there is a pending job for the last generation of rows."""
        tasks, keys, idles = ([row[place] for row in rows] for place in range(3))
        await self._fetch(session, "launch", tasks=tasks, keys=keys, idles=idles, now=now, held=HELD)

    async def skip(
        self,
        session: OpenTransaction,
        rows: Sequence[tuple[int, str, UUID]],
        now: datetime,
        state: JobState = JobState.SKIPPED,
    ) -> set[UUID]:
        """End the pending jobs of rows as skipped; those that run go on."""
        found = {row[0] for row in await self._fetch(session, "pending", ids=[row[2] for row in rows])}
        skipped = [row for row in rows if row[2] in found]
        if not skipped:
            return found
        ids = [row[2] for row in skipped]
        values: dict[str, Any] = {
            "ids": ids,
            "states": [state.value] * len(ids),
            "finished_ats": [now] * len(ids),
            "expires_ats": [now + FOR_EVER] * len(ids),
            "slots": [LONG_SLOT] * len(ids),
            "endings": None,
            "freed": None,
        }
        await session.fetch(self._settle_pending.statement, self._settle_pending.args(values))
        await self._end(session, [Mark(task, key, _LAST) for task, key, _ in skipped], [True] * len(ids), now)
        return found

    async def hold(self, session: OpenTransaction, rows: Sequence[RowKey]) -> Sequence[Row]:
        """Lock the records of rows: their tasks, keys and jobs, whether these are live, and their states."""
        values = {"tasks": [row[0] for row in rows], "keys": [row[1] for row in rows]}
        await self._fetch(session, "hold_records", **values)
        return await self._fetch(session, "held_records", **values)  # after a wait, only the next statement sees jobs

    async def rerun(
        self, session: OpenTransaction, rows: Sequence[RowKey], now: datetime, states: Collection[str] | None = None
    ) -> list[RowKey]:
        """Run rows again, or only those whose jobs have these states; the rows run."""
        held = [row for row in await self.hold(session, rows) if states is None or row[4] in states]
        if not held:
            return []
        values = {
            "tasks": [row[0] for row in held],
            "keys": [row[1] for row in held],
            "ids": [row[2] for row in held],
            "now": now,
        }
        again = await self._fetch(session, "rerun", **values)
        await self._fetch(session, "forgive", **values)
        await self.launch(session, [(row[0], row[1], row[2]) for row in again], now)
        return [(row[0], row[1]) for row in held]

    async def retry(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> dict[UUID, bool]:
        """The jobs of tasks among failed or canceled ones, and whether their rows run again."""
        found = {row[0]: (row[1], row[2]) for row in await self._fetch(session, "of_tasks", ids=ids)}
        again = await self.rerun(session, list(found.values()), now, _RETRIABLE) if found else []
        return {job: row in again for job, row in found.items()}

    async def _end(
        self, session: OpenTransaction, marks: Sequence[Mark], finished: Sequence[bool], now: datetime
    ) -> None:
        versions = {mark.version for mark in marks}
        if len(versions) == 1:
            await self._end_alike(session, marks, finished, now, versions.pop())
            return
        await self.hold(session, [(mark.task, mark.key) for mark in marks])  # in the order in which all do
        for version in sorted(versions):
            places = [place for place, mark in enumerate(marks) if mark.version == version]
            some, ended = [marks[place] for place in places], [finished[place] for place in places]
            await self._end_alike(session, some, ended, now, version)

    async def _end_alike(
        self, session: OpenTransaction, marks: Sequence[Mark], finished: Sequence[bool], now: datetime, version: int
    ) -> None:
        """The same of rows that one version has handled, or none."""
        rows = await self._fetch(
            session,
            "ended",
            tasks=if_alike_one([mark.task for mark in marks]),
            keys=[mark.key for mark in marks],
            generations=if_alike_one([mark.generation for mark in marks]),
            finished=if_alike_one(finished),
            version=version,
        )
        done = [place for _task, _key, ended, changed, place in rows if ended and not changed]
        if done:
            await self._fetch(session, "idle", places=done, version=version)
        if again := [(task, key, ended) for task, key, ended, changed, _place in rows if changed]:
            await self.launch(session, again, now)


def if_alike_one(values: Sequence[Any]) -> Sequence[Any]:
    """Values of which none is None, or the first if all equal it: asyncpg takes its time with each of an array."""
    return values[:1] if values.count(values[0]) == len(values) else values
