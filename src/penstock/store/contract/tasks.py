"""The promises of a store about reactive tasks; a part of `store.contract`, in a file of its own for its length."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from penstock.changes.position import Position
from penstock.jobs.job import Job, Options
from penstock.reactive.planning import RowPlan
from penstock.reactive.reconciling import Kept, Reconciling
from penstock.reactive.task import Change, OnVersionChange, TaskSpec
from penstock.store.contract.session import OpenTransaction

HELD = "The task is held"  # the reason of a job that waits because its task is held


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task as a program declares it to the store.

    Attributes:
        name: Its name.
        function: The name of the function that its jobs run.
        kind: The kind of that function.
        pool: The pool of its jobs.
        priority: Their priority.
        options: Their other options; the number of the task is added.
        resets: Whether a change lets attempts count anew.
        history: The number of runs that are kept with each row.
        version: Of its handler.
        signature: Its filter and watch, as text.
        spec: The part that planners need.
        on_version_change: The rows to run again if the version is higher than the one before.
        reconciles: Whether rows are looked at anew if the signature is another.
    """

    name: str
    function: str
    kind: str
    pool: str
    priority: int
    options: Options
    resets: bool
    history: int
    version: int
    signature: str
    spec: TaskSpec
    on_version_change: OnVersionChange = field(default="none", compare=False)
    reconciles: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it is kept.

    Attributes:
        id: Its number, by which its jobs name it.
        plan: Its last declaration.
        interest: The number of the interest that it is declared with; None if there is none now.
        interests: The numbers of all of its interests that there are.
        earlier: Those that there were when it was declared, which may be gone; the feed may still have their changes.
        declared_at: When that was.
        paused: Whether none of its jobs starts.
        held_until: The time until which none starts; None for no such time.
        reconciling: The progress of a scan of all rows; None if that is done.
        reconciled_at: The end of the last scan.
        begun: The number of times it was begun anew.
    """

    id: int
    plan: TaskPlan
    interest: int | None
    interests: tuple[int, ...]
    earlier: tuple[int, ...]
    declared_at: datetime
    paused: bool
    held_until: datetime | None
    reconciling: Reconciling | None
    reconciled_at: datetime | None
    begun: int


@dataclass(frozen=True, slots=True)
class RecordRow:
    """The record of one row of a task.

    Attributes:
        task: The number of the task.
        key: The key of the row, as the change feed spells it.
        job: The id of its job.
        generation: How many changes it had that the task wanted to hear of.
        live: Whether there is a job that has not ended.
        change: The last of these.
        before: Its captured values before that.
        after: The same after it.
        changed_at: When that was.
        due_at: When it was to be run then.
        gone: ``left`` if it does not match any more, ``deleted`` if there is no such row; None if it is there.
    """

    task: int
    key: str
    job: UUID
    generation: int
    live: bool
    change: Change
    before: str | None
    after: str | None
    changed_at: datetime
    due_at: datetime
    gone: str | None


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a reader of the change feed, written with its plans; see `store.contract.changes.Readers.move`."""

    reader: str
    lease: int
    before: Position
    after: Position


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a scan of the rows of a task.

    Attributes:
        task: The task as it was declared at the time of the scan; a scan does not serve another declaration.
        reconciling: The progress; None once it is done.
        begins: Whether it is begun anew with this, so that who goes on with an earlier look finds that out.
    """

    task: TaskRow
    reconciling: Reconciling | None
    begins: bool = False


def from_the_beginning(tasks: Iterable[TaskRow]) -> list[Progress]:
    """Begin the scan of all rows of tasks anew; rows that were to run again in any case still are."""
    return [Progress(task, (task.reconciling or Reconciling()).begun(), begins=True) for task in tasks]


class TaskDeclarations(Protocol):
    """Reactive tasks, and which of them are held."""

    async def declare(self, plans: Sequence[TaskPlan], now: datetime) -> builtins.list[TaskRow]:
        """Store the tasks of a program; each as it was stored before, or as it is stored now if it is new.

        A task of which a higher version was declared stays as it is.
        """

    async def list(self) -> builtins.list[TaskRow]:
        """All tasks by name."""

    async def signature(self, session: OpenTransaction, task: int) -> str:
        """Filter and watch of a task as stored."""

    async def hold(self, task: int, until: datetime) -> None:
        """Let none of a task's jobs start until a time."""

    async def held(self, now: datetime) -> dict[int, datetime | None]:
        """The tasks that start no jobs: each with a time, or None if it is paused."""

    async def pause(self, name: str, *, paused: bool) -> int | None:
        """Let none of a task's jobs start, or let them again; the number of the task, or None if there is none."""

    async def release(self, task: int, now: datetime, limit: int) -> int:
        """Make jobs of a task due that were put off while it was held, in one bounded step; their number."""

    async def failed(self, task: int, times: Sequence[datetime], most: int) -> builtins.list[datetime]:
        """Note that attempts of a task have failed; the times of the last ones on all machines."""

    async def open(self, task: int, until: datetime) -> bool:
        """Let none of a task's jobs start until a time, and forget failures; False if another process was quicker."""


class TaskRecords(Protocol):
    """The records of the rows of tasks."""

    async def plan(
        self,
        rows: Sequence[RowPlan],
        move: Move | None,
        now: datetime,
        progress: Sequence[Progress] = (),
    ) -> int | None:
        """Write plans, and move the reader with them; the number of new jobs.

        The progress of scans is written too. None, and nothing is written, if the reader was
        lost, or such a task was declared anew meanwhile, or its scan was begun anew.
        """

    async def records(self, session: OpenTransaction, task: int, keys: Sequence[str]) -> dict[str, Kept]:
        """The records of some rows, by key."""

    async def slice(self, session: OpenTransaction, task: int, after: str, limit: int) -> dict[str, Kept]:
        """The records of rows after a key, in the order of keys."""

    async def find(self, session: OpenTransaction, task: int, key: str) -> RecordRow | None:
        """The record of a row; None if there is none."""

    async def generations(self, session: OpenTransaction | None, task: int, keys: Sequence[str]) -> dict[str, int]:
        """The generations of the records of rows of one task, by key; without a session as they are committed."""

    async def mark(self, transaction: OpenTransaction, lease: int, job: Job) -> bool:
        """Mark a running job as completed, in a transaction; False if the lease does not hold it.

        Once that has committed, the job ends as success, also if its worker is lost.
        """

    async def marked(self, lease: int, jobs: Sequence[UUID]) -> dict[UUID, bool | None]:
        """Whether each job that the lease holds is marked; None if an open transaction may mark it.

        SQLite has no such transactions beside others: it waits for its turn, and knows.
        """

    async def forget(self, now: datetime, limit: int) -> int:
        """Forget expired records, and their jobs with them, in one bounded step; their number."""


class Tasks(TaskDeclarations, TaskRecords, Protocol):
    """Reactive tasks at rest, and the records of their rows. Their jobs are made with them, and end with them."""
