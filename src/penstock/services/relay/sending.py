"""Hands messages over to the handler of an outbox: a part of the relay.

Owns what an attempt at a message is, how messages go one after another, and which of them have been sent though nobody
has written that down yet. `parallel` delivers several at once; `delivery` decides about one that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.handlers.deliveries import Delivery, Messages, Seal, deliver
from penstock.calls.run.containment import uncanceled
from penstock.calls.run.runner import Runner
from penstock.changes.change import LOST
from penstock.errors import CallTimeout, LockTaken, TryAgain
from penstock.outbox.trouble import Trouble, changes_lost
from penstock.services.relay.cursor import Item, Standing
from penstock.store.contract.outboxes import Identity

Failure = tuple[Item, Exception]
Done = Callable[[Sequence[Item]], Awaitable[None]]


class Sending:
    """Hands over the messages of one outbox.

    Args:
        runner: Runs functions.
        declared: The outbox.
        messages: Makes messages of changes.
        standing: Where the outbox stands.
        done: Writes that messages were delivered.

    Attributes:
        sent: The messages that were sent, and it is not written that they were.
        begun: Of messages whose attempt was written down before it began, what was known of them until then.
    """

    def __init__(
        self, runner: Runner, declared: DeclaredOutbox, messages: Messages, standing: Standing, done: Done
    ) -> None:
        self._runner = runner
        self._outbox = declared.outbox
        self._function = declared.function
        self._messages = messages
        self._standing = standing
        self._done = done
        self.sent: dict[Identity, Item] = {}
        self.begun: dict[Identity, Trouble | None] = {}

    def known(self, item: Item) -> Trouble | None:
        """What is known of a message, if it has failed before."""
        if item.identity in self.begun:
            return self.begun[item.identity]
        trouble = self._standing.trouble
        if trouble is not None and trouble.is_of(item.change):
            return trouble
        return None if item.aside is None else item.aside.trouble

    def forget(self, item: Item) -> None:
        """A message is done with; one that was put aside is not where only its place in the feed is."""
        if item.identity not in self.sent or self.was_sent(item):
            self.sent.pop(item.identity, None)
            self.begun.pop(item.identity, None)

    def delivery(self, items: Sequence[Item]) -> Delivery:
        """Messages as the handler takes them."""
        return Delivery([self._given(item) for item in items], self._outbox.batch)

    async def run(self, delivery: Delivery, seal: Seal | None = None) -> None:
        """Run the handler."""
        limit = None if self._outbox.timeout is None else self._outbox.timeout.total_seconds()
        with uncanceled(self._function.name):  # of what a thread raised, nobody knew there whether it was cancelled
            await deliver(self._runner, self._function, delivery, limit, seal)

    def done_of(self, items: Sequence[Item]) -> list[Item]:
        """The first of some messages, as far as they are done with already."""
        first = next((number for number, item in enumerate(items) if not self.is_done(item)), len(items))
        return list(items[:first])

    def is_done(self, item: Item) -> bool:
        """Whether a message was sent, or is passed by, though it is not behind where the outbox stands."""
        return self.was_sent(item) or (item.aside is None and item.identity in self._standing.passed)

    def was_sent(self, item: Item) -> bool:
        """Whether a message was sent, and it is not written that it was: from aside, if it is, else from its place."""
        sent = self.sent.get(item.identity)
        return sent is not None and (sent.aside is None) is (item.aside is None)

    async def one_by_one(self, items: Sequence[Item], stops: Callable[[], bool]) -> Failure | None:
        """Hand messages over one after another, and write beside that how far this has come; the one that failed."""
        failed: Failure | None = None
        written, tried, done = 0, 0, 0
        writing: asyncio.Task[None] | None = None
        try:
            for item in items:
                if stops():
                    break
                if (error := await self.attempt(item)) is not None:
                    failed = item, error
                    break
                done += 1
                if writing is not None and writing.done():
                    writing.result()
                    written, writing = tried, None
                if self._standing.row is None:
                    break
                if writing is None:
                    tried = done
                    writing = asyncio.create_task(self._write(items[written:done]))
        finally:
            if writing is not None:
                with contextlib.suppress(TryAgain):  # then all of them are written once more
                    await writing
                    written = tried
        if written < done and self._standing.row is not None:
            await self._done(items[written:done])
        return failed

    async def attempt(self, item: Item) -> Exception | None:
        """Hand a message over, unless it was; what it failed of."""
        if self.is_done(item):
            return None
        try:
            await self.run(self.delivery([item]))
        except Exception as error:  # noqa: BLE001 - whatever user code raises befalls its message
            return error
        self.sent[item.identity] = item
        return None

    async def write_sent(self) -> None:
        """Write that messages were sent which were cut short before that, though those before them may not be."""
        standing = self._standing
        sent = [one for one in self.sent.values() if one.aside is not None or one.identity not in standing.passed]
        trouble = standing.trouble
        if sent and self._standing.row is not None:
            known = None if trouble is None or any(trouble.is_of(item.change) for item in sent) else trouble
            passed = {item.identity for item in sent if item.aside is None}
            aside = [item for item in sent if item.aside is not None]
            await self._standing.write(self._standing.step(aside, trouble=known, delivered=len(sent), passed=passed))

    # ----- steps

    async def _write(self, items: Sequence[Item]) -> None:
        if self._standing.row is not None:
            await self._done(items)

    def _given(self, item: Item) -> object:
        known, row, change = self.known(item), self._standing.row, item.change
        if change.kind == LOST:
            last_at = None if row is None else row.delivered_at
            noted = item.lost or (1, change.changed_at)
            raise changes_lost(self._outbox.name, self._outbox.source, change, noted, last_at)
        fence = 0 if row is None else row.fence
        return self._messages.given(change, 1 if known is None else known.attempts + 1, fence)


def is_its_own(error: TryAgain) -> bool:
    """Whether it is the handler that takes too long, and not the database that is away or busy."""
    return isinstance(error, (CallTimeout, LockTaken)) or bool(error.facts.get("slow"))
