"""Outboxes of an app: declare them, list them and their messages, and retry, skip, pause, move, rebuild or drop.

`declaring` makes an outbox known to the database, and `services/relay` delivers its messages. The methods that look
after outboxes change rows at rest, which a transaction of a function never does. Actions and programs call them, and
they take effect at once. A relay that still holds the former state of an outbox writes nothing about it any more.
"""

from __future__ import annotations

import builtins
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, TypedDict, TypeVar, Unpack

from penstock.api.callers import for_programs, for_writers
from penstock.api.declaring import KINDS, check_options, ctx_word
from penstock.api.guests import Guests
from penstock.api.outbox.declared import DeclaredOutbox
from penstock.api.outbox.rebuilding import rebuild, resend, reset_of, rows_to_send
from penstock.api.outbox.views import MessageState, OutboxPage, OutboxStatus, look_at, messages_of, outbox_of
from penstock.api.use import Use
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.messages import send_message
from penstock.calls.handlers.deliveries import payload_of, run_of
from penstock.calls.run.ctxkinds import label, refuse_bare
from penstock.changes.position import BEGINNING, Position
from penstock.errors import DataError, DeclarationError, ValueInvalid
from penstock.functions.function import AnyFunction, MutationFunction, name_of
from penstock.functions.signature import Signature
from penstock.jobs.filter import check_limit
from penstock.jobs.retry import Retry
from penstock.observe.logs import event as log_event
from penstock.outbox.message import is_topic
from penstock.outbox.outbox import Event, OnFailure, Outbox, Start
from penstock.reactive.tracing import RowFilter, trace_filter
from penstock.schema.table import Table, definition_of
from penstock.store.nouns.outboxes import KEPT

T = TypeVar("T", bound=Table)
H = TypeVar("H", bound=Callable[..., Any])

STATES: tuple[MessageState, ...] = ("failing", "halted", "parked", "waiting")
_LONGEST_REASON = 1000
_NUMBERS = range(-(2**63), 2**63)
_ADMIN, _WHAT = "Outboxes are looked after", "Looking after outboxes"
_OF_TABLES = frozenset({"on", "fields", "partition_by", "order_by"})


class OutboxOptions(TypedDict, total=False):
    """The options of an outbox; see `Outboxes.outbox`."""

    name: str | None
    fields: Sequence[str] | None
    on: Sequence[Event]
    partition_by: str | None
    order_by: str | Sequence[str] | None
    start: Start
    on_failure: OnFailure
    retry: Retry
    batch: int | None
    linger: timedelta
    parallelism: int
    timeout: timedelta | None
    keep_for: timedelta
    reset: Callable[..., Any] | None
    version: int


class Outboxes:
    """Declares the outboxes of an app; lists and changes the outboxes of a database, and their messages.

    Methods that look after outboxes take the ctx of an action, or the backend of a program. With that of a mutation or
    a query each of them raises `ContextError`. An outbox is named with or without its module; each of them raises
    `OutboxNotFound` if the database knows none of this name.
    """

    def __init__(self, guests: Guests, topics: dict[str, builtins.list[Callable[[], Signature]]]) -> None:
        self._guests, self._topics = guests, topics
        self._declared: dict[str, DeclaredOutbox] = {}

    def __iter__(self) -> Any:
        return iter(self._declared.values())

    def __len__(self) -> int:
        return len(self._declared)

    def tables(self) -> Sequence[type[Table]]:
        """The tables that they send."""
        return [one.outbox.definition.table for one in self._declared.values() if one.outbox.definition is not None]

    def functions(self) -> builtins.list[AnyFunction]:
        """The functions that run their handlers."""
        return [one.function for one in self._declared.values()]

    def find(self, name: str) -> DeclaredOutbox | None:
        """One of them; None if the app declares no such outbox."""
        return self._declared.get(name)

    def outbox(
        self,
        source: type[T] | str,
        /,
        *,
        filter: RowFilter[T] | None = None,  # noqa: A002 - the word of the field
        **options: Unpack[OutboxOptions],
    ) -> Callable[[H], H]:
        """Declare the handler below as an outbox: it gets each row of a table, or each message of a topic, in order.

        Messages are delivered in commit order. Those of one transaction come in the order of its statements, those of
        one row in the order of its locks. One process at a time delivers. If it dies, another goes on where it stopped.
        A handler that takes a `MutationCtx` handles each message exactly once: its writes and the outbox's cursor
        commit together. A handler that takes an `ActionCtx` gets each at least once, with the same `Message.id` each
        time.

        The handler takes a ctx and the row, such as ``(ctx: ActionCtx, booking: Booking)``; or a `Message`, such as
        ``Message[Booking]``, which tells more; or, of a topic, the payload, which is checked as its annotation says.
        With ``batch=`` it takes a list of these.

        Args:
            source: The table, or the name of a topic, to which `ctx.outbox.send` and others send.
            filter: Its rows: a function of a row that compares and computes with its fields, as for a reactive task;
                all by default. A row that begins to match is inserted, as far as the outbox is concerned, and one that
                matches no more is deleted.
            **options: Any of these.
                ``name``: by which it is kept; the name of its function by default. Another name is another outbox.
                ``fields``: which columns its rows have; all by default. Other updates are no messages.
                ``on``: which of ``"insert"``, ``"update"``, ``"delete"``, ``"truncate"`` are messages; ``("insert",)``
                by default.
                ``partition_by``: a column: rows with the same value in it are in order, and each that has None is for
                itself. The key of each row by default.
                ``start``: the start of a new outbox: ``"beginning"``, the rows that there are, in the order of
                their keys, or the messages that are kept; or ``"end"``, messages from now on.
                ``order_by``: a column, or several, in whose order those rows come instead, and then of their keys.
                ``on_failure``: the policy for a message that fails: ``"halt"``, the outbox waits for it;
                ``"halt_key"``, those of its key do; ``"park"``, it is put aside once its attempts are used up.
                ``retry``: when it is tried again, and after how many attempts it counts as failed; ten by default.
                ``batch``: how many messages one call takes at most.
                ``linger``: how long a batch waits until it is full; not at all by default.
                ``parallelism``: how many messages of different keys an action has under way at once; one by default.
                ``timeout``: how long a call may take.
                ``keep_for``: how long messages are kept at least, so that they can be sent again.
                ``reset``: a mutation without arguments that clears the writes of the handler, a mutation too:
                `rebuild` runs it, and hands over all rows of the table again.
                ``version``: of the declaration; what an older program says does not change it.

        Raises:
            DeclarationError: At import: the filter or an option is invalid, the name is taken, or the handler's ctx is
                neither an action's nor a mutation's.
        """
        refuse_bare("outbox", source, "Booking")

        def decorate(handler: H) -> H:
            given: Any = options.get("name")
            name = name_of(handler) if given is None else given
            kind = _kind_of(handler, name)
            check_options("@app.outbox", options, OutboxOptions)
            outbox = _outbox(source, name, filter, options)
            if name in self._declared:
                raise DeclarationError(f"There are two outboxes called {name!r}.", fix="Rename one of them.")
            if kind is MutationFunction and outbox.parallelism > 1:
                raise DeclarationError(
                    f"Outbox {name!r}: parallelism is for actions.", fix="Mutations share transactions by themselves."
                )
            function = kind(run_of(handler), public=False, name=name_of(handler))
            reset = _reset(name, outbox, kind, options.get("reset"))
            self._add(DeclaredOutbox(outbox, function, handler, reset))
            return handler

        return decorate

    def adopt(self, outboxes: Outboxes, use: Use) -> None:
        """Declare the outboxes of a component."""
        for one in outboxes:
            outbox, reset = one.outbox, one.reset
            own = replace(
                outbox,
                name=use.name("outbox", outbox.name, self._declared),
                topic=None if outbox.topic is None else use.own.prefix(outbox.topic),
                definition=None if outbox.definition is None else use.definition(outbox.definition),
            )
            function, cleared = use.copy(one.function), None if reset is None else use.copy(reset)
            self._add(DeclaredOutbox(own, function, one.handler, cleared))

    def _add(self, declared: DeclaredOutbox) -> None:
        outbox = declared.outbox
        self._declared[outbox.name] = declared
        if outbox.topic is not None:
            self._topics.setdefault(outbox.topic, []).append(cache(lambda: payload_of(declared.handler, outbox)))

    @for_writers
    async def send(self, calls: JobCalls, topic: str, payload: Any, *, key: str | None = None) -> None:
        """Send a message to a topic; see `Sender.send`, which ``ctx.outbox`` is, for what else it may raise.

        The ctx is one of a mutation or an action, or the backend of a program. It may be a connection of psycopg,
        psycopg2, asyncpg, SQLAlchemy, Django, sqlite3 or aiosqlite. With a connection the message is part of your own
        transaction. On a sync connection there is nothing to await.

        Args:
            topic: A topic for which an outbox is declared.
            payload: An object of the type that its handler takes.
            key: The ordering key: messages with the same key are delivered in order.

        Raises:
            ContextError: The connection is closed, its transaction has failed, or it leads to another kind of database
                than the app's; or the ctx is one of a query.
            ConfigError: The database of the connection has no tables of penstock.
        """
        await send_message(calls, topic, payload, key)

    # ----- look after

    @for_programs(_ADMIN)
    async def list(self, calls: JobCalls) -> builtins.list[OutboxStatus]:
        """The status of every outbox that the database knows, by name."""
        rows = await calls.store.outboxes.list()
        return await look_at(calls.store, rows, calls.now(), self.find)

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
        check_limit(limit)
        _numbers(() if after is None else (after,))
        wanted = _states(states)
        row = await outbox_of(calls.store, name)
        return await messages_of(calls.store, row, wanted, limit, after, self.find(row.plan.name))

    @for_programs(_ADMIN)
    async def retry(self, calls: JobCalls, name: str, numbers: Sequence[int] | None = None) -> int:
        """Try failed messages again now, with their attempts counted from zero; the number of messages.

        Parked messages come next, in their order: behind older rows, and before unread messages. While the next message
        waits for its own attempt, they wait with it. An outbox that was halted because its reader was lost goes on
        from where it is now.

        Args:
            name: The outbox.
            numbers: The numbers of the messages; by default all that have failed.

        Raises:
            ValueInvalid: There is no such number.
        """
        wanted = None if numbers is None else _numbers(numbers)
        found = (await outbox_of(calls.store, name)).plan.name
        count = await calls.runner.attempt(lambda: calls.store.outboxes.retry(found, calls.now(), wanted), _WHAT)
        calls.store.signals.notify()
        log_event("outbox.retried", outbox=found, messages=count)
        return count

    @for_programs(_ADMIN)
    async def skip(self, calls: JobCalls, name: str, number: int, reason: str) -> None:
        """Skip a message that has failed: its handler never gets it, and the messages behind it flow.

        Args:
            name: The outbox.
            number: The message.
            reason: The reason; the log event ``outbox.skipped`` shows it.

        Raises:
            DataError: It has no such message that has failed.
            ValueInvalid: There is no reason.
        """
        _numbers((number,))
        why = _reason(reason)
        found = (await outbox_of(calls.store, name)).plan.name
        if not await calls.runner.attempt(lambda: calls.store.outboxes.skip(found, number), _WHAT):
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
        """Move the cursor of an outbox; its new status.

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
        await calls.runner.attempt(lambda: place(forgets="pending" if ends else "again"), _WHAT)
        store.signals.notify()
        row = await outbox_of(store, row.plan.name)
        (status,) = await look_at(store, [row], calls.now(), self.find)
        log_event("outbox.moved", logging.WARNING, outbox=row.plan.name, to=str(to), messages=status.messages)
        return status

    @for_programs(_ADMIN)
    async def rebuild(self, calls: JobCalls, name: str) -> None:
        """Rebuild the projection of a mutation handler: clear it, and write it again from the present rows.

        Its `reset` runs, and the outbox begins with all rows again, in one transaction. Messages that were set aside
        are deleted. If this is interrupted, nothing has happened.

        Raises:
            ContextError: This program does not declare it, or it has no `reset`.
        """
        found = (await outbox_of(calls.store, name)).plan.name
        await rebuild(calls.engine, found, reset_of(self.find(found), found))

    @for_programs(_ADMIN)
    async def resend(self, calls: JobCalls, name: str, where: str | RowFilter[Any]) -> int:
        """Send rows of its table again, as they are now; the number of rows.

        Each comes as an insert with `Message.resent` and a new id, behind the messages that are still to be delivered.

        Args:
            name: The outbox.
            where: A filter of rows: a function of a row, as the outbox's filter, or the same as text.

        Raises:
            ContextError: This program does not declare it, or it does not send rows that are inserted.
            DeclarationError: `where` cannot be translated; if it is a text, `ValueInvalid`.
        """
        row = await outbox_of(calls.store, name)
        return await resend(calls.runner, row, rows_to_send(self.find(row.plan.name), row.plan.name, where))

    @for_programs(_ADMIN)
    async def drop(self, calls: JobCalls, name: str) -> None:
        """Delete an outbox: its cursor, the messages it has set aside, and its capture.

        A program that still declares it creates it again at its next start.

        Raises:
            DatabaseBusy: Others hold locks on its table; nothing has happened.
        """
        store = calls.store
        row = await outbox_of(store, name)
        # Before the outbox, so that an interrupted drop can be seen and repeated.
        await store.interests.drop([number for number in row.interests if number > 0])
        await calls.runner.attempt(lambda: store.outboxes.forget(row.plan.name), _WHAT)
        store.signals.notify()
        log_event("outbox.dropped", logging.WARNING, outbox=row.plan.name, delivered=row.delivered)

    async def _pause(self, calls: JobCalls, name: str, *, paused: bool) -> str:
        found = (await outbox_of(calls.store, name)).plan.name
        await calls.runner.attempt(lambda: calls.store.outboxes.pause(found, paused=paused), _WHAT)
        calls.store.signals.notify()
        return found


# ----- declarations


def _outbox(source: Any, name: str, condition: Any, options: OutboxOptions) -> Outbox:
    left_out = {"name", "reset", *(word for word in _OF_TABLES - {"on"} if options.get(word) is None)}
    given: dict[str, Any] = {word: value for word, value in options.items() if word not in left_out}
    for word in given.keys() & {"on", "fields", "order_by"}:
        given[word] = _several(word, given[word])
    if isinstance(source, str):
        if condition is not None or given.keys() & _OF_TABLES:
            raise DeclarationError(
                f"Outbox {name!r}: filter, fields, on, partition_by and order_by are for tables.",
                fix="Send only what is to be handed over, with a key=.",
            )
        if not is_topic(source):
            raise DeclarationError(f"Outbox {name!r}: {source!r} cannot be a topic.")
        return Outbox(name=name, topic=source, **given)
    if not isinstance(source, type) or not issubclass(source, Table) or source is Table:
        raise DeclarationError(f"Outbox {name!r}: {source!r} is neither a table nor a topic.")
    definition = definition_of(source)
    if given.get("order_by") and given.get("start") == "end" and options.get("reset") is None:
        raise DeclarationError(
            f"Outbox {name!r}: order_by is of the rows that there are, and with start='end' it begins behind them.",
            fix="Leave one of them out.",
        )
    traced = None if condition is None else trace_filter(definition, condition, f"Outbox {name}: filter")
    return Outbox(name=name, definition=definition, condition=traced, **given)


def _several(word: str, given: Any) -> Any:
    """An option of several words as a tuple; `Outbox` refuses a wrong value."""
    if word == "order_by":
        given = (given,) if isinstance(given, str) else given
    elif isinstance(given, (set, frozenset)):
        given = sorted(given, key=str)  # the same in each process
    return tuple(given) if isinstance(given, list) else given


def _reset(name: str, outbox: Outbox, kind: type[AnyFunction], given: Any) -> AnyFunction | None:
    if given is None:
        return None
    if outbox.definition is None or kind is not MutationFunction:
        raise DeclarationError(
            f"Outbox {name!r}: reset= is for tables whose handler is a mutation.",
            fix="What has been sent cannot be taken back; move the outbox, and it sends again.",
        )
    written = given.declared if isinstance(given, MutationFunction) else given
    if ctx_word(written, takes=1) not in {"MutationCtx", "SyncMutationCtx"}:
        raise DeclarationError(
            f"Outbox {name!r}: reset= takes a mutation without arguments, not {given!r}.",
            fix="Write (ctx: MutationCtx).",
        )
    return given if isinstance(given, MutationFunction) else MutationFunction(given, public=False)


def _kind_of(handler: Any, name: str) -> type[AnyFunction]:
    word = ctx_word(handler, takes=2)
    if word not in KINDS:
        raise DeclarationError(
            f"Outbox {name!r}: {label(handler)} does not say what kind of function it is.",
            fix="Write (ctx: ActionCtx, row: Booking) if it calls the outside world, (ctx: MutationCtx, row: Booking) "
            "if it only writes this database.",
        )
    is_async = inspect.iscoroutinefunction(handler)
    if word.startswith("Sync") is is_async:
        raise DeclarationError(
            f"Outbox {name!r}: {label(handler)} takes a {word}.",
            fix="async def takes ActionCtx or MutationCtx of penstock, and def those of penstock.sync.",
        )
    return KINDS[word]


# ----- looking after


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
