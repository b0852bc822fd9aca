"""Hands messages over to the handler of an outbox: a part of the relay.

Owns what an attempt at a message is, how messages go one after another or beside each other, and which of them have
been sent though nobody has written that down yet. Leaves what becomes of one that fails to `services/delivery`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from penstock.calls.deliveries import Delivery, Messages, Seal, deliver
from penstock.calls.outboxes import DeclaredOutbox
from penstock.calls.run import Runner
from penstock.errors import LeaseLost, TryAgain
from penstock.outbox.trouble import Trouble
from penstock.services.standing import Identity, Item, Standing

Failure = tuple[Item, Exception]
Done = Callable[[Sequence[Item]], Awaitable[None]]
_OF_ALL_KEYS = frozenset({"truncate", "lost"})


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
        self.sent: set[Identity] = set()
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
        """A message is done with."""
        self.sent.discard(item.identity)
        self.begun.pop(item.identity, None)

    def delivery(self, items: Sequence[Item]) -> Delivery:
        """Messages as the handler takes them."""
        return Delivery([self._given(item) for item in items], self._outbox.batch)

    async def run(self, delivery: Delivery, seal: Seal | None = None) -> None:
        """Run the handler."""
        limit = self._outbox.timeout
        await deliver(self._runner, self._function, delivery, None if limit is None else limit.total_seconds(), seal)

    def sent_of(self, items: Sequence[Item]) -> list[Item]:
        """The first of some messages, as far as they were sent already."""
        first = next((number for number, item in enumerate(items) if item.identity not in self.sent), len(items))
        return list(items[:first])

    async def one_by_one(self, items: Sequence[Item], stops: Callable[[], bool]) -> Failure | None:
        """Hand messages over one after another, and write beside that how far this has come; the one that failed."""
        failed: Failure | None = None
        written, done = 0, 0
        writing: asyncio.Task[None] | None = None
        try:
            for item in items:
                if stops():
                    break
                if (error := await self._try(item)) is not None:
                    failed = item, error
                    break
                done += 1
                if writing is not None and writing.done():
                    writing.result()
                    writing = None
                if self._standing.row is None:
                    break
                if writing is None:
                    part, written = items[written:done], done
                    writing = asyncio.create_task(self._write(part))
        finally:
            if writing is not None:
                with contextlib.suppress(TryAgain):
                    await writing
        if written < done and self._standing.row is not None:
            await self._done(items[written:done])
        return failed

    async def beside_each_other(self, items: Sequence[Item], stops: Callable[[], bool]) -> Failure | None:
        """Hand messages over, of each key one at a time; if one fails, no more begin but what flows past it.

        What is of all keys goes alone. Of those that failed the first is told, if all before it are done with: the
        others fail again, or not, when they are next.
        """
        wall = next((number for number, item in enumerate(items) if item.change.kind in _OF_ALL_KEYS), len(items))
        items = items[: max(wall, 1)]
        lanes: dict[str, list[Item]] = {}
        for item in items:
            lanes.setdefault(item.key, []).append(item)
        places = asyncio.Semaphore(self._outbox.parallelism)
        errors: dict[str, Failure] = {}
        flows = self._outbox.on_failure == "halt_key"

        async def lane(key: str, messages: list[Item]) -> None:
            async with places:
                for item in messages:
                    if (errors and not flows) or stops():
                        return
                    if (error := await self._try(item)) is not None:
                        errors[key] = item, error
                        return

        await asyncio.gather(*(lane(key, messages) for key, messages in lanes.items()))
        sent = self.sent_of(items)
        if sent:
            await self._done(sent)
        return errors.get(items[len(sent)].key) if len(sent) < len(items) else None

    # ----- steps

    async def _write(self, items: Sequence[Item]) -> None:
        if self._standing.row is not None:
            await self._done(items)

    async def _try(self, item: Item) -> Exception | None:
        """Hand a message over; what it failed of."""
        if item.identity in self.sent:
            return None
        try:
            await self.run(self.delivery([item]))
        except LeaseLost:
            raise
        except Exception as error:  # noqa: BLE001 - whatever user code raises befalls its message
            return error
        self.sent.add(item.identity)
        return None

    def _given(self, item: Item) -> object:
        known = self.known(item)
        return self._messages.given(item.change, 1 if known is None else known.attempts + 1)
