"""The queries that one client watches, moved together from one snapshot to the next.

Owns which answers the client has, and which it gets next. Leaves running the queries to `services.live`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from penstock.dataclass import dataclass
from penstock.errors import LimitExceeded
from penstock.functions.function import AnyFunction
from penstock.identity.caller import Caller
from penstock.live.entry import Answer, Entry

MOST_QUERIES = 1000


class Tick(NamedTuple):
    """A snapshot to which watched queries were brought."""

    number: int  # its number in this process, greater than that of all ticks before
    # a time of the database, in a unit of its own. It covers all that the snapshot shows, and never falls, also over
    # processes and restarts
    clock: int


class Step(NamedTuple):
    """The answers that a client lacked, all as of one tick."""

    tick: Tick  # the tick
    answers: Mapping[int, Answer]  # the answers that the client does not have yet, by the numbers of their queries


class Entries(Protocol):
    """The watched queries of a process, as a view asks for them."""

    newest: Tick  # the last one that was published

    def enter(
        self, view: View, number: int, function: AnyFunction, arguments: dict[str, Any], journal: str | None
    ) -> Entry:
        """The entry of a query for the caller of a view, which watches it from now on by a number."""

    def leave(self, view: View, number: int, entry: Entry) -> None:
        """Have a view watch an entry no more."""

    def expect(self, view: View) -> int:
        """The number of the next tick. It begins even if nothing has changed, and the view hears of it."""

    def forget(self, view: View) -> None:
        """Let go of a view that watches nothing any more."""


@dataclass(slots=True)
class _Pin:
    """The answers of one tick, kept until those of its queries that still run are done."""

    tick: Tick
    answers: dict[int, Answer]
    running: set[int]


class View:
    """The queries that one client watches. Made by `LiveQueries.view`."""

    def __init__(self, entries: Entries, caller: Caller) -> None:
        self.caller = caller  # the client, as it is known now
        self.moved = asyncio.Event()  # set when `step` may give something
        self.closed = False  # whether it gives nothing any more
        self.queries: dict[int, Entry] = {}  # the entries of its queries, by their numbers
        self._entries = entries
        self._given: dict[int, bytes] = {}  # the answers that the client has
        self._journals: dict[int, str | None] = {}  # of its answers; before the first one, that it asked with
        self._changed = set[int]()  # the queries whose answer may be another one
        self._pin: _Pin | None = None  # while a late batch has some of its queries
        self._ready: _Pin | None = None  # the last one whose queries have all run, until it is given
        self._at = self._not_before = 0  # the last tick that was given, and the first that has all added queries

    # ----- for clients

    def add(self, number: int, function: AnyFunction, arguments: dict[str, Any], journal: str | None = None) -> None:
        """Watch a query. Steps wait until it has an answer that is not older than this.

        Args:
            number: The number by which its answers are given; of no other query of this view.
            function: A query.
            arguments: Its arguments, checked.
            journal: That of an earlier answer: the pages of the query keep their ends.

        Raises:
            LimitExceeded: The view watches 1,000 queries, or the process as many as it may.
        """
        if len(self.queries) >= MOST_QUERIES:
            raise LimitExceeded(
                f"A client can watch {MOST_QUERIES} queries at once.",
                fix="Watch one query that returns what many small ones do, or stop watching some.",
                limit=MOST_QUERIES,
            )
        self._enter(number, function, arguments, journal)

    def become(self, caller: Caller) -> list[int]:
        """Watch for another caller; the queries that depend on who calls, and so have no answer yet."""
        same, self.caller = caller.key == self.caller.key, caller
        asked = [] if same else list(self.queries.items())
        return [number for number, _ in asked if self.enter_again(number)]

    def remove(self, number: int) -> None:
        """Watch a query no more."""
        self._entries.leave(self, number, self.queries.pop(number))
        self._given.pop(number, None)
        self._journals.pop(number, None)
        self._changed.discard(number)
        for pin in (self._pin, self._ready):
            if pin is not None:
                pin.answers.pop(number, None)
                pin.running.discard(number)
        self._check_pin()
        self.moved.set()

    def expect(self) -> int:
        """The number of the next tick to begin: it shows all that is committed now. It will come in any case."""
        return self._entries.expect(self)

    @property
    def is_answered(self) -> bool:
        """Whether the client has answers of all queries."""
        return len(self._given) == len(self.queries)

    def step(self, not_before: int = 0) -> Step | None:
        """The answers that have changed since the last step, all as of one tick.

        Args:
            not_before: The number of the first tick that will do.

        Returns:
            None if no newer tick has answers of all queries.
        """
        self.moved.clear()
        tick, ready = self._entries.newest, self._ready
        if tick.number > self._at and tick.number >= max(not_before, self._not_before) and not self._stale():
            answers, ready = self._answers(self._changed), None
        elif ready is not None and ready.tick.number >= not_before:
            tick, answers = ready.tick, ready.answers
        else:
            return None
        if strange := [number for number, one in answers.items() if self._is_strange(number, one)]:
            for number in strange:
                self.enter_again(number)
            return None
        if ready is None:
            self._changed.clear()
            self._pin = None
        self._at, self._ready = tick.number, None
        found = {number: one for number, one in answers.items() if one.digest != self._given.get(number)}
        self._given.update((number, answer.digest) for number, answer in found.items())
        self._journals.update((number, answer.journal) for number, answer in answers.items())
        return Step(tick, found)

    def close(self) -> None:
        """Watch nothing any more."""
        if self.closed:
            return
        self.closed = True
        for number in list(self.queries):
            self.remove(number)
        self._entries.forget(self)

    # ----- for the entries

    def answer(self, number: int, tick: Tick, answer: Answer) -> None:
        """A query has run in the snapshot of a tick."""
        self._changed.add(number)
        if self._pin is not None and self._pin.tick == tick and number in self._pin.running:
            self._pin.running.discard(number)
            self._pin.answers[number] = answer
            self._check_pin()
        self.moved.set()

    def enter_again(self, number: int) -> bool:
        """Watch a query by the entry that it has for this caller now; whether that is another one.

        Pages keep the ends that the client has.
        """
        before = self.queries[number]
        self._enter(number, before.function, before.arguments, self._journals[number])
        if self.queries[number] is before:
            return False
        self._entries.leave(self, number, before)
        self._given.pop(number, None)
        return True

    def leave_pages(self, number: int) -> None:
        """Watch a query by another entry, if the next run of its entry keeps ends of pages that the client lacks."""
        pins = [pin.answers[number] for pin in (self._pin, self._ready) if pin is not None and number in pin.answers]
        if self.queries[number].journal not in {self._journals[number], *(answer.journal for answer in pins)}:
            before = self._not_before
            self.enter_again(number)
            self._not_before = before  # as it runs in the tick that has begun

    def pin(self, tick: Tick, running: Iterable[int]) -> None:
        """Keep the answers of the newest tick until these queries, which still run in its snapshot, have theirs too."""
        still = set(running)
        if self._stale() <= still and tick.number >= self._not_before:
            self._pin = _Pin(tick, self._answers(self._changed - still), still)

    def _enter(self, number: int, function: AnyFunction, arguments: dict[str, Any], journal: str | None) -> None:
        entry = self._entries.enter(self, number, function, arguments, journal)
        if entry is self.queries.get(number):
            return
        self.queries[number], self._journals[number] = entry, journal
        self._changed.add(number)
        self._pin = self._ready = None  # they lack this query
        self._not_before = self.expect()

    def _is_strange(self, number: int, answer: Answer) -> bool:
        """Whether the pages of an answer have ends that the client has not got, but another one."""
        return self._journals[number] not in {answer.given, answer.journal}

    def _stale(self) -> set[int]:
        return {number for number, entry in self.queries.items() if entry.stale}

    def _check_pin(self) -> None:
        if self._pin is not None and not self._pin.running:
            self._pin, self._ready = None, self._pin

    def _answers(self, numbers: Iterable[int]) -> dict[int, Answer]:
        found = {number: self.queries[number].answer for number in numbers}
        return {number: answer for number, answer in found.items() if answer is not None}
