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
    """A task as a program declares it to the store."""

    name: str
    function: str  # the name of the function that its jobs run
    kind: str
    pool: str
    priority: int
    options: Options  # the other options of its jobs; the number of the task is added
    resets: bool  # whether a change lets attempts count anew
    history: int  # the number of runs that are kept with each row
    version: int  # of its handler
    signature: str  # its filter and watch, as text
    spec: TaskSpec  # the part that planners need
    # the rows to run again if the version is higher than the one before
    on_version_change: OnVersionChange = field(default="none", compare=False)
    reconciles: bool = field(default=True, compare=False)  # whether rows are looked at anew if the signature is another


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it is kept."""

    id: int  # its number, by which its jobs name it
    plan: TaskPlan  # its last declaration
    interest: int | None  # the number of the interest that it is declared with; None if there is none now
    interests: tuple[int, ...]  # the numbers of all of its interests that there are
    # those that there were when it was declared, which may be gone; the feed may still have their changes
    earlier: tuple[int, ...]
    declared_at: datetime  # when that was
    paused: bool  # whether none of its jobs starts
    held_until: datetime | None  # the time until which none starts; None for no such time
    reconciling: Reconciling | None  # the progress of a scan of all rows; None if that is done
    reconciled_at: datetime | None  # the end of the last scan
    begun: int  # the number of times it was begun anew


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
    """The progress of a scan of the rows of a task."""

    task: TaskRow  # the task as it was declared at the time of the scan; a scan does not serve another declaration
    reconciling: Reconciling | None  # the progress; None once it is done
    begins: bool = False  # whether it is begun anew with this, so that who goes on with an earlier look finds that out


def from_the_beginning(tasks: Iterable[TaskRow]) -> list[Progress]:
    """Begin the scan of all rows of tasks anew; rows that were to run again in any case still are."""
    return [Progress(task, (task.reconciling or Reconciling()).begun(), begins=True) for task in tasks]
