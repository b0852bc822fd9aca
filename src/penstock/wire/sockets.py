"""Messages of the web socket that Convex's clients speak; see docs/clients.md.

Owns their fields and their spelling, and what fails if one cannot be read: its call, or some of its queries. Values are
written by `wire.outgoing`; they come here as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import from_json, to_json

from penstock.errors import InputError, LimitExceeded
from penstock.wire.incoming import BYTES_PER_BRACKET, Message, count_brackets
from penstock.wire.tags import u64_text

MOST_BYTES = 32 * 1024 * 1024  # of a message; a larger one is thrown away, and its call fails
ENDS = 1024  # bytes at each end of a message that is thrown away
_CHUNK = 5_000_000  # characters
_DECODED = 4  # times the limit of arguments: a call that is longer is not decoded
_MOST_BRACKETS = 2**20  # of a message that is decoded
_MOST_PARTS = 100_000  # queries that one message adds and removes
# Fields with plain values, next to one another. Quotes in texts have backslashes before them, so it is in none.
_FIELD = rb'\s*+"\w++"\s*+:\s*+(?:null|0|[1-9]\d{0,15}+|"[^"\\\x00-\x1f\x7f-\xff]*+")\s*+'
_PLAIN_FIELDS = re.compile(rb"(?<=[{,])(%b(?:,%b)*)(?=[,}])" % (_FIELD, _FIELD))
_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}])', re.DOTALL)
_QUERY = 3  # brackets are open in a query: of the message, of its list, and its own
_OUTER, _INNER = frozenset({"Mutation", "Action", "ModifyQuerySet", "Event"}), frozenset({"Add", "Remove"})

R = TypeVar("R")

_Count = Annotated[int, Field(ge=0, lt=2**53, strict=True)]
_Arguments = Annotated[Any, PlainValidator(lambda args, info: info.context(args)), Field(validate_default=True)]


class _Incoming(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class Connect(_Incoming):
    """The first message of a connection."""

    type: Literal["Connect"]
    session_id: Annotated[str, Field(min_length=1, max_length=64)]
    connection_count: _Count
    max_observed_timestamp: str | None = None
    client_ts: float | None = None


class Authenticate(_Incoming):
    """The identity that the client claims from now on."""

    type: Literal["Authenticate"]
    token_type: Literal["User", "Admin", "None"]
    value: Annotated[str, Field(repr=False)] = ""
    impersonating: Annotated[
        dict[str, Any] | None, Field(validation_alias=AliasChoices("impersonating", "actingAs", "acting_as"))
    ] = None


class Add(_Incoming):
    """Watch a query."""

    type: Literal["Add"]
    query_id: _Count
    udf_path: str
    args: _Arguments = None
    journal: str | None = None


class Remove(_Incoming):
    """Watch a query no more."""

    type: Literal["Remove"]
    query_id: _Count


class ModifyQuerySet(_Incoming):
    """Watch some queries, and others no more."""

    type: Literal["ModifyQuerySet"]
    # With none that can be read the server counts on; the queries are what matters.
    new_version: Annotated[int, PlainValidator(lambda value: value if _is_count(value) else 0)] = 0
    modifications: list[Modification]


class Call(_Incoming):
    """Call a mutation or an action."""

    type: Literal["Mutation", "Action"]
    request_id: _Count
    udf_path: str
    args: _Arguments = None


class Event(_Incoming):
    """An event that the client tells of itself."""

    type: Literal["Event"]


def _or_failed(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """A part of a message. A call or query with a number and a wrong field has an error for its arguments."""
    try:
        return read(value)
    except ValidationError as error:
        fields, reason = value if isinstance(value, dict) else {}, _reason(error)
        if _is_count(number := fields.get("queryId")):
            return Add.model_construct(query_id=number, udf_path="", args=reason)
        if _is_count(number := fields.get("requestId")):
            kind = "Mutation" if fields.get("type") == "Mutation" else "Action"
            return Call.model_construct(type=kind, request_id=number, udf_path="", args=reason)
        raise


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _reason(error: ValidationError) -> InputError:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return InputError(f"This is no message of a Convex client: {place or 'message'}: {first['msg']}.")


_Part = WrapValidator(_or_failed)
Modification = Annotated[Add | Remove, Field(discriminator="type"), _Part]
Incoming = Connect | Authenticate | ModifyQuerySet | Call | Event
_incoming: TypeAdapter[Incoming] = TypeAdapter(Annotated[Incoming, Field(discriminator="type"), _Part])
_modification: TypeAdapter[Add | Remove] = TypeAdapter(Modification)


def read_message(text: bytes, most: int) -> Incoming:
    """A message. Calls and queries that cannot be read have an error instead of their arguments.

    A large message is decoded one query at a time, as its values may take twenty times its bytes.

    Args:
        text: Its JSON.
        most: Bytes that the arguments of one call may have.

    Raises:
        InputError: It is no message, and names nothing that could fail.
    """
    try:
        return _read(_incoming, text, most)
    except InputError as error:
        if (found := _take_apart(text)) is None:
            return read_ends(text, error)
        fields, places = found
        if fields.get("type") == "ModifyQuerySet":
            fields["modifications"] = [_read_query(text[start:end], most) for start, end in places]
        return _validate_failed(_incoming, fields, error)


def read_ends(text: bytes, error: InputError) -> Incoming:
    """A message that is not decoded: its call, or its queries, fail if the text shows their numbers.

    Raises:
        InputError: It shows none.
    """
    outer, queries = dict[str, Any](), list[dict[str, Any]]()
    for run in _plain_fields(text):
        if run.get("type") in _INNER:
            queries.append({"udfPath": "", **run})
        elif not outer and run.get("type") in _OUTER:
            outer = run
        if len(queries) > _MOST_PARTS:
            raise error
    return _validate_failed(_incoming, outer | ({"modifications": queries} if queries else {}), error)


def _read(adapter: TypeAdapter[R], text: bytes, most: int) -> R:
    if count_brackets(text) > _MOST_BRACKETS:
        raise LimitExceeded(f"A message may have {_MOST_BRACKETS} opening brackets.")
    if len(text) > _DECODED * most:
        raise LimitExceeded(f"A call has {len(text)} bytes; its arguments may have {most}.")
    message = Message(text)
    try:
        return adapter.validate_python(message.value, context=partial(_arguments, message, most))
    except ValidationError as error:
        raise _reason(error) from error


def _read_query(text: bytes, most: int) -> Add | Remove:
    try:
        return _read(_modification, text, most)
    except InputError as error:
        fields, _ = _take_apart(text) or ({}, ())
        return _validate_failed(_modification, fields, error)


def _validate_failed(adapter: TypeAdapter[R], fields: dict[str, Any], error: InputError) -> R:
    error.__traceback__ = error.__cause__ = error.__context__ = None  # they hold the whole message
    try:
        return adapter.validate_python({"udfPath": "", **fields}, context=lambda _: error)
    except ValidationError:
        raise error from None


def _take_apart(text: bytes) -> tuple[dict[str, Any], list[tuple[int, int]]] | None:
    """The plain fields of an object, and the places of the objects in its lists; None if its brackets do not match."""
    if count_brackets(text) > _MOST_BRACKETS:
        return None
    depth = place = start = 0
    outer, places = bytearray(), []
    while step := _TO_BRACKET.match(text, place):
        if depth <= 1:
            outer += step[0]
        place = step.end()
        if step[1] in b"[{":
            depth += 1
            start = place - 1 if depth == _QUERY else start
        else:
            if depth == _QUERY:
                places.append((start, place))
            depth -= 1
    if depth or text[place:].strip() or len(places) > _MOST_PARTS:
        return None
    return {name: value for run in _plain_fields(outer) for name, value in run.items()}, places


def _plain_fields(text: bytes | bytearray) -> Iterator[dict[str, Any]]:
    return (from_json(b"{%b}" % run[1]) for run in _PLAIN_FIELDS.finditer(text))


def _arguments(message: Message, most: int, args: Any) -> bytes | InputError:
    """Arguments as JSON text, with tags resolved."""
    try:
        text = message.arguments(args)
    except InputError as error:
        return error
    brackets, allowed = count_brackets(text), max(most, len(text)) // BYTES_PER_BRACKET
    if brackets > allowed:
        return LimitExceeded(f"The arguments have {brackets} opening brackets; {allowed} are allowed.", limit=allowed)
    return text


class Version(NamedTuple):
    """The state that a client has: the versions of its queries and of its identity, and a time."""

    query_set: int
    identity: int
    ts: int

    def write(self) -> bytes:
        return b'{"querySet":%d,"identity":%d,"ts":"%b"}' % (self.query_set, self.identity, u64_text(self.ts).encode())


def transition(start: Version, end: Version, modifications: Iterable[bytes], times: bytes) -> bytes:
    """The step from one state to another one; `times` are more fields."""
    return b'{"type":"Transition","startVersion":%b,"endVersion":%b,"modifications":[%b]%b}' % (
        start.write(),
        end.write(),
        b",".join(modifications),
        times,
    )


def times(skew: int, server_ts: int) -> bytes:
    """The clock of the client less the server's in milliseconds, and the server's in nanoseconds."""
    return b',"clientClockSkew":%d,"serverTs":%d' % (skew, server_ts)


def query_modification(
    number: int, outcome: bytes, journal: str | None, lines: Sequence[str] = (), *, failed: bool
) -> bytes:
    """A query has another answer: `outcome` is its value, or its error, with the names of these fields."""
    kind = b"QueryFailed" if failed else b"QueryUpdated"
    fields = kind, number, outcome, to_json(lines) if lines else b"[]", b"null" if journal is None else to_json(journal)
    return b'{"type":"%b","queryId":%d,%b,"logLines":%b,"journal":%b}' % fields


def query_removed(number: int) -> bytes:
    return b'{"type":"QueryRemoved","queryId":%d}' % number


def response(
    kind: str, request: int, outcome: bytes, lines: Sequence[str], *, failed: bool = False, ts: int | None = None
) -> bytes:
    """A call has ended: `outcome` is its value, or the message of its error and perhaps the field of its data."""
    time = b"" if kind == "Action" else b'"ts":%b,' % to_json(None if ts is None else u64_text(ts))
    fields = kind.encode(), request, b"false" if failed else b"true", outcome, time, to_json(lines)
    return b'{"type":"%bResponse","requestId":%d,"success":%b,"result":%b,%b"logLines":%b}' % fields


def auth_error(error: str, base_version: int, *, attempted: bool) -> bytes:
    """A token was refused: one with which the client has `attempted` to become another caller, or its present one."""
    said = {"error": error, "baseVersion": base_version, "authUpdateAttempted": attempted}
    return to_json({"type": "AuthError", **said})


PING = b'{"type":"Ping"}'


def chunks(text: str, number: int) -> list[str]:
    """A long transition in parts, for clients that take these; otherwise as it is."""
    if len(text) <= _CHUNK:
        return [text]
    parts = [text[place : place + _CHUNK] for place in range(0, len(text), _CHUNK)]
    return [
        to_json(
            {
                "type": "TransitionChunk",
                "chunk": part,
                "partNumber": place,
                "totalParts": len(parts),
                "transitionId": str(number),
            }
        ).decode()
        for place, part in enumerate(parts)
    ]
