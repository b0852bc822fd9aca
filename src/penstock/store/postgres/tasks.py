"""Plans tasks on PostgreSQL, and ends their jobs, each in one statement for many rows.

A new record has its job in the statement that writes it. After a wait for a locked record, its present job is visible
only in the next statement. The end of a job checks whether its row has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from asyncpg.pgproto.pgproto import UUID as _UUID  # made six times as fast

from penstock.jobs.job import Mark, Settlement
from penstock.jobs.states import FINISHED
from penstock.reactive.planning import RowPlan
from penstock.store.nouns.tasks import HELD, Launch, TaskEnds, Tasks, choose, launch
from penstock.store.session import OpenTransaction, Row, Session


class PostgresTaskEnds(TaskEnds):
    """See `store.nouns.TaskEnds`."""

    async def note_ends(self, session: OpenTransaction, settlements: Sequence[Settlement]) -> None:
        ours = [(item.mark, item.state in FINISHED, item.finished_at) for item in settlements if item.mark is not None]
        if ours:
            await self._end(session, [mark for mark, _, _ in ours], [one for _, one, _ in ours], ours[0][2])
        if again := [mark for mark, finished, _ in ours if not finished]:
            tasks, keys = [mark.task for mark in again], [mark.key for mark in again]
            await self._fetch(session, "follow", tasks=tasks, keys=keys)

    async def launch(self, session: OpenTransaction, rows: Sequence[Launch], now: datetime) -> None:
        tasks, keys, idles = ([row.task for row in rows], [row.key for row in rows], [row.idle for row in rows])
        await self._fetch(session, "launch", tasks=tasks, keys=keys, idles=idles, now=now, held=HELD)

    async def _end(
        self, session: OpenTransaction, marks: Sequence[Mark], finished: Sequence[bool], now: datetime
    ) -> None:
        """Look whether rows have changed whose jobs have ended, or are to run again."""
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
        """Look whether rows have changed that one version has handled, or none."""
        rows = await self._fetch(
            session,
            "ended",
            tasks=if_alike_one([mark.task for mark in marks]),
            keys=[mark.key for mark in marks],
            generations=if_alike_one([mark.generation for mark in marks]),
            finished=if_alike_one(finished),
            version=version,
        )
        done = [row["place"] for row in rows if row["idle"] and not row["changed"]]
        if done:
            await self._fetch(session, "idle", places=done, version=version)
        if again := [launch(row) for row in rows if row["changed"]]:
            await self.launch(session, again, now)


class PostgresTasks(Tasks):
    """See `store.nouns.Tasks`."""

    async def _record(self, session: Session, plans: Sequence[RowPlan], now: datetime) -> tuple[int, Sequence[Row]]:
        rows = await self._fetch(session, "record", **self._arrays(plans), now=now)  # new ones have their jobs
        return sum(plan.runs for plan in plans) - len(choose(rows, plans, lambda plan: plan.runs)), rows

    def _arrays(self, plans: Sequence[RowPlan]) -> dict[str, Any]:
        return {
            "tasks": if_alike_one([plan.task for plan in plans]),
            "keys": [plan.key for plan in plans],
            "ids": [_UUID(self._clock.uuid7().to_bytes(16)) for _ in plans],
            "runs": if_alike_one([plan.runs for plan in plans]),
            "changes": if_alike_one([plan.change for plan in plans]),
            "befores": or_none([plan.before for plan in plans]),
            "afters": [plan.after for plan in plans],
            "partitions": or_none([plan.partition for plan in plans]),
            "places": [plan.place for plan in plans],
            "changed_ats": if_alike_one([plan.changed_at for plan in plans]),
            "due_ats": if_alike_one([plan.due_at for plan in plans]),
            "latest_ats": or_none([plan.latest_at for plan in plans]),
            "gones": or_none([plan.gone for plan in plans]),
            "forget_ats": or_none([plan.forgets_at for plan in plans]),
            "for_versions": if_alike_one([plan.version for plan in plans]),
        }


def if_alike_one(values: Sequence[Any]) -> Sequence[Any]:
    """Values without None, or the first if all equal it: asyncpg takes its time with each of an array."""
    return values[:1] if values.count(values[0]) == len(values) else values


def or_none(values: list[Any]) -> list[Any] | None:
    """Values, if there are any: unnest takes NULL for an array of nulls, which costs nothing to send."""
    return None if values.count(None) == len(values) else values
