"""What an execution of a mutation is part of, beside the call itself: a job, an outbox, or a call from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.calls.run.running import Moment
from penstock.jobs.job import Settlement, Work
from penstock.transaction.commit import Seal


@dataclass(frozen=True, slots=True)
class Execution:
    """What goes with one execution of a mutation, however often it is tried.

    Attributes:
        lease: For a job: the lease it runs under.
        settle: For a job: from the result to what is written about the job, in the same transaction.
        finish: From the result to what is returned, before the commit: if it raises, nothing is committed.
        work: The attempt at a job that it runs in.
        moment: Its time and chance, if it has been run before.
        seal: For an outbox: writes how far it has come, in the same transaction.
    """

    lease: int | None = None
    settle: Callable[[Any], Settlement] | None = None
    finish: Callable[[Any], Any] | None = None
    work: Work | None = None
    moment: Moment | None = None
    seal: Seal | None = None


PLAIN = Execution()
