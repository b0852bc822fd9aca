"""Compares all rows of a task with its records: rows older than the task, and rows whose changes were not captured.

A part of the planner, which alone writes records, so the planner's snapshot is current. Does one bounded step at a
time. `reactive/reconciling` decides whether a row needs a run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from penstock.calls.run.runner import FunctionCalls
from penstock.changes.position import Position
from penstock.dataclass import dataclass
from penstock.errors import DataError, InputError, PenstockError, TryAgain
from penstock.observe.logs import event as log_event
from penstock.reactive.planning import PlannedTask, Read, RowPlan
from penstock.reactive.reconciling import Comparison, Found, Reconciling, compare_records, compare_rows, is_found
from penstock.store.nouns.interests import Source
from penstock.store.nouns.tasks import Move, Progress, TaskRow, Tasks
from penstock.store.session import Session, reading

_AT_ONCE = 1000
_AUDITED_AT_ONCE = 200
_AUDIT_EVERY = 3600.0
_AUDIT_PAUSE = 1.0
_UNREAD = 5000
_LONGEST_KEY = 200
_AFTER_REFUSAL = 60.0  # seconds for which rows that the database refuses to show are left alone


@dataclass(frozen=True, slots=True)
class _Piece:
    """The rows to compare next, in one snapshot."""

    session: Session
    source: Source
    limit: int
    by: Comparison


_Plans = tuple[list[RowPlan], int, str | None]  # of a piece: for how many rows, and the last one's key if more follow


class Reconciler:
    """Compares the rows of tasks, a piece at a time; `read` reads a captured value."""

    def __init__(self, runner: FunctionCalls, read: Read) -> None:
        self._store = runner.engine.store
        self._clock = runner.engine.clock
        self._read = read
        self._journal = runner.engine.journal
        self._sources: dict[int, Source] = {}
        self._audited_at = -1e9
        self._refused: dict[int, float] = {}

    def due(self, tasks: Sequence[TaskRow], now: datetime) -> tuple[TaskRow, Reconciling] | None:
        left_alone = self._clock.monotonic() - _AFTER_REFUSAL
        tasks = [
            task for task in tasks if task.interest is not None and self._refused.get(task.id, -math.inf) <= left_alone
        ]
        for task in tasks:
            if task.reconciling is not None and not task.reconciling.audit:
                return task, task.reconciling
        if self._clock.monotonic() - self._audited_at < _AUDIT_PAUSE:
            return None
        for task in tasks:
            if task.reconciling is not None:
                return task, task.reconciling
        for task in tasks:
            if task.reconciled_at is not None and (now - task.reconciled_at).total_seconds() >= _AUDIT_EVERY:
                return task, Reconciling.auditing(task.plan.spec)
        return None

    async def step(self, task: TaskRow, at: Reconciling, move: Move, now: datetime) -> tuple[bool, Reconciling | None]:
        """Compare one piece of a task's rows; whether the reader is still this planner's, and the task's progress.

        A task with too many unread changes waits, and so does one whose rows the database refuses to show.
        """
        number = task.interest
        assert number is not None  # noqa: S101 - it was due
        planned = PlannedTask.of(task.id, task.plan.spec)
        try:
            source = await self._source(number)
            if source is None:  # the table is gone, as `feed_watch` logs
                self._refused[task.id] = self._clock.monotonic()
                return True, at
            step = await self._compare(planned, number, source, at, move.after, now)
        except TryAgain:
            raise
        except PenstockError as error:
            self._leave_alone(task, number, error)
            return True, at
        self._refused.pop(task.id, None)
        if step is None:
            return True, at
        if at.audit:
            self._audited_at = self._clock.monotonic()
        rows, looked, after = step
        found = sum(map(is_found, rows))
        moved = at.advance(after, looked, found)
        if not await write_plans(self._store.tasks, rows, move, now, [Progress(task, moved)]):
            return False, at
        if rows:
            self._store.signals.notify()
            if at.audit and self._journal.meters is not None:
                self._journal.meters.add("penstock_task_audit_found", task.plan.name, number=found)
        if moved is None:
            _log_end(task, at.audit, at.looked + looked, at.found + found)
        return True, moved

    # ----- steps

    def _leave_alone(self, task: TaskRow, number: int, error: PenstockError) -> None:
        """Log once that the database refuses to show the rows of a task, and try again later."""
        if task.id not in self._refused:
            log_event("task.not_reconciled", logging.ERROR, task=task.plan.name, error=error)
        self._refused[task.id] = self._clock.monotonic()
        self._sources.pop(number, None)  # the columns may have changed

    async def _source(self, number: int) -> Source | None:
        if number not in self._sources:
            source = await self._store.interests.source(number)
            if source is None:
                return None
            self._sources[number] = source
        return self._sources[number]

    async def _compare(
        self, task: PlannedTask, number: int, source: Source, at: Reconciling, position: Position, now: datetime
    ) -> _Plans | None:
        async with reading(self._store.begin_read) as session:
            unread = await self._store.changes.after(session, position, number, _UNREAD)
            if unread is None:
                return None
            limit = _AUDITED_AT_ONCE if at.audit else _AT_ONCE
            piece = _Piece(session, source, limit, Comparison(task, at, unread, now, self._read))
            return await (self._compare_rows(piece) if at.part == "rows" else self._compare_records(piece))

    async def _compare_rows(self, piece: _Piece) -> _Plans:
        source, limit, by = piece.source, piece.limit, piece.by
        if by.at.after is None:
            rows = await piece.session.fetch(source.first, [limit])
        else:
            rows = await piece.session.fetch(source.following, [by.at.after, limit])
        found = [Found(*row) for *row, place in rows if place == row[0]]  # the key of any other cannot be written
        known = await self._store.tasks.records(piece.session, by.task.number, [row.key for row in found])
        return compare_rows(by, found, known), len(found), rows[-1][3] if len(rows) == limit else None

    async def _compare_records(self, piece: _Piece) -> _Plans:
        source, limit, by, fetch = piece.source, piece.limit, piece.by, piece.session.fetch
        kept = await self._store.tasks.slice(piece.session, by.task.number, by.at.after or "", limit)
        rows = await fetch(source.among, [_array(kept)]) if kept else ()
        there = {row[0]: Found(*row) for row in rows}
        absent = [key for key in kept if key not in there]
        exist = {*there, *(row[0] for row in await fetch(source.keys, [_array(absent)]))} if absent else {*there}
        plans = compare_records(by, kept, there, exist)
        return plans, len(kept), next(reversed(kept)) if len(kept) == limit else None


def _array(keys: Sequence[str] | Mapping[str, object]) -> str:
    return f"[{','.join(keys)}]"


def _log_end(task: TaskRow, audit: bool, looked: int, found: int) -> None:
    if not audit:
        log_event("task.reconciled", task=task.plan.name, looked=looked, found=found)
    elif found:
        log_event("task.audit_found", logging.ERROR, task=task.plan.name, looked=looked, found=found)


# ----- plans; the database may refuse some


async def write_plans(
    tasks: Tasks, rows: Sequence[RowPlan], move: Move, now: datetime, progress: Sequence[Progress] = ()
) -> bool:
    """Write plans and move the reader; False if another planner has it.

    If the database refuses some, halves are written until the rows are found that are to be left out.
    """
    try:
        return await tasks.plan(rows, move, now, progress) is not None
    except (DataError, InputError) as error:
        if not rows:
            raise
        refused = error
    stay = replace(move, after=move.before)
    if not await _write_parts(tasks, rows, stay, now, refused):
        return False
    return await tasks.plan([], move, now, progress) is not None


async def _write_parts(
    tasks: Tasks, rows: Sequence[RowPlan], move: Move, now: datetime, refused: DataError | InputError
) -> bool:
    if len(rows) == 1:
        key = rows[0].key[:_LONGEST_KEY]
        log_event("planner.row_refused", logging.ERROR, task=rows[0].task, key=key, error=refused)
        return True
    middle = len(rows) // 2
    for part in (rows[:middle], rows[middle:]):
        try:
            if await tasks.plan(part, move, now) is None:
                return False
        except (DataError, InputError) as error:
            if not await _write_parts(tasks, part, move, now, error):
                return False
    return True
