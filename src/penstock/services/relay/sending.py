"""Makes one attempt to deliver messages: an action for one or a batch, or a mutation that moves the cursor with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeGuard

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.handlers.deliveries import Delivery, Seal, deliver
from penstock.calls.run.containment import refuse_cancel
from penstock.calls.run.runner import FunctionCalls
from penstock.changes.change import LOST
from penstock.errors import CallTimeout, LeaseLost, LockTaken, TryAgain, UsageError
from penstock.outbox.trouble import changes_lost
from penstock.services.relay.cursor import Cursor
from penstock.services.relay.items import Item
from penstock.services.relay.state import Failure
from penstock.store.session import Session

_PATIENCE = 5.0  # seconds for which messages wait for others to commit with them; then fewer are tried together


class Sending:
    """Delivers messages of one outbox to its handler."""

    def __init__(self, runner: FunctionCalls, declared: DeclaredOutbox, cursor: Cursor) -> None:
        self._runner = runner
        self._outbox = declared.outbox
        self._function = declared.function
        self._seconds = None if declared.outbox.timeout is None else declared.outbox.timeout.total_seconds()
        self._cursor = cursor

    async def attempt(self, items: Sequence[Item], is_cut: Callable[[], bool]) -> Failure | None:
        """Deliver messages; the failure, if any. A CancelledError is a failure, unless the relay `is_cut` off.

        Raises:
            TryAgain: The database was away or busy, and these messages are not the reason.
        """
        delivery = Delivery((), self._outbox.batch)
        try:
            delivery.given = [self._argument(item) for item in items]
            with self._runner.engine.journal.delivering(self._outbox, [item.change for item in items]):
                if self._cursor.in_transaction:
                    await self._mutate(delivery, items)
                else:
                    await self.run(delivery)
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            if is_cut():
                raise
            is_cancel = isinstance(error, asyncio.CancelledError)
            done = "cancelled the task that it runs in" if is_cancel else f"raised {type(error).__name__}"
            canceled = UsageError(
                f"{self._function.name} {done}.", fix="Raise an Exception to have a message tried again."
            )
            canceled.__cause__ = error
            return Failure(items, canceled, delivery.done)
        except Exception as error:
            if not self._cursor.in_transaction:
                return Failure(items, error, delivery.done)
            busy = _is_of_database(error) and not (len(items) == 1 and _is_its_own(error))
            if self._cursor.state.uncertain or (busy and len(items) == 1):
                raise
            return Failure(items, error, delivery.done, busy)
        return None

    async def run(self, delivery: Delivery, seal: Seal | None = None) -> None:
        seconds, calls = self._seconds, -(-len(delivery.given) // (self._outbox.batch or 1))
        if self._cursor.in_transaction and calls > 1:  # of several, none waits longer for the commit
            seconds = min(seconds or _PATIENCE, _PATIENCE)
        with refuse_cancel(self._function.name):  # an error from a thread, where nobody knew whether it was cancelled
            await deliver(self._runner, self._function, delivery, seconds, seal)

    async def _mutate(self, delivery: Delivery, items: Sequence[Item]) -> None:
        write = self._cursor.state.write(items, delivered=len(items), settled=items)
        written: bool | None = None

        async def seal(session: Session) -> bool:
            nonlocal written
            written = await self._cursor.write_within(session, write)
            return written

        try:
            await self.run(delivery, seal)
        except (Exception, asyncio.CancelledError) as error:
            if written is False and isinstance(error, LeaseLost):
                self._cursor.lose()
                return
            if written and isinstance(error, (CallTimeout, asyncio.CancelledError)):
                self._cursor.doubt()  # it may be committed all the same
            elif _is_of_database(error) and error.facts.get("uncertain"):
                self._cursor.doubt()
            raise
        self._cursor.apply(write)

    def _argument(self, item: Item) -> object:
        state, change = self._cursor.state, item.change
        known, row = state.trouble_of(item), state.row
        if change.kind == LOST:
            last_at = None if row is None else row.delivered_at
            noted = item.lost or (1, change.changed_at)
            raise changes_lost(self._outbox.name, self._outbox.source, change, noted, last_at)
        fence = 0 if row is None else row.fence
        return self._cursor.messages.argument_of(change, 1 if known is None else known.attempts + 1, fence)


def _is_of_database(error: BaseException) -> TypeGuard[TryAgain]:
    return isinstance(error, TryAgain) and not error.from_function


def _is_its_own(error: TryAgain) -> bool:
    """Whether the handler takes too long, and the database is neither away nor busy."""
    return isinstance(error, (CallTimeout, LockTaken)) or bool(error.facts.get("slow"))
