"""The cursor of one outbox, its only writer: by compare-and-set, in the transaction that applies a batch.

If the database has another state of the outbox or its reader, the cursor forgets its own, and takes the outbox anew.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from penstock.calls.run.runner import Runner
from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.errors import TryAgain
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.outbox.outbox import Outbox
from penstock.outbox.trouble import Noted, Trouble
from penstock.store.nouns.changes import Batch
from penstock.store.nouns.outboxes import Aside, Identity, OutboxRow, Step
from penstock.store.nouns.tasks import Move
from penstock.store.session import Session

_SEEN = 100


@dataclass(slots=True)
class Item:
    """A message that is to be delivered."""

    change: CapturedChange
    key: str  # messages of one key are delivered in order
    batch: Batch | None = None  # the read of the feed that it came with, if it did
    number: int = 0  # how many changes of that read are done with once it is
    backfill: str | None = None  # of an older row: the rest of the backfill once it is delivered
    aside: Aside | None = None  # its row in the table of set-aside messages, if it has one
    lost: Noted | None = None  # of one that tells of lost changes: how many in a row, and since when

    @property
    def identity(self) -> Identity:
        """Its identity among messages: an older row that is deleted leaves its number to the next one."""
        return (self.change.seq, None) if self.change.seq > 0 else (0, self.change.key)

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        return len(self.change.before or "") + len(self.change.after or "")

    @property
    def after(self) -> Position | None:
        """The position of the reader behind it; None if it moves no reader."""
        return None if self.batch is None else self.batch.at(self.number)

    @property
    def told_key(self) -> str | None:
        """Its key for logs; None if it has none."""
        return None if self.change.key is None or self.key == unkeyed(self.change) else self.key


def unkeyed(change: CapturedChange) -> str:
    """The key of a message in no partition: it waits for messages of its row alone."""
    return f"\x01{change.key or change.seq}"


class Cursor:
    """The cursor of one outbox, with deliveries that are not written yet."""

    def __init__(self, runner: Runner, outbox: Outbox) -> None:
        self._changes = runner.engine.store.changes
        self._outboxes = runner.engine.store.outboxes
        self._journal = runner.engine.journal
        self._clock = runner.engine.clock
        self._outbox = outbox
        self.row: OutboxRow | None = None  # None if it is not known, or another relay has it
        self.lease: int | None = None
        self.position = Position()
        self.trouble: Trouble | None = None  # of the next message, if it has failed
        self.keys: set[str] = set()  # of messages put aside; messages of these keys that come are put aside too
        self.inserts: set[int] = set()  # numbers of messages put aside as inserts; the feed has them as updates still
        self.retry_at: datetime | None = None  # of the halted message that is due first
        self.moved_at = 0.0
        self.resumed = False  # whether it was taken where this lease had left it, so nobody has moved it since
        self.uncertain = False  # whether the last write may have been committed, and nobody knows
        self._may_be_released = True
        self._left: int | None = None  # the declaration by another program that was told of
        self._taken: int | None = None  # the lease that has the reader
        self._sent: dict[Identity, Item] = {}
        self._begun: dict[Identity, Trouble | None] = {}  # and the earlier trouble of one whose attempt is noted
        self._told: set[int] = set()

    # ----- taking the outbox

    def forget(self) -> None:
        self.row = self.lease = None
        self.uncertain = False

    async def take(self, lease: int) -> int | None:
        """Take the outbox under a lease, and read its cursor; the lease of another that held it and did not leave it.

        If another relay has the outbox, or the database does not know it, `row` stays None.
        """
        self.forget()
        self._begun.clear()
        ours = {lease, self._taken}  # a lease that was lost, but its process lives
        if not self._is_ours(await self._find()):
            await self._give_back()
            return None
        reader = self._outbox.reader
        held = next((one.lease for one in await self._changes.readers() if one.name == reader), None)
        position = await self._changes.take(reader, lease)
        row = await self._find()
        self.resumed = held == lease and position == self.position
        if not self.resumed:
            self._sent.clear()
        if position is None or row is None:
            return None
        self._taken = lease
        if not self._is_ours(row):  # it was declared otherwise just now
            await self._give_back()
            return None
        self.row, self.lease, self.position, self.trouble = row, lease, position, row.trouble
        self.keys = await self._outboxes.kept_keys(row.id)
        self.inserts = await self._outboxes.inserts(row.id)
        self.retry_at = await self._outboxes.next_retry(row.id)
        self._may_be_released, self.moved_at = True, self._clock.monotonic()
        log_event("outbox.started", outbox=self._outbox.name, lease=lease)
        return None if held in ours else held

    def _is_ours(self, row: OutboxRow | None) -> bool:
        """Whether the outbox is declared as in this program: only then this program can read its messages."""
        ours = self._outbox.source, self._outbox.spec()
        if row is None or (row.plan.source, row.plan.spec) == ours:
            return row is not None
        if self._left != row.epoch:
            self._left = row.epoch
            log_event("outbox.left", logging.WARNING, outbox=self._outbox.name, version=row.plan.version)
        return False

    async def leave(self) -> None:
        """Let others have the outbox at once."""
        self.forget()
        with contextlib.suppress(TryAgain):  # then the end of the lease tells
            await self._give_back()

    async def _give_back(self) -> None:
        lease, self._taken = self._taken, None
        if lease is not None:
            await self._changes.leave(self._outbox.reader, lease)

    async def _find(self) -> OutboxRow | None:
        return next((one for one in await self._outboxes.list() if one.plan.name == self._outbox.name), None)

    async def is_changed(self) -> bool:
        """Whether others have changed the outbox."""
        found = await self._find()
        return found is None or self.row is None or found.epoch != self.row.epoch

    def doubt(self) -> None:
        """Note that nobody knows whether the last write was committed."""
        self.uncertain = True

    def lost(self) -> None:
        """Note that others have changed or taken the outbox."""
        log_event("outbox.changed", outbox=self._outbox.name, lease=self.lease)
        self.forget()

    # ----- messages that are put aside

    async def next_attempts(self) -> list[datetime]:
        """The times of the next retries of failed messages, as long as their policy allows."""
        assert self.row is not None  # noqa: S101 - it is known
        most = self._outbox.retry.max_attempts
        aside = await self._outboxes.aside(self.row.id, ["halted"], _SEEN)
        troubles = [self.trouble, *(one.trouble for one in aside)]
        return [
            one.retry_at
            for one in troubles
            if one is not None and one.retry_at is not None and (most is None or one.attempts < most)
        ]

    async def retries(self, limit: int, but: Container[Identity] = ()) -> list[Item]:
        """Halted messages that are due for another attempt; `but` some."""
        now = self._clock.now()
        if self.row is None or self.retry_at is None or self.retry_at > now:
            return []
        due = await self._outboxes.failed(self.row.id, now, limit)
        if not due and self.row is not None:
            self.retry_at = await self._outboxes.next_retry(self.row.id)
        return _items(due, but)

    async def released(self, limit: int, but: Container[Identity] = ()) -> list[Item]:
        """Messages that were put aside and wait for none of their key any more; `but` some."""
        if self.row is None or self.row.backfill is not None:
            return []
        outbox, self._may_be_released = self.row.id, self._may_be_released and bool(self.keys)
        if not self._may_be_released:
            return []
        waiting = await self._outboxes.waiting(outbox, limit)
        if not waiting:
            self.keys, self._may_be_released = await self._outboxes.kept_keys(outbox), False
        return _items(waiting, but)

    # ----- messages that are sent or have failed

    @property
    def passed(self) -> frozenset[Identity]:
        """Messages behind the position that are done with, as it is written."""
        return frozenset() if self.row is None else self.row.passed

    @property
    def finished(self) -> set[Identity]:
        """Messages behind the position that are done with, whether it is written or not."""
        return {*self._sent, *self.passed}

    def has_sent(self, items: Iterable[Item]) -> None:
        """Note that these were sent, and that the cursor is still to be written."""
        self._sent.update((item.identity, item) for item in items)

    def was_sent(self, item: Item) -> bool:
        """Whether a message was sent and that is not written: an aside message from aside, others from their place."""
        sent = self._sent.get(item.identity)
        return sent is not None and (sent.aside is None) is (item.aside is None)

    def is_done(self, item: Item) -> bool:
        """Whether a message was sent already, or passed by."""
        return self.was_sent(item) or (item.aside is None and item.identity in self.passed)

    def is_unwritten(self, item: Item) -> bool:
        """Whether a message was sent, and nothing of that is written."""
        return self.was_sent(item) and (item.aside is not None or item.identity not in self.passed)

    def known(self, item: Item) -> Trouble | None:
        """The trouble of a message that has failed before."""
        if item.identity in self._begun:
            return self._begun[item.identity]
        trouble = self.trouble
        if trouble is not None and trouble.is_of(item.change):
            return trouble
        return None if item.aside is None else item.aside.trouble

    def has_begun(self, item: Item) -> bool:
        """Whether it is written that an attempt at a message has begun."""
        return item.identity in self._begun

    def begin(self, item: Item, known: Trouble | None) -> None:
        """Note that the beginning of an attempt is written; `before` is the trouble before it."""
        self._begun[item.identity] = known

    def failed(self, item: Item) -> Trouble | None:
        """The trouble of a message before an attempt that has failed."""
        known = self.known(item)
        self._begun.pop(item.identity, None)
        return known

    def is_news(self, seq: int, known: Trouble | None) -> bool:
        """Whether nobody was told yet that a message halts."""
        again = known is not None and known.attempts > 0 and seq in self._told
        self._told.add(seq)
        return not again

    # ----- writing

    def step(
        self,
        items: Sequence[Item] = (),
        *,
        after: Position | None = None,  # by default behind these messages
        trouble: Trouble | None = None,
        put: Sequence[Aside] = (),
        skipped: Sequence[int] = (),
        delivered: int = 0,
        backfill: str | None = None,  # by default as the messages say
        filled: bool = False,  # no older rows are left
        keeps: bool = False,  # messages that were put aside stay there
        passed: Collection[Identity] = (),  # done with as well, though messages before them are not
    ) -> Step:
        """The step to write once these messages are done with."""
        assert self.row is not None and self.lease is not None  # noqa: PT018, S101 - it is known
        if trouble is None and items and all(item.aside is not None for item in items):
            trouble = self._trouble_but(items)
        place = after or next((item.after for item in reversed(items) if item.batch is not None), None)
        left = next((item.backfill for item in reversed(items) if item.backfill is not None), self.row.backfill)
        return Step(
            outbox=self.row,
            move=Move(self._outbox.reader, self.lease, self.position, place or self.position),
            backfill=None if filled else backfill or left,
            trouble=trouble,
            delivered=delivered,
            put=put,
            taken=[] if keeps else [item.change.seq for item in items if item.aside is not None],
            skipped=skipped,
            passed=self._passed(items, passed, after, filled=filled),
        )

    def _trouble_but(self, items: Sequence[Item]) -> Trouble | None:
        """The trouble of the next message, if it is none of these."""
        trouble = self.trouble
        return None if trouble is None or any(trouble.is_of(item.change) for item in items) else trouble

    def _passed(
        self, items: Sequence[Item], more: Collection[Identity], after: Position | None, *, filled: bool
    ) -> frozenset[Identity]:
        """The finished messages behind the position once these are done; none if no message comes before it."""
        if not more and not self.passed:
            return self.passed
        known = self.passed.union(more).difference(item.identity for item in items if item.aside is None)
        return frozenset(one for one in known if (not filled if one[0] == 0 else after is None))

    async def write(self, step: Step, done: Iterable[Item] = ()) -> bool:
        """Write a step in a transaction of its own, by which these are done with; False if the outbox is lost."""
        if points.armed:
            await points.reach("outbox.write", outbox=self._outbox.name, step=step)
        try:
            written = await self._outboxes.advance(step, self._clock.now())
        except BaseException:
            self.doubt()
            raise
        if written:
            self.written(step, done)
        else:
            self.lost()
        return written

    async def write_within(self, session: Session, step: Step) -> bool:
        """Write a step in the transaction of a mutation, which calls `written` once it has committed."""
        return await self._outboxes.advance(step, self._clock.now(), session)

    async def write_sent(self) -> None:
        """Write that messages were sent whose window was cut short, though those before them may not be."""
        sent = [item for item in self._sent.values() if self.is_unwritten(item)]
        if sent and self.row is not None:
            behind = {item.identity for item in sent if item.aside is None}
            aside = [item for item in sent if item.aside is not None]
            trouble = self._trouble_but(sent)
            await self.write(self.step(aside, trouble=trouble, delivered=len(sent), passed=behind))

    def written(self, step: Step, done: Iterable[Item] = ()) -> None:
        """Note that a step is committed, by which these are done with."""
        row, self.uncertain = step.outbox, False
        self.count("delivered", step.delivered)
        skips = tuple(seq for seq in row.skips if seq not in step.skipped)
        self.row = replace(row, backfill=step.backfill, skips=skips, trouble=step.trouble, passed=step.passed)
        if step.delivered:
            self.row = replace(self.row, delivered_at=self._clock.now())
        if step.move.after != self.position:
            self.position, self.moved_at = step.move.after, self._clock.monotonic()
        self.trouble = step.trouble
        if step.put or step.taken:
            self._moved_aside(step)
        if self._sent or self._begun or self._told:
            for item in done:
                self._is_done_with(item)

    def _moved_aside(self, step: Step) -> None:
        """Note that messages were set aside, or taken from there."""
        self.keys.update(one.key for one in step.put if one.state == "halted")
        waiting = {one.key for one in step.put if one.state == "waiting"}
        if step.taken or waiting - self.keys or any(one.state == "parked" for one in step.put):
            self._may_be_released = True  # messages behind one that was put aside before wait for it still
        self.keys |= waiting
        if self.retry_at is not None and step.taken:
            self.retry_at = self._clock.now()  # it may have been that one: look when the next is
        times = [one.trouble.retry_at for one in step.put if one.state == "halted" and one.trouble is not None]
        self.retry_at = min((at for at in (self.retry_at, *times) if at is not None), default=None)

    def _is_done_with(self, item: Item) -> None:
        """Forget a message; one that was sent from aside stays known if only its place in the feed is done with."""
        if item.identity not in self._sent or self.was_sent(item):
            self._sent.pop(item.identity, None)
            self._begun.pop(item.identity, None)
        self._told.discard(item.change.seq)

    def count(self, how: str, number: int) -> None:
        """Count messages as delivered, or attempts as failed."""
        if number:
            self._journal.book.add(f"outbox {self._outbox.name}", how, number)
            if self._journal.meters is not None:
                self._journal.meters.add(f"penstock_outbox_{how}", self._outbox.name, number=number)


def _items(aside: Iterable[Aside], but: Container[Identity]) -> list[Item]:
    items = [Item(one.change, one.key, aside=one) for one in aside]
    return [item for item in items if item.identity not in but]
