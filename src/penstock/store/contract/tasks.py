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

HELD = "The task is held"  # the reason of a job that waits because its task is held


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task as a program declares it to the store.

    Attributes:
        function: The name of the function that its jobs run.
        options: The other options of its jobs; the number of the task is added.
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
    """The record of one row of a task, with the captured values before and after its last change.

    All else is told in `RecordState`.
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
