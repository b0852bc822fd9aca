"""What verbs about crons take and give (`store.nouns.crons`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.crons.plan import KeptCron
from penstock.jobs.job import NewJob


@dataclass(frozen=True, slots=True)
class CronScope:
    """The crons that a program keeps: those it declares, and those created at run time whose function it has."""

    names: Sequence[str]
    functions: Sequence[str]


@dataclass(frozen=True, slots=True)
class CronLook:
    """The result of one look at crons."""

    due: bool  # whether the time of one has come that waits for nothing
    waiting: bool  # whether the time of one has come that waits for its run under way
    next_at: datetime | None  # the next planned time after now


@dataclass(frozen=True, slots=True)
class CronMove:
    """The decision about a cron: its new state, and the job of its run if there is one."""

    kept: KeptCron
    job: NewJob | None = None


CronDecide = Callable[[list[tuple[KeptCron, bool]]], Awaitable[list[CronMove]]]
