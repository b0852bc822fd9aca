"""What verbs about records of reactive tasks take and give (`store.nouns.records`)."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from penstock.reactive.task import Change

FAILED = ("failed",)
RowKey = tuple[int, str]
"""The number of a task, and the key of a row as the change feed spells it."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Records that meet all of these conditions.

    Attributes:
        tasks: Of one of these tasks.
        states: Their job stands so; ``gone`` for those whose row has left or is deleted.
        error: Their last error contains this.
        has_error: Whether there is one.
    """

    tasks: tuple[int, ...] | None = None
    states: tuple[str, ...] | None = None
    error: str | None = None
    has_error: bool | None = None


@dataclass(frozen=True, slots=True)
class RecordState:
    """A record, with the state of its job.

    Attributes:
        task: The number of the task.
        key: The key of the row, as the change feed spells it.
        job: The id of its job.
        generation: How many changes it had that the task wanted to hear of.
        live: Whether its job has still to end.
        change: The last of these.
        changed_at: When that was.
        due_at: When it was to be run then.
        gone: ``left`` if it does not match any more, ``deleted`` if there is no such row; None if it is there.
        state: The state of its job; None if there is none, though there should be.
        attempt: Its attempts so far, for this generation.
        run_at: When it was due, or is.
        error: The error of its last attempt, or why it waits.
    """

    task: int
    key: str
    job: UUID
    generation: int
    live: bool
    change: Change
    changed_at: datetime
    due_at: datetime
    gone: str | None
    state: str | None
    attempt: int | None
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RecordCount:
    """The number of records of a task in one state, and of those whose row is gone."""

    task: int
    state: str
    number: int
    gone: int


@dataclass(frozen=True, slots=True)
class TaskBacklog:
    """The backlog of a task, counted no further than asked.

    Attributes:
        ready: How many of its jobs may start now.
        scheduled: How many start later: debounced, in back-off, or put off.
        running: How many run.
        failed: How many have failed.
        oldest: The due time of the oldest of the ready ones.
        due_first: The first due time of the oldest waiting run, before anything put it off; it may be that
            it is not due yet.
        reconciled_at: When all rows were looked at last; None if they never were.
    """

    task: int
    name: str
    ready: int
    scheduled: int
    running: int
    failed: int
    oldest: datetime | None
    paused: bool
    due_first: datetime | None
    reconciled_at: datetime | None


STANDS: tuple[Literal["first", "again", "runs"], ...] = ("first", "again", "runs")


@dataclass(frozen=True, slots=True)
class Ahead:
    """A job that comes before another with the same concurrency key, with its state.

    Attributes:
        task: The task that it is of, if it is of one.
        key: The key of its row.
    """

    job: UUID
    stands: Literal["first", "again", "runs"]
    task: int | None
    key: str | None


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """Rows of a table that meet a filter.

    Attributes:
        keys: Their keys, as the change feed spells them.
        last: The last key as the driver gives it, column by column, to go on after; None if there are no more.
    """

    keys: builtins.list[str]
    last: tuple[Any, ...] | None
