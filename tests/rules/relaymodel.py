"""A relay and its database without I/O: the relay's pure state and window, whose events a test puts in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

from penstock import Retry
from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.outbox.outbox import Outbox
from penstock.services.relay.items import Item
from penstock.services.relay.state import Batching, Decision, Failure, OutboxState, Write
from penstock.services.relay.window import OF_ALL_KEYS, Entry, Piece, Window
from penstock.store.nouns.changes import Batch
from penstock.store.nouns.outboxes import Aside, OutboxPlan, OutboxRow, Step

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RETRY = Retry.fixed(timedelta(seconds=10), max_attempts=2, jitter=0)


class Store:
    """What the database has of one outbox."""

    def __init__(self) -> None:
        plan = OutboxPlan("send", "send", "action", "topic t", "{}", 1, timedelta(0))
        self.row = OutboxRow(1, plan, (1,), NOW, 0, True, False, None, (), None, 0, None)
        self.feed: list[CapturedChange] = []
        self.position = Position()
        self.lease: int | None = None
        self.aside: dict[int, Aside] = {}

    def append(self, key: str, kind: str) -> None:
        self.feed.append(CapturedChange(len(self.feed) + 1, 1, kind, key, None, "{}", NOW))

    def read(self, start: Position, limit: int) -> Batch:
        """The changes behind a position."""
        found = self.feed[start.high : start.high + limit]
        end = Position(high=start.high + len(found))
        return Batch(found, end, complete=end.high == len(self.feed), before=start)

    def advance(self, step: Step) -> bool:
        """Write a step by compare-and-set."""
        if (step.outbox.epoch, step.move.lease, step.move.before) != (self.row.epoch, self.lease, self.position):
            return False
        self.position = step.move.after
        self.row = replace(
            self.row,
            trouble=step.trouble,
            passed=step.passed,
            delivered=self.row.delivered + step.delivered,
            skips=tuple(seq for seq in self.row.skips if seq not in step.skipped),
        )
        for seq in step.taken:
            self.aside.pop(seq)
        self.aside |= {one.change.seq: one for one in step.put}
        return True

    def change(self, **changes: Any) -> None:
        """Change the outbox, as others than its relay do."""
        self.row = replace(self.row, epoch=self.row.epoch + 1, **changes)

    def retry(self) -> None:
        """Try failed messages again now; parked ones wait for their turn."""
        again: dict[str, Any] = {"attempts": 0, "deaths": 0, "halted": False, "retry_at": NOW}
        trouble = self.row.trouble
        self.change(trouble=None if trouble is None else replace(trouble, **again))
        for seq, one in self.aside.items():
            if one.trouble is not None and one.state != "waiting":
                state = "waiting" if one.state == "parked" else one.state
                self.aside[seq] = replace(one, state=state, trouble=replace(one.trouble, **again))

    def skip(self) -> int | None:
        """Skip a message that has failed; its number."""
        if (trouble := self.row.trouble) is not None:
            self.change(skips=(*self.row.skips, trouble.seq), trouble=None)
            return trouble.seq
        failed = next((seq for seq, one in self.aside.items() if one.state != "waiting"), None)
        if failed is not None:
            del self.aside[failed]
            self.change()
        return failed

    def begin_again(self) -> None:
        """Place the outbox at the beginning, as a rebuild does."""
        self.change(trouble=None, skips=(), passed=frozenset())
        self.position, self.lease = Position(), None
        self.aside.clear()

    def is_pending(self, seq: int) -> bool:
        """Whether a message is still to be delivered, by what is written."""
        return seq in self.aside or (seq > self.position.high and (seq, None) not in self.row.passed)

    def waiting(self) -> list[Aside]:
        stopped = {one.key for one in self.aside.values() if one.state == "halted"}
        found = [one for one in self.aside.values() if one.state == "waiting" and one.key not in stopped]
        return sorted(found, key=lambda one: one.change.seq)

    def halted(self) -> list[tuple[datetime, Aside]]:
        """Halted messages by their next retry."""
        found = [(one.trouble.retry_at, one) for one in self.aside.values() if one.state == "halted" and one.trouble]
        return sorted(
            ((at, one) for at, one in found if at is not None), key=lambda pair: (pair[0], pair[1].change.seq)
        )


@dataclass
class Account:
    """What the handler was given: each message in order of its key, and once unless a process forgot that.

    Attributes:
        delivered: How often each message came through since the outbox began.
        forgotten: The messages that may come again, as the process that delivered them knows no more of it.
    """

    store: Store
    begun: int = 0  # how often the outbox was placed at the beginning
    delivered: Counter[int] = field(default_factory=Counter)
    forgotten: set[int] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)  # skipped or parked

    def forget(self) -> None:
        self.forgotten |= {seq for seq in self.delivered if self.store.is_pending(seq)}

    def begin_again(self) -> None:
        self.begun += 1
        self.delivered.clear()
        self.forgotten.clear()
        self.passed.clear()

    def check_start(self, item: Item, under_way: Sequence[Item]) -> None:
        """A message starts when those of its key before it are done, and none of its key is under way."""
        everything = item.change.kind in OF_ALL_KEYS
        assert not [one for one in under_way if everything or one.key == item.key], (item, under_way)
        seq = item.change.seq
        for one in self.store.feed[: seq - 1]:
            if everything or one.kind in OF_ALL_KEYS or one.key == item.key:
                done = self.delivered[one.seq] or one.seq in self.passed or (everything and one.seq in self.store.aside)
                assert done or seq in self.passed, f"{seq} comes before {one.seq}"

    def deliver(self, item: Item) -> None:
        seq = item.change.seq
        assert not self.delivered[seq] or seq in self.forgotten, f"{seq} comes twice"
        self.forgotten.discard(seq)
        self.delivered[seq] += 1

    def check_store(self) -> None:
        """No message counts as done that was not delivered, skipped or parked."""
        for change in self.store.feed:
            done = self.delivered[change.seq] or change.seq in self.passed
            assert done or self.store.is_pending(change.seq), change.seq


class RelayModel:
    """A relay on a model of its database. A test says what happens next; `outcome` says how a write ends.

    Attributes:
        under_way: The messages that a handler has.
        bad: The messages that fail.
    """

    def __init__(self, outbox: Outbox, *, in_transaction: bool) -> None:
        self.outbox, self.in_transaction = outbox, in_transaction
        self.outcome = "known"  # of the next write: "unknown" if nobody knows that it is committed, or "away"
        self.store = Store()
        self.account = Account(self.store)
        self.now, self.leases, self.bad = NOW, 1, set[int]()
        self.start()

    def start(self) -> None:
        """A process begins."""
        batching = Batching.of(self.outbox, in_transaction=self.in_transaction)
        self.state = OutboxState(outbox=self.outbox, batching=batching)
        self.window: Window | None = None
        self.together = self.retried_last = False
        self.under_way: list[Entry] = []
        self.buffer: list[Item] = []
        self.read_to: Position | None = None
        self.known_begun = 0
        self.writing: Piece | None = None
        self.taken: int | None = None

    # ----- what happens

    def crash(self) -> None:
        """The process dies; another takes the outbox when its lease has run out."""
        self.abandon_write()
        self.account.forget()
        self.leases += 1
        self.start()

    def lose_lease(self) -> None:
        """The relay stops what is under way, and takes another lease."""
        self.cut()
        self.state = self.state.forget()
        self.leases += 1

    def cut(self) -> None:
        """Cut the deliveries under way off."""
        self.abandon_write()
        if self.window is not None:
            self.state = self.state.remember(self.window.unwritten_items())
            self.window, self.under_way = None, []
            self.forget_source()

    def stop(self) -> None:
        """The relay stops in peace: it writes what was sent, and leaves the outbox."""
        self.cut()
        if (self.state.row is None or self.state.uncertain) and self.state.all_finished:
            self.take()
        if (write := self.state.write_sent()) is not None:
            self.write(write)
        self.account.forget()
        if self.store.lease == self.leases:
            self.store.lease = None
        self.leases += 1
        self.start()

    def abandon_write(self) -> None:
        """Nobody waits for the present write any more; it may be committed all the same."""
        if self.writing is not None:
            self.state = replace(self.state, uncertain=True)
            if self.outcome == "unknown":
                self.store.advance(self.writing.write.step)
                self.account.check_store()
            self.writing, self.outcome = None, "known"

    def take(self) -> None:
        """Take the outbox, in its present state."""
        self.forget_source()
        state, held = self.state.forget(), self.store.lease
        resumed = held == self.leases and self.store.position == state.position
        if not resumed:
            self.account.forget()
        self.store.lease = self.leases
        put = self.store.aside.values()
        self.state = replace(
            state.ask(resumed=resumed, died=held not in {None, self.leases, self.taken}),
            row=self.store.row,
            lease=self.leases,
            position=self.store.position,
            keys=frozenset(one.key for one in put if one.state != "parked"),
            retry_at=next((at for at, _one in self.store.halted()), None),
            may_be_released=True,
        )
        self.taken, self.known_begun = self.leases, self.account.begun

    def tick(self) -> None:
        """Take the outbox if need be, and decide about the next messages."""
        if self.state.row is None or self.state.uncertain or self.state.row.paused:
            self.take()
        row = self.state.row
        assert row is not None
        if row.paused or (row.trouble is not None and not row.trouble.due(self.now)):
            return
        if items := self.next():
            self.state, decision = self.state.next(items, self.now)
            self.perform(decision)

    def begin(self) -> None:
        """The next message of the window goes to the handler."""
        assert self.window is not None
        entry = self.window.next()
        if entry is None:
            return
        if self.known_begun == self.account.begun:
            self.account.check_start(entry.first, [item for one in self.under_way for item in one.items])
        self.under_way.append(entry)

    def end(self, place: int) -> None:
        """A handler ends: it has failed at the first bad message, or all came through."""
        assert self.window is not None
        entry = self.under_way.pop(place)
        failed = next((number for number, item in enumerate(entry.items) if item.change.seq in self.bad), None)
        if failed is not None:
            self.fail(entry, 0 if self.outbox.batch else failed)
            return
        if not self.in_transaction:
            self.deliver(entry.items)
            self.window.end(entry)
            return
        write = self.state.write(entry.items, delivered=len(entry.items), settled=entry.items)
        if self.write(write, lambda: self.deliver(entry.items)) or not self.has_it:
            self.window.end(entry, written=True)
            self.drop(entry.items)
        else:
            self.cut()  # nobody knows whether it is committed

    def begin_write(self) -> None:
        """Begin to write what has finished in the window; handlers go on meanwhile."""
        assert self.window is not None
        if self.has_it:
            self.writing = self.window.piece(self.state)

    def end_write(self) -> None:
        """The write of finished messages ends."""
        piece, self.writing = self.writing, None
        assert self.window is not None
        assert piece is not None
        if self.write(piece.write):
            self.window.forget(piece)
            self.drop([item for entry in piece.entries for item in entry.items])

    def read_on(self) -> None:
        """More messages join the window: retries, released ones, and those of the feed."""
        window, state = self.window, self.state
        assert window is not None
        if self.together or self.outbox.parallelism == 1 or window.is_closed or state.row is None or state.uncertain:
            return
        known, _still = window.aside()
        for items in (self.retries() if state.by_key else [], self.released(len(self.store.aside))):
            window.join(self.state, [item for item in items if item.identity not in known])
        if not self.buffer:
            self.read()
        if not window.is_closed:
            joined = list(window.join(self.state, self.buffer))
            del self.buffer[: len(joined)]

    def close(self) -> None:
        """The window ends: nothing is under way, and all is written that can be."""
        window = self.window
        assert window is not None
        assert not self.under_way
        failure, reads_on = window.failure(), self.outbox.parallelism > 1 and not self.together
        if self.state.uncertain:
            self.cut()
            return
        self.state, self.window = self.state.remember(window.unwritten_items()), None
        if reads_on and not window.is_clear:
            self.forget_source()
        if failure is not None and self.has_it:
            self.state, decision = self.state.fail(failure, self.now, 0.5)
            self.perform(decision)
        elif failure is None:
            self.state = replace(self.state, batching=self.state.batching.more())

    @property
    def may_start(self) -> bool:
        row = self.state.row
        return self.window is not None and row is not None and not self.state.uncertain and self.window.lanes.ready > 0

    @property
    def may_close(self) -> bool:
        window = self.window
        if window is None or self.writing is not None or self.under_way or self.may_start:
            return False
        return window.is_written or not self.has_it or self.state.uncertain

    @property
    def has_it(self) -> bool:
        return self.state.row is not None

    # ----- steps

    def fail(self, entry: Entry, done: int) -> None:
        window, error = self.window, ValueError("bad")
        assert window is not None
        if window.goes_on(entry):
            self.state, report = self.state.fail_one(entry.first, error, self.now, 0.5)
            window.set_aside(entry, entry.first.set_aside("halted", report.trouble))
        else:
            window.end(entry, Failure(entry.items, error, done))

    def deliver(self, items: Sequence[Item]) -> None:
        if self.known_begun == self.account.begun:
            for item in items:
                if self.together:
                    self.account.check_start(item, ())
                self.account.deliver(item)

    def write(self, write: Write, effect: Callable[[], None] = lambda: None) -> bool:
        """Write a step, with the effect of its transaction; whether the relay knows that it is committed."""
        outcome, self.outcome = self.outcome, "known"
        if outcome != "away" and self.store.advance(write.step):
            effect()
            self.account.passed |= {seq for seq, one in self.store.aside.items() if one.state == "parked"}
            self.account.check_store()
        elif outcome == "known":
            self.state = self.state.forget()
            return False
        if outcome != "known":
            self.state = replace(self.state, uncertain=True)
            return False
        self.state = self.state.apply(write, self.now)
        return True

    def perform(self, decision: Decision) -> None:
        if (write := decision.write) is not None:
            self.write(write)
            self.drop(write.drops)
            if write.begun is not None:
                self.retried_last = not self.retried_last
        if items := list(decision.deliver):
            wall = items[0].change.kind in OF_ALL_KEYS
            whole = self.in_transaction or self.outbox.batch is not None
            if whole and self.state.all_finished:
                items = list(takewhile(lambda item: not self.state.is_done(item), items))
            items = items[:1] if wall and not whole else items
            self.together = whole or wall or self.state.at_once == 1
            self.window = Window(self.state, together=self.together)
            if self.together:
                self.window.add(self.state, items)
                return
            joined = self.window.join(self.state, items)
            if self.outbox.parallelism > 1:
                self.drop(joined)

    def next(self) -> list[Item]:
        """The next messages: retries take turns with the others."""
        if not self.retried_last and (due := self.retries()):
            self.retried_last = True
            return due[:1]
        self.retried_last = False
        if released := self.released(self.state.at_once):
            return released
        if not self.buffer:
            self.read()
        if not self.buffer:
            return []
        waits = self.state.waits_for_key(self.buffer[0])
        most = islice(self.buffer, len(self.buffer) if waits else self.state.at_once)
        return list(takewhile(lambda item: self.state.waits_for_key(item) is waits, most))

    def retries(self) -> list[Item]:
        if self.state.retry_at is None or self.state.retry_at > self.now:
            return []
        due = [one for at, one in self.store.halted() if at <= self.now]
        if not due:
            self.state = replace(self.state, retry_at=next((at for at, _one in self.store.halted()), None))
        return self.items(due)

    def released(self, limit: int) -> list[Item]:
        if not self.state.may_be_released or not self.state.keys:
            return []
        waiting = self.store.waiting()[:limit]
        if not waiting:
            keys = frozenset(one.key for one in self.store.aside.values() if one.state != "parked")
            self.state = replace(self.state, keys=keys, may_be_released=False)
        return self.items(waiting)

    def read(self) -> None:
        batch = self.store.read(self.state.position if self.read_to is None else self.read_to, 4)
        self.read_to = batch.position
        self.buffer += [Item(one, one.key or "", batch, number) for number, one in enumerate(batch.changes, 1)]

    def items(self, aside: Sequence[Aside]) -> list[Item]:
        return [Item(one.change, one.key, aside=one) for one in aside]

    def drop(self, items: Sequence[Item]) -> None:
        for item in items:
            if self.buffer and self.buffer[0] is item:
                del self.buffer[0]

    def forget_source(self) -> None:
        self.buffer, self.read_to = [], None
