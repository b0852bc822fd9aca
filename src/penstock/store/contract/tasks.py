"""What verbs about reactive tasks take and give (`store.nouns.tasks`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from penstock.changes.position import Position
from penstock.jobs.job import Options
from penstock.reactive.reconciling import Reconciling
from penstock.reactive.task import Change, OnVersionChange, TaskSpec

HELD = "The task is held"  # why a job waits that is put off since none of its task's start


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task as a program declares it to the store.

    Attributes:
        name: Its name.
        function: The name of the function that its jobs run.
        kind: What kind of function that is.
        pool: The pool of its jobs.
        priority: Their priority.
        options: What they are asked for beside; the number of the task is added.
        resets: Whether a change lets attempts count anew.
        history: How many runs are kept with each row.
        version: Of its handler.
        signature: Its filter and watch, as text.
        spec: What planners have to know.
        on_version_change: What is run again if the version is higher than the one before.
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
        plan: What was declared of it last.
        interest: The number of the interest that it is declared with; None if there is none now.
        interests: The numbers of all of its interests that there are.
        earlier: Those that there were when it was declared, which may be gone; the feed may still have what they told.
        declared_at: When that was.
        paused: Whether none of its jobs starts.
        held_until: Until when none does; None for no such time.
        reconciling: What is left of looking at all rows; None if that is done.
        reconciled_at: When it was done last.
        begun: How often it was begun anew.
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
    """What is kept of one row of a task.

    Attributes:
        task: The number of the task.
        key: The key of the row, as the change feed spells it.
        job: The id of its job.
        generation: How many changes it had that the task wanted to hear of.
        live: Whether there is a job that has not ended.
        change: The last of these.
        before: What was captured of it before that.
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
    """How a reader of the change feed moves on with what it has planned; see `store.nouns.Changes.move`."""

    reader: str
    lease: int
    before: Position
    after: Position


@dataclass(frozen=True, slots=True)
class Progress:
    """How far looking at the rows of a task has come.

    Attributes:
        task: The task as it was declared when they were looked at; what another declaration asks for is not done by it.
        reconciling: How far that has come; None once it is done.
        begins: Whether it is begun anew with this, so that who goes on with an earlier look finds that out.
    """

    task: TaskRow
    reconciling: Reconciling | None
    begins: bool = False


def from_the_beginning(tasks: Iterable[TaskRow]) -> list[Progress]:
    """That all rows of tasks are looked at, and what was to be run again in any case still is."""
    return [Progress(task, (task.reconciling or Reconciling()).begun(), begins=True) for task in tasks]
