"""Where an outbox stands, as the line that hands over its messages knows it: a part of the relay.

Owns what is known, and writing each step: only if the outbox and its reader are as they are known here. If they are
not, all of it is forgotten, and looked at anew.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Sequence
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
from penstock.store.contract.changes import Batch
from penstock.store.contract.outboxes import Aside, Identity, OutboxRow, Step
from penstock.store.contract.tasks import Move

_SEEN = 100


@dataclass(slots=True)
class Holder:
    """The lease under which all lines of a relay read.

    Attributes:
        lease: The lease; None if there is none.
        until: Until when it is certain that nobody else has taken it, by the monotonic clock.
    """

    lease: int | None = None
    until: float = 0.0


@dataclass(slots=True)
class Item:
    """A message that is next, or soon.

    Attributes:
        change: The change that it is.
        key: By which it is ordered.
        batch: What was read of the feed with it; None if nothing was.
        number: How many changes of that are done with it.
        backfill: What is left of older rows then; None if that does not change.
        aside: How it was put aside; None if it was not.
        lost: Of one that tells of lost changes, of how many in a row, and when the first one was noted.
    """

    change: CapturedChange
    key: str
    batch: Batch | None = None
    number: int = 0
    backfill: str | None = None
    aside: Aside | None = None
    lost: Noted | None = None

    @property
    def identity(self) -> Identity:
        """What tells it from other messages: the number of an older row is that of the next one if it is deleted."""
        return (self.change.seq, None) if self.change.seq > 0 else (0, self.change.key)

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.change.before or "") + len(self.change.after or "")

    @property
    def after(self) -> Position | None:
        """Where the reader is once it is done with; None if that does not change."""
        return None if self.batch is None else self.batch.at(self.number)

    @property
    def told_key(self) -> str | None:
        """The key as others are told of it; None of a message that has none."""
        return None if self.change.key is None or self.key == unkeyed(self.change) else self.key


def unkeyed(change: CapturedChange) -> str:
    """The key of a message that has none, as it is in no partition: it waits for those of its row alone."""
    return f"\x01{change.key or change.seq}"


class Standing:
    """Where one outbox stands.

    Args:
        runner: Runs functions.
        outbox: The outbox.

    Attributes:
        row: How it is kept; None if that is not known, or another relay has it.
        lease: Under which lease it is read.
        position: Where its reader is.
        trouble: What is known of the next message, if it has failed.
        keys: The keys of which messages are put aside, so that those that come are too.
        turned: The numbers of messages that were put aside as inserts, and come no more as the changes they were.
        waits: Whether some of those may be handed over now.
        retry_at: When the next of those is tried again that has failed.
        moved_at: When it was written last.
        again: Whether it was taken where this lease had left it, so that nobody has moved it since.
        uncertain: Whether nobody knows if the last step was written: it is written again, or all is looked at anew.
    """

    def __init__(self, runner: Runner, outbox: Outbox) -> None:
        self._store = runner.engine.store
        self._meters = runner.engine.journal.meters
        self._clock = runner.engine.clock
        self._outbox = outbox
        self.row: OutboxRow | None = None
        self.lease: int | None = None
        self.position = Position()
        self.trouble: Trouble | None = None
        self.keys: set[str] = set()
        self.turned: set[int] = set()
        self.waits = True
        self.retry_at: datetime | None = None
        self.moved_at = 0.0
        self._left: int | None = None
        self._taken: int | None = None  # under which lease
        self.again = self.uncertain = False

    @property
    def passed(self) -> frozenset[Identity]:
        """The messages behind the next one that are done with, as it is written."""
        return frozenset() if self.row is None else self.row.passed

    def forget(self) -> None:
        """It is not known any more."""
        self.row = self.lease = None
        self.uncertain = False

    async def take(self, lease: int) -> int | None:
        """Have it under a lease, and learn where it stands; the lease that had it before and did not leave it.

        If another one has it, or it is not known to the database, nothing is known of it here either.
        """
        self.forget()
        if not self._is_ours(await self.find()):
            await self._give_back()
            return None
        reader = self._outbox.reader
        held = next((one.lease for one in await self._store.changes.readers() if one.name == reader), None)
        position = await self._store.changes.take(reader, lease)
        row = await self.find()
        self.again = held == lease and position == self.position
        if position is None or row is None:
            return None
        self._taken = lease
        if not self._is_ours(row):  # it was declared otherwise just now
            await self._give_back()
            return None
        self.row, self.lease, self.position, self.trouble = row, lease, position, row.trouble
        self.keys = await self._store.outboxes.kept_keys(row.id)
        self.turned = await self._store.outboxes.turned(row.id)
        self.retry_at = await self._store.outboxes.next_retry(row.id)
        self.waits, self.moved_at = True, self._clock.monotonic()
        log_event("outbox.started", outbox=self._outbox.name, lease=lease)
        return None if held == lease else held

    def _is_ours(self, row: OutboxRow | None) -> bool:
        """Whether the outbox is declared as this program does; what it means by another one, this one does not know."""
        ours = self._outbox.source, self._outbox.spec()
        if row is None or (row.plan.source, row.plan.spec) == ours:
            return row is not None
        if self._left != row.epoch:
            self._left = row.epoch
            log_event("outbox.left", logging.WARNING, outbox=self._outbox.name, version=row.plan.version)
        return False

    async def leave(self) -> None:
        """Let others have it at once."""
        self.forget()
        with contextlib.suppress(TryAgain):  # then the end of the lease tells
            await self._give_back()

    async def _give_back(self) -> None:
        """Keep the reader from nobody, if it was taken and no other one has it by now."""
        lease, self._taken = self._taken, None
        if lease is not None:
            await self._store.changes.leave(self._outbox.reader, lease)

    async def find(self) -> OutboxRow | None:
        """How it is kept now."""
        return next((one for one in await self._store.outboxes.list() if one.plan.name == self._outbox.name), None)

    async def is_changed(self) -> bool:
        """Whether others have changed it."""
        found = await self.find()
        return found is None or self.row is None or found.epoch != self.row.epoch

    async def tried_again_at(self) -> list[datetime]:
        """When messages are tried again that have failed, but for those beyond their policy."""
        assert self.row is not None  # noqa: S101 - it is known
        most = self._outbox.retry.max_attempts
        aside = await self._store.outboxes.aside(self.row.id, ["halted"], _SEEN)
        troubles = [self.trouble, *(one.trouble for one in aside)]
        return [
            one.retry_at
            for one in troubles
            if one is not None and one.retry_at is not None and (most is None or one.attempts < most)
        ]

    # ----- writing

    def step(
        self,
        items: Sequence[Item] = (),
        *,
        after: Position | None = None,
        trouble: Trouble | None = None,
        put: Sequence[Aside] = (),
        skipped: Sequence[int] = (),
        delivered: int = 0,
        backfill: str | None = None,
        filled: bool = False,
        keeps: bool = False,
        passed: Collection[Identity] = (),
    ) -> Step:
        """What is to be written.

        Args:
            items: The messages that are done with.
            after: Where the reader is then; by default as they say.
            trouble: What is known of the next message.
            put: Messages that are put aside.
            skipped: Numbers of messages that were passed by.
            delivered: How many were delivered.
            backfill: What is left of older rows; by default as the messages say.
            filled: Whether none are left.
            keeps: Whether messages that were put aside stay there.
            passed: More messages that are done with, though those before them are not.
        """
        assert self.row is not None and self.lease is not None  # noqa: PT018, S101 - it is known
        if trouble is None and items and all(item.aside is not None for item in items):
            trouble = self._trouble_of_others(items)
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

    def _trouble_of_others(self, items: Sequence[Item]) -> Trouble | None:
        """What is known of the next message, if it is none of those that were put aside before it."""
        trouble = self.trouble
        return None if trouble is None or any(trouble.is_of(item.change) for item in items) else trouble

    def _passed(
        self, items: Sequence[Item], more: Collection[Identity], after: Position | None, *, filled: bool
    ) -> frozenset[Identity]:
        """What is done with behind the next message once these are; where no message is before a place, nothing is."""
        if not more and not self.passed:
            return self.passed
        known = self.passed.union(more).difference(item.identity for item in items if item.aside is None)
        return frozenset(one for one in known if (not filled if one[0] == 0 else after is None))

    async def write(self, step: Step) -> bool:
        """Write a step by itself; False if nothing is known any more."""
        if points.armed:
            await points.reach("outbox.write", outbox=self._outbox.name, step=step)
        try:
            written = await self._store.outboxes.advance(step, self._clock.now())
        except BaseException:
            self.uncertain = True
            raise
        if written:
            self.advanced(step)
            return True
        self.lost()
        return False

    def advanced(self, step: Step) -> None:
        """A step was written."""
        row, self.uncertain = step.outbox, False
        self.count("penstock_outbox_delivered", step.delivered)
        skips = tuple(seq for seq in row.skips if seq not in step.skipped)
        self.row = replace(row, backfill=step.backfill, skips=skips, trouble=step.trouble, passed=step.passed)
        if step.delivered:
            self.row = replace(self.row, delivered_at=self._clock.now())
        if step.move.after != self.position:
            self.position, self.moved_at = step.move.after, self._clock.monotonic()
        self.trouble = step.trouble
        self.keys.update(one.key for one in step.put if one.state == "halted")
        waiting = {one.key for one in step.put if one.state == "waiting"}
        if step.taken or waiting - self.keys or any(one.state == "parked" for one in step.put):
            self.waits = True  # those behind one that was put aside before may not be handed over yet
        self.keys |= waiting
        if self.retry_at is not None and step.taken:
            self.retry_at = self._clock.now()  # it may have been that one: look when the next is
        times = [one.trouble.retry_at for one in step.put if one.state == "halted" and one.trouble is not None]
        self.retry_at = min((at for at in (self.retry_at, *times) if at is not None), default=None)

    def count(self, meter: str, number: int) -> None:
        """Count, if anybody looks at meters."""
        if number and self._meters is not None:
            self._meters.add(meter, self._outbox.name, number=number)

    def lost(self) -> None:
        """Others have changed or taken it."""
        log_event("outbox.changed", outbox=self._outbox.name, lease=self.lease)
        self.forget()
