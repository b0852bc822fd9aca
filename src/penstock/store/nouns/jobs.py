"""Reads jobs, and requests cancels. Each store moves jobs in its own way."""

from __future__ import annotations

import builtins
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.codec import Ciphertext, is_encrypted
from penstock.dataclass import dataclass
from penstock.jobs.filter import ALL_JOBS, JobFilter
from penstock.jobs.job import Job, JobStatus, NewJob, Settlement, job_id, job_uuid
from penstock.jobs.states import FINISHED, JobState
from penstock.store.nouns.jobtext import options_of
from penstock.store.nouns.noun import Noun, Values
from penstock.store.session import OpenTransaction, Row, Session
from penstock.values import decode_json
from penstock.workflows.outcome import error_outcome

LOOKED_AT = 50_000  # ended jobs that a page reads, where no index leads to the ones that it shows
_INDEXED = (JobState.FAILED.value, "retrying")  # states whose jobs have an index of their own
_MANY = {None, *(state.value for state in FINISHED)} - {*_INDEXED}  # states in which there may be very many jobs
_UNFINISHED = tuple(state.value for state in JobState if state not in FINISHED)
ABOVE_ALL, BELOW_ALL = UUID(int=2**128 - 1), UUID(int=0)  # ids that no job has
CANCEL_EVENT, JOB_EVENT = "cancel", "job"  # what penstock itself puts into the inbox of a workflow's run
_REQUEST_KEPT = timedelta(minutes=1)
_DAYS = 16
_LONG_DAY = -1
_LONGEST_IN_RING = timedelta(days=_DAYS - 3)
_EPOCH_ORDINAL = datetime(1970, 1, 1).toordinal()  # noqa: DTZ001 - only its day is used
Settle = Callable[[list[Job]], list[Settlement]]


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a worker for jobs of a pool."""

    pool: str
    room: int  # the number of jobs it can still take
    # of a pool with a limit: the number of that limit; if it has been changed, nothing is claimed
    epoch: int | None = None
    running: int = 0  # the number of its jobs that the worker runs


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of one look for work."""

    jobs: list[Job]  # jobs now running under the lease
    next_run_at: datetime | None  # the due time of the next scheduled job that nobody wants to be canceled
    cancels: bool = False  # whether a cancel may still be to be carried out, or a run of a workflow to be woken
    promoted: bool = False  # whether scheduled jobs were due and are ready now
    again: timedelta | None = None  # the wait until more jobs may start, if a rate limit was in their way


@dataclass(frozen=True, slots=True)
class Look:
    """The facts that a claim sees, other than the jobs that it takes."""

    next_run_at: datetime | None  # the due time of the next scheduled job that nobody wants to be canceled
    cancels: bool  # whether a cancel may still be to be carried out, or a run of a workflow to be woken

    def is_due(self, now: datetime) -> bool:
        """Whether a scheduled job is due."""
        return self.next_run_at is not None and self.next_run_at <= now


class Jobs(Noun, ABC, queries=("jobs", "moves", "workflows")):
    """Jobs at rest. Transactions of users only insert here; services move.

    A method that takes an `OpenTransaction` also runs in a transaction of the user's own, and waits for nothing else.
    """

    def leave(self, left: Values) -> None:
        """Claim only jobs that this process does not leave to others from now on, as `functions.programs` says."""
        self._access.left = left

    async def request_cancel(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> None:
        """Ask in a transaction that jobs be canceled; once it commits, those pending never start."""
        await self._fetch_each(session, "request_cancel", [{"id": one} for one in ids], now=now)

    async def request_cancel_all(self, session: OpenTransaction, where: JobFilter, now: datetime) -> int:
        """Ask that all jobs be canceled that meet a filter and have not ended; their number."""
        return await self._execute(session, "request_cancel_all", **asdict(where), now=now)

    async def find(self, session: OpenTransaction, job_id: UUID, now: datetime) -> JobStatus | None:
        """One job, wherever it stands; None if unknown, or its time is over."""
        return (await self.find_many(session, [job_id], now)).get(job_id)

    async def find_many(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> dict[UUID, JobStatus]:
        """Find many jobs; the known ones, by id."""
        rows = await self._fetch_each(session, "find", [{"id": one} for one in ids], now=now)
        return dict(zip((self._access.uuid(row["id"]) for row in rows), self._statuses(rows), strict=True))

    async def list(
        self,
        session: Session,
        where: JobFilter,
        limit: int,
        now: datetime,
        below: UUID = ABOVE_ALL,
        down_to: UUID = BELOW_ALL,
    ) -> builtins.list[JobStatus]:
        """Jobs that meet a filter, newest first, those below one id and down to another."""
        values = {**asdict(where), "limit": limit, "now": now, "below": below, "down_to": down_to}
        query = f"list_{where.state}" if where.state in _INDEXED else "list"
        return self._statuses(await self._fetch(session, query, **values))

    async def horizon(self, session: Session, where: JobFilter, below: UUID = ABOVE_ALL) -> UUID:
        """Find the id down to which a page looks for jobs of a filter; `BELOW_ALL` if it may look at all."""
        if where == ALL_JOBS or where.state not in _MANY:
            return BELOW_ALL
        rows = await self._fetch(session, "horizon", below=below, most=LOOKED_AT)
        return self._access.uuid(rows[0]["id"]) if rows else BELOW_ALL

    async def list_recent(
        self, session: Session, where: JobFilter, limit: int, now: datetime, below: UUID = ABOVE_ALL
    ) -> builtins.list[JobStatus]:
        """Jobs below an id that meet a filter, newest first: all unfinished ones, and others among the last to end."""
        wanted = [where] if where.state else [where, *(replace(where, state=one) for one in _UNFINISHED)]
        found = {
            job.id: job
            for one in wanted
            for down_to in [await self.horizon(session, one, below)]
            for job in await self.list(session, one, limit, now, below, down_to)
        }
        return sorted(found.values(), key=lambda job: job.id, reverse=True)[:limit]

    async def seek(self, session: Session, text: str, limit: int, now: datetime, most: int) -> builtins.list[JobStatus]:
        """Jobs with a text as their key or name, or in their error; it looks at `most` of each place."""
        return self._statuses(await self._fetch(session, "seek", text=text, limit=limit, now=now, most=most))

    async def naming(
        self, session: Session, text: str, first: UUID, limit: int, now: datetime, *, in_args: bool
    ) -> builtins.list[JobStatus]:
        """Jobs whose options contain a text, or their arguments, too; oldest first, those from one id on."""
        return self._statuses(
            await self._fetch(session, "naming", text=text, first=first, limit=limit, now=now, in_args=in_args)
        )

    async def matching(
        self, session: Session, where: JobFilter, limit: int, now: datetime, below: UUID = ABOVE_ALL
    ) -> builtins.list[UUID]:
        """Ids of jobs that meet a filter, newest first, those below one id."""
        values = {**asdict(where), "limit": limit, "now": now, "below": below, "down_to": BELOW_ALL}
        query = f"matching_{where.state}" if where.state in _INDEXED else "matching"
        return [self._access.uuid(row["id"]) for row in await self._fetch(session, query, **values)]

    async def count(self, session: Session, now: datetime) -> dict[str, int]:
        """The number of jobs in each stage."""
        return {row["place"]: row["number"] for row in await self._fetch(session, "count", now=now)}

    async def count_some(self, session: Session, now: datetime, most: int) -> dict[str, int]:
        """The number of unfinished jobs in each stage, and of failed jobs, up to `most` each."""
        return {row["place"]: row["number"] for row in await self._fetch(session, "count_some", now=now, most=most)}

    async def count_failed(self, session: Session, now: datetime, most: int) -> int:
        """The number of failed jobs, up to `most`."""
        rows = await self._fetch(session, "count_failed", now=now, most=most)
        return int(rows[0]["number"])

    async def cancel_pending(self, now: datetime, limit: int, settle: Settle) -> builtins.list[UUID]:
        """Carry out requests to cancel pending jobs as `settle` says; the running jobs for which a request stands."""
        before = now - _REQUEST_KEPT
        running = [self._access.uuid(row["job_id"]) for row in await self._look("cancel_running")]
        if not await self._look("any_cancelable", before=before):
            return running
        async with self._writing() as session:
            for row in await self._fetch(session, "cancel_begun"):
                await self._post(session, self._access.uuid(row["run"]), CANCEL_EVENT, "", "null", now)
            jobs = self._read(Job, await self._fetch(session, "cancelable", now=now, limit=limit))
            if jobs:
                await self.settle_pending(session, settle(jobs))
            await self._fetch(session, "clear_old_requests", before=before)
        return running

    # ----- steps

    async def _post_ends(self, session: Session, settlements: Iterable[Settlement]) -> None:
        """Tell the runs of workflows that wait for the ends of these jobs."""
        for one in settlements:
            if one.run is not None:
                form = None if one.cause is None else error_outcome(one.cause)
                end = {"state": one.state.value, "result": one.result, "error": one.error, "form": form}
                text = json.dumps(end, ensure_ascii=False)
                await self._post(session, job_uuid(one.run), JOB_EVENT, str(one.id), text, one.finished_at)

    async def _post(self, session: Session, run: UUID, kind: str, name: str, payload: str, now: datetime) -> None:
        await self._execute(session, "post", run=run, kind=kind, name=name, payload=payload, now=now)
        await self._fetch_each(session, "wake", [{"run": run}])

    def _statuses(self, rows: Sequence[Row]) -> builtins.list[JobStatus]:
        reveal = self._access.encryption.reveal

        def result(row: Row) -> Any:
            text = row["result"]
            if text is None:
                return None
            value = decode_json(shown := reveal(text))
            return Ciphertext(value) if is_encrypted(shown) else value

        return self._read(
            JobStatus,
            rows,
            id=lambda row: job_id(self._access.uuid(row["id"])),
            args=lambda row: decode_json(reveal(row["args"])),
            result=result,
            published=lambda row: None if row["published"] is None else decode_json(reveal(row["published"])),
            options=lambda row: options_of(row["options"]).with_context(reveal),
        )

    # ----- different on each store

    @abstractmethod
    async def enqueue(self, session: OpenTransaction, jobs: Sequence[NewJob], now: datetime) -> None:
        """Store jobs in a transaction, in one statement on Postgres."""

    @abstractmethod
    async def enqueue_alike(self, session: Session, jobs: Iterable[NewJob], now: datetime) -> None:
        """Store any number of jobs in a transaction while they are made; they differ in id and arguments only.

        After each piece of them all else that is ready has its turn.
        """

    @abstractmethod
    async def enqueue_alone(self, job: NewJob, now: datetime) -> None:
        """Store a job in a transaction of its own; on Postgres in one round trip.

        Raises:
            DatabaseUnavailable: With ``facts["uncertain"]``, nobody knows whether it was stored.
        """

    @abstractmethod
    async def claim(self, lease: int, limit: int, rooms: Sequence[Room], now: datetime) -> Claim:
        """Move due jobs to ready, and up to `limit` ready jobs to running under a lease.

        Jobs that wait for their on_complete come first. A free place goes to the pool that runs the
        fewest jobs, ties to the one named first. In a pool the most urgent and oldest job comes first. Jobs that
        pass a gate come last, as `pools.gate` decides.
        """

    @abstractmethod
    async def settle(self, lease: int, settlements: Sequence[Settlement]) -> set[UUID]:
        """Write the settlements of running jobs; the ids that this lease still held."""

    @abstractmethod
    async def settle_within(self, session: Session, lease: int, settlement: Settlement) -> bool:
        """Settle one job in the transaction that is its effect; False if the lease is lost."""

    @abstractmethod
    async def settle_all_within(self, session: Session, lease: int, settlements: Sequence[Settlement]) -> int:
        """Settle many jobs that share a transaction; the number that the lease still held."""

    @abstractmethod
    async def settle_pending(self, session: Session, settlements: Sequence[Settlement]) -> None:
        """Write the settlements of pending jobs."""

    @abstractmethod
    async def retry(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        """Make failed and canceled jobs pending again; the ids of these, each for one caller only.

        Failed attempts are kept, and counted from 1 again. A transaction of its own, never one of a user's function.
        """

    @abstractmethod
    async def recall(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        """Let jobs whose on_complete has raised for the last time wait for it again; the ids of these, as above.

        Their outcomes stay. Failed calls are kept, and counted from 1 again.
        """


def day_of(expires_at: datetime, now: datetime) -> int:
    """The partition of a finished job, by the day on which its status expires."""
    if expires_at - now > _LONGEST_IN_RING:
        return _LONG_DAY
    return (expires_at.toordinal() - _EPOCH_ORDINAL) % _DAYS


def day_to_drop(now: datetime) -> int:
    """The partition in which every status has expired, and into which none is being written: yesterday's."""
    return (now.toordinal() - _EPOCH_ORDINAL - 1) % _DAYS
