"""The window: the messages under way, which of them may start, and which are finished. It does no I/O.

Messages of different keys are delivered at the same time, as many as the parallelism says. With one, all are in one
lane, in their order. The window moves on as messages are finished, so one that takes long keeps no others waiting.
Messages that finish behind the oldest unfinished one are recorded in `passed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile

from penstock.dataclass import dataclass
from penstock.services.relay.items import Item
from penstock.services.relay.state import Failure, OutboxState, Write
from penstock.store.nouns.outboxes import Aside, Identity

OF_ALL_KEYS = frozenset({"truncate", "lost"})
_SPAN, _BYTES = 2000, 16 * 2**20  # from the oldest unfinished message to the last known one


@dataclass(slots=True, eq=False)
class Entry:
    """Messages in the window that are delivered together: one, or all that are in the window."""

    items: Sequence[Item]
    number: int  # in the order in which entries came
    lane: str
    done: bool = False
    sent: bool = False  # done because it was sent
    put: bool = False  # done because it was set aside

    @property
    def first(self) -> Item:
        """Its first message: all come from aside, or none does."""
        return self.items[0]


class Lanes:
    """Messages that start one after another within each lane. New messages and retries take turns."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[Entry]] = {}
        self._ready = (deque[str](), deque[str]())  # the lanes whose first may start: of new messages, of retries
        self._turn = 0

    @property
    def ready(self) -> int:
        """The number of messages that may start at the same time."""
        return len(self._ready[0]) + len(self._ready[1])

    @property
    def retries(self) -> int:
        """How many of these are retries."""
        return len(self._ready[1])

    def add(self, entry: Entry) -> None:
        if entry.lane in self._lanes:
            self._lanes[entry.lane].append(entry)
        else:
            self._lanes[entry.lane] = deque((entry,))
            self._go_on(entry.lane)

    def next(self, before: int) -> Entry | None:
        """The message that starts next; none from this number on."""
        self._turn = 1 - self._turn
        for ready in (self._ready[self._turn], self._ready[1 - self._turn]):
            while ready:
                entry = self._lanes[ready.popleft()][0]
                if entry.number < before:
                    return entry
        return None

    def end(self, entry: Entry, stopped: str | None = None) -> list[Entry]:
        """Let the message behind one that has ended start, but none of a stopped key; these."""
        lane = self._lanes[entry.lane]
        lane.popleft()
        behind = [] if stopped is None else [one for one in lane if one.first.key == stopped]
        for one in behind:
            lane.remove(one)
        self._go_on(entry.lane)
        return behind

    def _go_on(self, name: str) -> None:
        if lane := self._lanes[name]:
            self._ready[lane[0].first.is_retry].append(name)
        else:
            del self._lanes[name]


@dataclass(frozen=True, slots=True)
class Piece:
    """Finished messages of a window, to be written."""

    write: Write
    entries: Sequence[Entry]
    news: int  # how many of them have ended since the last write
    put: int  # how many messages are set aside


class Window:
    """The messages of one outbox that are under way, together or each by itself."""

    def __init__(self, state: OutboxState, *, together: bool) -> None:
        self._outbox, self._by_key, self._room = state.outbox, state.by_key, state.batching.whole
        self._together = together
        self._count = self._bytes = 0
        self._order = deque[Entry]()  # older rows and entries of the feed, from the oldest unfinished one
        self._known: dict[int, Entry] = {}  # entries that are not written at all, by their numbers
        self._news: list[Entry] = []
        self._put: list[Aside] = []
        self._stopped: set[str] = set()  # keys with a failed message that is not written yet
        self._failed: dict[int, Failure] = {}
        self._blocked = False
        self.lanes = Lanes()

    # ----- which messages are in the window

    @property
    def room(self) -> int:
        """The number of messages for which there is room."""
        return 0 if self._bytes > _BYTES else min(self._room - len(self._known), _SPAN - len(self._order))

    @property
    def is_closed(self) -> bool:
        """Whether no message may join any more: one has failed, or one that goes alone comes next."""
        return self._blocked or bool(self._failed)

    @property
    def is_clear(self) -> bool:
        """Whether it has no message of the feed, and no older row."""
        return not self._order

    def aside(self) -> tuple[set[Identity], int]:
        """The messages from aside: which, and how many of them are to be delivered for the first time."""
        aside = [one for one in self._known.values() if one.first.aside is not None]
        return {one.first.identity for one in aside}, sum(not one.first.is_retry and not one.done for one in aside)

    def join(self, state: OutboxState, items: Sequence[Item]) -> Sequence[Item]:
        """Have messages join, and return them: up to one of all keys or one to skip, which goes alone."""
        skips = () if state.row is None else state.row.skips
        for number, item in enumerate(items):
            if item.change.kind in OF_ALL_KEYS or item.change.seq in skips:
                self._blocked = True
                return items[:number]
            self.add(state, (item,))
        return items

    def add(self, state: OutboxState, items: Sequence[Item]) -> None:
        """Have messages join that are delivered together."""
        item, aside = items[0], items[0].aside
        entry = Entry(items, self._count, item.key if self._outbox.parallelism > 1 else "")
        if aside is None:
            self._order.append(entry)
            self._bytes += item.size
        elif item.key in self._stopped:
            return  # it waits again
        self._count += 1
        self._known[entry.number] = entry
        if state.is_done(item):
            self._finish(entry, sent=state.was_sent(item))
        elif aside is None and (item.key in self._stopped or state.waits_for_key(item)):
            self._set_aside(entry, item.set_aside("waiting"))
        else:
            self.lanes.add(entry)

    # ----- delivering

    def next(self) -> Entry | None:
        """The message that starts now; none behind one that has failed, unless other keys go on."""
        return self.lanes.next(min(self._failed, default=self._count))

    def goes_on(self, entry: Entry) -> bool:
        """Whether messages of other keys go on if one fails; an older row has no number before it is delivered."""
        return not self._together and self._by_key and entry.first.backfill is None

    def end(self, entry: Entry, failure: Failure | None = None, *, written: bool = False) -> None:
        """A message was delivered, and maybe that is written; or it has failed, and none starts behind it."""
        if failure is not None:
            self._failed[entry.number] = failure
        elif written:
            self._leave(entry)
        else:
            self._finish(entry, sent=True)
        self.lanes.end(entry)

    def set_aside(self, entry: Entry, put: Aside) -> None:
        """A message has failed, and other keys go on: set it aside with those of its key."""
        self._set_aside(entry, put)
        self._stopped.add(put.key)
        for one in self.lanes.end(entry, stopped=put.key):
            if one.first.aside is None:
                self._set_aside(one, one.first.set_aside("waiting"))
            else:
                del self._known[one.number]

    def failure(self) -> Failure | None:
        """The failure of the oldest unfinished message, if it has failed."""
        oldest = min((entry.number for entry in self._known.values() if not entry.done), default=-1)
        return self._failed.get(oldest)

    def _set_aside(self, entry: Entry, put: Aside) -> None:
        self._put.append(put)
        entry.put = True
        self._finish(entry)

    def _finish(self, entry: Entry, *, sent: bool = False) -> None:
        entry.done, entry.sent = True, sent
        self._news.append(entry)

    def _leave(self, entry: Entry) -> None:
        if self._order and self._order[0] is entry:
            self._order.popleft()
            self._bytes -= entry.first.size
        self._known.pop(entry.number, None)

    # ----- writing

    @property
    def is_written(self) -> bool:
        """Whether all that has finished is written."""
        return not self._news

    @property
    def moves(self) -> bool:
        """Whether writing moves the cursor, sets messages aside or takes them from there."""
        at_front = bool(self._order) and self._order[0].done
        return at_front or bool(self._put) or any(entry.first.aside is not None for entry in self._news)

    def unwritten_items(self) -> list[Item]:
        """Sent messages that are not written at all."""
        return _items_of(entry for entry in self._news if entry.sent)

    def piece(self, state: OutboxState) -> Piece:
        """The finished messages: up to the oldest unfinished one, those behind it, and those from aside."""
        first = list(takewhile(lambda entry: entry.done, self._order))
        behind = [entry for entry in islice(self._order, len(first), None) if entry.done]
        aside = [entry for entry in self._news if entry.first.aside is not None and not entry.put]
        sent = self.unwritten_items()
        write = state.write(
            _items_of([*first, *aside]),
            put=tuple(self._put),
            delivered=len(sent),
            passed={item.identity for item in _items_of(behind)},
            settled=sent,
        )
        return Piece(write, [*first, *self._news], len(self._news), len(self._put))

    def forget(self, piece: Piece) -> None:
        """Forget what is written. Other messages may have ended meanwhile."""
        for entry in piece.entries:
            self._leave(entry)
        del self._news[: piece.news], self._put[: piece.put]
        self._stopped = {one.key for one in self._put}


def _items_of(entries: Iterable[Entry]) -> list[Item]:
    return [item for entry in entries for item in entry.items]
