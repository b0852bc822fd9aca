"""Calls the handlers of outboxes: turns captured changes into messages, and runs the handler for one or many.

`services/relay` decides which messages come next, and writes the result.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.calls.call import Arguments, Call
from penstock.calls.run.containment import containing
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.run.timelimit import time_limit
from penstock.changes.change import LOST, RESENT, CapturedChange, read_values
from penstock.dataclass import dataclass
from penstock.errors import ArgumentsInvalid, DataError, DeclarationError, LeaseLost, RowInvalid
from penstock.functions.function import AnyFunction
from penstock.functions.signature import Signature
from penstock.outbox.message import KIND_OF, TOPIC, Message, MessageKind, message_id
from penstock.outbox.outbox import MessageCriteria, Outbox
from penstock.reactive.evaluate import holds
from penstock.reactive.task import kinds_of
from penstock.schema.fields import aware
from penstock.schema.ids import Id
from penstock.schema.table import Table, TableDefinition, make_row
from penstock.store.session import Session
from penstock.store.sql.dialect import UNFIT, Dialect
from penstock.store.sql.values import decode_capture, decode_fields, row_reader

Seal = Callable[[Session], Awaitable[bool]]


@dataclass(slots=True)
class Delivery:
    """The messages of one run of a handler."""

    given: Sequence[Any]  # the handler's argument for each
    size: int | None = None  # how many one call takes as a list; None for one message a call
    done: int = 0  # how many are handled in this run

    def calls(self) -> Iterator[Any]:
        """The argument of each call; asking for the next one counts the last as handled."""
        size, self.done = self.size or 1, 0
        for first in range(0, len(self.given), size):
            part = list(self.given[first : first + size])
            yield part[0] if self.size is None else part
            self.done += len(part)


class Messages:
    """Makes messages of the changes of one outbox, in the form that its handler takes."""

    def __init__(self, outbox: Outbox, dialect: Dialect, takes: HandlerInput, meaning: MessageCriteria) -> None:
        self._outbox = outbox
        self._dialect = dialect
        self._takes = takes
        self._now = ChangeRules(dialect, meaning)
        self.meanings: Mapping[int, str] = {}  # earlier declarations of captures, by the numbers of their interests
        self._earlier: dict[str, ChangeRules] = {}
        self._fields = None if outbox.definition is None else row_reader(dialect, outbox.definition)
        self._columns = frozenset(_columns(outbox))

    def kind(self, change: CapturedChange) -> str | None:
        """The kind of a message; None if the change is no message of this outbox."""
        return self._of(change).kind(change)

    def kind_of(self, change: CapturedChange) -> str | None:
        """The kind of a change, also of one that is no message."""
        return self._of(change).kind_of(change)

    def tells(self, kind: str) -> bool:
        """Whether changes of a kind are messages."""
        return kind in self._now.told

    def _of(self, change: CapturedChange) -> ChangeRules:
        """The rules that were declared when a change was captured."""
        text = self.meanings.get(change.interest)
        if text is None:
            return self._now
        if text not in self._earlier:
            self._earlier[text] = ChangeRules(self._dialect, MessageCriteria.parse(text))
        return self._earlier[text]

    def key(self, change: CapturedChange) -> str | None:
        """The key by which a message is ordered; None if its partition is NULL."""
        column = self._outbox.partition_by
        if column is None or change.kind == TOPIC:
            return change.key
        left = change.after is None or (change.before is not None and self.kind_of(change) == "leave")
        text = change.before if left else change.after  # a leave follows the earlier messages of its row
        value = None if text is None else read_values(text).get(column)
        return None if value is None else str(value)

    def argument_of(self, change: CapturedChange, attempt: int, fence: int) -> Any:
        """The handler's argument for a change; DataError if the change does not fit the declaration."""
        if change.kind == TOPIC:
            payload = self._takes.read(change.after)
            if not self._takes.message:
                return payload
            said = {"payload": payload, "topic": self._outbox.topic}
            return self._message(change, attempt, fence, "message", change.key, **said)
        kind = KIND_OF[self.kind(change) or change.kind]
        row = (
            None if kind == "delete" else self._row(change.after)
        )  # a row that left still exists, but not for this outbox
        previous = None if kind == "insert" else self._row(change.before)
        if not self._takes.message:
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
        except (*UNFIT, DeclarationError) as error:
            captured = read_values(text)
            known = {name: value for name, value in captured.items() if name in definition.positions}
            decode_fields(self._dialect, definition, known)  # names the column that cannot be read
            raise RowInvalid(
                f"Outbox {self._outbox.name}: the row {captured.get(definition.key[0])} of {definition.name}, as "
                f"captured, does not fit its declaration: {error}",
                fix="Change the declaration, or skip the message.",
                table=definition.name,
            ) from error

    def _not_captured(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The defaults of columns that were added after a row was captured; ValueError if one has none."""
        assert self._outbox.definition is not None  # noqa: S101 - there is a row
        declared, found = self._outbox.definition.table.model_fields, dict[str, Any]()
        for name in sorted(self._columns - fields.keys()):
            if name not in declared or declared[name].is_required():
                raise ValueError(f"it has no {name}, which has no default either.")
            found[name] = declared[name].get_default(call_default_factory=True)
        return found


class ChangeRules:
    """Decides which changes are messages by a declaration, and their kinds."""

    def __init__(self, dialect: Dialect, meaning: MessageCriteria) -> None:
        self._dialect = dialect
        self._condition = meaning.condition
        self._kinds = {} if meaning.condition is None else kinds_of((meaning.condition,))
        self._fields = meaning.fields
        self.told = {*meaning.kinds, TOPIC, LOST, RESENT}

    def kind(self, change: CapturedChange) -> str | None:
        """The kind of a message; None if the change is none."""
        kind = self.kind_of(change)
        if kind == "change" and kind in self.told and self._fields and not self._differs(change):
            return None
        return kind if kind in self.told else None

    def kind_of(self, change: CapturedChange) -> str | None:
        """The kind of a change, also of one that is no message."""
        if self._condition is None or change.kind in {TOPIC, "truncate", LOST}:
            return change.kind
        if change.kind == RESENT:
            return RESENT if self._holds(change.after) else None
        was = change.kind != "enter" and self._holds(change.before)
        if self._holds(change.after):
            return "change" if was else "enter"
        return ("leave" if change.after else "delete") if was else None

    def _differs(self, change: CapturedChange) -> bool:
        before, after = change.values("before"), change.values("after")
        return any(before.get(name) != after.get(name) for name in self._fields)

    def _holds(self, text: str | None) -> bool:
        if text is None or self._condition is None:
            return False
        captured = read_values(text)
        values = {name: decode_capture(self._dialect, kind, captured.get(name)) for name, kind in self._kinds.items()}
        return holds(self._condition, values)


def _part(definition: TableDefinition, fields: dict[str, Any]) -> Table:
    """A row with some of its fields, not validated as the others are unknown."""
    known = fields if definition.managed else aware(fields)
    key = definition.key_in(known)
    known.setdefault("id", Id(key) if len(definition.key) == 1 else key)
    return make_row(definition.row_type, known)


def _columns(outbox: Outbox) -> tuple[str, ...]:
    definition = outbox.definition
    if definition is None:
        return ()
    return (*definition.key, *outbox.fields) if outbox.fields else tuple(one.name for one in definition.columns)


def _plain(key: str | None) -> str | None:
    """A key as users write it: without JSON if it has one column."""
    if key is None:
        return None
    values = json.loads(key)
    return str(values[0]) if len(values) == 1 else key


class HandlerInput:
    """The input of a handler, by the annotation of its second parameter; DeclarationError if that does not fit.

    It takes whole messages (`message`), or else the row or the payload; or a list of these (`many`).
    """

    def __init__(self, handler: Any, outbox: Outbox) -> None:
        self._name = outbox.name
        parameters = list(inspect.signature(handler).parameters.values())
        try:
            hints = typing.get_type_hints(handler, include_extras=True)
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
        table = None if outbox.definition is None else outbox.definition.row_type
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
        """The payload of a message, checked like an argument of a job; DataError if the handler does not take it."""
        assert self._payload is not None  # noqa: S101 - rows have no payload
        try:
            return self._payload.check_json('{"payload":' + (text or "null") + "}")["payload"]
        except ArgumentsInvalid as error:
            raise DataError(str(error)) from error


def payload_of(handler: Any, outbox: Outbox) -> Signature:
    """The signature of the payload that a handler of a topic takes."""
    found = HandlerInput(handler, outbox)._payload  # noqa: SLF001 - of this file
    assert found is not None  # noqa: S101 - only rows have none
    return found


def _signature_of(annotation: Any, outbox: str) -> Signature:
    """The signature of a function with such an argument, which checks payloads."""

    def take(ctx: Any, payload: Any) -> None:
        """Is never called."""

    take.__annotations__ = {"payload": annotation}
    return Signature(take, f"The handler of outbox {outbox}")


def run_of(handler: Any) -> Callable[..., Any]:
    """The function that runs a delivery: it calls the handler for each message, or for many at once."""
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


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class DeliveryCall(Call):
    """The call of a handler. If it is a mutation, it commits together with `record`, which records the delivery."""

    delivery: Delivery
    record: Seal | None

    async def check(self, *, again: bool = False) -> Arguments:  # noqa: ARG002 - each attempt does the same
        """Give the delivery, whose messages were checked as they were read."""
        return {"delivery": self.delivery}

    async def seal(self, session: Session, answer: Any) -> None:  # noqa: ARG002 - a handler has none
        """Record the delivery."""
        if self.record is not None and not await self.record(session):
            raise LeaseLost("The outbox was changed or is read by another relay.")


async def deliver(
    runner: FunctionCalls, function: AnyFunction, delivery: Delivery, seconds: float | None, seal: Seal | None = None
) -> None:
    """Run a handler for messages; `seconds` is its time limit.

    A mutation commits together with `seal`, which records the delivery. If that returns False, LeaseLost is raised and
    nothing is committed.
    """
    async with time_limit(function.name, seconds):
        await runner.start(DeliveryCall(function, "", delivery=delivery, record=seal))
