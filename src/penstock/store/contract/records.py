"""What verbs about records of reactive tasks take and give (`store.nouns.records`)."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from penstock.reactive.task import Change

FAILED = ("failed",)
RowKey = tuple[int, str]
"""The number of a task, and the key of a row as the change feed spells it."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Records that meet all of these conditions."""

    tasks: tuple[int, ...] | None = None  # of one of these tasks
    states: tuple[str, ...] | None = None  # their job stands so; ``gone`` for those whose row has left or is deleted
    error: str | None = None  # their last error contains this
    has_error: bool | None = None  # whether there is one


@dataclass(frozen=True, slots=True)
class RecordState:
    """A record, with the state of its job."""

    task: int  # the number of the task
    key: str  # the key of the row, as the change feed spells it
    job: UUID  # the id of its job
    generation: int  # how many changes it had that the task wanted to hear of
    live: bool  # whether its job has still to end
    change: Change  # the last of these
    changed_at: datetime  # when that was
    due_at: datetime  # when it was to be run then
    gone: str | None  # ``left`` if it does not match any more, ``deleted`` if there is no such row; None if it is there
    state: str | None  # the state of its job; None if there is none, though there should be
    attempt: int | None  # its attempts so far, for this generation
    run_at: datetime | None  # when it was due, or is
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None  # the error of its last attempt, or why it waits


@dataclass(frozen=True, slots=True)
class RecordCount:
    """The number of records of a task in one state, and of those whose row is gone."""

    task: int
    state: str
    number: int
    gone: int


@dataclass(frozen=True, slots=True)
class TaskBacklog:
    """The backlog of a task, counted no further than asked."""

    task: int
    name: str
    ready: int  # how many of its jobs may start now
    scheduled: int  # how many start later: debounced, in back-off, or put off
    running: int  # how many run
    failed: int  # how many have failed
    oldest: datetime | None  # the due time of the oldest of the ready ones
    paused: bool
    # the first due time of the oldest waiting run, before anything put it off; it may be that it is not due yet
    due_first: datetime | None
    reconciled_at: datetime | None  # when all rows were looked at last; None if they never were


STANDS: tuple[Literal["first", "again", "runs"], ...] = ("first", "again", "runs")


@dataclass(frozen=True, slots=True)
class Ahead:
    """A job that comes before another with the same concurrency key, with its state."""

    job: UUID
    stands: Literal["first", "again", "runs"]
    task: int | None  # the task that it is of, if it is of one
    key: str | None  # the key of its row


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """Rows of a table that meet a filter."""

    keys: builtins.list[str]  # their keys, as the change feed spells them
    last: str | None  # the last key of those looked at, to go on after; None if there are no more
