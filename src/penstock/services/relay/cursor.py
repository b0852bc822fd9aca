"""The cursor of one outbox, its only writer: by compare-and-set, in the transaction that applies a batch.

`state` decides what to write. If the database has another state of the outbox or its reader, the cursor forgets its
own, and takes the outbox again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Iterable
from dataclasses import replace
from datetime import datetime

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.run.runner import FunctionCalls
from penstock.errors import TryAgain
from penstock.functions.function import FunctionKind
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.services.relay.items import Item
from penstock.services.relay.state import Batching, OutboxState, Write
from penstock.store.nouns.outboxes import Aside, OutboxRow
from penstock.store.session import Session

_SEEN = 100


class Cursor:
    """The cursor of one outbox, and what a relay knows beyond it: its `state`."""

    def __init__(self, runner: FunctionCalls, declared: DeclaredOutbox) -> None:
        self._changes = runner.engine.store.changes
        self._outboxes = runner.engine.store.outboxes
        self._journal = runner.engine.journal
        self._clock = runner.engine.clock
        # A mutation, so the cursor moves in its transaction:
        self.in_transaction = declared.function.kind is FunctionKind.MUTATION
        self.messages = declared.messages(runner.engine.store.dialect)
        batching = Batching.of(declared.outbox, in_transaction=self.in_transaction)
        self.state = OutboxState(outbox=declared.outbox, batching=batching)
        self.outbox = declared.outbox
        self.moved_at = 0.0
        self._left: int | None = None  # the declaration by another program that was logged
        self._taken: int | None = None  # the lease that has the reader

    # ----- taking the outbox

    def forget(self) -> None:
        self.state = self.state.forget()

    async def take(self, lease: int) -> None:
        """Take the outbox under a lease, and read its cursor.

        If another relay has the outbox, or the database does not know it, it is not known afterwards.
        """
        self.forget()
        ours = {None, lease, self._taken}  # a lease that was lost, but its process lives
        if not self._is_ours(await self._find()):
            self.state = self.state.ask()
            await self._give_back()
            return
        reader = self.outbox.reader
        held = next((one.lease for one in await self._changes.readers() if one.name == reader), None)
        position = await self._changes.take(reader, lease)
        row = await self._find()
        resumed = held == lease and position == self.state.position
        if position is None or row is None:
            self.state = self.state.ask(resumed=resumed)
            return
        self._taken = lease
        if not self._is_ours(row):  # it was declared otherwise just now
            self.state = self.state.ask(resumed=resumed)
            await self._give_back()
            return
        keys, inserts = await self._outboxes.list_kept_keys(row.id), await self._outboxes.inserts(row.id)
        retry_at = await self._outboxes.next_retry(row.id)
        self.state = replace(
            self.state.ask(resumed=resumed, died=held not in ours),
            row=row,
            lease=lease,
            position=position,
            keys=frozenset(keys),
            inserts=frozenset(inserts),
            retry_at=retry_at,
            may_be_released=True,
        )
        self.moved_at = self._clock.monotonic()
        self.messages.meanings = row.meanings
        log_event("outbox.started", outbox=self.outbox.name, lease=lease)

    def _is_ours(self, row: OutboxRow | None) -> bool:
        """Whether the outbox is declared as in this program: only then this program can read its messages."""
        outbox = self.outbox
        if row is None or (row.plan.source, row.plan.spec) == (outbox.source, outbox.spec()):
            return row is not None
        if self._left != row.epoch:
            self._left = row.epoch
            log_event("outbox.left", logging.WARNING, outbox=outbox.name, version=row.plan.version)
        return False

    async def leave(self) -> None:
        """Let others have the outbox at once."""
        self.forget()
        with contextlib.suppress(TryAgain):  # then the end of the lease tells
            await self._give_back()

    async def _give_back(self) -> None:
        lease, self._taken = self._taken, None
        if lease is not None:
            await self._changes.leave(self.outbox.reader, lease)

    async def _find(self) -> OutboxRow | None:
        return next((one for one in await self._outboxes.list() if one.plan.name == self.outbox.name), None)

    async def is_changed(self) -> bool:
        """Whether others have changed the outbox."""
        found, row = await self._find(), self.state.row
        return found is None or row is None or found.epoch != row.epoch

    def lose(self) -> None:
        """Note that others have changed or taken the outbox."""
        log_event("outbox.changed", outbox=self.outbox.name, lease=self.state.lease)
        self.forget()

    # ----- messages that are set aside

    async def next_attempts(self) -> list[datetime]:
        """The times of the next retries of failed messages, as long as their policy allows."""
        row, most = self.state.row, self.outbox.retry.max_attempts
        assert row is not None  # noqa: S101 - it is known
        aside = await self._outboxes.aside(row.id, ["halted"], _SEEN)
        troubles = [self.state.trouble, *(one.trouble for one in aside)]
        return [
            one.retry_at
            for one in troubles
            if one is not None and one.retry_at is not None and (most is None or one.attempts < most)
        ]

    async def retries(self, limit: int, but: Container[object] = ()) -> list[Item]:
        """Halted messages that are due for another attempt; `but` some."""
        now, row, retry_at = self._clock.now(), self.state.row, self.state.retry_at
        if row is None or retry_at is None or retry_at > now:
            return []
        due = await self._outboxes.list_failed(row.id, now, limit)
        if not due:
            retry_at = await self._outboxes.next_retry(row.id)
            self.state = replace(self.state, retry_at=retry_at)
        return self._items(due, but)

    async def take_released(self, limit: int, but: Container[object] = ()) -> list[Item]:
        """Messages that were set aside and wait for none of their key any more; `but` some."""
        row, state = self.state.row, self.state
        if row is None or row.backfill is not None or not state.may_be_released or not state.keys:
            return []
        waiting = await self._outboxes.waiting(row.id, limit)
        if not waiting:
            keys = frozenset(await self._outboxes.list_kept_keys(row.id))
            self.state = replace(self.state, keys=keys, may_be_released=False)
        return self._items(waiting, but)

    def _items(self, aside: Iterable[Aside], but: Container[object]) -> list[Item]:
        kind = self.messages.kind
        items = [Item(one.change, one.key, aside=one, silent=kind(one.change) is None) for one in aside]
        return [item for item in items if item.identity not in but]

    # ----- writing

    async def write(self, write: Write) -> bool:
        """Write a step in a transaction of its own; False if the outbox is lost."""
        if points.armed:
            await points.reach("outbox.write", outbox=self.outbox.name, step=write.step)
        try:
            is_written = await self._outboxes.advance(write.step, self._clock.now())
        except BaseException:
            self.doubt()
            raise
        if is_written:
            self.apply(write)
        else:
            self.lose()
        return is_written

    async def write_within(self, session: Session, write: Write) -> bool:
        """Write a step in the transaction of a mutation, which calls `apply` once it has committed."""
        return await self._outboxes.advance(write.step, self._clock.now(), session)

    def apply(self, write: Write) -> None:
        """Apply a step that is committed."""
        self.count("delivered", write.step.delivered)
        if write.step.move.after != self.state.position:
            self.moved_at = self._clock.monotonic()
        self.state = self.state.apply(write, self._clock.now())

    def doubt(self) -> None:
        """Note that nobody knows whether the last write was committed."""
        self.state = replace(self.state, uncertain=True)

    def count(self, how: str, number: int) -> None:
        """Count messages as delivered, or attempts as failed."""
        if number:
            self._journal.book.add(f"outbox {self.outbox.name}", how, number)
            if self._journal.meters is not None:
                self._journal.meters.add(f"penstock_outbox_{how}", self.outbox.name, number=number)
