"""Messages of the web socket that Convex's clients speak; see docs/clients.md.

Owns their fields and their spelling, and what fails if one cannot be read: its call, or some of its queries. Values are
written by `wire.outgoing`; they come here as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

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
# Fields with plain values, beside one another. Quotes in texts have backslashes before them, so it is in none.
_FIELD = rb'\s*+"\w++"\s*+:\s*+(?:null|0|[1-9]\d{0,15}+|"[^"\\\x00-\x1f\x7f-\xff]*+")\s*+'
_PLAIN_FIELDS = re.compile(rb"(?<=[{,])(%b(?:,%b)*)(?=[,}])" % (_FIELD, _FIELD))
_CONTROL = re.compile(r"\\[bfnrt]|\\u00[01]")  # as it is written again, a text may have had it as it is
_OUTER, _INNER = frozenset({"Mutation", "Action", "ModifyQuerySet", "Event"}), frozenset({"Add", "Remove"})

_Count = Annotated[int, Field(ge=0, lt=2**53, strict=True)]


_Read = Callable[[Any], bytes | InputError]
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
    """Who the client says that it is from now on."""

    type: Literal["Authenticate"]
    token_type: Literal["User", "Admin", "None"]
    value: str = ""
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
    """What the client tells of itself."""

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


def read_message(text: bytes, most: int) -> Incoming:
    """A message. Calls and queries that cannot be read have an error instead of their arguments.

    Args:
        text: Its JSON.
        most: Bytes that the arguments of one call may have.

    Raises:
        InputError: It is no message, and names nothing that could fail.
    """
    if len(text) > _DECODED * most and b'"ModifyQuerySet"' not in text[:ENDS] + text[-ENDS:]:
        return read_ends(text, LimitExceeded(f"A call has {len(text)} bytes; its arguments may have {most}."))
    if count_brackets(text) > _MOST_BRACKETS:
        return read_ends(text, LimitExceeded(f"A message may have {_MOST_BRACKETS} opening brackets."))
    try:
        message = Message(text)
    except InputError as error:
        try:
            value = json.loads(text.decode("utf-8", "surrogateescape"), strict=False)
        except (ValueError, RecursionError):
            return read_ends(text, error)
        return _read(_with_errors(value, error), partial(_arguments, _arguments_of, most))
    return _read(message.value, partial(_arguments, message.arguments, most))


def read_ends(text: bytes, error: InputError) -> Incoming:
    """A message that is not decoded: its call, or its queries, fail if the text shows their numbers.

    Raises:
        InputError: It shows none.
    """
    runs = [{"udfPath": "", **from_json(b"{%b}" % run)} for run in _PLAIN_FIELDS.findall(text)]
    outer = next((run for run in runs if run.get("type") in _OUTER), {})
    queries = [run for run in runs if run.get("type") in _INNER]
    try:
        return _incoming.validate_python(
            outer | ({"modifications": queries} if queries else {}), context=lambda _: error
        )
    except ValidationError:
        raise error from None


def _read(value: Any, arguments: _Read) -> Incoming:
    try:
        return _incoming.validate_python(value, context=arguments)
    except ValidationError as error:
        raise _reason(error) from error


def _arguments(read: Callable[[Any], bytes], most: int, args: Any) -> bytes | InputError:
    """Arguments as JSON text, with tags resolved."""
    if isinstance(args, InputError):
        return args
    try:
        text = read(args)
    except InputError as error:
        return error
    brackets, allowed = count_brackets(text), max(most, len(text)) // BYTES_PER_BRACKET
    if brackets > allowed:
        return LimitExceeded(f"The arguments have {brackets} opening brackets; {allowed} are allowed.", limit=allowed)
    return text


def _arguments_of(args: Any) -> bytes:
    return Message(json.dumps(args)).arguments(args)


def _with_errors(value: Any, error: InputError) -> Any:
    """A message that is no JSON: its call has an error, or each of its queries that may be the reason."""
    if not isinstance(value, dict):
        return value
    if isinstance(parts := value.get("modifications"), list):
        return value | {"modifications": [one if _is_json(one) else _failed(one, error) for one in parts]}
    return _failed(value, error)


def _failed(part: Any, error: InputError) -> Any:
    plain = {name: part.get(name) for name in ("type", "queryId", "requestId")} if isinstance(part, dict) else {}
    return plain | {"udfPath": "", "args": error}


def _is_json(part: Any) -> bool:
    """Whether a part of a message that is no JSON is certainly not the reason."""
    try:
        text = json.dumps(part)
        Message(text)
    except (InputError, RecursionError):
        return False
    return _CONTROL.search(text) is None


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
    fields = kind, number, outcome, to_json(lines), to_json(journal)
    return b'{"type":"%b","queryId":%d,%b,"logLines":%b,"journal":%b}' % fields


def query_removed(number: int) -> bytes:
    return b'{"type":"QueryRemoved","queryId":%d}' % number


def mutation_success(request: int, result: bytes, ts: int, lines: Sequence[str]) -> bytes:
    return b'{"type":"MutationResponse","requestId":%d,"success":true,"result":%b,"ts":"%b","logLines":%b}' % (
        request,
        result,
        u64_text(ts).encode(),
        to_json(lines),
    )


def mutation_failure(request: int, error: bytes, lines: Sequence[str]) -> bytes:
    """A mutation has failed: `error` is its message, and perhaps the field of its data."""
    return b'{"type":"MutationResponse","requestId":%d,"success":false,"result":%b,"ts":null,"logLines":%b}' % (
        request,
        error,
        to_json(lines),
    )


def action_response(request: int, outcome: bytes, lines: Sequence[str], *, failed: bool) -> bytes:
    """An action has ended: `outcome` is its value, or the message of its error and perhaps the field of its data."""
    success = b"false" if failed else b"true"
    return b'{"type":"ActionResponse","requestId":%d,"success":%b,"result":%b,"logLines":%b}' % (
        request,
        success,
        outcome,
        to_json(lines),
    )


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
