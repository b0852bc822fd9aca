"""The planner: turns the changes of rows into jobs of reactive tasks. Any number of processes run one, and one plans.

It plans for all tasks that the database knows, whatever its own program declares. Owns its lease, and where it is in
the change feed. What becomes of a change is decided by `reactive/planning`; the decision and how far the feed is read
are written together.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from penstock.api.tasks.tasks import READER, look_at_all_rows
from penstock.calls.run.runner import Runner
from penstock.changes.change import LOST, CapturedChange
from penstock.changes.position import Position
from penstock.errors import DatabaseUnavailable, TryAgain
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.reactive.planning import PlannedTask, plan_rows
from penstock.services.planner.plans import write_plans
from penstock.services.reading import ReadSize
from penstock.services.reconciler import Reconciler
from penstock.services.service import Service
from penstock.services.worker.rescue import Rescue
from penstock.store.contract.tasks import Move, TaskRow, from_the_beginning
from penstock.store.sql.values import captured_value

_AT_ONCE, _LEAST_AT_ONCE = 2000, 20
_LOOK_EVERY = 0.1  # seconds
_STAND_BY = 1.0
_NOTHING = 5.0
_TASKS_EVERY = 5.0
_FORGET_EVERY, _FORGET_AT_ONCE = 1.0, 1000
_MOVE_EVERY = 5.0  # without changes, so that the feed can be emptied
_SET_BACK = timedelta(minutes=1)  # clocks that differ by more are wrong, and nothing is put off for them
_HOLDS_PART, _RENEW_PART, _TICK_PART, _LOOK_PART = 0.75, 0.25, 0.25, 0.1  # of the setting `lease`


class Planner(Service):
    """Plans runs of reactive tasks.

    Args:
        runner: Runs functions.
        name: How this process is called in its lease.
    """

    name = "planner"

    def __init__(self, runner: Runner, name: str) -> None:
        super().__init__(runner.engine.clock)
        self._store = runner.engine.store
        self._label = f"planner {name}"
        self._bound = runner.engine.config.lease
        self._ttl = timedelta(seconds=self._bound * _HOLDS_PART)
        self._lease: int | None = None
        self._renewed_at = self._moved_at = self._listed_at = -1e9
        self._position: Position | None = None
        self._tasks: dict[int, PlannedTask] = {}
        self._at_once, self._size = _AT_ONCE, ReadSize(_AT_ONCE)
        self._rows: list[TaskRow] = []
        self._read = partial(captured_value, self._store.dialect)
        self._reconciler = Reconciler(runner, self._read)
        self._asked = runner.engine.look
        self._rescue = Rescue(runner)
        self._forgot_at = -1e9
        self._planned_at: datetime | None = None

    async def tick(self) -> float:
        """Plan one piece; seconds until the next look."""
        try:
            async with asyncio.timeout(self._bound * _TICK_PART):
                pause = await self._tick()
        except TimeoutError as error:
            self._at_once = max(_LEAST_AT_ONCE, self._at_once // 4)  # a database that is slow is asked for less
            raise DatabaseUnavailable("The database did not answer in time to plan.") from error
        self._at_once = min(_AT_ONCE, self._at_once * 2)
        return pause

    async def finish(self) -> None:
        """Give the lease back, so that another goes on at once."""
        if self._lease is not None:
            lease, self._lease, self._position = self._lease, None, None
            try:
                await self._store.leases.give_back(lease)
            except TryAgain as error:
                log_event("planner.lease_kept", logging.WARNING, lease=lease, error=error)
            self._store.signals.notify()

    # ----- steps

    async def _tick(self) -> float:
        await self._list()
        if not self._tasks:
            return _NOTHING
        await self._keep_lease()
        if self._position is None and not await self._take():
            return 0.0 if await self._take_over() else _STAND_BY
        assert self._position is not None  # noqa: S101 - it was taken
        batch = await self._store.changes.read(self._position, min(self._at_once, self._size.number))
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
        return min(self._store.signals.until_fed(self.wake, batch.position), self._bound * _LOOK_PART)

    async def _list(self, *, at_once: bool = False) -> None:
        """Read which tasks there are, from time to time."""
        now = self.clock.monotonic()
        if at_once or self._asked.is_set() or now - self._listed_at >= _TASKS_EVERY:
            self._asked.clear()
            self._rows = rows = await self._store.tasks.list()
            self._tasks = {
                number: PlannedTask.of(row.id, row.plan.spec, current=number == row.interest)
                for row in rows
                for number in {*row.interests, *row.earlier}
                if row.interest is None or number <= row.interest  # later ones are of who is about to declare the task
            }
            self._listed_at = now

    async def _keep_lease(self) -> None:
        now = self.clock.monotonic()
        if self._lease is None:
            self._lease = await self._store.leases.take(self._label, self._ttl, self.clock.now())
            self._renewed_at = now
        elif now - self._renewed_at >= self._bound * _RENEW_PART:
            await self._store.synchronize()
            if await self._store.leases.renew(self._lease, self._ttl, self.clock.now()):
                self._renewed_at = now
            else:
                log_event("planner.lease_lost", logging.WARNING, lease=self._lease)
                self._lease = self._position = None
                await self._keep_lease()

    async def _take(self) -> bool:
        """Become the one who plans; False if another is.

        If somebody has dropped the reader, all rows are looked at: what has changed meanwhile is told no more.
        """
        assert self._lease is not None  # noqa: S101 - it was kept
        self._position = await self._store.changes.take(READER, self._lease)
        now = self.clock.now()
        if self._position is None and await self._store.changes.register(READER, now):
            self._position = await self._store.changes.take(READER, self._lease)
            await look_at_all_rows(self._store, now)
            await self._list(at_once=True)
        if self._position is not None:
            self._planned_at = next(
                (one.moved_at for one in await self._store.changes.readers() if one.name == READER), now
            )
            log_event("planner.started", lease=self._lease, planner=self._label)
        return self._position is not None

    async def _take_over(self) -> bool:
        """Take away leases that have run out: whoever planned may be dead, and there may be no worker to notice."""
        if not self._rescue.is_due or not await self._rescue.look(self._lease):
            return False
        self._store.signals.notify()
        return True

    async def _plan(self, changes: list[CapturedChange], after: Position) -> None:
        """Write what changes call for, and that they are read."""
        assert self._position is not None and self._lease is not None  # noqa: PT018, S101 - it plans
        if changes:  # whoever has declared another filter since they were read looks at all rows after them
            await self._list(at_once=True)
        ours = [(self._tasks[change.interest], change) for change in changes if change.interest in self._tasks]
        now = self._now()
        rows = plan_rows(ours, now, self._read)
        move = Move(READER, self._lease, self._position, after)
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

    def _lose(self) -> None:
        """Another plans, or a task was declared anew: look again at both."""
        log_event("planner.reader_lost", logging.WARNING, lease=self._lease)
        self._position, self._listed_at = None, -1e9

    async def _reconcile(self) -> bool:
        """Look at a piece of the rows of a task, if one is to be looked at; whether more is to be looked at now."""
        found = None if self._position is None else self._reconciler.due(self._rows, self.clock.now())
        if found is None:
            return False
        assert self._position is not None and self._lease is not None  # noqa: PT018, S101 - it plans
        task, at = found
        move = Move(READER, self._lease, self._position, self._position)
        ours, moved = await self._reconciler.step(task, at, move, self._now())
        if not ours:
            self._lose()
            return False
        done = {"reconciling": moved} if moved else {"reconciling": None, "reconciled_at": self.clock.now()}
        self._rows = [replace(row, **done) if row.id == task.id else row for row in self._rows]
        return moved is not at and not at.audit

    def _now(self) -> datetime:
        """The time of what is planned now, never before that of what was planned last: rows of a key run so."""
        now = self.clock.now()
        if self._planned_at is not None and now < self._planned_at <= now + _SET_BACK:
            now = self._planned_at
        self._planned_at = now
        return now

    async def _forget(self) -> bool:
        """Forget records whose time is over, from time to time; whether there are more."""
        now = self.clock.monotonic()
        if now - self._forgot_at < _FORGET_EVERY:
            return False
        count = await self._store.tasks.forget(self.clock.now(), _FORGET_AT_ONCE)
        if count < _FORGET_AT_ONCE:
            self._forgot_at = now
        if count:
            log_event("planner.forgot", records=count)
        return count >= _FORGET_AT_ONCE
