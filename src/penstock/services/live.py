"""Keeps the answers of watched queries up to date, tick by tick: each tick is one snapshot for all of them.

A tick opens a snapshot, reads the changes since the last one, and runs there the queries that they concern. So all
answers are those of one snapshot. Queries that take long go on in it, beside the next ticks, as one late batch. Nothing
is stored: each process has its own.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from penstock.calls.run.runner import Runner
from penstock.changes.change import CapturedChange
from penstock.changes.demand import Demands
from penstock.changes.position import Position
from penstock.changes.readset import RangeRead
from penstock.clock import SystemClock, profile_timer
from penstock.errors import Conflict, TryAgain
from penstock.functions.function import AnyFunction
from penstock.identity.caller import ANONYMOUS, Caller
from penstock.live.capture import live_interest
from penstock.live.entry import QUICK, Answer, Entry, EntryReport, Key
from penstock.live.ranges import TableRanges
from penstock.live.view import Tick, View
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition
from penstock.services.reading import ReadSize
from penstock.services.service import Service
from penstock.store.contract.changes import Dropped
from penstock.store.contract.session import Session
from penstock.store.nouns.requests import RequestKey
from penstock.store.rows.interests import identity_of
from penstock.store.sql.values import captured_values, stored_value

_AT_ONCE = 2000
_MOST_CHANGES = 10_000  # of one tick; to run all queries again takes less time then
_MOST_MISSED = 2000
_IDLE = 60.0
_JOBS_EVERY = 0.25  # seconds
_POLL_SOON, _POLL_LATE = 0.25, 5.0
_KEEP = 30.0  # seconds for which an answer that nobody watches is kept
_MOST_KEPT, _MOST_KEPT_BYTES = 1000, 16 * 2**20

_ANYBODY = ""  # for whom an entry is whose query has not read who calls

_TURN = SystemClock()  # a test's does not wait


class Run(NamedTuple):
    """A run of an entry."""

    entry: Entry
    answer: Answer
    why: str
    seconds: float


class _Batch:
    """The runs of due entries in the snapshot of one tick.

    Attributes:
        session: The snapshot.
        late: If it is a late batch, its entries whose answers were not taken.
    """

    def __init__(self, runner: Runner, session: Session, wake: asyncio.Event) -> None:
        self.session = session
        self.tick = Tick(0, 0)
        self.late = set[Entry]()
        self._runner = runner
        self._wake = wake
        self._waiting = deque[tuple[Entry, str]]()
        self._running: tuple[Entry, str] | None = None
        self._begun_at = 0.0
        self._runs: list[Run] = []
        self._task: asyncio.Task[None] | None = None

    async def begin(self, due: Iterable[tuple[Entry, str]]) -> None:
        """Run entries until all are done, or the budget is spent: quick ones first, and those first that wait."""
        self._waiting.extend(sorted(due, key=lambda one: (one[0].took >= QUICK, not one[0].stale, one[0].took)))
        if self._waiting:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="penstock-live-batch")
            await asyncio.wait([self._task], timeout=QUICK)

    @property
    def is_over(self) -> bool:
        """Whether all entries have run, or it has failed."""
        return self._task is None or self._task.done() or (self._running is None and not self._waiting)

    def left(self) -> set[Entry]:
        """The entries that will have run when it is over."""
        running = [] if self._running is None else [self._running]
        return set() if self.is_over else {entry for entry, _ in (*running, *self._waiting)}

    def give_back(self) -> list[tuple[Entry, str]]:
        """Run entries here no more that wait behind one that takes long, and are not known to take long themselves."""
        if self.is_over or self._running is None or profile_timer() - self._begun_at < QUICK / 2:
            return []
        back = [one for one in self._waiting if one[0].took <= QUICK]
        self._waiting = deque(one for one in self._waiting if one[0].took > QUICK)
        return back

    def take(self) -> list[Run]:
        """The runs that were not taken before."""
        runs, self._runs = self._runs, []
        return runs

    def check(self) -> None:
        """Raise what has ended the batch, if something did."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

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
                asked = entry.function, entry.arguments, entry.caller, entry.seed, entry.journal
                answer = await self._runner.watch(self.session, *asked)
                ended_at = profile_timer()
                self._runs.append(Run(entry, answer, why, ended_at - self._begun_at))
                self._running = None
                if self.late and ended_at - told_at >= QUICK:
                    told_at = ended_at
                    self._wake.set()
                await _TURN.sleep(0)  # a read of SQLite does not yield to the event loop
        finally:
            if self.late:
                self._wake.set()


class _Unknown(Exception):
    """A captured value does not fit its column, so the ranges of its row cannot be found."""


class LiveQueries(Service):
    """The watched queries of one process. `definitions` are the tables of its program."""

    name = "live"
    tells_once = True

    def __init__(self, runner: Runner, definitions: Iterable[TableDefinition]) -> None:
        super().__init__(runner.engine.clock)
        self._runner = runner
        self._store = runner.engine.store
        self._declared = {identity_of(live_interest(one)): one for one in definitions if one.live}
        self._captured: dict[int, TableDefinition] = {}  # by the numbers of their interests
        self._demands = Demands()
        self._ranges: dict[str, TableRanges[Entry]] = {}  # of captured tables, by their names
        self._entries: dict[Key, Entry] = {}
        self._everything = set[Entry]()  # those that ran SQL which may read any table
        self._timed = set[Entry]()  # those that run again at a time
        self._with_jobs = set[Entry]()  # those that read the statuses of jobs
        self._personal = set[str]()  # the names of functions that have read who calls
        self._kept: dict[Entry, float] = {}  # those that nobody watches, and until when they are kept
        self._kept_bytes = 0
        self._due: dict[Entry, str] = {}  # those that are to run, and why
        self._late: _Batch | None = None
        self._missed: list[CapturedChange] = []  # the changes since the tick of the late batch
        self._position: Position | None = None  # of the last tick's snapshot
        self._dropped: Dropped | None = None  # as the last tick found it
        self._size = ReadSize(_AT_ONCE)
        self._views = set[View]()
        self._expecting: dict[View, int] = {}  # the numbers of the ticks that views wait for
        self.shown: dict[RequestKey, int] = {}  # requests that were looked for, and the first tick that showed each
        self._sought = set[RequestKey]()
        self._begun = 0  # the number of the last tick that began
        self.newest = Tick(0, 0)

    # ----- watching

    def view(self, caller: Caller = ANONYMOUS) -> View:
        """A view of a client, which watches nothing yet."""
        view = View(self, caller)
        self._views.add(view)
        return view

    def enter(
        self, view: View, number: int, function: AnyFunction, arguments: dict[str, Any], journal: str | None
    ) -> Entry:
        """See `Entries`."""
        asked, caller = repr(sorted(arguments.items())), replace(view.caller, address="")  # not JSON: a date is no text
        shared = caller.key if caller.is_system else _ANYBODY
        keys: list[Key] = [(function.name, asked, who, journal) for who in (shared, caller.key)]
        entry = next(filter(None, map(self._find, keys)), None)
        if entry is None:
            seed, since = self.clock.seed(), self.clock.monotonic()
            key = keys[function.name in self._personal]
            entry = self._entries[key] = Entry(key, function, arguments, caller, journal, seed, since)
            self._due[entry] = "nobody watched it before"
        elif self._kept.pop(entry, None) is not None:
            self._kept_bytes -= entry.size
        entry.watchers.add((view, number))
        return entry

    def _find(self, key: Key) -> Entry | None:
        entry, fresh = self._entries.get(key), self._entries.get((*key[:3], None))
        if entry is None and fresh is not None and fresh.journal == key[3]:
            return fresh  # it has run once, without one
        return entry

    def leave(self, view: View, number: int, entry: Entry) -> None:
        """See `Entries`. The answer of an entry without watchers is kept for a while, as long as it is valid."""
        entry.watchers.discard((view, number))
        if entry.watchers:
            return
        if entry.stale or entry in self._due or entry in self._with_jobs:
            self._drop(entry)
            return
        self._kept[entry] = self.clock.monotonic() + _KEEP
        self._kept_bytes += entry.size
        while len(self._kept) > _MOST_KEPT or self._kept_bytes > _MOST_KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def expect(self, view: View) -> int:
        """See `Entries`."""
        self._expecting[view] = number = self._begun + 1
        self.wake.set()
        return number

    def seek(self, request: RequestKey) -> None:
        """Have the next ticks look whether they show a request, until one does; it is in `shown` then."""
        if request not in self.shown:
            self._sought.add(request)

    def let_go(self, request: RequestKey) -> None:
        """Look for a request no more."""
        self._sought.discard(request)
        self.shown.pop(request, None)

    def forget(self, view: View) -> None:
        """See `Entries`."""
        self._views.discard(view)
        self._expecting.pop(view, None)

    def report(self) -> list[EntryReport]:
        """How each watched query fares, in no order."""
        return [entry.report(self.clock.monotonic()) for entry in self._entries.values()]

    async def close(self) -> None:
        """End all views, and the service."""
        for view in list(self._views):
            view.close()
        await self.kill()

    async def kill(self) -> None:
        """End at once, also the late batch."""
        await super().kill()
        if (late := self._late) is not None:
            self._late = None
            await late.end()

    # ----- ticks

    async def tick(self) -> float:
        """Bring all entries to a new snapshot; seconds until the next look."""
        await self._take_late()
        idle_for = self._drop_kept()
        if len(self._kept) == len(self._entries) and not self._expecting:  # so nobody watches
            self._store.signals.watched.clear()
            self._store.signals.unsubscribe(self.wake)
            return idle_for
        await self._demand()
        self._store.signals.subscribe(self.wake)
        self._begun += 1
        number, begun_at = self._begun, self._position
        if begun_at is None:
            await self._find_captured()
        batch = _Batch(self._runner, await self._store.begin_read(), self.wake)
        try:
            position, clock = await self._look(batch.session)
            for interest in self._demands.missed(position):
                self._find_due(CapturedChange(0, interest, "lost", None, None, None, self.clock.now()))
            await self._look_at_jobs(batch.session)
            shown = await self._store.requests.shown(batch.session, self._sought) if self._sought else ()
            await batch.begin(self._can_run())
            if not await self._has_read_all(begun_at):
                self._position = None  # so the next tick runs all of them
                return 0.0
            if self._late is not None:
                await batch.end()
            batch.check()
            self._position = position
            self.shown.update((key, number) for key in self._sought.intersection(shown))
            self._sought.difference_update(shown)
            self._publish(Tick(number, max(clock, self.newest.clock)), batch)
        finally:
            if batch is not self._late:
                await batch.end()
        return self._pause(position)

    async def _find_captured(self) -> None:
        """Find out which tables are captured; queries of others are polled. Nothing that was found before holds."""
        rows = await self._store.interests.list()
        found = {row.id: self._declared.get(identity_of(row.interest)) for row in rows if row.state == "ok"}
        self._captured = {number: one for number, one in found.items() if one is not None}
        self._demands = Demands()
        for entry in self._entries.values():
            self._forget_reads(entry)
        self._ranges = {one.name: self._ranges_of(one) for one in self._captured.values()}
        self._all_are_due("its process did not look before")

    async def _demand(self) -> None:
        """Have the tables captured that entries read."""
        read = self._read_interests()
        self._store.signals.watched = {self._captured[number].name for number in read}
        if lapsing := self._demands.lapsing(read, self._position):
            demand = await self._store.changes.demand(lapsing, self._demands.room)
            self._demands.add(demand)
            if len(demand.until) < len(lapsing):  # another release has dropped one
                self._position = None

    def _ranges_of(self, definition: TableDefinition) -> TableRanges[Entry]:
        kinds = {column.name: column.kind for column in definition.columns}
        # Another program's column may compare text in its own way.
        wide = () if definition.managed else [name for name, kind in kinds.items() if kind is Kind.TEXT]
        return TableRanges(kinds, wide, partial(stored_value, self._store.dialect))

    async def _look(self, session: Session) -> tuple[Position, int]:
        """Find the entries that are due; the position and the clock of the snapshot."""
        now = self.clock.monotonic()
        for entry in [entry for entry in self._timed if entry.next_run_at <= now]:
            self._timed.discard(entry)
            self._due.setdefault(entry, "its time has come")
        changes, position, count = self._store.changes, self._position, 0
        interests = self._read_interests() if self._late is None else list(self._captured)  # it may be reading any
        if position is None:
            position = await changes.end(session)
        while True:
            try:
                batch = await changes.read(position, self._size.number, interests, session)
            except Conflict:
                self._all_are_due("the database was restored")
                position = await changes.end(session)
                continue
            self._size.adapt(batch)
            for change in batch.changes:
                self._find_due(change)
            position, count = batch.position, count + len(batch.changes)
            if batch.complete:
                return position, batch.clock
            if count > _MOST_CHANGES:
                self._all_are_due(f"there are more than {_MOST_CHANGES} changes")
                position = await changes.end(session)

    def _read_interests(self) -> list[int]:
        """The interests in tables that entries have read."""
        return [number for number, one in self._captured.items() if self._everything or self._ranges[one.name]]

    async def _has_read_all(self, begun_at: Position | None) -> bool:
        """Whether nothing that came since the last tick was dropped before it was read."""
        before, self._dropped = self._dropped, await self._store.changes.dropped()
        if begun_at is None or before is None:
            return True
        return self._dropped.was_passed(begun_at) and self._dropped.origin == before.origin

    def _find_due(self, change: CapturedChange) -> None:
        if self._late is not None:
            self._missed.append(change)
        for entry, why in self._concerned(change):
            self._due.setdefault(entry, why)

    def _concerned(self, change: CapturedChange) -> Iterator[tuple[Entry, str]]:
        """The entries that have read what a change concerns, each with the cause of its run."""
        definition = self._captured[change.interest]
        ranges, said = self._ranges[definition.name], f"{definition.name}: {change.kind}"
        yield from ((entry, said) for entry in self._everything)
        if not ranges:
            return
        try:
            images = [self._image(definition, ranges, change, when) for when in ("before", "after")]
        except _Unknown:
            images = []
        if change.key is None or not images:
            yield from ((entry, said) for entry in ranges.all())
        for image in images:
            for entry, read in ranges.concerned(image):
                yield entry, f"{said} of {change.key}, in the range {read}"

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
        self._missed.clear()
        for entry in self._entries.values():
            self._due.setdefault(entry, why)

    async def _look_at_jobs(self, session: Session) -> None:
        """Find the entries that read the status of a job that has changed."""
        answers = {entry: entry.answer for entry in self._with_jobs if entry.answer is not None}
        wanted = {job for answer in answers.values() for job in answer.reads.jobs}
        found = await self._store.jobs.find_many(session, [*wanted], self._runner.now()) if wanted else {}
        for entry, answer in answers.items():
            if answer.jobs != {job: found[job] for job in answer.reads.jobs if job in found}:
                self._due.setdefault(entry, "the status of a job has changed")

    # ----- runs

    def _can_run(self) -> list[tuple[Entry, str]]:
        """The entries to run at this tick; those that nobody watches are dropped instead.

        While a batch is late, its entries and all slow ones wait until it is done: two snapshots are open at most.
        """
        for entry in [entry for entry in self._due if not entry.watchers]:
            self._drop(entry)
        if (late := self._late) is None:
            return list(self._due.items())
        return [(one, why) for one, why in self._due.items() if one not in late.late and one.took <= QUICK]

    def _publish(self, tick: Tick, batch: _Batch) -> None:
        """Give the answers of a tick to the views. If its batch is late, views of late entries keep the others."""
        runs = batch.take()
        for run in runs:
            self._due.pop(run.entry, None)
        self._accept(tick, runs)
        self.newest = tick
        batch.give_back()
        left = batch.left()
        for entry in left:
            self._due.pop(entry, None)
            self._forget_reads(entry)
        for entry in (*left, *self._due):
            self._miss(entry)
        if left:
            self._late, batch.late, batch.tick = batch, left, tick
            running: dict[View, list[int]] = {}
            for entry in left:
                for view, number in entry.watchers:
                    running.setdefault(view, []).append(number)
            for view, numbers in running.items():
                view.pin(tick, numbers)
        for view, expected in list(self._expecting.items()):
            if expected <= tick.number:
                del self._expecting[view]
                view.moved.set()

    async def _take_late(self) -> None:
        """Take the answers that the late batch has by now, and find out which of them are valid still."""
        if (batch := self._late) is None:
            return
        back, runs = batch.give_back(), batch.take()
        done = {run.entry for run in runs if run.entry.watchers}
        batch.late -= done
        self._accept(batch.tick, runs)
        if len(self._missed) > _MOST_MISSED:
            self._due.update(dict.fromkeys(done, f"there were more than {_MOST_MISSED} changes while it ran"))
        for change in self._missed[:_MOST_MISSED]:
            self._due.update((entry, why) for entry, why in self._concerned(change) if entry in done)
        for entry in done & self._due.keys():
            self._miss(entry)
        if batch.is_over:
            back = [(entry, "its run was cut off") for entry in batch.late]
        for entry, why in back:
            batch.late.discard(entry)
            if entry.watchers:
                self._due.setdefault(entry, why)
        if batch.is_over:
            self._late, self._missed = None, []
            await batch.end()
            batch.check()

    def _accept(self, tick: Tick, runs: Iterable[Run]) -> None:
        """Take the answers of runs, and tell the views of those that they lack."""
        for entry, answer, why, seconds in runs:
            if not entry.watchers:  # since it began
                continue
            same = entry.answer is not None and entry.answer.digest == answer.digest
            given = entry.journal
            self._keep_pages(entry, answer.journal)
            news = entry.stale or not same
            entry.answer, entry.stale = answer, False
            entry.note_run(why, seconds)
            self._note_reads(entry, answer, same=same)
            if answer.reads.identity and entry.key[2] == _ANYBODY:
                self._make_personal(entry, given)
            if news:
                for view, number in entry.watchers:
                    view.answer(number, tick, answer)

    def _keep_pages(self, entry: Entry, journal: str | None) -> None:
        """Note the journal of a run for the next one. Its key has the one that it was given."""
        self._rename(entry, (*entry.key[:3], entry.journal))
        entry.journal = journal

    def _make_personal(self, entry: Entry, journal: str | None) -> None:
        """Keep an entry that has read who calls for the caller that it ran for. Others enter one of their own."""
        self._personal.add(entry.function.name)
        self._rename(entry, (*entry.key[:2], entry.caller.key, entry.key[3]))
        for view, number in list(entry.watchers):
            if view.caller.key != entry.caller.key:
                view.enter_again(number, journal)

    def _rename(self, entry: Entry, key: Key) -> None:
        if key != entry.key:
            del self._entries[entry.key]
            entry.key = key if key not in self._entries else (*key[:3], str(id(entry)))
            self._entries[entry.key] = entry

    def _miss(self, entry: Entry) -> None:
        """Tell the views that an entry will have no answer as of the newest tick for a while."""
        entry.stale = True
        for view, number in entry.watchers:
            view.miss(number)

    def _drop(self, entry: Entry) -> None:
        """Forget an entry that nobody watches."""
        del self._entries[entry.key]
        self._due.pop(entry, None)
        if self._kept.pop(entry, None) is not None:
            self._kept_bytes -= entry.size
        self._forget_reads(entry)

    def _drop_kept(self) -> float:
        """Drop the entries that nobody has watched for a while; seconds until the next one is to be dropped."""
        now = self.clock.monotonic()
        while self._kept and next(iter(self._kept.values())) <= now:
            self._drop(next(iter(self._kept)))
        if not self._entries:
            self._position = None
        return max(next(iter(self._kept.values())) - now, 0.001) if self._kept else _IDLE

    def _pause(self, position: Position) -> float:
        now = self.clock.monotonic()
        times = [entry.next_run_at - now for entry in self._timed]
        if self._with_jobs:
            times.append(_JOBS_EVERY)
        if self._late is not None:
            times.append(QUICK)  # to give back what waits behind a slow run
        pause = min([self._store.signals.until_fed(self.wake, position), *times])
        lapsing = self._demands.lapsing(self._read_interests(), position)
        return 0.0 if lapsing or self._can_run() else max(pause, 0.001)

    # ----- ranges of entries

    def _note_reads(self, entry: Entry, answer: Answer, *, same: bool) -> None:
        reads, now = answer.reads, self.clock.monotonic()
        if entry.noted != reads.ranges:
            self._note_ranges(entry, reads.ranges)
        told = all(one.table in self._ranges for one in reads.ranges)
        entry.next_run_at = math.inf
        if not told or reads.everything or reads.untold or isinstance(answer.error, TryAgain):
            again = min(2 * entry.pause, _POLL_LATE) if same and entry.pause else _POLL_SOON
            entry.pause = max(again, entry.last)  # so that a slow one takes no more than half of the time
            entry.next_run_at = now + entry.pause
        if reads.until is not None:
            entry.next_run_at = min(entry.next_run_at, now + (reads.until - self.clock.now()).total_seconds())
        _have(self._everything, entry, is_in=reads.everything)
        _have(self._with_jobs, entry, is_in=bool(reads.jobs))
        _have(self._timed, entry, is_in=entry.next_run_at < math.inf)

    def _note_ranges(self, entry: Entry, reads: list[RangeRead]) -> None:
        for one in entry.noted:
            if one.table in self._ranges:
                self._ranges[one.table].remove(entry, one)
        for one in reads:
            if one.table in self._ranges:
                self._ranges[one.table].add(entry, one)
        entry.noted = reads

    def _forget_reads(self, entry: Entry) -> None:
        self._note_ranges(entry, [])
        for those in (self._everything, self._timed, self._with_jobs):
            those.discard(entry)


def _have(those: set[Entry], entry: Entry, *, is_in: bool) -> None:
    (those.add if is_in else those.discard)(entry)
