"""Looking after outboxes: list them and their messages, and retry, skip, pause, move, rebuild or drop.

These methods change rows at rest, which a transaction of a function never does. Actions and programs call them, and
they take effect at once. A relay that still holds the former state of an outbox writes nothing about it any more.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from penstock.api.callers import for_programs
from penstock.api.outbox.declared import DeclaredOutbox
from penstock.api.outbox.rebuilding import chosen_rows, rebuild, resend, reset_of
from penstock.api.outbox.views import MessageState, OutboxPage, OutboxStatus, look_at, messages_of, outbox_of
from penstock.calls.enqueue.jobs import JobCalls
from penstock.changes.position import BEGINNING, Position
from penstock.errors import DataError, ValueInvalid
from penstock.observe.logs import event as log_event
from penstock.reactive.tracing import RowFilter
from penstock.store.contract.outboxes import KEPT

T = TypeVar("T")

STATES: tuple[MessageState, ...] = ("failing", "halted", "parked", "waiting")
_MOST_LISTED = 10_000
_LONGEST_REASON = 1000
_NUMBERS = range(-(2**63), 2**63)
_ADMIN = "Outboxes are looked after"


class OutboxAdmin:
    """Lists and changes the outboxes that a database knows, and their messages.

    The ctx is one of an action, or the backend of a program. With that of a mutation or a query each method raises
    `ContextError`. An outbox is named with or without its module; each method raises `OutboxNotFound` if the database
    knows none of this name.
    """

    def find(self, name: str) -> DeclaredOutbox | None:
        """One that this program declares; None if it declares none of this name."""
        raise NotImplementedError

    def declares(self, name: str) -> bool:
        """Whether this program declares one."""
        return self.find(name) is not None

    @for_programs(_ADMIN)
    async def list(self, calls: JobCalls) -> builtins.list[OutboxStatus]:
        """How all outboxes stand that the database knows, by name."""
        rows = await calls.store.outboxes.list()
        return await look_at(calls.store, rows, calls.now(), self.declares)

    @for_programs(_ADMIN)
    async def messages(
        self,
        calls: JobCalls,
        name: str,
        *,
        states: Sequence[MessageState] = STATES,
        limit: int = 50,
        after: int | None = None,
    ) -> OutboxPage:
        """Messages of an outbox that have failed, or wait for one that has; a page of them, in their order.

        The next message, if it has failed, comes first. Messages behind it that the relay has not read are left out.

        Args:
            name: The outbox.
            states: Only messages in these states.
            limit: How many at once; fewer if they are large.
            after: `next` of the page before.

        Raises:
            ValueInvalid: There is no such state, or `limit` is none.
        """
        if type(limit) is not int or not 1 <= limit <= _MOST_LISTED:
            raise ValueInvalid(f"limit is an integer from 1 to {_MOST_LISTED}, not {limit!r}.")
        _numbers(() if after is None else (after,))
        wanted = _states(states)
        return await messages_of(calls.store, await outbox_of(calls.store, name), wanted, limit, after)

    @for_programs(_ADMIN)
    async def retry(self, calls: JobCalls, name: str, numbers: Sequence[int] | None = None) -> int:
        """Try messages again now that have failed, with their attempts counted anew; how many.

        Parked messages come next, in their order: behind older rows, and before unread messages. While the next message
        waits for its own attempt, they wait with it. An outbox that was halted because its reader was lost goes on
        from where it is now.

        Args:
            name: The outbox.
            numbers: Which messages; by default all that have failed.

        Raises:
            ValueInvalid: There is no such number.
        """
        wanted = None if numbers is None else _numbers(numbers)
        found = (await outbox_of(calls.store, name)).plan.name
        count = await _again(calls, lambda: calls.store.outboxes.retry(found, calls.now(), wanted))
        calls.store.signals.notify()
        log_event("outbox.retried", outbox=found, messages=count)
        return count

    @for_programs(_ADMIN)
    async def skip(self, calls: JobCalls, name: str, number: int, reason: str) -> None:
        """Skip a message that has failed: its handler never gets it, and the messages behind it flow.

        Args:
            name: The outbox.
            number: The message.
            reason: Why; the log event ``outbox.skipped`` tells it.

        Raises:
            DataError: It has no such message that has failed.
            ValueInvalid: There is no reason.
        """
        _numbers((number,))
        why = _reason(reason)
        found = (await outbox_of(calls.store, name)).plan.name
        if not await _again(calls, lambda: calls.store.outboxes.skip(found, number)):
            raise DataError(
                f"Outbox {found} has no message {number!r} that has failed.",
                fix="List them with app.outboxes.messages, or penstock outbox messages.",
            )
        calls.store.signals.notify()
        log_event("outbox.skipped", logging.WARNING, outbox=found, message=number, reason=why)

    @for_programs(_ADMIN)
    async def pause(self, calls: JobCalls, name: str) -> None:
        """Deliver nothing of an outbox any more, on all machines and over restarts, until `resume`.

        New messages are kept. A mutation in progress is rolled back. An action in progress goes on, and gets its
        message again afterwards.
        """
        log_event("outbox.paused", outbox=await self._pause(calls, name, paused=True))

    @for_programs(_ADMIN)
    async def resume(self, calls: JobCalls, name: str) -> None:
        """Deliver messages of an outbox again."""
        log_event("outbox.resumed", outbox=await self._pause(calls, name, paused=False))

    @for_programs(_ADMIN)
    async def move(self, calls: JobCalls, name: str, to: str | datetime) -> OutboxStatus:
        """Move the cursor of an outbox; how it stands then.

        Messages behind the new place are delivered, again if need be, with the same `Message.id`; messages before it
        are not. Messages that were set aside stay so unless they are read again.

        Args:
            name: The outbox.
            to: ``"beginning"``, the oldest message kept; ``"end"``, behind all messages and older rows, failed ones
                included; a time, before all that was written then or later; or the `position` of a status.

        Raises:
            ValueInvalid: It is a time without a time zone, or neither a text nor a time.
            CursorInvalid: It is no position in the change feed of this database.
        """
        to, store = _place(to), calls.store
        row = await outbox_of(store, name)
        at: Position | None = BEGINNING
        if isinstance(to, datetime):
            at = await store.changes.before(to)
        elif to == "end":
            at = None
        elif to != "beginning":
            at = Position.parse(to)
        ends = at is None
        place = partial(store.outboxes.place, row.plan.name, at, None if ends else KEPT, calls.now())
        await _again(calls, lambda: place(forgets="pending" if ends else "again"))
        store.signals.notify()
        row = await outbox_of(store, row.plan.name)
        (status,) = await look_at(store, [row], calls.now(), self.declares)
        log_event("outbox.moved", logging.WARNING, outbox=row.plan.name, to=str(to), messages=status.messages)
        return status

    @for_programs(_ADMIN)
    async def rebuild(self, calls: JobCalls, name: str) -> None:
        """Clear what a mutation handler has written, and write it anew from the rows that there are.

        Its `reset` runs, and the outbox begins with all rows again, in one transaction. Messages that were set aside
        are deleted. If this is interrupted, nothing has happened.

        Raises:
            ContextError: This program does not declare it, or it has no `reset`.
        """
        found = (await outbox_of(calls.store, name)).plan.name
        await rebuild(calls.engine, found, reset_of(self.find(found), found))

    @for_programs(_ADMIN)
    async def resend(self, calls: JobCalls, name: str, where: str | RowFilter[Any]) -> int:
        """Send rows of its table again, as they are now; how many.

        Each comes as an insert with `Message.resent` and a new id, behind the messages that are still to be delivered.

        Args:
            name: The outbox.
            where: Which rows: a function of a row, as the outbox's filter, or the same as text.

        Raises:
            ContextError: This program does not declare it, or it does not send rows that are inserted.
            DeclarationError: `where` cannot be translated; if it is a text, `ValueInvalid`.
        """
        row = await outbox_of(calls.store, name)
        return await resend(calls.runner, row, chosen_rows(self.find(row.plan.name), row.plan.name, where))

    @for_programs(_ADMIN)
    async def drop(self, calls: JobCalls, name: str) -> None:
        """Delete an outbox: its cursor, the messages it has set aside, and its capture.

        A program that still declares it makes it anew at its next start.

        Raises:
            DatabaseBusy: Others hold locks on its table; nothing has happened.
        """
        store = calls.store
        row = await outbox_of(store, name)
        # Before the outbox, so that an interrupted drop can be seen and repeated.
        await store.interests.drop([number for number in row.interests if number > 0])
        await _again(calls, lambda: store.outboxes.forget(row.plan.name))
        store.signals.notify()
        log_event("outbox.dropped", logging.WARNING, outbox=row.plan.name, delivered=row.delivered)

    async def _pause(self, calls: JobCalls, name: str, *, paused: bool) -> str:
        found = (await outbox_of(calls.store, name)).plan.name
        await _again(calls, lambda: calls.store.outboxes.pause(found, paused=paused))
        calls.store.signals.notify()
        return found


async def _again(calls: JobCalls, write: Callable[[], Awaitable[T]]) -> T:
    """Write something; again, if a relay was in the way."""
    return await calls.runner.attempt(write, "Looking after outboxes")


def _numbers(given: Any) -> builtins.list[int]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueInvalid(f"numbers takes a list of them, not {given!r}.", fix=f"Write [{given}].")
    found = builtins.list(given)
    for one in found:
        if type(one) is not int or one not in _NUMBERS:
            raise ValueInvalid(f"A message has a number of at most 64 bits, not {str(one)[:100]}.")
    return found


def _states(given: Any) -> builtins.list[MessageState]:
    found = None if isinstance(given, str) or not isinstance(given, Iterable) else builtins.list(given)
    if found is None or not all(state in STATES for state in found):
        raise ValueInvalid(f"states takes some of {', '.join(STATES)}, not {given!r}.")
    return found


def _reason(given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueInvalid("Skipping a message needs a reason, which is text.", fix="Pass a reason for the log.")
    return " ".join(given.split())[:_LONGEST_REASON]


def _place(given: Any) -> str | datetime:
    if isinstance(given, str):
        return given
    if not isinstance(given, datetime):
        raise ValueInvalid(
            f"move takes 'beginning', 'end', a time or a position, not {given!r}.", fix="A time is a datetime."
        )
    if given.tzinfo is None:
        raise ValueInvalid(f"move takes an aware datetime, not {given!r}.", fix="Attach a time zone.")
    try:
        return given.astimezone(UTC)
    except OverflowError:
        raise ValueInvalid(f"{given} is no time in UTC.") from None
