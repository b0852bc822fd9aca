"""Crons on SQLite: the one writer decides, and looking comes before writing."""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.crons.plan import CronPlan, KeptCron, begun, changed, paused
from penstock.store.contract.crons import CronDecide, CronLook, CronMove, CronScope
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.rows.crons import kept_of, plan_values
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.jobs import SqliteJobs, fetch
from penstock.store.sqlite.session import Begin, reading, writing


class SqliteCrons:
    """See `store.crons.Crons`."""

    def __init__(self, begin_read: Begin, begin_write: Begin, jobs: SqliteJobs) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._jobs = jobs
        self._queries = load_queries("penstock.store.sqlite", "crons", "?")

    async def declare(self, plans: Sequence[CronPlan], now: datetime) -> None:
        """Make the plans of a program known."""
        if not plans:
            return
        async with reading(self._begin_read) as session:
            known = {kept.plan.name: kept.plan for kept, _ in await self.list(session, now)}
        new = [plan for plan in plans if known.get(plan.name) != plan]
        if not new:  # who starts and finds all as it is takes no lock
            return
        async with writing(self._begin_write) as session:
            for plan in new:
                if not await self.create(session, plan, now):
                    (row,) = await self._fetch(session, "lock", name=plan.name)
                    await self._plan(session, changed(_kept(row), plan, now))

    async def create(self, session: Session, plan: CronPlan, now: datetime) -> bool:
        """Add one in a transaction; False if its name is taken."""
        kept = begun(plan, now)
        return bool(await self._fetch(session, "create", **plan_values(plan), **_times(kept)))

    async def remove(self, session: Session, name: str) -> bool:
        """Remove one in a transaction; False if there is none."""
        return bool(await self._fetch(session, "remove", name=name))

    async def pause(self, session: Session, name: str, now: datetime, *, pause: bool) -> bool:
        """Pause or resume one in a transaction; False if there is none."""
        rows = await self._fetch(session, "lock", name=name)
        if rows:
            await self._move(session, paused(_kept(rows[0]), now, pause=pause))
        return bool(rows)

    async def look(self, scope: CronScope, now: datetime) -> CronLook:
        """Whether anything is to be decided, and when the next look is due."""
        async with reading(self._begin_read) as session:
            ((due, overdue, next_at),) = await self._fetch(session, "look", **_scope(scope, now))
        return CronLook(bool(due), bool(overdue) and not due, _time(next_at))

    async def decide(self, scope: CronScope, now: datetime, limit: int, decide: CronDecide) -> int:
        """Have `decide` decide on up to `limit` that are due; how many there were."""
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "due", **_scope(scope, now), limit=limit)
            await self._decide(session, rows, now, decide)
        return len(rows)

    async def start(self, name: str, now: datetime, decide: CronDecide) -> bool:
        """The same for one cron, due or not; False if there is none."""
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "lock", name=name)
            await self._decide(session, rows, now, decide)
        return bool(rows)

    async def list(self, session: OpenTransaction, now: datetime) -> builtins.list[tuple[KeptCron, str | None]]:
        """All crons by name, with the state of the last job of each."""
        rows = await self._fetch(session, "list", now=encode_datetime(now))
        return [(_kept(row[:-1]), row[-1]) for row in rows]

    # ----- steps

    async def _decide(self, session: Session, rows: Sequence[Row], now: datetime, decide: CronDecide) -> None:
        if not rows:
            return
        crons = [(kept, await self._under_way(session, kept.job_id)) for kept in map(_kept, rows)]
        moves: list[CronMove] = await decide(crons)
        await self._jobs.enqueue(session, [move.job for move in moves if move.job is not None], now)
        for move in moves:
            await self._move(session, move.kept)

    async def _under_way(self, session: Session, job: UUID | None) -> bool:
        return job is not None and bool(await self._fetch(session, "under_way", id=job.bytes))

    async def _plan(self, session: Session, kept: KeptCron) -> None:
        await self._fetch(session, "plan", **plan_values(kept.plan), **_times(kept))

    async def _move(self, session: Session, kept: KeptCron) -> None:
        await self._fetch(
            session,
            "move",
            name=kept.plan.name,
            paused=kept.paused,
            job_id=None if kept.job_id is None else kept.job_id.bytes,
            planned_at=None if kept.planned_at is None else encode_datetime(kept.planned_at),
            **_times(kept),
        )

    async def _fetch(self, session: OpenTransaction, query_name: str, /, **values: Any) -> Sequence[Row]:
        return await fetch(session, self._queries[query_name], values)


def _scope(scope: CronScope, now: datetime) -> dict[str, str]:
    return {
        "names": json.dumps(list(scope.names)),
        "functions": json.dumps(list(scope.functions)),
        "now": encode_datetime(now),
    }


def _times(kept: KeptCron) -> dict[str, str]:
    return {"last_at": encode_datetime(kept.last_at), "next_at": encode_datetime(kept.next_at)}


def _kept(row: Row) -> KeptCron:
    *plan, last_at, next_at, job_id, planned_at = row
    uuid = None if job_id is None else UUID(bytes=job_id)
    return kept_of((*plan, _time(last_at), _time(next_at), uuid, _time(planned_at)))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
