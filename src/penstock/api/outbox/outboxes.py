"""Outboxes as programs declare them: a table or a topic, and a handler that gets each message in order.

`declaring` makes an outbox known to the database, and `services/relay` delivers its messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, Unpack

from penstock.api.callers import for_writers
from penstock.api.declaring import KINDS
from penstock.api.guests import Guests
from penstock.api.outbox.admin import OutboxAdmin
from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.messages import send_message
from penstock.calls.handlers.deliveries import run_of
from penstock.calls.run.ctxkinds import annotation_of, named, refuse_bare, word_of
from penstock.errors import DeclarationError
from penstock.functions.function import AnyFunction, MutationFunction, name_of
from penstock.jobs.retry import Retry
from penstock.outbox.message import is_topic
from penstock.outbox.outbox import Event, OnFailure, Outbox, Start
from penstock.reactive.tracing import RowFilter, trace_filter
from penstock.schema.table import Table, definition_of

T = TypeVar("T", bound=Table)
H = TypeVar("H", bound=Callable[..., Any])

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


class Outboxes(OutboxAdmin):
    """The outboxes of an app."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._declared: dict[str, DeclaredOutbox] = {}

    def __iter__(self) -> Any:
        return iter(self._declared.values())

    def __len__(self) -> int:
        return len(self._declared)

    def tables(self) -> Sequence[type[Table]]:
        """The tables that they send."""
        return [one.outbox.definition.table for one in self._declared.values() if one.outbox.definition is not None]

    def functions(self) -> list[AnyFunction]:
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

        Messages are delivered in commit order: those of one transaction in the order of its statements, those of one
        row in the order of its locks. One process at a time delivers. If it dies, another goes on
        where it stopped. A handler that takes a `MutationCtx` handles each message exactly once: its writes and the
        outbox's cursor commit together. A handler that takes an `ActionCtx` gets each at least once, with the
        same `Message.id` each time.

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
                itself; the key of each row by default.
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
            DeclarationError: At import: the filter cannot be translated, an option cannot be, there is an outbox of
                this name, or the type of the handler's ctx does not say whether it is an action or a mutation.
        """
        refuse_bare("outbox", source, "Booking")

        def decorate(handler: H) -> H:
            given: Any = options.get("name")
            name = name_of(handler) if given is None else given
            kind = _kind_of(handler, name)
            if unknown := sorted(options.keys() - OutboxOptions.__annotations__.keys()):
                raise DeclarationError(
                    f"@app.outbox: there is no option {unknown[0]}.",
                    fix=f"Options are {', '.join(sorted(OutboxOptions.__annotations__))}.",
                )
            outbox = _outbox(source, name, filter, options)
            if name in self._declared:
                raise DeclarationError(f"There are two outboxes called {name!r}.", fix="Rename one of them.")
            if kind is MutationFunction and outbox.parallelism > 1:
                raise DeclarationError(
                    f"Outbox {name!r}: parallelism is for actions.", fix="Mutations share transactions by themselves."
                )
            function = kind(run_of(handler), public=False, name=name_of(handler))
            reset = _reset(name, outbox, kind, options.get("reset"))
            self._declared[name] = DeclaredOutbox(outbox, function, handler, reset)
            return handler

        return decorate

    @for_writers
    async def send(self, calls: JobCalls, topic: str, payload: Any, *, key: str | None = None) -> None:
        """Send a message to a topic; see `Sender.send`, which ``ctx.outbox`` is, for what else it may raise.

        The ctx is one of a mutation or an action, the backend of a program, or a connection of psycopg, psycopg2,
        asyncpg, SQLAlchemy, Django, sqlite3 or aiosqlite. With a connection the message is part of your own
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
    parameters = list(inspect.signature(written).parameters.values()) if callable(written) else []
    if len(parameters) != 1 or word_of(annotation_of(written, parameters[0])) not in {"MutationCtx", "SyncMutationCtx"}:
        raise DeclarationError(
            f"Outbox {name!r}: reset= takes a mutation without arguments, not {given!r}.",
            fix="Write (ctx: MutationCtx).",
        )
    if isinstance(given, MutationFunction):
        return given
    return MutationFunction(given, public=False)


def _kind_of(handler: Any, name: str) -> type[AnyFunction]:
    parameters = list(inspect.signature(handler).parameters.values())
    takes_two = len(parameters) == 2  # noqa: PLR2004 - a ctx and a message
    word = word_of(annotation_of(handler, parameters[0])) if takes_two else ""
    if word not in KINDS:
        raise DeclarationError(
            f"Outbox {name!r}: {named(handler)} does not say what kind of function it is.",
            fix="Write (ctx: ActionCtx, row: Booking) if it calls the outside world, (ctx: MutationCtx, row: Booking) "
            "if it only writes this database.",
        )
    is_async = inspect.iscoroutinefunction(handler)
    if word.startswith("Sync") is is_async:
        raise DeclarationError(
            f"Outbox {name!r}: {named(handler)} takes a {word}.",
            fix="async def takes ActionCtx or MutationCtx of penstock, and def those of penstock.sync.",
        )
    return KINDS[word]
