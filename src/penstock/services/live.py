"""Keeps the answers of watched queries up to date, tick by tick: each tick is one snapshot for all of them.

A tick opens a snapshot, reads the changes since the last one, and runs there the queries that they concern. So all
answers are those of one snapshot. Nothing is stored: each process has its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any

from penstock.calls.run.runner import Runner
from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.clock import SystemClock, profile_timer
from penstock.errors import Conflict, DeclarationError
from penstock.functions.function import AnyFunction
from penstock.live.capture import live_interest
from penstock.live.entry import Answer, Entry, EntryReport, Key
from penstock.live.ranges import TableRanges
from penstock.live.view import Tick, View
from penstock.observe.logs import event as log_event
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition
from penstock.services.reading import ReadSize
from penstock.services.service import Service
from penstock.store.contract.changes import Dropped
from penstock.store.contract.session import Session
from penstock.store.contract.store import Store
from penstock.store.rows.interests import identity_of
from penstock.store.sql.values import captured_values, stored_value

_AT_ONCE = 2000
_IDLE = 60.0
_JOBS_EVERY = 0.25  # seconds
_POLL_SOON, _POLL_LATE = 0.25, 5.0

_TURN = SystemClock()  # a test's does not wait

Run = tuple[Entry, Answer, str, float]  # and why it ran, and for how many seconds


class _Unknown(Exception):
    """A captured value does not fit its column, so the ranges of its row cannot be found."""


async def declare_live(store: Store, definitions: Iterable[TableDefinition], now: datetime) -> None:
    """Have the changes of live tables captured; queries of tables that cannot be, such as views, are polled."""
    for definition in definitions:
        if not definition.live:
            continue
        try:
            await store.interests.declare([live_interest(definition)], now)
        except DeclarationError as error:
            log_event("live.polled", table=definition.name, reason=error)


class LiveQueries(Service):
    """The watched queries of one process. `definitions` are the tables of its program."""

    name = "live"

    def __init__(self, runner: Runner, definitions: Iterable[TableDefinition]) -> None:
        super().__init__(runner.engine.clock)
        self._runner = runner
        self._store = runner.engine.store
        self._declared = {identity_of(live_interest(one)): one for one in definitions if one.live}
        self._captured: dict[int, TableDefinition] = {}  # by the numbers of their interests
        self._ranges: dict[str, TableRanges[Entry]] = {}  # of captured tables, by their names
        self._entries: dict[Key, Entry] = {}
        self._everything: set[Entry] = set()  # those that ran SQL which may read any table
        self._due: dict[Entry, str] = {}  # those that run at the next tick, and why
        self._position: Position | None = None  # of the last tick's snapshot
        self._dropped: Dropped | None = None  # as the last tick found it
        self._size = ReadSize(_AT_ONCE)
        self._views = set[View]()
        self._expecting: dict[View, int] = {}  # the numbers of the ticks that views wait for
        self._begun = 0  # the number of the last tick that began
        self.newest = Tick(0, 0)

    # ----- watching

    def view(self) -> View:
        """A view of a client, which watches nothing yet."""
        view = View(self)
        self._views.add(view)
        return view

    def enter(self, view: View, number: int, function: AnyFunction, arguments: dict[str, Any]) -> Entry:
        """See `Entries`."""
        key = function.name, repr(sorted(arguments.items()))  # not JSON: a date is not its text
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(key, function, arguments, self.clock.seed())
            self._due[entry] = "nobody watched it before"
        entry.watchers.add((view, number))
        return entry

    def leave(self, view: View, number: int, entry: Entry) -> None:
        """See `Entries`. An entry without watchers is dropped."""
        entry.watchers.discard((view, number))
        if not entry.watchers:
            del self._entries[entry.key]
            self._due.pop(entry, None)
            self._forget_reads(entry)

    def expect(self, view: View) -> int:
        """See `Entries`."""
        self._expecting[view] = number = self._begun + 1
        self.wake.set()
        return number

    def forget(self, view: View) -> None:
        """See `Entries`."""
        self._views.discard(view)
        self._expecting.pop(view, None)

    def report(self) -> list[EntryReport]:
        """How each watched query fares, in no order."""
        return [entry.report() for entry in self._entries.values()]

    async def close(self) -> None:
        """End all views, and the service."""
        for view in list(self._views):
            view.close()
        await self.kill()

    # ----- ticks

    async def tick(self) -> float:
        """Bring all entries to a new snapshot; seconds until the next look."""
        if not self._entries:
            self._position = None
            if not self._expecting:
                self._store.signals.unsubscribe(self.wake)
                return _IDLE
        self._store.signals.subscribe(self.wake)
        self._begun += 1
        number = self._begun
        if (begun_at := self._position) is None:
            await self._find_captured()
        session = await self._store.begin_read()
        try:
            position, clock = await self._look(session)
            await self._look_at_jobs(session)
            runs = await self._run_due(session)
        finally:
            await session.rollback()
        if not await self._has_read_all(begun_at):
            self._position = None  # so the next tick runs all of them
            return 0.0
        self._position = position
        self._publish(Tick(number, max(clock, self.newest.clock)), runs)
        return self._pause(position)

    async def _find_captured(self) -> None:
        """Find out which tables are captured; queries of others are polled."""
        rows = await self._store.interests.list()
        found = {row.id: self._declared.get(identity_of(row.interest)) for row in rows if row.state == "ok"}
        self._captured = {number: one for number, one in found.items() if one is not None}
        for entry in self._entries.values():
            self._forget_reads(entry)
        self._ranges = {one.name: self._ranges_of(one) for one in self._captured.values()}

    def _ranges_of(self, definition: TableDefinition) -> TableRanges[Entry]:
        kinds = {column.name: column.kind for column in definition.columns}
        # Another program's column may compare text in its own way.
        wide = () if definition.managed else [name for name, kind in kinds.items() if kind is Kind.TEXT]
        return TableRanges(kinds, wide, partial(stored_value, self._store.dialect))

    async def _look(self, session: Session) -> tuple[Position, int]:
        """Find the entries that are due; the position and the clock of the snapshot."""
        now = self.clock.monotonic()
        for entry in self._entries.values():
            if entry.next_run_at <= now:
                self._due.setdefault(entry, "its time has come")
        changes, position = self._store.changes, self._position
        if position is None:
            self._all_are_due("its process did not look before")
            position = await changes.end(session)
        while True:
            try:
                batch = await changes.read(position, self._size.number, list(self._captured), session)
            except Conflict:
                self._all_are_due("the database was restored")
                position = await changes.end(session)
                continue
            self._size.adapt(batch)
            for change in batch.changes:
                self._find_due(change)
            position = batch.position
            if batch.complete:
                return position, batch.clock

    async def _has_read_all(self, begun_at: Position | None) -> bool:
        """Whether nothing that came since the last tick was dropped before it was read."""
        before, self._dropped = self._dropped, await self._store.changes.dropped()
        if begun_at is None or before is None:
            return True
        return self._dropped.was_passed(begun_at) and self._dropped.origin == before.origin

    def _find_due(self, change: CapturedChange) -> None:
        definition = self._captured[change.interest]
        for entry in self._everything:
            self._due.setdefault(entry, f"{definition.name}: {change.kind}")
        ranges = self._ranges[definition.name]
        if not ranges:
            return
        said = f"{definition.name}: {change.kind}"
        try:
            images = [self._image(definition, ranges, change, when) for when in ("before", "after")]
        except _Unknown:
            images = []
        if change.key is None or not images:
            for entry in ranges.all():
                self._due.setdefault(entry, said)
        for image in images:
            for entry, read in ranges.concerned(image):
                if entry not in self._due:
                    self._due[entry] = f"{said} of {change.key}, in the range {read}"

    def _image(
        self, definition: TableDefinition, ranges: TableRanges[Entry], change: CapturedChange, when: str
    ) -> dict[str, Any] | None:
        """The values of a row that ranges are read by; None if there was no row."""
        captured = change.values(when)
        if not captured:
            return None
        found = captured_values(self._store.dialect, definition, captured, ranges.columns)
        if any(value is None and captured.get(name) is not None for name, value in found.items()):
            raise _Unknown
        return found

    def _all_are_due(self, why: str) -> None:
        for entry in self._entries.values():
            self._due.setdefault(entry, why)

    async def _run_due(self, session: Session) -> list[Run]:
        due, runs = dict(self._due), list[Run]()
        in_thread = next((entry.function for entry in due if not entry.function.is_async), None)
        async with self._runner.engine.thread(in_thread, 0) as thread:
            for entry, why in due.items():
                begun = profile_timer()
                answer = await self._runner.watch(session, entry.function, entry.arguments, entry.seed, thread)
                runs.append((entry, answer, why, profile_timer() - begun))
                await _TURN.sleep(0)  # a read of SQLite does not yield to the event loop
        return runs

    async def _look_at_jobs(self, session: Session) -> None:
        """Find the entries that read the status of a job that has changed."""
        answers = {entry: entry.answer for entry in self._entries.values() if entry.answer and entry.answer.reads.jobs}
        wanted = {job for answer in answers.values() for job in answer.reads.jobs}
        found = await self._store.jobs.find_many(session, [*wanted], self._runner.now()) if wanted else {}
        for entry, answer in answers.items():
            if answer.jobs != {job: found[job] for job in answer.reads.jobs if job in found}:
                self._due.setdefault(entry, "the status of a job has changed")

    def _publish(self, tick: Tick, runs: Iterable[Run]) -> None:
        self.newest = tick
        for entry, answer, why, took in runs:
            self._due.pop(entry, None)
            if not entry.watchers:
                continue
            same = entry.answer is not None and entry.answer.encoded == answer.encoded
            self._forget_reads(entry)
            news = entry.stale or not same
            entry.answer, entry.stale = answer, False
            entry.note_run(why, took)
            self._note_reads(entry, answer, same=same)
            if news:
                for view, number in entry.watchers:
                    view.answer(number, tick, answer)
        for view, expected in list(self._expecting.items()):
            if expected <= tick.number:
                del self._expecting[view]
                view.moved.set()

    def _pause(self, position: Position) -> float:
        now = self.clock.monotonic()
        times = [entry.next_run_at - now for entry in self._entries.values() if entry.next_run_at < math.inf]
        if any(entry.answer and entry.answer.reads.jobs for entry in self._entries.values()):
            times.append(_JOBS_EVERY)
        pause = min([self._store.signals.until_fed(self.wake, position), *times])
        return 0.0 if self._due else max(pause, 0.001)

    # ----- ranges of entries

    def _note_reads(self, entry: Entry, answer: Answer, *, same: bool) -> None:
        reads, now = answer.reads, self.clock.monotonic()
        told = not reads.everything and not reads.untold
        for one in reads.ranges:
            if one.table in self._ranges:
                self._ranges[one.table].add(entry, one)
            else:
                told = False
        if reads.everything:
            self._everything.add(entry)
        entry.next_run_at = math.inf
        if not told:
            entry.pause = min(2 * entry.pause, _POLL_LATE) if same and entry.pause else _POLL_SOON
            entry.next_run_at = now + entry.pause
        if reads.until is not None:
            entry.next_run_at = min(entry.next_run_at, now + (reads.until - self.clock.now()).total_seconds())

    def _forget_reads(self, entry: Entry) -> None:
        self._everything.discard(entry)
        if entry.answer is not None:
            for one in entry.answer.reads.ranges:
                if one.table in self._ranges:
                    self._ranges[one.table].remove(entry, one)
