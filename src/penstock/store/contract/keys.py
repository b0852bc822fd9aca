"""The promises of a store about keys of jobs and rate limits; a part of `store.contract`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from penstock.jobs.job import NewJob
from penstock.pools.rates import RateLimit, RateState
from penstock.store.contract.session import OpenTransaction


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The job that has a key.

    Attributes:
        job_id: Its id.
        until_start: Whether it has the key only until it starts.
        enqueued_at: The time it was enqueued, if it may be replaced, since it is pending and was never tried.
        canceled: Whether it is to be canceled and has not started, so that its key is about to be free.
    """

    job_id: UUID
    until_start: bool
    enqueued_at: datetime | None
    canceled: bool = False


class Keys(Protocol):
    """Keys of jobs, of which there is one at a time. They are freed where jobs are claimed and settled."""

    async def hold(self, transaction: OpenTransaction, job: NewJob) -> bool:
        """Let a job that is about to be enqueued have its key; False if another one has it."""

    async def holder(self, transaction: OpenTransaction, pool: str, key: str) -> KeyHolder | None:
        """The job that has a key."""

    async def free(self, transaction: OpenTransaction, pool: str, key: str, job_id: UUID) -> bool:
        """Take a key from a job that is not there, and so will never free it; False if it is there."""

    async def replace(self, transaction: OpenTransaction, holder: KeyHolder, job: NewJob, now: datetime) -> bool:
        """Put a job in the place of a pending one, which keeps its id; False if that has started, or is canceled."""

    async def take_over(self, transaction: OpenTransaction, holder: KeyHolder, job: NewJob) -> bool:
        """Let a job that is about to be enqueued have the key of one that is canceled; False if that has started."""


@dataclass(frozen=True, slots=True)
class RateRow:
    """The token count of a rate limit.

    Attributes:
        policy: Its policy.
    """

    name: str
    key: str
    policy: RateLimit
    state: RateState


class Rates(Protocol):
    """Rate limits at rest."""

    async def hold(self, transaction: OpenTransaction, name: str, key: str, now: datetime) -> RateState | None:
        """The token count of a rate limit, locked until the transaction ends; None if nothing was taken."""

    async def peek(self, transaction: OpenTransaction, name: str, key: str) -> RateState | None:
        """The token count of a rate limit; None if nothing was taken."""

    async def keep(self, transaction: OpenTransaction, rates: Sequence[RateRow]) -> None:
        """Store the token counts of rate limits."""

    async def forget(self, transaction: OpenTransaction, name: str, key: str) -> None:
        """Forget the tokens taken from a rate limit."""

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget rate limits that are full again, in one bounded step; their number."""
