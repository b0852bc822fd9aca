"""The promises of a store about progress and tokens of running attempts: part of `store.contract`.

A job that an outside system is to complete is under the lease `OUTSIDE`, which never ends, and so is its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from penstock.jobs.job import Job, Settlement
from penstock.jobs.progress import Progress
from penstock.jobs.token import Token, Told

OUTSIDE = 0
TOKEN_KEPT = timedelta(days=1)  # the time for which the outcome of a token is kept
Settle = Callable[[list[Job]], list[Settlement]]


@dataclass(frozen=True, slots=True)
class Redeemed:
    """The outcome of redeeming a token.

    Attributes:
        accepted: Whether the job has been settled by it.
        told: The outcome that counts: the first one, or that its time or its attempt is over.
    """

    accepted: bool
    told: Told


class Tokens(Protocol):
    """Progress of running attempts, and tokens with which outside systems complete them."""

    async def report(self, lease: int, progress: Mapping[UUID, Progress]) -> None:
        """Write the progress of jobs that run under a lease."""

    async def issue(self, lease: int, token: Token, deadline: datetime) -> bool:
        """Remember the token of an attempt; False if the attempt does not run under this lease any more."""

    async def void(self, job_id: UUID, attempt: int) -> bool:
        """Void the token of an attempt that has failed; False if it has been redeemed before."""

    async def hold(self, lease: int, attempts: Sequence[tuple[UUID, int]]) -> set[UUID]:
        """Move jobs with a token from a lease to `OUTSIDE`, and their slots with them; those it still held."""

    async def redeem(self, token: Token, told: Told, now: datetime, settle: Settle) -> Redeemed | None:
        """Settle the job of a token, whether its function has returned or not, as `settle` says; once.

        None if there is no such token. Its slot is given back if it was held outside.
        """

    async def expire(self, now: datetime, limit: int, settle: Settle) -> int:
        """Settle jobs held outside that nobody completed in time, and give their slots back; the number of jobs."""

    async def cancel(self, now: datetime, limit: int, settle: Settle) -> int:
        """The same for those for which a request to cancel stands."""

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget tokens whose outcomes nobody needs any more; the number of tokens."""
