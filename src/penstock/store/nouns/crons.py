"""Crons at rest. A scheduler that decides on a cron locks its row; on PostgreSQL others skip it."""

from __future__ import annotations

import builtins
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.crons.plan import CronPlan, KeptCron, begin, replan, set_paused
from penstock.dataclass import dataclass
from penstock.jobs.job import NewJob
from penstock.jobs.order import rank
from penstock.observe.logs import event
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.jobtext import options_of, options_text
from penstock.store.nouns.noun import Access, Noun
from penstock.store.session import OpenTransaction, Row, Session
from penstock.values import decode_json, encode_json

_OF_EACH_RUN = {"id", "run_at", "rank", "options"}
_JOB = tuple(field.name for field in fields(NewJob) if field.name not in _OF_EACH_RUN)


@dataclass(frozen=True, slots=True)
class CronScope:
    """The crons that a program keeps: those it declares, and those created at run time whose function it has."""

    names: Sequence[str]
    functions: Sequence[str]


@dataclass(frozen=True, slots=True)
class CronLook:
    """The result of one look at crons."""

    due: bool  # whether the time of one has come that waits for nothing
    waiting: bool  # whether the time of one has come that waits for its run under way
    next_at: datetime | None  # the next planned time after now


@dataclass(frozen=True, slots=True)
class CronMove:
    """The decision about a cron: its new state, and the job of its run if there is one."""

    kept: KeptCron
    job: NewJob | None = None


CronDecide = Callable[[list[tuple[KeptCron, bool]]], Awaitable[list[CronMove]]]


class Crons(Noun, queries=("crons",)):
    """Crons at rest: plans, and the last decided time of each. A cron is under way until its last job has ended."""

    def __init__(self, access: Access, jobs: Jobs) -> None:
        super().__init__(access)
        self._jobs = jobs

    async def declare(self, plans: Sequence[CronPlan], now: datetime) -> None:
        """Store the plans of a program; plans that differ from the declaration before hold from now on."""
        if not plans:
            return
        async with self._reading() as session:
            known = {kept.plan.name: kept.plan for kept, _ in await self.list(session, now)}
        new = sorted((plan for plan in plans if known.get(plan.name) != plan), key=lambda plan: plan.name)
        if not new:  # an unchanged declaration takes no lock, and needs no right to write
            return
        async with self._writing() as session:
            for plan in new:
                if not await self.create(session, plan, now):
                    for before in self._read(KeptCron, await self._fetch(session, "lock", name=plan.name)):
                        kept = replan(before, plan, now)
                        if not before.plan.declared:
                            event("cron.replaced", logging.WARNING, cron=plan.name, function=before.plan.function)
                        await self._fetch(session, "plan", **asdict(plan), **_times(kept))

    async def create(self, session: Session, plan: CronPlan, now: datetime) -> bool:
        """Add one in a transaction; False if its name is taken."""
        return bool(await self._fetch(session, "create", **asdict(plan), **_times(begin(plan, now))))

    async def remove(self, session: Session, name: str) -> bool:
        """Remove one in a transaction; False if there is none."""
        return bool(await self._fetch(session, "remove", name=name))

    async def pause(self, session: Session, name: str, now: datetime, *, pause: bool) -> bool:
        """Pause or resume one in a transaction; False if there is none."""
        found = self._read(KeptCron, await self._fetch(session, "lock", name=name))
        if found:
            await self._move(session, [set_paused(found[0], now, pause=pause)])
        return bool(found)

    async def look(self, scope: CronScope, now: datetime) -> CronLook:
        """Whether anything is to be decided, and when the next look is due."""
        ((due, overdue, next_at),) = await self._look("look", **_scope(scope, now))
        return CronLook(bool(due), bool(overdue) and not due, self._access.time(next_at))

    async def decide(self, scope: CronScope, now: datetime, limit: int, decide: CronDecide) -> int:
        """Have `decide` decide on up to `limit` that are due; the number of them.

        Its argument says whether a cron is under way. The crons are locked meanwhile: nobody decides on them twice. The
        decisions and the jobs are written together.
        """
        async with self._writing() as session:
            rows = await self._fetch(session, "due", **_scope(scope, now), limit=limit)
            await self._decide(session, rows, now, decide)
        return len(rows)

    async def start(self, name: str, now: datetime, decide: CronDecide) -> bool:
        """Start one cron, due or not; False if there is none."""
        async with self._writing() as session:
            rows = await self._fetch(session, "lock", name=name)
            await self._decide(session, rows, now, decide)
        return bool(rows)

    async def list(self, session: OpenTransaction, now: datetime) -> builtins.list[tuple[KeptCron, str | None]]:
        """All crons by name, with the state of the last job of each, as long as that is kept."""
        rows = await self._fetch(session, "list", now=now)
        return [*zip(self._read(KeptCron, rows), (row["state"] for row in rows), strict=True)]

    # ----- steps

    async def _decide(self, session: Session, rows: Sequence[Row], now: datetime, decide: CronDecide) -> None:
        if not rows:
            return
        crons = self._read(KeptCron, rows)
        # Asked once the rows are locked: now the writes of the last holder are visible.
        jobs = [kept.job_id for kept in crons if kept.job_id is not None]
        found = await self._fetch(session, "under_way", ids=jobs) if jobs else ()
        running = {self._access.uuid(row["id"]) for row in found}
        moves: Sequence[CronMove] = await decide([(kept, kept.job_id in running) for kept in crons])
        new = [move.job for move in moves if move.job is not None]
        if new:
            await self._jobs.enqueue(session, new, now)
        await self._move(session, [move.kept for move in moves])

    async def _move(self, session: Session, crons: Sequence[KeptCron]) -> None:
        query = self._queries["move"]
        rows = [
            {"name": kept.plan.name, "paused": kept.paused, "job_id": kept.job_id, "planned_at": kept.planned_at}
            | _times(kept)
            for kept in crons
        ]
        await session.execute_many(query.statement, [self._access.args(query, row) for row in rows])


def _scope(scope: CronScope, now: datetime) -> dict[str, Any]:
    return {"names": list(scope.names), "functions": list(scope.functions), "now": now}


def _times(kept: KeptCron) -> dict[str, datetime]:
    return {"last_at": kept.last_at, "next_at": kept.next_at}


def job_text(job: NewJob) -> str:
    """The common part of the jobs of all runs of a cron, as JSON."""
    common = {name: getattr(job, name) for name in _JOB}
    ahead = rank(job.run_at) - job.rank  # of a job without priority; the same at any time
    return json.dumps({**common, "ahead": ahead, "options": options_text(job.options)}, ensure_ascii=False)


def run_of(plan: CronPlan, planned_at: datetime, run_at: datetime, uuid: UUID) -> NewJob:
    """The job of one run. Unknown fields, written by another version, are left out."""
    given = json.loads(plan.job)
    common = {name: given[name] for name in _JOB if name in given}
    if plan.takes_planned_at:
        args = common["args"]  # encrypted arguments begin with a space, and decrypting them keeps what is added
        added = encode_json({**decode_json(args), "planned_at": planned_at}, "The arguments")
        common["args"] = args[: args.index("{")] + added
    place = rank(run_at) - given["ahead"]
    return NewJob(id=uuid, run_at=run_at, rank=place, options=options_of(given["options"]), **common)
