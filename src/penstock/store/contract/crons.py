"""The promises of a store about crons; a part of `store.contract`, in a file of its own for its length."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from penstock.crons.plan import CronPlan, KeptCron
from penstock.jobs.job import NewJob
from penstock.store.contract.session import OpenTransaction, Session


@dataclass(frozen=True, slots=True)
class CronScope:
    """The crons that a program keeps: those it declares, and those created at run time whose function it has."""

    names: Sequence[str]
    functions: Sequence[str]


@dataclass(frozen=True, slots=True)
class CronLook:
    """The result of one look at crons.

    Attributes:
        due: Whether the time of one has come that waits for nothing.
        waiting: Whether the time of one has come that waits for its run under way.
        next_at: The next planned time after now.
    """

    due: bool
    waiting: bool
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class CronMove:
    """The decision about a cron: its new state, and the job of its run if there is one."""

    kept: KeptCron
    job: NewJob | None = None


CronDecide = Callable[[list[tuple[KeptCron, bool]]], Awaitable[list[CronMove]]]


class Crons(Protocol):
    """Crons at rest: plans, and the last decided time of each. A cron is under way until its last job has ended."""

    async def declare(self, plans: Sequence[CronPlan], now: datetime) -> None:
        """Store the plans of a program; plans that differ from the declaration before hold from now on."""

    async def create(self, session: Session, plan: CronPlan, now: datetime) -> bool:
        """Add one in a transaction; False if its name is taken."""

    async def remove(self, session: Session, name: str) -> bool:
        """Remove one in a transaction; False if there is none."""

    async def pause(self, session: Session, name: str, now: datetime, *, pause: bool) -> bool:
        """Pause or resume one in a transaction; False if there is none."""

    async def look(self, scope: CronScope, now: datetime) -> CronLook:
        """Whether anything is to be decided, and when the next look is due."""

    async def decide(self, scope: CronScope, now: datetime, limit: int, decide: CronDecide) -> int:
        """Have `decide` decide on up to `limit` that are due; the number of them.

        Its argument says whether a cron is under way. The crons are locked meanwhile: nobody decides on them twice. The
        decisions and the jobs are written together.
        """

    async def start(self, name: str, now: datetime, decide: CronDecide) -> bool:
        """The same for one cron, due or not; False if there is none."""

    async def list(self, session: OpenTransaction, now: datetime) -> list[tuple[KeptCron, str | None]]:
        """All crons by name, with the state of the last job of each, as long as that is kept."""
