"""Plans tasks on PostgreSQL: one statement writes records, and one makes their jobs, each for many rows.

A new record has its job in the same statement; after a wait for a locked record, its present job is visible only in
the next statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from asyncpg.pgproto.pgproto import UUID as _UUID  # made six times as fast

from penstock.clock import Clock
from penstock.reactive.planning import RowPlan
from penstock.store.nouns.changes import Changes
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.noun import Access
from penstock.store.nouns.taskends import launch
from penstock.store.nouns.tasks import Tasks, chosen
from penstock.store.postgres.taskends import PostgresTaskEnds, if_alike_one, or_none
from penstock.store.session import Session


class PostgresTasks(Tasks):
    """See `store.nouns.Tasks`."""

    def __init__(self, access: Access, changes: Changes, jobs: Jobs, ends: PostgresTaskEnds, clock: Clock) -> None:
        super().__init__(access, changes, jobs)
        self._ends = ends
        self._clock = clock

    async def _plan(self, session: Session, plans: Sequence[RowPlan], now: datetime) -> int:
        running = sum(plan.runs for plan in plans)
        rows = await self._fetch(session, "record", **self._arrays(plans), now=now)
        if not rows:  # all are new, and have their jobs
            return running
        launched = [launch(row) for row in chosen(rows, plans, lambda plan: plan.runs)]
        if launched:
            await self._ends.launch(session, launched, now)
        await self._drop(session, rows, plans, now)
        return running - sum(not one.idle for one in launched)

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
