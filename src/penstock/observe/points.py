"""Named moments of the engine at which a test may hold an execution, to stage a race instead of sleeping for it.

Owns the list of moments. In production nothing is armed and a moment costs one comparison.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

POINTS = frozenset(
    {
        "mutation.ran",  # the user's function has returned, nothing is committed
        "commit.before",  # all statements are sent, the commit is not
        "commit.after",  # the commit is known to have succeeded
        "worker.claimed",  # jobs are claimed, none has started
        "worker.outcome",  # a job has an outcome, nothing is settled
        "task.begun",  # a run of a reactive task is about to call its handler
        "planner.read",  # changes are read, nothing is planned
        "planner.planned",  # changes are planned, nothing is written
        "scheduler.decided",  # the crons to run are chosen, nothing is committed
        "outbox.next",  # the next messages of an outbox are known, none is delivered
        "outbox.write",  # the cursor of an outbox is about to be written by itself
        "outbox.rebuild",  # the reset of an outbox has run, and it is about to start from the beginning
        "workflow.step_ran",  # a query or an action of a run has returned, nothing is recorded
        "workflow.recorded",  # records of a run are stored, its body has not learned of them
        "workflow.sleeps",  # a run is about to let go of its slot
        "file.stored",  # the bytes of a file are durable, its row is not written
        "file.deleted",  # bytes are deleted, and still noted as owed
        "lease.renew",  # a process is about to renew its lease
        "lock.renew",  # a holder is about to renew its lock
    }
)

Hold = Callable[..., Awaitable[None]]
armed: dict[str, Hold] = {}


def arm(name: str, hold: Hold) -> None:
    """Let `hold` be awaited each time the moment comes."""
    if name not in POINTS:
        raise KeyError(name)
    armed[name] = hold


def disarm(name: str) -> None:
    armed.pop(name, None)


async def reach(name: str, **facts: Any) -> None:
    """Come to a named moment; callers on hot paths look at `armed` first."""
    hold = armed.get(name)
    if hold is not None:
        await hold(**facts)
