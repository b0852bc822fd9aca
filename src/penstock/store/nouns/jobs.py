"""Reads jobs, and requests cancels. Each store moves jobs in its own way."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from uuid import UUID

from penstock.jobs.filter import JobFilter
from penstock.jobs.job import JobStatus, NewJob, Settlement
from penstock.jobs.states import JobState
from penstock.store.contract.jobs import ABOVE_ALL, Claim, Room, Settle
from penstock.store.contract.session import OpenTransaction, Session
from penstock.store.nouns.noun import Noun, Values

_REQUEST_KEPT = timedelta(minutes=1)


class Jobs(Noun, ABC, queries=("jobs", "moves")):
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
        """The same for all jobs that meet a filter and have not ended; how many."""
        return await self._execute(session, "request_cancel_all", **asdict(where), now=now)

    async def find(self, session: OpenTransaction, job_id: UUID, now: datetime) -> JobStatus | None:
        """One job, wherever it stands; None if unknown, or its time is over."""
        return (await self.find_many(session, [job_id], now)).get(job_id)

    async def find_many(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> dict[UUID, JobStatus]:
        """The same for many; those that are found."""
        rows = await self._fetch_each(session, "find", [{"id": one} for one in ids], now=now)
        return {self._access.uuid(row[0]): self._access.status(row) for row in rows}

    async def list(
        self, session: Session, where: JobFilter, limit: int, now: datetime, below: UUID = ABOVE_ALL
    ) -> builtins.list[JobStatus]:
        """Jobs that meet a filter, newest first, those below one id."""
        query = "list_failed" if where.state == JobState.FAILED.value else "list"
        rows = await self._fetch(session, query, **asdict(where), limit=limit, now=now, below=below)
        return [self._access.status(row) for row in rows]

    async def naming(
        self, session: Session, text: str, first: UUID, limit: int, now: datetime, *, in_args: bool
    ) -> builtins.list[JobStatus]:
        """Jobs whose options contain a text, or their arguments, too; oldest first, those from one id on."""
        rows = await self._fetch(session, "naming", text=text, first=first, limit=limit, now=now, in_args=in_args)
        return [self._access.status(row) for row in rows]

    async def matching(
        self, session: Session, where: JobFilter, limit: int, now: datetime, below: UUID = ABOVE_ALL
    ) -> builtins.list[UUID]:
        """Ids of jobs that meet a filter, newest first, those below one id."""
        values = {**asdict(where), "limit": limit, "now": now, "below": below}
        query = "matching_failed" if where.state == JobState.FAILED.value else "matching"
        return [self._access.uuid(row[0]) for row in await self._fetch(session, query, **values)]

    async def count(self, session: Session, now: datetime) -> dict[str, int]:
        """The number of jobs in each place: ready, scheduled, running, finished."""
        return {row[0]: row[1] for row in await self._fetch(session, "count", now=now)}

    async def count_failed(self, session: Session, now: datetime, most: int) -> int:
        """The number of failed jobs, up to `most`."""
        rows = await self._fetch(session, "count_failed", now=now, most=most)
        count: int = rows[0][0]
        return count

    async def cancel_pending(self, now: datetime, limit: int, settle: Settle) -> builtins.list[UUID]:
        """Carry out requests to cancel pending jobs as `settle` says; the running jobs for which a request stands."""
        before = now - _REQUEST_KEPT
        running = [self._access.uuid(row[0]) for row in await self._look("cancel_running")]
        if not await self._look("any_cancelable", before=before):
            return running
        async with self._writing() as session:
            rows = await self._fetch(session, "cancelable", now=now, limit=limit)
            if rows:
                await self.settle_pending(session, settle([self._access.job(row) for row in rows]))
            await self._fetch(session, "clear_old_requests", before=before)
        return running

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

        Those that wait for their on_complete come first. A free place goes to the pool that runs the
        fewest jobs, ties to the one named first; in a pool the most urgent and oldest job comes first. Jobs that
        pass a gate come last, as `pools.gate` decides.
        """

    @abstractmethod
    async def settle(self, lease: int, settlements: Sequence[Settlement]) -> set[UUID]:
        """Write the settlements of running jobs; the ids that this lease still held."""

    @abstractmethod
    async def settle_within(self, session: Session, lease: int, settlement: Settlement) -> bool:
        """The same for one job, in the transaction that is its effect; False if the lease is lost."""

    @abstractmethod
    async def settle_all_within(self, session: Session, lease: int, settlements: Sequence[Settlement]) -> int:
        """The same for many jobs that share a transaction; the number that the lease still held."""

    @abstractmethod
    async def settle_pending(self, session: Session, settlements: Sequence[Settlement]) -> None:
        """Write the settlements of pending jobs."""

    @abstractmethod
    async def retry(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        """Make jobs pending again that have failed or were canceled; those that were so, each for one caller only.

        Attempts that failed are kept, and counted anew. A transaction of its own, never one of a user's function.
        """

    @abstractmethod
    async def recall(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        """Let jobs whose on_complete has raised for the last time wait for it again; those that were so, as above.

        Their outcomes stay as they are, and calls that failed are kept, and counted anew.
        """
