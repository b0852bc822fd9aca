"""Jobs at rest on SQLite. Looking comes before writing: an idle worker takes no lock and wakes nobody."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from operator import itemgetter
from typing import Any
from uuid import UUID

from penstock.clock import SystemClock
from penstock.jobs.job import Job, NewJob, Settlement
from penstock.jobs.order import rank, rank_of_begun
from penstock.jobs.states import FINISHED, JobState
from penstock.pools.gate import Passage
from penstock.store.nouns.gates import Gates
from penstock.store.nouns.jobs import Claim, Jobs, Look, Room
from penstock.store.nouns.jobtext import attempt_text, attempts_text, ending_text, options_of, options_text
from penstock.store.nouns.noun import Access
from penstock.store.placement import GatesLeftOut, Line, gates_in_line, remaining_rooms
from penstock.store.session import OpenTransaction, Row, Session
from penstock.store.sqlite.dialect import encode_datetime, time_texts
from penstock.store.sqlite.session import WriteAlone
from penstock.store.sqlite.tasks import SqliteTaskEnds

_PROMOTE_MOST = 1000
_PIECE = 1000
_TOGETHER = 4  # jobs; for fewer, statements of their own are as fast
_LARGEST_TOGETHER = 4096  # characters of a result that is sent with those of others


class SqliteGates(Gates):
    """See `store.nouns.Gates`."""

    async def _start(
        self, session: Session, lease: int, room: Room, found: Passage, now: datetime
    ) -> tuple[list[Job], Sequence[str]]:
        started_at, jobs, keys = encode_datetime(now), list[Job](), list[str]()
        for key, count in found.counts.items():
            values = {"pool": room.pool, "key": key, "count": count, "lease": lease, "epoch": room.epoch}
            for row in await self._fetch(session, "start", **values, **self._access.left, now=now):
                taken = {"lease": lease, "started_at": started_at, "attempt": _next_attempt(row)}
                await self._fetch(session, "started", **dict(row) | taken)
                jobs += self._read(Job, [row], attempt=_next_attempt, started_at=lambda _: now)
                keys.append(row["concurrency_key"])
        await self._execute(session, "turned", pool=room.pool, last=found.last)
        return jobs, keys


class SqliteJobs(Jobs):
    """See `store.nouns.Jobs`."""

    def __init__(self, access: Access, write_alone: WriteAlone, gates: SqliteGates, ends: SqliteTaskEnds) -> None:
        super().__init__(access)
        self._ends = ends
        self._write_alone = write_alone
        self._gates = gates
        self._left_out = GatesLeftOut()
        self._was_full = False  # the last claim, which makes it likely that more jobs are ready: no look comes first

    async def enqueue(self, session: OpenTransaction, jobs: Sequence[NewJob], now: datetime) -> None:
        texts, at = time_texts(), encode_datetime(now)
        options = {id(job.options): job.options for job in jobs}
        stored = {key: options_text(value) for key, value in options.items()}
        for name, here in (("enqueue", False), ("enqueue_scheduled", True)):
            query = self._queries[name]
            rows = [
                query.args(_new_row(job, stored[id(job.options)], texts(job.run_at), at, due=job.run_at <= now))
                for job in jobs
                if (job.concurrency_key is not None or job.run_at > now) is here
            ]
            if len(rows) == 1:
                await session.execute(query.statement, rows[0])
            elif rows:
                await session.execute_many(query.statement, rows)

    async def enqueue_alike(self, session: Session, jobs: Iterable[NewJob], now: datetime) -> None:
        left, clock = iter(jobs), SystemClock()
        while piece := list(islice(left, _PIECE)):
            await self.enqueue(session, piece, now)
            if len(piece) == _PIECE:
                await clock.sleep(0)

    async def enqueue_alone(self, job: NewJob, now: datetime) -> None:
        due = job.run_at <= now
        query = self._queries["enqueue" if due and job.concurrency_key is None else "enqueue_scheduled"]
        row = _new_row(job, options_text(job.options), encode_datetime(job.run_at), encode_datetime(now), due=due)
        await self._write_alone(query.statement, query.args(row))

    async def claim(self, lease: int, limit: int, rooms: Sequence[Room], now: datetime) -> Claim:
        if not self._was_full:
            async with self._reading() as session:
                rows = await self._fetch(session, "look", pools=_pools(rooms), **self._access.left)
            (seen,) = self._read(Look, rows)
            if not rows[0]["ready"] and not seen.is_due(now):
                return Claim([], seen.next_run_at, seen.cancels)
        async with self._writing() as session:
            seen = await self._see(session)
            if due := seen.is_due(now):
                await self._promote(session, now)
                seen = await self._see(session)
            opened: dict[str, timedelta | None] = {}
            jobs = await self._pass_gates(session, lease, self._left_out.first(rooms, limit), now, opened)
            jobs += await self._start(session, lease, limit - len(jobs), remaining_rooms(rooms, jobs), now)
            at_gates = await self._fetch(session, "waiting", pools=_pools(rooms), **self._access.left)
            waiting = [row["pool"] for row in at_gates]
            for line in gates_in_line(remaining_rooms(rooms, jobs), waiting, opened):
                jobs += await self._pass_gates(session, lease, Line(line, limit - len(jobs)), now, opened)
        self._left_out.remember(waiting, opened, jobs)
        self._was_full = len(jobs) >= limit > 0
        waits = [again for again in opened.values() if again is not None]
        return Claim(jobs, seen.next_run_at, seen.cancels, due, min(waits, default=None))

    async def settle(self, lease: int, settlements: Sequence[Settlement]) -> set[UUID]:
        async with self._writing() as session:
            return await self._settle_all(session, lease, settlements)

    async def settle_within(self, session: Session, lease: int, settlement: Settlement) -> bool:
        failed = attempt_text(settlement.failed)
        rows = await self._fetch(session, "settle", id=settlement.id.bytes, lease=lease, failed_attempt=failed)
        if not rows:
            return False
        values = dict(rows[0]) | {"attempt": settlement.attempt, "waiting": False}
        values["blocks_key"] = settlement.blocks_key and bool(values["concurrency_key"])
        if settlement.keeps_rank and values["gated"]:
            values["rank"] = rank_of_begun(datetime.fromisoformat(values["enqueued_at"]))
        elif not values["blocks_key"] and not settlement.keeps_rank:
            values["rank"] += (settlement.run_at - datetime.fromisoformat(values["run_at"])) // timedelta.resolution
        values["run_at"] = encode_datetime(settlement.run_at)
        values["ending"] = ending_text(settlement.ending)
        if settlement.frees_key:
            await self._write(session, "free_key", {"id": settlement.id.bytes})
        await self._settle_as(session, settlement, values)
        if settlement.mark is not None:
            await self._ends.note_ends(session, [settlement])
        await self._post_ends(session, [settlement])
        return True

    async def _settle_as(self, session: Session, settlement: Settlement, values: dict[str, Any]) -> None:
        if settlement.state is JobState.COMPLETING and settlement.run_at <= settlement.finished_at:
            values["error"] = settlement.error
            await self._write(session, "enqueue", values)
        elif settlement.state not in FINISHED:
            values["error"] = settlement.error or values["error"]
            values["gated"] = values["gated"] and settlement.state is JobState.PENDING
            await self._write(session, "enqueue_scheduled", values)
        else:
            await self._write(session, "end", values | _row_of_ended(settlement))

    async def settle_all_within(self, session: Session, lease: int, settlements: Sequence[Settlement]) -> int:
        return len(await self._settle_all(session, lease, settlements))

    async def retry(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        async with self._writing() as session:
            tasks = await self._ends.retry(session, ids, now)
            return [
                one
                for one in dict.fromkeys(ids)
                if tasks.get(one) or (one not in tasks and await self._retry(session, one, now))
            ]

    async def recall(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        async with self._writing() as session:
            return [one for one in dict.fromkeys(ids) if await self._recall(session, one, now)]

    # ----- steps

    async def _settle_all(self, session: Session, lease: int, settlements: Sequence[Settlement]) -> set[UUID]:
        together: builtins.list[Settlement] = []
        alone: builtins.list[Settlement] = []
        for item in settlements:
            is_small = len(item.result or "") <= _LARGEST_TOGETHER
            (together if item.is_plain and is_small else alone).append(item)
        if len(together) < _TOGETHER:
            together, alone = [], [*settlements]
        won = await self._succeed(session, lease, together) if together else set()
        await self._ends.note_ends(session, [item for item in together if item.mark is not None and item.id in won])
        await self._post_ends(session, [item for item in together if item.id in won])
        return won | {item.id for item in alone if await self.settle_within(session, lease, item)}

    async def _succeed(self, session: Session, lease: int, settlements: Sequence[Settlement]) -> set[UUID]:
        held: dict[bytes, int] = {row["id"]: row["place"] for row in await self._fetch(session, "held", lease=lease)}
        results: dict[tuple[datetime, datetime], dict[int, str | None]] = {}
        won = set()
        for item in settlements:
            row = held.get(item.id.bytes)
            if row is not None:
                results.setdefault((item.finished_at, item.expires_at), {})[row] = item.result
                won.add(item.id)
        for (finished_at, expires_at), found in results.items():
            values: dict[str, Any] = {"finished_at": finished_at, "expires_at": expires_at}
            await self._fetch(session, "succeed", results=json.dumps(found), **values)
        return won

    async def _see(self, session: Session) -> Look:
        return self._read(Look, await self._fetch(session, "next_run_at"))[0]

    async def _promote(self, session: Session, now: datetime) -> None:
        rows = await self._fetch(session, "promote", now=now, limit=_PROMOTE_MOST)
        for row in sorted(rows, key=itemgetter("run_at", "id")):
            await self._write(session, "enqueue", dict(row))

    async def _start(
        self, session: Session, lease: int, limit: int, rooms: Sequence[Room], now: datetime
    ) -> builtins.list[Job]:
        rows = [*await self._fetch(session, "claim_ending", lease=lease, limit=limit, **self._access.left)]
        await self._put_under_lease(session, lease, rows, now)
        line = Line(rooms, limit - len(rows))
        for room in line:
            values = {"pool": room.pool, "lease": lease, "epoch": room.epoch, "limit": room.room}
            found = await self._fetch(session, "claim", **values, **self._access.left)
            await self._put_under_lease(session, lease, found, now)
            line.took(len(found))
            rows += found
        rows.sort(key=itemgetter("rank", "seq"))  # the most urgent first
        return self._read(Job, rows, started_at=lambda _: now)

    async def _pass_gates(
        self, session: Session, lease: int, rooms: Line, now: datetime, opened: dict[str, timedelta | None]
    ) -> builtins.list[Job]:
        jobs: list[Job] = []
        for room in rooms:
            started, opened[room.pool] = await self._gates.open(session, lease, room, now)
            rooms.took(len(started))
            jobs += started
        return jobs

    async def _put_under_lease(self, session: Session, lease: int, rows: Sequence[Row], now: datetime) -> None:
        if rows:
            await self._fetch(session, "start", lease=lease, seqs=[row["seq"] for row in rows], started_at=now)

    async def settle_pending(self, session: Session, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            await self._settle_one_pending(session, settlement)

    async def _settle_one_pending(self, session: Session, settlement: Settlement) -> None:
        job_id = settlement.id.bytes
        rows = await self._fetch(session, "settle_pending", id=job_id)
        for row in rows:
            values = dict(row) | {"started_at": None, "error": None}
            if settlement.state is JobState.COMPLETING:
                await self._write(session, "enqueue", values | {"ending": ending_text(settlement.ending)})
            else:
                await self._write(session, "end", values | _row_of_ended(settlement))
        await self._write(session, "clear_request", {"id": job_id})
        if settlement.frees_key:
            await self._write(session, "free_key", {"id": job_id})
        if rows and settlement.mark is not None:
            await self._ends.note_ends(session, [settlement])
        if rows:
            await self._post_ends(session, [settlement])

    async def _retry(self, session: Session, job_id: UUID, now: datetime) -> bool:
        rows = await self._fetch(session, "retry", id=job_id.bytes, now=encode_datetime(now))
        for row in rows:
            values, options = dict(row), options_of(row["options"])
            ((ageing, rated),) = await self._fetch(session, "retried_in", pool=row["pool"])
            gated = bool(rated) or options.key is not None or options.concurrency_key is not None
            values |= {"run_at": encode_datetime(now), "ending": None, "attempt": 0}
            values["rank"] = rank(now, values["priority"], None if ageing is None else ageing * timedelta.resolution)
            values |= {"gated": gated, "waiting": gated, "blocks_key": False}
            values["concurrency_key"] = options.concurrency_key or ""
            await self._write(session, "enqueue_scheduled" if gated else "enqueue", values)
            await self._write(session, "clear_request", {"id": job_id.bytes})
            await self._write(session, "void_tokens", {"id": job_id.bytes})
        return bool(rows)

    async def _recall(self, session: Session, job_id: UUID, now: datetime) -> bool:
        rows = await self._fetch(session, "recall", id=job_id.bytes, now=encode_datetime(now))
        for row in rows:
            values = dict(row) | {"error": None}
            await self._write(session, "enqueue", values | {"rank": rank(now), "run_at": encode_datetime(now)})
        return bool(rows)

    async def _write(self, session: Session, name: str, values: Mapping[str, Any]) -> None:
        """Run a query with values that are in SQLite's form already."""
        query = self._queries[name]
        await session.execute(query.statement, query.args(values))


def _pools(rooms: Sequence[Room]) -> str:
    return json.dumps([room.pool for room in rooms if room.room > 0])


def _next_attempt(row: Row) -> int:
    """The number of the attempt that begins with a job's start."""
    return int(row["attempt"]) + (row["ending"] is None)


def _new_row(job: NewJob, options: str | None, run_at: str, now: str, *, due: bool) -> dict[str, Any]:
    """A new job as the values of the queries that enqueue."""
    gated = job.concurrency_key is not None
    return {
        "id": job.id.bytes,
        "pool": job.pool,
        "function": job.function,
        "kind": job.kind,
        "args": job.args,
        "priority": job.priority,
        "rank": job.rank,
        "run_at": run_at,
        "options": options,
        "on_complete": job.on_complete,
        "ending": None,
        "attempt": 0,
        "enqueued_at": now,
        "error": None,
        "attempts": None,
        "gated": gated,
        "waiting": gated and due,
        "concurrency_key": job.concurrency_key or "",
        "blocks_key": False,
    }


def _row_of_ended(settlement: Settlement) -> dict[str, Any]:
    return {
        "finished_at": encode_datetime(settlement.finished_at),
        "expires_at": encode_datetime(settlement.expires_at),
        "state": settlement.state.value,
        "result": settlement.result,
        "error": settlement.error,
        "traceback": settlement.traceback,
        "on_complete_error": settlement.on_complete_error,
        "on_complete_attempts": attempts_text(settlement.on_complete_attempts),
    }
