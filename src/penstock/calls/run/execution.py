"""The surroundings of one execution of a mutation: a job, an outbox, or a call from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.calls.run.running import Moment
from penstock.jobs.job import Settlement, Work
from penstock.transaction.commit import Seal


@dataclass(frozen=True, slots=True)
class Execution:
    """The surroundings of one execution of a mutation, the same in each of its attempts.

    Attributes:
        lease: For a job: the lease it runs under.
        settle: For a job: turns the result into the job's settlement, written in the same transaction.
        finish: Turns the result into the answer, before the commit: if it raises, nothing is committed.
        work: The attempt at a job that it runs in.
        moment: Its time and chance, if it has been run before.
        seal: For an outbox: writes its cursor, in the same transaction.
    """

    lease: int | None = None
    settle: Callable[[Any], Settlement] | None = None
    finish: Callable[[Any], Any] | None = None
    work: Work | None = None
    moment: Moment | None = None
    seal: Seal | None = None


PLAIN = Execution()
