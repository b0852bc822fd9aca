"""Jobs at rest on PostgreSQL. Each verb is one statement, described in the SQL."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.jobs.job import Job, NewJob, Settlement
from penstock.jobs.order import NO_AGEING
from penstock.pools.gate import Passage
from penstock.store.nouns.gates import Gates
from penstock.store.nouns.jobs import Claim, Jobs, Look, Room, day_of, day_to_drop
from penstock.store.nouns.jobtext import attempt_text, attempts_text, ending_text
from penstock.store.nouns.noun import Access
from penstock.store.placement import GatesLeftOut, Line, gates_in_line, remaining_rooms
from penstock.store.postgres.access import run
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.heads import Heads
from penstock.store.postgres.newjobs import COPY_FROM, alone, arrays, copy, copy_alike
from penstock.store.postgres.session import PostgresSession
from penstock.store.postgres.tasks import PostgresTaskEnds, or_none
from penstock.store.session import OpenTransaction, Row, Session, Statement

_PROMOTE_MOST = 1000
_PIECE = 5000  # jobs in one statement, of a transaction that is shared
# These two are no queries of a .sql file: the name of a table and a setting cannot be parameters.
_TRUNCATE = "truncate penstock.finished_job_{day}"
_IMPATIENT = Statement("set local lock_timeout = '200ms'")


@dataclass(frozen=True, slots=True)
class _Seen(Look):
    gates: tuple[str, ...]  # the pools at whose gates jobs wait


class PostgresGates(Gates):
    """See `store.nouns.Gates`."""

    async def _start(
        self, session: Session, lease: int, room: Room, found: Passage, now: datetime
    ) -> tuple[list[Job], Sequence[str]]:
        keys, counts = list(found.counts), list(found.counts.values())
        values = {"pool": room.pool, "epoch": room.epoch, "lease": lease, "last": found.last, "now": now}
        rows = await self._fetch(session, "start", keys=keys, counts=counts, **values, **self._access.left)
        return self._read(Job, rows), [row["concurrency_key"] for row in rows]


class PostgresJobs(Jobs):
    """See `store.nouns.Jobs`."""

    def __init__(
        self, access: Access, connections: Connections, gates: PostgresGates, heads: Heads, ends: PostgresTaskEnds
    ) -> None:
        super().__init__(access)
        self._connections = connections
        self._ends = ends
        self._gates = gates
        self._heads = heads
        self._left_out = GatesLeftOut()

    async def enqueue(self, session: OpenTransaction, jobs: Sequence[NewJob], now: datetime) -> None:
        if len(jobs) >= COPY_FROM and isinstance(session, PostgresSession):
            await copy(session, jobs, now)
            return
        await self._execute(session, "enqueue", **arrays(jobs, now))

    async def enqueue_alike(self, session: Session, jobs: Iterable[NewJob], now: datetime) -> None:
        left, copies = iter(jobs), isinstance(session, PostgresSession)
        while piece := list(islice(left, COPY_FROM if copies else _PIECE)):
            if isinstance(session, PostgresSession) and len(piece) == COPY_FROM:
                await copy_alike(session, piece, left, now)
            else:
                await self.enqueue(session, piece, now)

    async def enqueue_alone(self, job: NewJob, now: datetime) -> None:
        values = alone(job, now)
        if values is None:
            await run(self._connections, self._queries["enqueue"], arrays([job], now), once=True)
        else:
            await run(self._connections, self._queries["enqueue_one"], values, once=True)

    async def claim(self, lease: int, limit: int, rooms: Sequence[Room], now: datetime) -> Claim:
        opened: dict[str, timedelta | None] = {}
        taken = await self._pass_gates(self._left_out.first(rooms, limit), lease, now, opened)
        seen, jobs = await self._claim(lease, limit - len(taken), remaining_rooms(rooms, taken), now)
        taken += jobs
        if due := seen.is_due(now):
            await self._run("promote", now=now, limit=_PROMOTE_MOST)
            seen, jobs = await self._claim(lease, limit - len(taken), remaining_rooms(rooms, taken), now)
            taken += jobs
        if seen.gates:
            for line in gates_in_line(remaining_rooms(rooms, taken), seen.gates, opened):
                taken += await self._pass_gates(Line(line, limit - len(taken)), lease, now, opened)
        at_gates = [room.pool for room in rooms if room.room > 0 and room.pool in seen.gates]
        self._left_out.remember(at_gates, opened, taken)
        waits = [again for again in opened.values() if again is not None]
        until_whole = self._heads.until_whole()
        if until_whole is not None and len(taken) < limit:
            waits.append(timedelta(seconds=until_whole))
        return Claim(taken, seen.next_run_at, seen.cancels, due, min(waits, default=None))

    async def _pass_gates(
        self, rooms: Line, lease: int, now: datetime, opened: dict[str, timedelta | None]
    ) -> list[Job]:
        """Start jobs that wait at the gates of these pools; `opened` gets the wait until more may start."""
        taken: list[Job] = []
        for room in rooms:
            async with self._writing() as session:
                jobs, opened[room.pool] = await self._gates.open(session, lease, room, now)
            rooms.took(len(jobs))
            taken += jobs
        return taken

    async def settle(self, lease: int, settlements: Sequence[Settlement]) -> set[UUID]:
        if any(item.mark is not None or item.run is not None for item in settlements):
            async with self._writing() as session:
                return await self._settle_within(session, lease, settlements)
        name, values = _settling(settlements)
        return _winners(name, settlements, await self._run(name, lease=lease, **values))

    async def settle_within(self, session: Session, lease: int, settlement: Settlement) -> bool:
        return await self.settle_all_within(session, lease, [settlement]) == 1

    async def settle_all_within(self, session: Session, lease: int, settlements: Sequence[Settlement]) -> int:
        return len(await self._settle_within(session, lease, settlements))

    async def retry(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        async with self._writing() as session:
            tasks = await self._ends.retry(session, list(ids), now)
            others = [one for one in ids if one not in tasks]
            values = {"ids": others, "now": now, "no_ageing": NO_AGEING // timedelta.resolution}
            again = {row["id"] for row in await self._fetch(session, "retry", **values)}
            again |= {job for job, won in tasks.items() if won}
        return [one for one in dict.fromkeys(ids) if one in again]

    async def recall(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        again = {row["id"] for row in await self._run("recall", ids=list(ids), now=now)}
        return [one for one in dict.fromkeys(ids) if one in again]

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget finished jobs whose time is over: truncate yesterday's partition, and a piece of the long one.

        The number of them is approximate beyond `limit`.
        """
        day = day_to_drop(now)
        async with self._writing() as session:
            ((count,),) = await self._fetch(session, "count_day", day=day, most=limit)
            if count:
                await session.execute(_IMPATIENT)
                await session.execute(self._own(_TRUNCATE.format(day=day)))
            count += await self._execute(session, "prune", now=now, limit=limit)
        return int(count)

    async def settle_pending(self, session: Session, settlements: Sequence[Settlement]) -> None:
        rows = await self._fetch(session, "settle_pending", **_settle_arrays(settlements))
        await self._note_ends(session, settlements, {row["id"] for row in rows})

    async def _settle_within(self, session: Session, lease: int, settlements: Sequence[Settlement]) -> set[UUID]:
        name, values = _settling(settlements)
        won = _winners(name, settlements, await self._fetch(session, name, lease=lease, **values))
        await self._note_ends(session, settlements, won)
        return won

    async def _note_ends(self, session: Session, settlements: Sequence[Settlement], won: set[UUID]) -> None:
        await self._ends.note_ends(session, _of(settlements, won))
        await self._post_ends(session, [item for item in settlements if item.run is not None and item.id in won])

    async def _claim(
        self, lease: int, limit: int, rooms: Sequence[Room], now: datetime
    ) -> tuple[_Seen, builtins.list[Job]]:
        began, pools = self._heads.now(), [room.pool for room in rooms]
        first, *rows = await self._run(
            "claim",
            pools=pools,
            rooms=[min(room.room, limit) for room in rooms],
            epochs=[room.epoch for room in rooms],
            running=[room.running for room in rooms],
            **self._heads.after(pools),
            lease=lease,
            limit=limit,
            now=now,
            **self._access.left,
        )
        jobs = self._read(
            Job, rows, enqueued_at=lambda row: row["enqueued_at"] or row["run_at"], started_at=lambda _: now
        )
        self._heads.learn(began, pools, first["passed"], [(row["rank"], row["seq"]) for row in rows], jobs)
        return self._read(_Seen, [first])[0], jobs


def _winners(name: str, settlements: Sequence[Settlement], rows: Sequence[Row]) -> set[UUID]:
    """The ids of the written ones, from the answer of the query."""
    found = {row["id"] for row in rows}
    return found if name == "settle" else {item.id for item in settlements} - found


def _of(settlements: Sequence[Settlement], won: set[UUID]) -> builtins.list[Settlement]:
    return [item for item in settlements if item.mark is not None and item.id in won]


def _settling(settlements: Sequence[Settlement]) -> tuple[str, dict[str, Any]]:
    """The query that writes these, and its values."""
    if not all(item.is_plain for item in settlements):
        return "settle", _settle_arrays(settlements)
    first, ids = settlements[0], [item.id for item in settlements]
    common = (first.result, first.finished_at, first.expires_at)
    own = [item for item in settlements if (item.result, item.finished_at, item.expires_at) != common]
    return "succeed", {
        "ids": ids,
        "result": first.result,
        "finished_at": first.finished_at,
        "expires_at": first.expires_at,
        "day": day_of(first.expires_at, first.finished_at),
        "returned": [item.id for item in own] or None,
        "results": [item.result for item in own] or None,
        "finished_ats": [item.finished_at for item in own] or None,
        "expires_ats": [item.expires_at for item in own] or None,
        "days": [day_of(item.expires_at, item.finished_at) for item in own] or None,
    }


def _settle_arrays(settlements: Sequence[Settlement]) -> dict[str, Any]:
    arrays: dict[str, list[Any]] = {
        "ids": [item.id for item in settlements],
        "states": [item.state.value for item in settlements],
        "attempts": [item.attempt for item in settlements],
        "run_ats": [item.run_at for item in settlements],
        "finished_ats": [item.finished_at for item in settlements],
        "expires_ats": [item.expires_at for item in settlements],
        "days": [day_of(item.expires_at, item.finished_at) for item in settlements],
        "results": [item.result for item in settlements],
        "errors": [item.error for item in settlements],
        "tracebacks": [item.traceback for item in settlements],
        "endings": [ending_text(item.ending) for item in settlements],
        "on_complete_errors": [item.on_complete_error for item in settlements],
        "on_complete_attempts": [attempts_text(item.on_complete_attempts) for item in settlements],
        "freed": [item.id for item in settlements if item.frees_key],
        "failed_attempts": [attempt_text(item.failed) for item in settlements],
        "blocks_keys": [item.blocks_key or None for item in settlements],
        "keeps_ranks": [item.keeps_rank or None for item in settlements],
    }
    return {name: or_none(values) for name, values in arrays.items()}
