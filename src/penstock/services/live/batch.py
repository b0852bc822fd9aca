"""The runs of watched queries in the snapshot of one tick, also during the next ticks."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from penstock.calls.run.runner import FunctionCalls
from penstock.changes.change import CapturedChange
from penstock.clock import SystemClock, profile_timer
from penstock.live.entry import QUICK, Answer, Entry
from penstock.live.view import Tick, View
from penstock.store.session import Session

_MOST_MISSED = 2000
_TURN = SystemClock()  # a test's does not wait


class EntryCall(NamedTuple):
    """A call of an entry."""

    entry: Entry
    answer: Answer
    why: str
    seconds: float


class Batch:
    """The runs of due entries in the snapshot of one tick."""

    def __init__(self, runner: FunctionCalls, session: Session, wake: asyncio.Event) -> None:
        self.session = session  # the snapshot
        self.tick = Tick(0, 0)  # if it is a late batch, the tick whose snapshot it is
        self.late = set[Entry]()  # if it is a late batch, its entries whose answers were not taken
        self.missed: list[CapturedChange] = []  # if it is a late batch, the changes since its tick
        self.demanded = frozenset[int]()  # if it is a late batch, the interests that lack no change since its tick
        self._runner = runner
        self._wake = wake
        self._waiting = deque[tuple[Entry, str]]()
        self._running: tuple[Entry, str] | None = None
        self._begun_at = 0.0
        self._runs: list[EntryCall] = []
        self._task: asyncio.Task[None] | None = None

    async def begin(self, due: Iterable[tuple[Entry, str]]) -> None:
        """Run entries until all are done, or the budget is spent: quick ones first, and those first that wait."""
        self._waiting.extend(sorted(due, key=lambda one: (one[0].took >= QUICK, not one[0].stale, one[0].took)))
        if self._waiting:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="penstock-live-batch")
            await self._spend(self._task)

    async def _spend(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait([task], timeout=QUICK)

    @property
    def is_over(self) -> bool:
        """Whether all entries have run, or it has failed."""
        return self._task is None or self._task.done() or (self._running is None and not self._waiting)

    def remainder(self) -> set[Entry]:
        """The entries that will have run when it is over."""
        running = [] if self._running is None else [self._running]
        return set() if self.is_over else {entry for entry, _ in (*running, *self._waiting)}

    def go_on(self, tick: Tick, left: set[Entry], demanded: frozenset[int]) -> None:
        """Go on during the next ticks. Views of the entries that are left keep the other answers of this tick."""
        self.tick, self.late, self.demanded = tick, left, demanded
        running: dict[View, list[int]] = {}
        for entry in left:
            for view, number in entry.watchers:
                running.setdefault(view, []).append(number)
        for view, numbers in running.items():
            view.pin(tick, numbers)

    def give_back(self) -> list[tuple[Entry, str]]:
        """Run entries here no more that wait behind one that takes long, and are not known to take long themselves."""
        if self.is_over or self._running is None or profile_timer() - self._begun_at < QUICK / 2:
            return []
        back = [one for one in self._waiting if one[0].took <= QUICK]
        self._waiting = deque(one for one in self._waiting if one[0].took > QUICK)
        return back

    def take(self) -> list[EntryCall]:
        runs, self._runs = self._runs, []
        return runs

    def check(self) -> None:
        """Raise what has ended the batch, if something did."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    def overtaken(
        self, done: set[Entry], concerned: Callable[[CapturedChange], Iterable[tuple[Entry, str]]]
    ) -> Iterator[tuple[Entry, str]]:
        """The stale entries, each with the change that made it stale."""
        if len(self.missed) > _MOST_MISSED:
            yield from ((entry, f"there were more than {_MOST_MISSED} changes while it ran") for entry in done)
        for change in self.missed[:_MOST_MISSED]:
            yield from ((entry, why) for entry, why in concerned(change) if entry in done)

    async def end(self) -> None:
        """Stop the runs, and let the snapshot go. An entry that was cut off counts as slow from now on."""
        if self._task is not None and not self._task.done():
            if self._running is not None:
                self._running[0].took = math.inf
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.session.rollback()

    async def _work(self) -> None:
        told_at = profile_timer()
        try:
            await self.session.savepoint("query")
            while self._waiting:
                entry, why = self._waiting.popleft()
                if not entry.watchers:
                    continue
                self._running, self._begun_at = (entry, why), profile_timer()
                answer = await self._runner.watch(self.session, entry)
                ended_at = profile_timer()
                if answer is not None:  # if not, the entry stays due
                    self._runs.append(EntryCall(entry, answer, why, ended_at - self._begun_at))
                self._running = None
                if self.late and ended_at - told_at >= QUICK:
                    told_at = ended_at
                    self._wake.set()
                await _TURN.sleep(0)  # a read of SQLite does not yield to the event loop
        finally:
            if self.late:
                self._wake.set()
