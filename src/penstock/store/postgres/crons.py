"""Crons on PostgreSQL: who decides on a cron holds its row, and others step around it."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.crons.plan import CronPlan, KeptCron, begun, changed, paused
from penstock.store.contract.crons import CronDecide, CronLook, CronScope
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.jobs import PostgresJobs, run
from penstock.store.postgres.session import BEGIN_INTERNAL, BEGIN_READ, begin
from penstock.store.rows.crons import kept_of, plan_values
from penstock.store.sql.queries import load_queries


class PostgresCrons:
    """See `store.crons.Crons`."""

    def __init__(self, connections: Connections, jobs: PostgresJobs) -> None:
        self._connections = connections
        self._jobs = jobs
        self._queries = load_queries("penstock.store.postgres", "crons", "$")

    async def declare(self, plans: Sequence[CronPlan], now: datetime) -> None:
        """Make the plans of a program known."""
        if not plans:
            return
        session = await begin(self._connections, BEGIN_READ)
        try:
            known = {kept.plan.name: kept.plan for kept, _ in await self.list(session, now)}
        finally:
            await session.rollback()
        new = sorted((plan for plan in plans if known.get(plan.name) != plan), key=lambda plan: plan.name)
        if not new:  # who finds all as it is needs no right to write
            return
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            for plan in new:
                if not await self.create(session, plan, now):
                    rows = await self._fetch(session, "lock", name=plan.name)
                    if rows:
                        await self._plan(session, changed(kept_of(rows[0]), plan, now))
            await session.commit()
        finally:
            await session.rollback()

    async def create(self, session: Session, plan: CronPlan, now: datetime) -> bool:
        """Add one in a transaction; False if its name is taken."""
        kept = begun(plan, now)
        values = plan_values(plan) | {"last_at": kept.last_at, "next_at": kept.next_at}
        return bool(await self._fetch(session, "create", **values))

    async def remove(self, session: Session, name: str) -> bool:
        """Remove one in a transaction; False if there is none."""
        return bool(await self._fetch(session, "remove", name=name))

    async def pause(self, session: Session, name: str, now: datetime, *, pause: bool) -> bool:
        """Pause or resume one in a transaction; False if there is none."""
        rows = await self._fetch(session, "lock", name=name)
        if rows:
            await self._fetch(session, "move", **_move_values(paused(kept_of(rows[0]), now, pause=pause)))
        return bool(rows)

    async def look(self, scope: CronScope, now: datetime) -> CronLook:
        """Whether anything is to be decided, and when the next look is due."""
        values = {"names": list(scope.names), "functions": list(scope.functions), "now": now}
        ((due, overdue, next_at),) = await run(self._connections, self._queries["look"], values)
        return CronLook(due, overdue and not due, next_at)

    async def decide(self, scope: CronScope, now: datetime, limit: int, decide: CronDecide) -> int:
        """Have `decide` decide on up to `limit` that are due; how many there were."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            values = {"names": list(scope.names), "functions": list(scope.functions), "now": now, "limit": limit}
            rows = await self._fetch(session, "due", **values)
            await self._decide(session, rows, now, decide)
            await session.commit()
        finally:
            await session.rollback()
        return len(rows)

    async def start(self, name: str, now: datetime, decide: CronDecide) -> bool:
        """The same for one cron, due or not; False if there is none."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            rows = await self._fetch(session, "lock", name=name)
            await self._decide(session, rows, now, decide)
            await session.commit()
        finally:
            await session.rollback()
        return bool(rows)

    async def list(self, session: OpenTransaction, now: datetime) -> builtins.list[tuple[KeptCron, str | None]]:
        """All crons by name, with the state of the last job of each."""
        return [(kept_of(row[:-1]), row[-1]) for row in map(tuple, await self._fetch(session, "list", now=now))]

    # ----- steps

    async def _decide(self, session: Session, rows: Sequence[Row], now: datetime, decide: CronDecide) -> None:
        if not rows:
            return
        crons = [kept_of(row) for row in rows]
        # Asked once the rows are held: what is seen now is what the last one who held them has left.
        jobs = [kept.job_id for kept in crons if kept.job_id is not None]
        running = {row[0] for row in await self._fetch(session, "under_way", ids=jobs)} if jobs else set()
        moves = await decide([(kept, kept.job_id in running) for kept in crons])
        new = [move.job for move in moves if move.job is not None]
        if new:
            await self._jobs.enqueue(session, new, now)
        query = self._queries["move"]
        await session.execute_many(query.statement, [query.args(_move_values(move.kept)) for move in moves])

    async def _plan(self, session: Session, kept: KeptCron) -> None:
        values = plan_values(kept.plan) | {"last_at": kept.last_at, "next_at": kept.next_at}
        await self._fetch(session, "plan", **values)

    async def _fetch(self, session: OpenTransaction, query_name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[query_name]
        return await session.fetch(query.statement, query.args(values))


def _move_values(kept: KeptCron) -> dict[str, Any]:
    names = ("paused", "last_at", "next_at", "job_id", "planned_at")
    return {"name": kept.plan.name, **{name: getattr(kept, name) for name in names}}
