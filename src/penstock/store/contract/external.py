"""The promises of a store about what running attempts say and ask: part of `store.contract`.

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
TOKEN_KEPT = timedelta(days=1)  # for how long it is known what came of a token
Settle = Callable[[list[Job]], list[Settlement]]


@dataclass(frozen=True, slots=True)
class Redeemed:
    """What came of bringing a token.

    Attributes:
        accepted: Whether the job has been settled by it.
        told: What counts: what was told first, or that its time or its attempt is over.
    """

    accepted: bool
    told: Told


class Tokens(Protocol):
    """What a running attempt says and asks: how far it has come, and to be completed by an outside system."""

    async def report(self, lease: int, progress: Mapping[UUID, Progress]) -> None:
        """Write how far jobs have come that run under a lease."""

    async def issue(self, lease: int, token: Token, deadline: datetime) -> bool:
        """Remember the token of an attempt; False if the attempt does not run under this lease any more."""

    async def void(self, job_id: UUID, attempt: int) -> bool:
        """Let the token of an attempt that has failed count no more; False if it has been brought before."""

    async def hold(self, lease: int, attempts: Sequence[tuple[UUID, int]]) -> set[UUID]:
        """Move jobs with a token from a lease to `OUTSIDE`, and their slots with them; those it still held."""

    async def redeem(self, token: Token, told: Told, now: datetime, settle: Settle) -> Redeemed | None:
        """Settle the job of a token, whether its function has returned or not, as `settle` says; once.

        None if there is no such token. Its slot is given back if it was held outside.
        """

    async def expire(self, now: datetime, limit: int, settle: Settle) -> int:
        """Settle jobs held outside of which nobody has told in time, and give their slots back; how many."""

    async def cancel(self, now: datetime, limit: int, settle: Settle) -> int:
        """The same for those for which a request to cancel stands."""

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget tokens of which nobody need know any more what came of them; how many."""
