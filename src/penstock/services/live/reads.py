"""The reads of watched queries: finds queries that a change, a time or a job concerns; has their tables captured."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any

from penstock.changes.change import CapturedChange
from penstock.changes.demand import Demands
from penstock.changes.position import Position
from penstock.changes.readset import Read
from penstock.clock import Clock
from penstock.errors import TryAgain
from penstock.live.capture import live_interest
from penstock.live.entry import Answer, Entry
from penstock.live.ranges import TableRanges
from penstock.observe.logs import event as log_event
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition
from penstock.store.nouns.captures import identity_of
from penstock.store.nouns.files import FILES
from penstock.store.session import Session
from penstock.store.sql.values import decode_captures, decode_ordered
from penstock.store.store import Store

_JOBS_EVERY, _FILES_EVERY = 0.25, 1.0  # seconds
_POLL_SOON, _POLL_LATE = 0.25, 5.0
_OTHERWISE = frozenset({Kind.TEXT, Kind.REAL, Kind.DECIMAL})


class _Unknown(Exception):
    """A captured value does not fit its column, so the ranges of its row cannot be found."""


class Reads:
    """The reads of the queries that one process watches."""

    def __init__(self, store: Store, clock: Clock, definitions: Iterable[TableDefinition]) -> None:
        # the tables that are captured, by the numbers of their interests
        self.captured: dict[int, TableDefinition] = {}
        self.with_jobs = set[Entry]()  # the entries that read the statuses of jobs
        self.with_files = set[Entry]()  # the entries that looked for files
        self._store = store
        self._clock = clock
        self._declared = {identity_of(live_interest(one)): one for one in definitions if one.live}
        self._refused: Collection[int] = ()  # interests that this process may not demand
        self._demands = Demands()
        self._ranges: dict[str, TableRanges[Entry]] = {}  # of captured tables, by their names
        self._everything = set[Entry]()  # entries that ran SQL which may read any table
        self._timed = set[Entry]()  # entries that run again at a time

    # ----- capturing

    async def find_captured(self, entries: Iterable[Entry]) -> None:
        """Find out which tables are captured; queries of others are polled. Nothing that was found before holds."""
        rows = await self._store.interests.list()
        found = {row.id: self._declared.get(identity_of(row.interest)) for row in rows if row.state == "ok"}
        live = {number: one for number, one in found.items() if one is not None}
        refused = await self._store.changes.list_refused([*live])
        for number in refused.keys() - self._refused:
            table, fix = live[number].name, refused[number]
            log_event("live.polled", logging.WARNING, table=table, reason="a right is missing", fix=fix)
        self._refused = refused.keys()
        self.captured = {number: one for number, one in live.items() if number not in refused}
        self._demands = Demands()
        for entry in entries:
            self.forget(entry)
        self._ranges = {one.name: self._ranges_of(one) for one in self.captured.values()}

    def interests(self) -> list[int]:
        """The interests in tables that entries have read."""
        return [number for number, one in self.captured.items() if self._everything or self._ranges[one.name]]

    async def begin(self, position: Position | None) -> Session:
        """The snapshot of a tick that reads on from a position."""
        replica = self._store.replica
        return await (replica.begin(position, self._demands.since) if replica else self._store.begin_read())

    async def demand(self, position: Position | None) -> bool:
        """Have the tables captured that entries read; whether they are."""
        read = self.interests()
        self._store.signals.watched = {self.captured[number].name for number in read} | (
            {FILES} if self.with_files else set()
        )
        if lapsing := self._demands.lapsing(read, position):
            demand = await self._store.changes.demand(lapsing, self._demands.room)
            self._demands.add(demand)
            return len(demand.until) == len(lapsing)  # or another release has dropped one
        return True

    @property
    def demand_numbers(self) -> frozenset[int]:
        """The interests that are captured at present."""
        return self._demands.numbers

    def lacks(self, demanded: frozenset[int], entry: Entry) -> bool:
        """Whether an entry has read a table that is captured now, and was not when only these were demanded."""
        names = {one.name for number, one in self.captured.items() if number not in demanded}
        return bool(names) and (entry in self._everything or any(one.table in names for one in entry.noted))

    def lapse(self, position: Position) -> bool:
        """Whether a table that entries read is to be demanded again."""
        return bool(self._demands.lapsing(self.interests(), position))

    def find_missed(self, position: Position) -> list[CapturedChange]:
        """Changes that stand for the ones not captured before this position."""
        now = self._clock.now()
        return [CapturedChange(0, one, "lost", None, None, None, now) for one in self._demands.find_missed(position)]

    def _ranges_of(self, definition: TableDefinition) -> TableRanges[Entry]:
        kinds = {column.name: column.kind for column in definition.columns}
        # Another program's column may compare text and fractions in its own way.
        wide = () if definition.managed else [name for name, kind in kinds.items() if kind in _OTHERWISE]
        return TableRanges(kinds, wide, partial(decode_ordered, self._store.dialect))

    # ----- finding

    def find_readers(self, change: CapturedChange) -> Iterator[tuple[Entry, str]]:
        """The entries that have read what a change concerns, each with the cause of its run."""
        definition = self.captured[change.interest]
        kind = "changes may have been missed" if change.kind == "lost" else change.kind
        ranges, said = self._ranges[definition.name], f"{definition.name}: {kind}"
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
            for entry, read in ranges.readers_of(image):
                yield entry, f"{said} of {change.key}, in the range {read}"

    def _image(
        self, definition: TableDefinition, ranges: TableRanges[Entry], change: CapturedChange, when: str
    ) -> dict[str, Any] | None:
        """The values of a row that ranges are read by; None if there was no row."""
        captured = change.values(when)
        if not captured:
            return None
        found = decode_captures(self._store.dialect, definition, captured, ranges.columns, decode_ordered)
        if any(value is None and captured.get(name) is not None for name, value in found.items()):
            raise _Unknown
        return found

    async def due(self, session: Session) -> list[tuple[Entry, str]]:
        """The entries that are due without a change of a row, each with the cause."""
        now = self._clock.monotonic()
        timed = [entry for entry in self._timed if entry.next_run_at <= now]
        self._timed.difference_update(timed)
        answers = {entry: entry.answer for entry in self.with_jobs if entry.answer is not None}
        wanted = {job for answer in answers.values() for job in answer.reads.jobs}
        found = await self._store.jobs.find_many(session, [*wanted], self._clock.now()) if wanted else {}
        changed = [
            entry
            for entry, answer in answers.items()
            if answer.jobs != {job: found[job] for job in answer.reads.jobs if job in found}
        ]
        said = [(entry, "the status of a job has changed") for entry in changed]
        said += [(entry, "a file came or went") for entry in await self._find_changed_files(session)]
        return [*((entry, "its time has come") for entry in timed), *said]

    async def _find_changed_files(self, session: Session) -> list[Entry]:
        """The entries that looked for files, if one of these came or went since. Nothing else of a file changes."""
        read = {entry: entry.answer.reads.files for entry in self.with_files if entry.answer is not None}
        wanted = {file_id for files in read.values() for file_id in files}
        found = await self._store.files.find_existing(session, wanted) if wanted else set()
        return [
            entry for entry, files in read.items() if any(known is not (one in found) for one, known in files.items())
        ]

    def is_polled(self, entry: Entry) -> bool:
        """Whether nobody tells of what an entry has read, so that its answer may be stale."""
        return entry in self.with_jobs or entry in self.with_files

    def pause(self) -> float:
        """Seconds until an entry's time comes, or its jobs are looked at."""
        times = [_JOBS_EVERY] if self.with_jobs else []
        times += [_FILES_EVERY] if self.with_files else []
        return min([*times, *(entry.next_run_at - self._clock.monotonic() for entry in self._timed)], default=math.inf)

    # ----- noting

    def note(self, entry: Entry, answer: Answer, *, same: bool) -> None:
        """Note what a run has read; `same` says whether its answer is equal to the one before."""
        reads, now = answer.reads, self._clock.monotonic()
        if entry.noted != reads.ranges:
            self._note_ranges(entry, reads.ranges)
        told = all(one.table in self._ranges for one in reads.ranges)
        entry.next_run_at = math.inf
        if not told or reads.everything or reads.untold or isinstance(answer.error, TryAgain):
            again = min(2 * entry.pause, _POLL_LATE) if same and entry.pause else _POLL_SOON
            entry.pause = max(again, entry.last)  # so that a slow one takes no more than half of the time
            entry.next_run_at = now + entry.pause
        if reads.until is not None:
            entry.next_run_at = min(entry.next_run_at, now + (reads.until - self._clock.now()).total_seconds())
        _have(self._everything, entry, is_in=reads.everything)
        _have(self.with_jobs, entry, is_in=bool(reads.jobs))
        _have(self.with_files, entry, is_in=bool(reads.files))
        _have(self._timed, entry, is_in=entry.next_run_at < math.inf)

    def forget(self, entry: Entry) -> None:
        self._note_ranges(entry, [])
        for those in (self._everything, self._timed, self.with_jobs, self.with_files):
            those.discard(entry)

    def _note_ranges(self, entry: Entry, reads: list[Read]) -> None:
        for one in entry.noted:
            if one.table in self._ranges:
                self._ranges[one.table].remove(entry, one)
        for one in reads:
            if one.table in self._ranges:
                self._ranges[one.table].add(entry, one)
        entry.noted = reads


def _have(those: set[Entry], entry: Entry, *, is_in: bool) -> None:
    (those.add if is_in else those.discard)(entry)
