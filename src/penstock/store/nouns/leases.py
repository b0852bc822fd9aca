"""Leases of workers at rest."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from datetime import datetime, timedelta

from penstock.dataclass import dataclass
from penstock.functions.scope import EVERYTHING, Scope, Work, scope_of
from penstock.jobs.job import Job
from penstock.store.nouns.jobs import Jobs, Settle
from penstock.store.nouns.noun import Access, Noun
from penstock.store.session import Session

OUTSIDE = 0  # the lease, which never ends, of a job that an outside system is to complete, and of its slot
_OTHERS = ("planner ", "relay ", "rebuild ", "indexer ")  # who reads the change feed under a lease


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as seen from outside."""

    lease: int
    holder: str  # host and process of the worker that took it; others begin with their kind, as in ``relay host:7``
    started_at: datetime
    expires_at: datetime
    running: int  # how many jobs run under it
    blocked: str = ""  # what has blocked the event loop of its process
    scope: Scope = EVERYTHING  # what its process runs

    @property
    def is_worker(self) -> bool:
        """Whether it was taken to run jobs."""
        return not self.holder.startswith(_OTHERS)


def list_unserved(leases: Iterable[LeaseRow], work: Work, now: datetime) -> builtins.list[tuple[str, str]]:
    """The noun and the name of each thing that no live process runs, though some run others."""
    scopes = {one.scope for one in leases if one.is_worker and one.expires_at > now}
    return [*work.list_unserved(scopes)] if scopes else []


class Leases(Noun, queries=("leases",)):
    """Leases of workers: the right to move running jobs, until a time."""

    def __init__(self, access: Access, jobs: Jobs) -> None:
        super().__init__(access)
        self._jobs = jobs

    async def take(self, holder: str, ttl: timedelta, now: datetime, scope: Scope = EVERYTHING) -> int:
        """A new lease of a process that runs this; its number fences everything done under it."""
        rows = await self._run("take", holder=holder, now=now, expires_at=now + ttl, scope=scope.text())
        return int(rows[0]["id"])

    async def renew(self, lease: int, ttl: timedelta, now: datetime, holder: str | None = None) -> bool:
        """Extend a lease, and name its holder again if it has changed; False if it was lost."""
        return bool(await self._run("renew", lease=lease, expires_at=now + ttl, holder=holder))

    async def jobs(self, lease: int) -> builtins.list[Job]:
        """The jobs that run under a lease."""
        return self._read(Job, await self._look("running", lease=lease))

    async def list(self, session: Session) -> builtins.list[LeaseRow]:
        """All leases, oldest first."""
        return self._read(
            LeaseRow,
            await self._fetch(session, "list"),
            holder=lambda row: row["holder"].partition("\n")[0],
            blocked=lambda row: row["holder"].partition("\n")[2],
            scope=lambda row: scope_of(row["scope"]),
        )

    async def give_back(self, lease: int) -> None:
        """End a lease under which no job runs any more."""
        await self._run("give_back", lease=lease)

    async def find_expired(self, now: datetime) -> builtins.list[int]:
        """Leases that have run out, and leases that are gone while jobs still run under them."""
        leases = [row["id"] for row in await self._look("expired", now=now)]
        return [lease for lease in leases if not self._is_extended(lease, now)]

    async def rescue(self, lease: int, now: datetime, settle: Settle) -> int:
        """End an expired lease: settle the jobs that still run under it as `settle` decides; their number.

        A job whose own transaction is about to settle it is left to that transaction; the lease is expired until
        none is left.
        """
        async with self._writing() as session:
            held = await self._fetch(session, "lock_expired", lease=lease, now=now)
            if held and (not held[0]["expired"] or self._is_extended(lease, now)):
                return 0  # renewed in the meantime
            jobs = self._read(Job, await self._fetch(session, "running", lease=lease))
            if jobs:
                await self._jobs.settle_all_within(session, lease, settle(jobs))
            await self._fetch(session, "remove", lease=lease)
        self._forget(lease)
        return len(jobs)

    def _is_extended(self, lease: int, now: datetime) -> bool:  # noqa: ARG002 - a store may know better
        """Whether a lease goes on though the database says that it has run out."""
        return False

    def _forget(self, lease: int) -> None:
        """A lease was ended by a rescuer."""
