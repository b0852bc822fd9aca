"""The planner: turns changes of rows into jobs of reactive tasks. Any number of processes run one; one of them plans.

It plans for all tasks in the database, also for those of other programs. `reactive/planning` decides whether a change
needs a run. The decision and the planner's position in the change feed are written in one transaction.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from penstock.api.tasks.tasks import READER, look_at_all_rows
from penstock.calls.lease import LOOK_PART
from penstock.calls.run.runner import FunctionCalls
from penstock.changes.change import LOST, CapturedChange
from penstock.changes.position import Position
from penstock.errors import Conflict
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.reactive.planning import PlannedTask, plan_rows
from penstock.services.reading import ReadSize
from penstock.services.reconciler import Reconciler, write_plans
from penstock.services.service import LeasedService
from penstock.store.nouns.tasks import Move, TaskRow, from_the_beginning
from penstock.store.sql.values import decode_capture

_AT_ONCE = 2000
_LOOK_EVERY = 0.1  # seconds
_STAND_BY = 1.0
_NOTHING = 5.0
_TASKS_EVERY = 5.0
_FORGET_EVERY, _FORGET_AT_ONCE = 1.0, 1000
_MOVE_EVERY = 5.0  # without changes, so that the feed can be emptied
_SET_BACK = timedelta(minutes=1)  # a clock that differs by more is wrong, and nothing waits for it


class Planner(LeasedService):
    """Plans runs of reactive tasks. `name` is the name of its process."""

    name = "planner"

    def __init__(self, runner: FunctionCalls, name: str) -> None:
        super().__init__(runner, f"planner {name}", fenced=True)
        self._moved_at = self._listed_at = self._forgot_at = -1e9
        self._position: Position | None = None
        self._tasks: dict[int, PlannedTask] = {}
        self._size = ReadSize(_AT_ONCE)
        self._rows: list[TaskRow] = []
        self._read = partial(decode_capture, self._store.dialect)
        self._reconciler = Reconciler(runner, self._read)
        self._asked = runner.engine.look
        self._planned_at: datetime | None = None

    async def tick(self) -> float:
        try:
            async with self._limit_tick("plan"):
                return await self._tick()
        except Conflict:
            self._position = None  # it may be void, as the database has crashed since
            raise

    async def finish(self) -> None:
        self._position = None
        await super().finish()

    # ----- steps

    async def _tick(self) -> float:
        await self._list()
        if not self._tasks:
            return _NOTHING
        await self._lease.keep(busy=False)
        if self.lease is None:
            await self._lease.keep()
        if self._position is None and not await self._take():
            return 0.0 if await self._take_over() else _STAND_BY
        assert self._position is not None  # noqa: S101 - it was taken
        batch = await self._store.changes.read(self._position, self._size.number)
        self._size.adapt(batch)
        if points.armed and batch.changes:
            await points.reach("planner.read", changes=batch.changes)
        if batch.changes or self.clock.monotonic() - self._moved_at >= _MOVE_EVERY:
            await self._plan(batch.changes, batch.position)
            if not batch.complete:
                return 0.0
        forgot = await self._forget()
        if await self._reconcile() or forgot or self._position is None:
            return 0.0
        if any(row.reconciling is not None for row in self._rows):
            return _LOOK_EVERY
        return min(self._store.signals.until_fed(self.wake, batch.position), self._bound * LOOK_PART)

    async def _list(self, *, at_once: bool = False) -> None:
        now = self.clock.monotonic()
        if at_once or self._asked.is_set() or now - self._listed_at >= _TASKS_EVERY:
            self._asked.clear()
            self._rows = rows = await self._store.tasks.list()
            self._tasks = {
                number: PlannedTask.of(row.id, row.plan.spec, current=number == row.interest)
                for row in rows
                for number in {*row.interests, *row.earlier}
                if row.interest is None or number <= row.interest  # a later one is being declared just now
            }
            self._listed_at = now

    async def _lose_lease(self, lease: int, _reason: str) -> None:
        log_event("planner.lease_lost", logging.WARNING, lease=lease)
        self._position = None

    async def _take(self) -> bool:
        """Become the process that plans; False if another is.

        If somebody dropped the reader, the changes since then are lost, so all rows are looked at.
        """
        lease = self._number()
        self._position = await self._store.changes.take(READER, lease)
        now = self.clock.now()
        if self._position is None and await self._store.changes.register(READER, now):
            self._position = await self._store.changes.take(READER, lease)
            await look_at_all_rows(self._store, now)
            await self._list(at_once=True)
        if self._position is not None:
            self._planned_at = next(
                (one.moved_at for one in await self._store.changes.readers() if one.name == READER), now
            )
            log_event("planner.started", lease=lease, planner=self._label)
        return self._position is not None

    async def _plan(self, changes: list[CapturedChange], after: Position) -> None:
        if changes:  # a filter that was declared after they were read has all rows looked at later
            await self._list(at_once=True)
        ours = [(self._tasks[change.interest], change) for change in changes if change.interest in self._tasks]
        now = self._now()
        rows = plan_rows(ours, now, self._read)
        move = self._move(after)
        if points.armed and rows:
            await points.reach("planner.planned", rows=rows)
        lost = {task.number for task, change in ours if change.kind in {LOST, "truncate"}}
        if lost:
            await self._list(at_once=True)
        again = from_the_beginning(row for row in self._rows if row.id in lost)
        if not await write_plans(self._store.tasks, rows, move, now, again):
            self._lose()
            return
        if lost:
            await self._list(at_once=True)
        self._position, self._moved_at = after, self.clock.monotonic()
        if rows:
            self._store.signals.notify()

    def _number(self) -> int:
        assert self.lease is not None  # noqa: S101 - it was kept
        return self.lease

    def _move(self, after: Position | None = None) -> Move:
        assert self._position is not None  # noqa: S101 - it plans
        return Move(READER, self._number(), self._position, after or self._position)

    def _lose(self) -> None:
        """Forget the lease and the list of tasks: another planner took over, or a task was declared again."""
        log_event("planner.reader_lost", logging.WARNING, lease=self.lease)
        self._position, self._listed_at = None, -1e9

    async def _reconcile(self) -> bool:
        found = None if self._position is None else self._reconciler.due(self._rows, self.clock.now())
        if found is None:
            return False
        task, at = found
        ours, moved = await self._reconciler.step(task, at, self._move(), self._now())
        if not ours:
            self._lose()
            return False
        done = {"reconciling": moved} if moved else {"reconciling": None, "reconciled_at": self.clock.now()}
        self._rows = [replace(row, **done) if row.id == task.id else row for row in self._rows]
        return moved is not at and not at.audit

    def _now(self) -> datetime:
        """The time of these plans, never before that of the last ones, since jobs of a key run in its order."""
        now = self.clock.now()
        if self._planned_at is not None and now < self._planned_at <= now + _SET_BACK:
            now = self._planned_at
        self._planned_at = now
        return now

    async def _forget(self) -> bool:
        now = self.clock.monotonic()
        if now - self._forgot_at < _FORGET_EVERY:
            return False
        count = await self._store.tasks.forget(self.clock.now(), _FORGET_AT_ONCE)
        if count < _FORGET_AT_ONCE:
            self._forgot_at = now
        if count:
            log_event("planner.forgot", records=count)
        return count >= _FORGET_AT_ONCE
