"""The promises of a store about jobs at rest, and about the leases under which they run."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from penstock.jobs.filter import JobFilter
from penstock.jobs.job import Job, JobStatus, NewJob, Settlement
from penstock.store.contract.overview import LeaseRow
from penstock.store.contract.session import OpenTransaction, Session

ABOVE_ALL = UUID(int=2**128 - 1)  # an id that no job has
Settle = Callable[[list[Job]], list[Settlement]]


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a worker for jobs of a pool.

    Attributes:
        room: The number of jobs it can still take.
        epoch: Of a pool with a limit: the number of that limit; if it has been changed, nothing is claimed.
        running: The number of its jobs that the worker runs.
    """

    pool: str
    room: int
    epoch: int | None = None
    running: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of one look for work.

    Attributes:
        jobs: Jobs now running under the lease.
        next_run_at: The due time of the next scheduled job that nobody wants to be canceled.
        cancels: Whether anybody has asked for a cancel that may still be to be carried out.
        promoted: Whether scheduled jobs were due and are ready now.
        again: The wait until more jobs may start, if a rate limit was in their way.
    """

    jobs: list[Job]
    next_run_at: datetime | None
    cancels: bool = False
    promoted: bool = False
    again: timedelta | None = None


class Programs(Protocol):
    """The functions that programs on a database have declared, for callers that enqueue in plain SQL."""

    async def declare(self, kinds: Mapping[str, str]) -> None:
        """Make functions known: the kind of each by its name. Those of other programs stay."""


class JobQueue(Protocol):
    """Jobs as callers enqueue and cancel them."""

    async def enqueue(self, session: OpenTransaction, jobs: Sequence[NewJob], now: datetime) -> None:
        """Store jobs in a transaction, in one statement on Postgres."""

    async def enqueue_alike(self, session: Session, jobs: Iterable[NewJob], now: datetime) -> None:
        """Store any number of jobs in a transaction while they are made; they differ in id and arguments only.

        After each piece of them all else that is ready has its turn.
        """

    async def enqueue_alone(self, job: NewJob, now: datetime) -> None:
        """Store a job in a transaction of its own; on Postgres in one round trip.

        Raises:
            DatabaseUnavailable: With ``facts["uncertain"]``, nobody knows whether it was stored.
        """

    async def request_cancel(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> None:
        """Ask in a transaction that jobs be canceled; once it commits, those pending never start."""

    async def request_cancel_all(self, session: OpenTransaction, where: JobFilter, now: datetime) -> int:
        """The same for all jobs that meet a filter and have not ended; how many."""


class JobMoves(Protocol):
    """Jobs as workers and administrators move them."""

    async def prepare(self, connections: int) -> None:
        """Get so many connections ready to claim and to settle, so that the first jobs wait no longer than others."""

    async def claim(self, lease: int, limit: int, rooms: Sequence[Room], now: datetime) -> Claim:
        """Move due jobs to ready, and up to `limit` ready jobs to running under a lease.

        Those that wait for their on_complete come first. A free place goes to the pool that runs the
        fewest jobs, ties to the one named first; in a pool the most urgent and oldest job comes first. Jobs that
        pass a gate come last, as `pools.turns` decides.
        """

    async def settle(self, lease: int, settlements: Sequence[Settlement]) -> set[UUID]:
        """Write the settlements of running jobs; the ids that this lease still held."""

    async def settle_within(self, session: Session, lease: int, settlement: Settlement) -> bool:
        """The same for one job, in the transaction that is its effect; False if the lease is lost."""

    async def settle_all_within(self, session: Session, lease: int, settlements: Sequence[Settlement]) -> int:
        """The same for many jobs that share a transaction; the number that the lease still held."""

    async def cancel_pending(self, now: datetime, limit: int, settle: Settle) -> list[UUID]:
        """Carry out requests to cancel pending jobs as `settle` says; the running jobs for which a request stands."""

    async def retry(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        """Make jobs pending again that have failed or were canceled; those that were so, each for one caller only.

        Attempts that failed are kept, and counted anew. A transaction of its own, never one of a user's function.
        """

    async def recall(self, ids: Sequence[UUID], now: datetime) -> builtins.list[UUID]:
        """Let jobs whose on_complete has raised for the last time wait for it again; those that were so, as above.

        Their outcomes stay as they are, and calls that failed are kept, and counted anew.
        """

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget expired finished jobs, in one bounded step; their number, approximate beyond `limit`."""


class JobLooks(Protocol):
    """Jobs as they are looked at."""

    async def find(self, session: OpenTransaction, job_id: UUID, now: datetime) -> JobStatus | None:
        """One job, wherever it stands; None if unknown, or its time is over."""

    async def find_many(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> dict[UUID, JobStatus]:
        """The same for many; those that are found."""

    async def list(self, session: Session, where: JobFilter, limit: int, now: datetime) -> builtins.list[JobStatus]:
        """Jobs that meet a filter, newest first."""

    async def matching(
        self, session: Session, where: JobFilter, limit: int, now: datetime, below: UUID = ABOVE_ALL
    ) -> builtins.list[UUID]:
        """Ids of jobs that meet a filter, newest first, those below one id."""

    async def count(self, session: Session, now: datetime) -> dict[str, int]:
        """The number of jobs in each place: ready, scheduled, running, finished."""


class Jobs(JobQueue, JobMoves, JobLooks, Protocol):
    """Jobs at rest. Transactions of users only insert here; services move.

    A method that takes an `OpenTransaction` also runs in a transaction of the user's own, and waits for nothing else.
    """


class Leases(Protocol):
    """Leases of workers: the right to move running jobs, until a time."""

    async def take(self, worker: str, ttl: timedelta, now: datetime) -> int:
        """A new lease; its number fences everything done under it."""

    async def renew(self, lease: int, ttl: timedelta, now: datetime) -> bool:
        """Extend a lease; False if it was lost."""

    async def jobs(self, lease: int) -> builtins.list[Job]:
        """The jobs that run under a lease."""

    async def list(self, session: Session) -> builtins.list[LeaseRow]:
        """All leases, oldest first."""

    async def give_back(self, lease: int) -> None:
        """End a lease under which no job runs any more."""

    async def expired(self, now: datetime) -> builtins.list[int]:
        """Leases that have run out, and leases that are gone while jobs still run under them."""

    async def rescue(self, lease: int, now: datetime, settle: Settle) -> int:
        """End an expired lease: settle the jobs that still run under it as `settle` decides; their number.

        A job whose own transaction is about to settle it is left to that transaction; the lease is expired until
        none is left.
        """
