"""Keeps the answers of watched queries up to date, tick by tick: each tick is one snapshot for all of them.

A tick opens a snapshot, reads the changes since the last one, and runs there the queries that they concern. So all
answers are those of one snapshot. Queries that take long go on in it, during the next ticks, as one late batch. Nothing
is stored: each process has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.calls.run.runner import FunctionCalls
from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.clock import profile_timer
from penstock.errors import PenstockError
from penstock.functions.function import AnyFunction
from penstock.identity.caller import ANONYMOUS, Caller
from penstock.live.cache import EntryCache
from penstock.live.entry import ANYBODY, QUICK, Entry, EntryReport, Key, as_text
from penstock.live.view import Tick, View
from penstock.schema.table import TableDefinition
from penstock.services.live.batch import Batch, EntryCall
from penstock.services.live.feed import LiveFeed
from penstock.services.live.reads import Reads
from penstock.services.service import Service
from penstock.store.nouns.requests import RequestKey
from penstock.store.session import Session

_IDLE = 60.0


class LiveQueries(Service):
    """The watched queries of one process. `definitions` are the tables of its program."""

    name = "live"
    tells_once = True

    def __init__(self, runner: FunctionCalls, definitions: Iterable[TableDefinition]) -> None:
        super().__init__(runner.engine.clock)
        self._runner = runner
        self._store = runner.engine.store
        config = runner.engine.config
        self._entries = EntryCache(config.max_watched, config.max_watched_bytes)
        self._feed = LiveFeed(self._store.changes)
        self._reads = Reads(self._store, self.clock, definitions)
        self._due: dict[Entry, str] = {}  # entries that are to run, and why
        self._late: Batch | None = None
        self._personal = Counter[str]()  # by function: 1 if it has read who calls, 2 if it has read the request
        self._views = set[View]()
        self._expecting: dict[View, int] = {}  # the numbers of the ticks that views wait for
        self.shown: dict[RequestKey, int] = {}  # requests that were looked for, and the first tick that showed each
        self._sought = Counter[RequestKey]()  # by how many each is looked for
        self._begun = 0  # the number of the last tick that began
        self.newest = Tick(0, 0)
        self._meters = runner.engine.journal.meters
        if self._meters is not None:
            self._meters.gauges |= {
                "penstock_live_clients": lambda: {"": len(self._views)},
                "penstock_live_watched": lambda: {"": sum(len(entry.watchers) for entry in self._entries)},
                "penstock_live_entries": lambda: {"": len(self._entries)},
                "penstock_live_bytes": lambda: {"": self._entries.bytes},
            }

    # ----- watching

    def view(self, caller: Caller = ANONYMOUS) -> View:
        """A view of a client, which watches nothing yet."""
        view = View(self, caller)
        self._views.add(view)
        return view

    def enter(
        self, view: View, number: int, function: AnyFunction, arguments: dict[str, Any], journal: str | None
    ) -> Entry:
        asked, caller = repr(sorted(arguments.items())), view.caller  # not JSON: a date is no text
        whose = (caller.key if caller.is_system else ANYBODY, caller.key, caller.request_key)
        keys: list[Key] = [(function.name, asked, who, journal) for who in whose]
        entry = next(filter(None, map(self._entries.find, keys)), None)
        if entry is None:
            key = keys[self._personal[function.name]]
            entry = Entry(key, function, arguments, caller, journal, self.clock.seed(), self.clock.monotonic())
            self._entries.add(entry, beyond=number in view.queries)
            self._due[entry] = "nobody watched it before"
            self._drop_kept()
        entry.watchers.add((view, number))
        return entry

    @property
    def has_room(self) -> bool:
        return self._entries.has_room

    def leave(self, view: View, number: int, entry: Entry) -> None:
        """See `Entries`. The answer of an entry without watchers is kept for a while, as long as it is valid."""
        entry.watchers.discard((view, number))
        if entry.watchers:
            return
        leaves = entry.answer is not None and entry.answer.reads.request  # with its request
        if leaves or entry.stale or entry in self._due or self._reads.is_polled(entry):
            self._drop(entry)
            return
        self._entries.keep(entry, self.clock.monotonic())
        self._drop_kept()

    def expect(self, view: View) -> int:
        self._expecting[view] = number = self._begun + 1
        self.wake.set()
        return number

    def seek(self, request: RequestKey) -> None:
        """Have the next ticks look whether they show a request, until one does; it is in `shown` until it is let go."""
        self._sought[request] += 1

    def let_go(self, request: RequestKey) -> None:
        """Look for a request no more, once all who seek it have said so."""
        self._sought[request] -= 1
        if not self._sought[request]:
            del self._sought[request]
            self.shown.pop(request, None)

    def forget(self, view: View) -> None:
        self._views.discard(view)
        self._expecting.pop(view, None)

    def report(self, told: Callable[[AnyFunction, Mapping[str, Any]], str] = as_text) -> list[EntryReport]:
        """How each watched query fares, in no order; `told` gives the text of its arguments."""
        return [entry.report(self.clock.monotonic(), told) for entry in self._entries]

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
        try:
            return await self._tick()
        except PenstockError as error:
            if self._store.replica is None or not self._store.replica.leave(error):
                raise
            return 0.0  # the next one reads on the primary

    async def _tick(self) -> float:
        await self._take_late()
        self._drop_kept()
        if not self._entries:
            self._feed.position = None
        if not self._entries.is_watched and not self._expecting:
            return self._idle()
        if not await self._reads.demand(self._feed.position):
            self._feed.position = None
        self._store.signals.subscribe(self.wake)
        self._begun += 1
        number, begun_at, began = self._begun, self._feed.position, profile_timer()
        if begun_at is None:
            await self._reads.find_captured(self._entries)
            self._all_are_due("its process did not look before")
        batch = Batch(self._runner, await self._reads.begin(begun_at), self.wake)
        try:
            position, clock = await self._look(batch.session)
            sought = self._sought.keys() - self.shown.keys()
            shown = await self._store.requests.find_shown(batch.session, sought) if sought else ()
            for entry, _ in self._can_run():
                self._part(entry)
            await batch.begin(self._can_run())
            if not await self._feed.has_read_all(begun_at):
                self._feed.position = None  # so the next tick runs all of them
                return 0.0
            if self._late is not None:
                await batch.end()
            batch.check()
            self._feed.position = position
            self.shown.update((key, number) for key in shown if key in self._sought)
            self._publish(Tick(number, max(clock, self.newest.clock)), batch)
        finally:
            if batch is not self._late:
                await batch.end()
        if self._meters is not None:
            self._meters.observe("penstock_live_tick_seconds", profile_timer() - began)
        return self._pause(position)

    async def _look(self, session: Session) -> tuple[Position, int]:
        """Find the entries that are due; the position and the clock of the snapshot."""
        # The late batch may be reading any table.
        interests = self._reads.interests() if self._late is None else list(self._reads.captured)
        position, clock = await self._feed.read(session, interests, self._find_due, self._all_are_due)
        for change in self._reads.find_missed(position):
            self._find_due(change)
        for entry, why in await self._reads.due(session):
            self._due.setdefault(entry, why)
        return position, clock

    def _find_due(self, change: CapturedChange) -> None:
        if self._late is not None:
            self._late.missed.append(change)
        for entry, why in self._reads.find_readers(change):
            self._due.setdefault(entry, why)

    def _all_are_due(self, why: str) -> None:
        if self._late is not None:
            self._late.missed.clear()
        for entry in self._entries:
            self._due.setdefault(entry, why)

    # ----- runs

    def _can_run(self) -> list[tuple[Entry, str]]:
        """The entries to run at this tick; unwatched ones are dropped instead.

        While a batch is late, its entries and all slow ones wait until it is done: two snapshots are open at most.
        """
        for entry in [entry for entry in self._due if not entry.watchers]:
            self._drop(entry)
        if (late := self._late) is None:
            return list(self._due.items())
        return [(one, why) for one, why in self._due.items() if one not in late.late and one.took <= QUICK]

    def _part(self, entry: Entry) -> None:
        """Before a run that keeps the ends of pages, let those leave who have not seen them; they get their own."""
        if entry.journal != entry.key[3]:
            self._entries.rename(entry, (*entry.key[:3], entry.journal))
            for view, number in list(entry.watchers):
                view.leave_pages(number)

    def _publish(self, tick: Tick, batch: Batch) -> None:
        """Give the answers of a tick to the views. If its batch is late, views of late entries keep the others."""
        runs = batch.take()
        for run in runs:
            self._due.pop(run.entry, None)
        self._accept(tick, runs)
        self.newest = tick
        batch.give_back()
        left = batch.remainder()
        for entry in left:
            self._due.pop(entry, None)
            self._reads.forget(entry)
        for entry in (*left, *self._due):
            entry.stale = True
        if left:
            self._late = batch
            batch.go_on(tick, left, self._reads.demand_numbers)
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
        uncaptured = [entry for entry in done if self._reads.lacks(batch.demanded, entry)]
        self._due.update((entry, "its table was not captured while it ran") for entry in uncaptured)
        self._due.update(batch.overtaken(done, self._reads.find_readers))
        for entry in done & self._due.keys():
            entry.stale = True
        if batch.is_over:
            back = [(entry, "its run was cut off") for entry in batch.late]
        for entry, why in back:
            batch.late.discard(entry)
            if entry.watchers:
                self._due.setdefault(entry, why)
        if batch.is_over:
            self._late = None
            await batch.end()
            batch.check()

    def _accept(self, tick: Tick, runs: Iterable[EntryCall]) -> None:
        """Take the answers of runs, and tell the views of answers that they lack."""
        for entry, answer, why, seconds in runs:
            if not entry.watchers:  # since it began
                continue
            same = entry.answer is not None and entry.answer.digest == answer.digest
            news = entry.stale or not same
            if answer.reads.request or answer.reads.identity:
                self._make_personal(entry, by_request=answer.reads.request)
                if not entry.watchers:  # all of them are other callers
                    self._drop(entry)
                    continue
            self._entries.take(entry, answer)
            entry.stale = False
            entry.note_run(why, seconds)
            if self._meters is not None:
                self._meters.add("penstock_live_runs", entry.function.name, "equal" if same else "changed")
            self._reads.note(entry, answer, same=same)
            if news:
                for view, number in entry.watchers:
                    view.answer(number, tick, answer)

    def _make_personal(self, entry: Entry, *, by_request: bool) -> None:
        """Keep an entry for the caller that it ran for, or for that caller's request; others enter one of their own."""
        caller = entry.caller
        mine = caller.request_key if by_request else caller.key
        if entry.key[2] in {mine, caller.request_key}:
            return
        name = entry.function.name
        self._personal[name] = max(self._personal[name], 1 + by_request)
        self._entries.rename(entry, (*entry.key[:2], mine, entry.key[3]))
        for view, number in list(entry.watchers):
            if (view.caller.request_key if by_request else view.caller.key) != mine:
                view.enter_again(number)

    def _drop(self, entry: Entry) -> None:
        self._entries.drop(entry)
        self._due.pop(entry, None)
        self._reads.forget(entry)

    def _drop_kept(self) -> None:
        """Drop the entries that nobody has watched for a while."""
        while (entry := self._entries.next_to_drop(self.clock.monotonic())) is not None:
            self._drop(entry)

    def _idle(self) -> float:
        """Look for changes no more, as nobody watches; seconds until an entry is to be dropped."""
        self._store.signals.watched.clear()
        self._store.signals.unsubscribe(self.wake)
        return min(max(self._entries.next_drop_at() - self.clock.monotonic(), 0.001), _IDLE)

    def _pause(self, position: Position) -> float:
        pause = min(self._store.signals.until_fed(self.wake, position), self._reads.pause())
        if self._late is not None:
            pause = min(pause, QUICK)  # to give back what waits behind a slow run
        return 0.0 if self._can_run() or self._reads.lapse(position) else max(pause, 0.001)
