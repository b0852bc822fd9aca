"""Looking after outboxes: listing them and their messages, and what may be done about these.

Owns the words. They change how outboxes stand, at once, which a transaction of a function never does: they are used in
actions and by programs. A relay that knows an outbox as it was before writes nothing about it any more.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.api.outbox.overview import look_at, messages_of, outbox_of
from penstock.api.outbox.rebuilding import rebuild, reset_of
from penstock.api.outbox.resending import chosen_rows, resend
from penstock.api.outbox.views import MessageState, OutboxPage, OutboxStatus
from penstock.calls.enqueue.jobs import JobCalls, calls_of
from penstock.calls.run.attempts import Attempts
from penstock.changes.position import BEGINNING, Position
from penstock.errors import DataError, ValueInvalid
from penstock.observe.logs import event as log_event
from penstock.reactive.tracing import RowFilter
from penstock.store.contract.outboxes import KEPT

if TYPE_CHECKING:
    from penstock.api.callers import AsyncWaiter, SyncWaiter

T = TypeVar("T")

STATES: tuple[MessageState, ...] = ("failing", "halted", "parked", "waiting")
_MOST_LISTED = 10_000
_LONGEST_REASON = 1000
_NUMBERS = range(-(2**63), 2**63)


class OutboxCare:
    """What may be done about the outboxes that a database knows."""

    def find(self, name: str) -> DeclaredOutbox | None:
        """One that this program declares."""
        raise NotImplementedError

    def declares(self, name: str) -> bool:
        """Whether this program declares one."""
        return self.find(name) is not None

    @overload
    def list(self, ctx: AsyncWaiter) -> Coroutine[Any, Any, builtins.list[OutboxStatus]]: ...
    @overload
    def list(self, ctx: SyncWaiter) -> builtins.list[OutboxStatus]: ...
    def list(self, ctx: Any) -> Any:
        """All outboxes that the database knows, by name, and how they stand.

        Args:
            ctx: The ctx of an action, or the backend of a program.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
        """
        calls = _calls(ctx)
        return calls.answer(self._list(calls))

    @overload
    def messages(
        self,
        ctx: AsyncWaiter,
        name: str,
        *,
        states: Sequence[MessageState] = ...,
        limit: int = ...,
        after: int | None = ...,
    ) -> Coroutine[Any, Any, OutboxPage]: ...
    @overload
    def messages(
        self,
        ctx: SyncWaiter,
        name: str,
        *,
        states: Sequence[MessageState] = ...,
        limit: int = ...,
        after: int | None = ...,
    ) -> OutboxPage: ...
    def messages(
        self,
        ctx: Any,
        name: str,
        *,
        states: Sequence[MessageState] = STATES,
        limit: int = 50,
        after: int | None = None,
    ) -> Any:
        """Messages of an outbox that have failed, or wait for one that has; some at a time, in their order.

        The next message, if it has failed, comes first. Those behind it, which nobody has looked at yet, are left out.

        Args:
            ctx: As for `list`.
            name: The outbox, with or without its module.
            states: Only those that stand so.
            limit: How many at once; fewer come where they are large.
            after: `next` of the page before.

        Raises:
            OutboxNotFound: The database knows no outbox of this name.
            ValueInvalid: There is no such state, or `limit` is none.
        """
        if type(limit) is not int or not 1 <= limit <= _MOST_LISTED:
            raise ValueInvalid(f"limit is an integer from 1 to {_MOST_LISTED}, not {limit!r}.")
        _numbers(() if after is None else (after,))
        wanted = _states(states)
        calls = _calls(ctx)
        return calls.answer(self._messages(calls, name, wanted, limit, after))

    @overload
    def retry(self, ctx: AsyncWaiter, name: str, numbers: Sequence[int] | None = ...) -> Coroutine[Any, Any, int]: ...
    @overload
    def retry(self, ctx: SyncWaiter, name: str, numbers: Sequence[int] | None = ...) -> int: ...
    def retry(self, ctx: Any, name: str, numbers: Sequence[int] | None = None) -> Any:
        """Have messages that have failed tried again now, with their attempts counted anew; how many.

        Those parked come next, in their order: behind rows that were there before the outbox, and before what is still
        to be read. While the next message waits for its own attempt they wait with it. An outbox that is halted for
        lack of its reader goes on from where it is now.

        Args:
            ctx: As for `list`.
            name: The outbox.
            numbers: Which; by default all that have failed.

        Raises:
            OutboxNotFound: The database knows no outbox of this name.
            ValueInvalid: There is no such number.
        """
        wanted = None if numbers is None else _numbers(numbers)
        calls = _calls(ctx)
        return calls.answer(self._retry(calls, name, wanted))

    @overload
    def skip(self, ctx: AsyncWaiter, name: str, number: int, reason: str) -> Coroutine[Any, Any, None]: ...
    @overload
    def skip(self, ctx: SyncWaiter, name: str, number: int, reason: str) -> None: ...
    def skip(self, ctx: Any, name: str, number: int, reason: str) -> Any:
        """Pass a message by that has failed: its handler never gets it, and those behind it flow.

        Args:
            ctx: As for `list`.
            name: The outbox.
            number: Which message.
            reason: Why; the log event ``outbox.skipped`` tells it.

        Raises:
            OutboxNotFound: The database knows no outbox of this name.
            DataError: It has no such message that has failed.
            ValueInvalid: There is no reason.
        """
        _numbers((number,))
        why = _reason(reason)
        calls = _calls(ctx)
        return calls.answer(self._skip(calls, name, number, why))

    @overload
    def pause(self, ctx: AsyncWaiter, name: str) -> Coroutine[Any, Any, None]: ...
    @overload
    def pause(self, ctx: SyncWaiter, name: str) -> None: ...
    def pause(self, ctx: Any, name: str) -> Any:
        """Hand over nothing of an outbox any more, on all machines and over restarts, until `resume`.

        What is written meanwhile is kept. What a mutation was handling is undone, and an action that is under way is
        handed its message again afterwards.

        Raises:
            OutboxNotFound: The database knows no outbox of this name.
        """
        calls = _calls(ctx)
        return calls.answer(self._pause(calls, name, paused=True))

    @overload
    def resume(self, ctx: AsyncWaiter, name: str) -> Coroutine[Any, Any, None]: ...
    @overload
    def resume(self, ctx: SyncWaiter, name: str) -> None: ...
    def resume(self, ctx: Any, name: str) -> Any:
        """Hand over messages of an outbox again.

        Raises:
            OutboxNotFound: The database knows no outbox of this name.
        """
        calls = _calls(ctx)
        return calls.answer(self._pause(calls, name, paused=False))

    @overload
    def move(self, ctx: AsyncWaiter, name: str, to: str | datetime) -> Coroutine[Any, Any, OutboxStatus]: ...
    @overload
    def move(self, ctx: SyncWaiter, name: str, to: str | datetime) -> OutboxStatus: ...
    def move(self, ctx: Any, name: str, to: str | datetime) -> Any:
        """Have an outbox go on from elsewhere; how it stands then.

        What comes after that place is handed over, for the second time if need be, with the same `Message.id`: moved
        back, an outbox sends again what is kept of its messages. What is passed by is not handed over. Messages that
        are put aside stay so unless they are read again.

        Args:
            ctx: As for `list`.
            name: The outbox.
            to: ``"beginning"``, that of what is kept; ``"end"``, behind all there is, messages that wait or are halted
                and older rows included; a time: before all that was written then or later; or the `position` of a
                status.

        Raises:
            OutboxNotFound: The database knows no outbox of this name.
            ValueInvalid: It is a time without a time zone, or neither a text nor a time.
            CursorInvalid: It is no position in the change feed of this database.
        """
        place = _place(to)
        calls = _calls(ctx)
        return calls.answer(self._move(calls, name, place))

    @overload
    def rebuild(self, ctx: AsyncWaiter, name: str) -> Coroutine[Any, Any, None]: ...
    @overload
    def rebuild(self, ctx: SyncWaiter, name: str) -> None: ...
    def rebuild(self, ctx: Any, name: str) -> Any:
        """Make what a mutation handler has written anew from the rows that there are.

        Its `reset` runs, and the outbox begins with all rows again, in one transaction. All that it had put aside is
        forgotten. If that is interrupted, nothing has happened.

        Raises:
            OutboxNotFound: The database knows no outbox of this name.
            ContextError: This program does not declare it, or it has no `reset`.
        """
        calls = _calls(ctx)
        return calls.answer(self._rebuild(calls, name))

    @overload
    def resend(self, ctx: AsyncWaiter, name: str, where: str | RowFilter[Any]) -> Coroutine[Any, Any, int]: ...
    @overload
    def resend(self, ctx: SyncWaiter, name: str, where: str | RowFilter[Any]) -> int: ...
    def resend(self, ctx: Any, name: str, where: str | RowFilter[Any]) -> Any:
        """Send rows of its table again, as they are now; how many.

        Each comes as an insert with `Message.resent` and a new id, behind what is still to be handed over.

        Args:
            ctx: As for `list`.
            name: The outbox.
            where: Which rows: a function of a row, as the outbox's filter, or the same as text.

        Raises:
            OutboxNotFound: The database knows no outbox of this name.
            ContextError: This program does not declare it, or it does not send rows that are inserted.
            DeclarationError: `where` cannot be translated; if it is a text, `ValueInvalid`.
        """
        calls = _calls(ctx)
        return calls.answer(self._resend(calls, name, where))

    @overload
    def drop(self, ctx: AsyncWaiter, name: str) -> Coroutine[Any, Any, None]: ...
    @overload
    def drop(self, ctx: SyncWaiter, name: str) -> None: ...
    def drop(self, ctx: Any, name: str) -> Any:
        """Forget an outbox: its place, what it has put aside, and what is captured for it.

        A program that still declares it makes it anew at its next start.

        Raises:
            OutboxNotFound: The database knows no outbox of this name.
            DatabaseBusy: Others hold locks on its table; nothing has happened.
        """
        calls = _calls(ctx)
        return calls.answer(self._drop(calls, name))

    # ----- steps

    async def _list(self, calls: JobCalls) -> builtins.list[OutboxStatus]:
        rows = await calls.store.outboxes.list()
        return await look_at(calls.store, rows, calls.now(), self.declares)

    async def _messages(
        self, calls: JobCalls, name: str, states: Sequence[MessageState], limit: int, after: int | None
    ) -> OutboxPage:
        return await messages_of(calls.store, await outbox_of(calls.store, name), states, limit, after)

    async def _retry(self, calls: JobCalls, name: str, numbers: Sequence[int] | None) -> int:
        found = (await outbox_of(calls.store, name)).plan.name
        count = await _again(calls, lambda: calls.store.outboxes.retry(found, calls.now(), numbers))
        calls.store.signals.notify()
        log_event("outbox.retried", outbox=found, messages=count)
        return count

    async def _skip(self, calls: JobCalls, name: str, number: int, reason: str) -> None:
        found = (await outbox_of(calls.store, name)).plan.name
        if not await _again(calls, lambda: calls.store.outboxes.skip(found, number)):
            raise DataError(
                f"Outbox {found} has no message {number!r} that has failed.",
                fix="List them with app.outboxes.messages, or penstock outbox messages.",
            )
        calls.store.signals.notify()
        log_event("outbox.skipped", logging.WARNING, outbox=found, message=number, reason=reason)

    async def _pause(self, calls: JobCalls, name: str, *, paused: bool) -> None:
        found = (await outbox_of(calls.store, name)).plan.name
        await _again(calls, lambda: calls.store.outboxes.pause(found, paused=paused))
        calls.store.signals.notify()
        if paused:
            log_event("outbox.paused", outbox=found)
        else:
            log_event("outbox.resumed", outbox=found)

    async def _move(self, calls: JobCalls, name: str, to: str | datetime) -> OutboxStatus:
        store = calls.store
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

    async def _rebuild(self, calls: JobCalls, name: str) -> None:
        found = (await outbox_of(calls.store, name)).plan.name
        await rebuild(calls.engine, found, reset_of(self.find(found), found))

    async def _resend(self, calls: JobCalls, name: str, where: str | RowFilter[Any]) -> int:
        row = await outbox_of(calls.store, name)
        return await resend(calls.engine, row, chosen_rows(self.find(row.plan.name), row.plan.name, where))

    async def _drop(self, calls: JobCalls, name: str) -> None:
        store = calls.store
        row = await outbox_of(store, name)
        # Before the outbox, so that what is interrupted here is still listed, and can be dropped again.
        await store.interests.drop([number for number in row.interests if number > 0])
        await _again(calls, lambda: store.outboxes.forget(row.plan.name))
        store.signals.notify()
        log_event("outbox.dropped", logging.WARNING, outbox=row.plan.name, delivered=row.delivered)


async def _again(calls: JobCalls, write: Callable[[], Awaitable[T]]) -> T:
    """Write something; again, if a relay was in the way."""
    return await Attempts(calls.engine).run(write, "Looking after outboxes")


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
        raise ValueInvalid("A message is skipped for a reason, which is a text.", fix="Say why; the log tells it.")
    return " ".join(given.split())[:_LONGEST_REASON]


def _place(given: Any) -> str | datetime:
    if isinstance(given, datetime):
        return _utc(given)
    if not isinstance(given, str):
        raise ValueInvalid(
            f"move takes 'beginning', 'end', a time or a position, not {given!r}.", fix="A time is a datetime."
        )
    return given


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueInvalid(f"move takes an aware datetime, not {moment!r}.", fix="Attach a time zone.")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueInvalid(f"{moment} is no time in UTC.") from None


def _calls(ctx: Any) -> JobCalls:
    calls = calls_of(ctx)
    calls.check_outside("Outboxes are looked after")
    return calls
