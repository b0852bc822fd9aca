"""Calls the handlers of outboxes: makes of captured changes what a handler takes, and runs it, once or for many.

Owns the form of a message, and the run. Leaves which messages come next, and what is written about them, to
`services/relay/delivery`.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.calls.jobs.job import time_limit
from penstock.calls.run.containment import containing
from penstock.calls.run.execution import Execution
from penstock.calls.run.runner import Runner
from penstock.changes.change import LOST, RESENT, CapturedChange, read_values
from penstock.errors import ArgumentsInvalid, DataError, DeclarationError, LeaseLost, RowInvalid
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.functions.signature import Signature
from penstock.outbox.criteria import MessageCriteria
from penstock.outbox.message import KIND_OF, TOPIC, Message, MessageKind, message_id
from penstock.outbox.outbox import Outbox
from penstock.reactive.evaluate import holds
from penstock.reactive.task import kinds_of
from penstock.schema.fields import aware
from penstock.schema.ids import Id
from penstock.schema.table import Table, TableDefinition, make_row
from penstock.store.contract.session import Session
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.values import captured_row, captured_value

Seal = Callable[[Session], Awaitable[bool]]


@dataclass(slots=True)
class Delivery:
    """Messages that one run of a handler is for.

    Attributes:
        given: What the handler takes of each.
        size: How many of them one call takes; None for one, by itself.
        done: How many it has been through, in this run.
    """

    given: Sequence[Any]
    size: int | None = None
    done: int = field(default=0)

    def calls(self) -> Iterator[Any]:
        """What each call takes; what it has been given then is done with."""
        self.done = 0
        if self.size is None:
            for given in self.given:
                yield given
                self.done += 1
            return
        for first in range(0, len(self.given), self.size):
            part = list(self.given[first : first + self.size])
            yield part
            self.done += len(part)


class Messages:
    """Makes messages of the changes of one outbox.

    Args:
        outbox: The outbox.
        dialect: How its store spells values.
        wanted: What its handler takes of each, by its annotation.
        meaning: What it means of what is captured.

    Attributes:
        meanings: The same of what is captured under some numbers, as it was declared then: as texts.
    """

    def __init__(self, outbox: Outbox, dialect: Dialect, wanted: Wanted, meaning: MessageCriteria) -> None:
        self._outbox = outbox
        self._dialect = dialect
        self._wanted = wanted
        self._now = Judged(dialect, meaning)
        self.meanings: Mapping[int, str] = {}
        self._judged: dict[str, Judged] = {}
        self._fields = None if outbox.definition is None else captured_row(dialect, outbox.definition)
        self._columns = frozenset(_columns(outbox))

    def kind(self, change: CapturedChange) -> str | None:
        """Which kind of change it is, where triggers tell of more than is meant; None if it is no message."""
        return self._of(change).kind(change)

    def meant(self, change: CapturedChange) -> str | None:
        """The same, also of a change that is no message."""
        return self._of(change).meant(change)

    def tells(self, kind: str) -> bool:
        """Whether changes of a kind are messages."""
        return kind in self._now.told

    def _of(self, change: CapturedChange) -> Judged:
        """How a change is judged: as was declared when it was captured."""
        text = self.meanings.get(change.interest)
        if text is None:
            return self._now
        found = self._judged.get(text)
        if found is None:
            found = self._judged[text] = Judged(self._dialect, MessageCriteria.parse(text))
        return found

    def key(self, change: CapturedChange) -> str | None:
        """The key by which a message is ordered; None of one that has none, as its partition is NULL."""
        column = self._outbox.partition_by
        if column is None or change.kind == TOPIC:
            return change.key
        left = change.after is None or (change.before is not None and self.meant(change) == "leave")
        text = change.before if left else change.after  # what has left comes behind what was told of it before
        value = None if text is None else read_values(text).get(column)
        return None if value is None else str(value)

    def given(self, change: CapturedChange, attempt: int, fence: int) -> Any:
        """What the handler takes.

        Args:
            change: The change.
            attempt: Which attempt this is.
            fence: The number of who hands it over.

        Raises:
            DataError: The change cannot be read as the declaration says.
        """
        if change.kind == TOPIC:
            payload = self._wanted.read(change.after)
            if not self._wanted.message:
                return payload
            said = {"payload": payload, "topic": self._outbox.topic}
            return self._message(change, attempt, fence, "message", change.key, **said)
        kind = KIND_OF[self.kind(change) or change.kind]
        row = None if kind == "delete" else self._row(change.after)  # one that has left is there still, but not here
        previous = None if kind == "insert" else self._row(change.before)
        if not self._wanted.message:
            return row if row is not None else previous
        key = self.key(change)
        plain = _plain(key) if self._outbox.partition_by is None else key
        return self._message(change, attempt, fence, kind, plain, row=row, previous=previous)

    def _message(
        self, change: CapturedChange, attempt: int, fence: int, kind: MessageKind, key: str | None, **said: Any
    ) -> Message[Any]:
        return Message(
            id=message_id(self._outbox.name, change),
            outbox=self._outbox.name,
            number=change.seq,
            kind=kind,
            key=key,
            written_at=change.changed_at,
            older=change.seq < 0,
            resent=change.kind == RESENT,
            attempt=attempt,
            fence=fence,
            **said,
        )

    def _row(self, text: str | None) -> Table | None:
        definition = self._outbox.definition
        if text is None or definition is None or self._fields is None:
            return None
        try:
            fields = self._fields(text)
            if definition.managed and "id" in fields:
                fields["id"] = Id(fields["id"])
            if not fields.keys() >= self._columns:
                fields |= self._not_captured(fields)
            return _part(definition, fields) if self._outbox.fields else definition.make_rows([fields])[0]
        except (ValueError, TypeError, ArithmeticError, DeclarationError) as error:
            raise RowInvalid(
                f"Outbox {self._outbox.name}: a row of {definition.name}, as captured, does not fit its "
                f"declaration: {error}",
                fix="Change the declaration, or skip the message.",
                table=definition.name,
            ) from error

    def _not_captured(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What stands for columns that a row has now and had not when it was captured: their defaults.

        Raises:
            ValueError: One has none.
        """
        assert self._outbox.definition is not None  # noqa: S101 - there is a row
        declared, found = self._outbox.definition.table.model_fields, dict[str, Any]()
        for name in sorted(self._columns - fields.keys()):
            if name not in declared or declared[name].is_required():
                raise ValueError(f"it has no {name}, which has no default either.")
            found[name] = declared[name].get_default(call_default_factory=True)
        return found


class Judged:
    """Changes as a declaration means them."""

    def __init__(self, dialect: Dialect, meaning: MessageCriteria) -> None:
        self._dialect = dialect
        self._condition = meaning.condition
        self._kinds = {} if meaning.condition is None else kinds_of((meaning.condition,))
        self._fields = meaning.fields
        self.told = {*meaning.kinds, TOPIC, LOST, RESENT}

    def kind(self, change: CapturedChange) -> str | None:
        """Which kind of change it is; None if it is no message."""
        kind = self.meant(change)
        if kind == "change" and kind in self.told and self._fields and not self._differs(change):
            return None
        return kind if kind in self.told else None

    def meant(self, change: CapturedChange) -> str | None:
        """The same, also of a change that is no message."""
        if self._condition is None or change.kind in {TOPIC, "truncate", LOST}:
            return change.kind
        if change.kind == RESENT:
            return RESENT if self._holds(change.after) else None
        was = change.kind != "enter" and self._holds(change.before)
        if self._holds(change.after):
            return "change" if was else "enter"
        return ("leave" if change.after else "delete") if was else None

    def _differs(self, change: CapturedChange) -> bool:
        """Whether an update has changed a field of the outbox: other columns are captured for other reasons."""
        before, after = change.values("before"), change.values("after")
        return any(before.get(name) != after.get(name) for name in self._fields)

    def _holds(self, text: str | None) -> bool:
        if text is None or self._condition is None:
            return False
        captured = read_values(text)
        values = {name: captured_value(self._dialect, kind, captured.get(name)) for name, kind in self._kinds.items()}
        return holds(self._condition, values)


def _part(definition: TableDefinition, fields: dict[str, Any]) -> Table:
    """A row with some of its fields, which is not validated: nobody knows the others."""
    known = fields if definition.managed else aware(fields)
    key = definition.key_in(known)
    known.setdefault("id", Id(key) if len(definition.key) == 1 else key)
    return make_row(definition.table, known)


def _columns(outbox: Outbox) -> tuple[str, ...]:
    """The columns that rows have which are handed over."""
    definition = outbox.definition
    if definition is None:
        return ()
    return (*definition.key, *outbox.fields) if outbox.fields else tuple(one.name for one in definition.columns)


def _plain(key: str | None) -> str | None:
    """A key as users write it: that of one column without the JSON around it."""
    if key is None:
        return None
    values = json.loads(key)
    return str(values[0]) if len(values) == 1 else key


class Wanted:
    """What a handler takes of each message, by the annotation of its second parameter.

    Args:
        handler: The handler.
        outbox: The outbox.

    Attributes:
        message: Whether it takes whole messages; otherwise the row, or the payload.
        many: Whether it takes a list of them.

    Raises:
        DeclarationError: It takes something else.
    """

    def __init__(self, handler: Any, outbox: Outbox) -> None:
        self._name = outbox.name
        parameters = list(inspect.signature(handler).parameters.values())
        try:
            hints = typing.get_type_hints(handler)
        except (NameError, TypeError) as error:
            raise DeclarationError(
                f"Outbox {outbox.name!r}: the annotations of its handler cannot be read: {error}"
            ) from error
        annotation = hints.get(parameters[1].name, Any)
        self.many = typing.get_origin(annotation) is list
        if self.many:
            annotation = (typing.get_args(annotation) or (Any,))[0]
        self.message = annotation is Message or typing.get_origin(annotation) is Message
        if self.many is not (outbox.batch is not None):
            raise DeclarationError(
                f"Outbox {outbox.name!r}: its handler takes {'a list' if self.many else 'one message'}, and batch="
                f"{outbox.batch}.",
                fix="Write (ctx, rows: list[Booking]) with batch=, and (ctx, row: Booking) without.",
            )
        table = None if outbox.definition is None else outbox.definition.table
        if table is not None and not self.message and annotation not in {table, Any}:
            raise DeclarationError(
                f"Outbox {outbox.name!r} sends rows of {outbox.source}, and its handler takes {annotation!r}.",
                fix=f"Take {table.__name__} or Message[{table.__name__}].",
            )
        if "truncate" in outbox.on and not self.message:
            raise DeclarationError(
                f"Outbox {outbox.name!r}: a truncate has no row.", fix="Let the handler take a Message."
            )
        if self.message:
            annotation = (typing.get_args(annotation) or (Any,))[0]
        self._payload = None if table is not None else _signature_of(annotation, outbox.name)

    def read(self, text: str | None) -> Any:
        """The payload of a message as the handler takes it: it is checked as an argument of a job is.

        Raises:
            DataError: The handler does not take it.
        """
        assert self._payload is not None  # noqa: S101 - rows have no payload
        try:
            return self._payload.check_json('{"payload":' + (text or "null") + "}")["payload"]
        except ArgumentsInvalid as error:
            raise DataError(str(error)) from error


def _signature_of(annotation: Any, outbox: str) -> Signature:
    """What checks payloads, as a function with such an argument would."""

    def take(ctx: Any, payload: Any) -> None:
        """Nothing: it is only looked at."""

    take.__annotations__ = {"payload": annotation}
    return Signature(take, f"The handler of outbox {outbox}")


def run_of(handler: Any) -> Callable[..., Any]:
    """The function that is run for a delivery: it calls the handler for each message, or for many at once."""
    name = f"{handler.__module__}:{handler.__qualname__}"

    async def run(ctx: Any, delivery: Delivery) -> None:
        with containing(name):
            for given in delivery.calls():
                await handler(ctx, given)

    def run_in_thread(ctx: Any, delivery: Delivery) -> None:
        with containing(name):
            for given in delivery.calls():
                handler(ctx, given)

    made: Callable[..., Any] = run if inspect.iscoroutinefunction(handler) else run_in_thread
    made.__name__, made.__qualname__ = handler.__name__, handler.__qualname__
    made.__module__, made.__doc__ = handler.__module__, handler.__doc__
    made.__annotations__ = {"ctx": Any, "delivery": Any, "return": None}
    return made


async def deliver(
    runner: Runner, function: AnyFunction, delivery: Delivery, seconds: float | None, seal: Seal | None = None
) -> None:
    """Run a handler for messages: a mutation in a transaction that `seal` adds to, an action in none.

    Args:
        runner: Runs functions.
        function: What is run.
        delivery: For which messages.
        seconds: How long it may take; None for as long as it takes.
        seal: Writes in the transaction of a mutation that they are delivered; False if that cannot be.

    Raises:
        LeaseLost: The outbox is not this relay's any more; nothing was committed.
    """
    async with time_limit(function.name, seconds):
        if function.kind is not FunctionKind.MUTATION:
            await runner.action(function, {"delivery": delivery})
            return

        async def check() -> dict[str, Any]:
            return {"delivery": delivery}

        async def sealed(session: Session) -> None:
            if seal is not None and not await seal(session):
                raise LeaseLost("The outbox was changed or is read by another relay.")

        await runner.mutation(function, check, execution=Execution(seal=sealed))
