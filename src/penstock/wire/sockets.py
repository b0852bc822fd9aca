"""Messages of the web socket that Convex's clients speak; see docs/clients.md.

Owns their fields and their spelling, and what fails if one cannot be read: its call, or some of its queries. Values are
written by `wire.outgoing`; they come here as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from penstock.errors import InputError, LimitExceeded
from penstock.wire import parts
from penstock.wire.incoming import Message
from penstock.wire.tags import u64_text

MOST_BYTES = 32 * 1024 * 1024  # of a message; a larger one is thrown away, and its call fails
_CHUNK = 5_000_000  # characters
_DECODED = 4  # times the limit of arguments: longer texts are cut, and decoded part by part
_BYTES_PER_BRACKET = 32  # at least; JSON of many small parts takes ten times as much time and memory
_MOST_BRACKETS = 2**21
ENDS = 1024  # bytes at each end of a message that is thrown away

_Count = Annotated[int, Field(ge=0, lt=2**53, strict=True)]


def _arguments_of(args: Any, message: Message | None) -> bytes | InputError:
    """Arguments as JSON text, with tags resolved; from a part they come so."""
    if message is None:
        return b"{}" if args is None else cast("bytes | InputError", args)
    try:
        return message.arguments(args)
    except InputError as error:
        return error


_Arguments = Annotated[
    Any, PlainValidator(lambda args, info: _arguments_of(args, info.context)), Field(validate_default=True)
]


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
    new_version: _Count
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


Modification = Annotated[Add | Remove, Field(discriminator="type")]
Incoming = Connect | Authenticate | ModifyQuerySet | Call | Event
_modification: TypeAdapter[Add | Remove] = TypeAdapter(Modification)
_incoming: TypeAdapter[Incoming] = TypeAdapter(Annotated[Incoming, Field(discriminator="type")])


def read_message(text: bytes, most: int) -> Incoming:
    """A message. Calls and queries that cannot be read have an error instead of their arguments.

    Args:
        text: Its JSON.
        most: Bytes that the arguments of one call may have.

    Raises:
        InputError: It is no message, and names nothing that could fail.
    """
    brackets = _brackets(text)
    if len(text) <= _DECODED * most and brackets <= _most_brackets(text, most):
        try:
            message = Message(text)
        except InputError:
            pass  # one of its parts may be the reason
        else:
            return _read(message.value, message)
    if brackets > _MOST_BRACKETS:
        return read_ends(text, f"A message may have {_MOST_BRACKETS} opening brackets.")
    return _read(_decoded(chain(parts.outer_members(b"", text[-ENDS:]), parts.members(text)), most, is_whole=True))


def read_ends(text: bytes, reason: str) -> Incoming:
    """A message that is refused unread. Its call, or queries, fail, if one of the ends of the text has their number.

    Raises:
        InputError: It has none.
    """
    head, tail, error = text[:ENDS], text[-ENDS:], LimitExceeded(reason, limit=MOST_BYTES)
    found = _plain(parts.outer_members(head, tail)) | {"args": error}
    if found.get("type") == "ModifyQuerySet":
        ends = parts.outer_objects(head.partition(b'"modifications"')[2], tail)
        queries = [one | {"args": error} for one in map(_plain, ends) if "queryId" in one]
        found |= {"modifications": queries} if queries else {}
    return _read(found, reason=error)


def _plain(found: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {name: value for name, value in _decoded(found, ENDS).items() if not isinstance(value, InputError)}


def _decoded(found: Iterable[tuple[bytes, bytes]], most: int, *, is_whole: bool = False) -> dict[str, Any]:
    """The members of an object, each by itself. One that cannot be decoded is an error, and is one of the arguments."""
    values: dict[str, Any] = {}
    failures = []
    for key, text in found:
        name = _value_of(key)
        if name == "modifications" and is_whole:
            values[name] = [_decoded(parts.members(one), most) for one in parts.objects(text)]
            continue
        value = _arguments_in(text, most) if name == "args" else _value_of(text)
        failures += [one for one in (name, value) if isinstance(one, InputError)]
        if isinstance(name, str):
            values[name] = value
    return {**values, "args": failures[0]} if failures else values


def _value_of(text: bytes) -> Any:
    try:
        return Message(text).value
    except InputError as error:
        return error


def _arguments_in(text: bytes, most: int) -> bytes | InputError:
    if len(text) > _DECODED * most:
        return LimitExceeded(f"The arguments have {len(text)} bytes; {most} are allowed.", limit=most)
    brackets, allowed = _brackets(text), _most_brackets(text, most)
    if brackets > allowed:
        return LimitExceeded(f"The arguments have {brackets} opening brackets; {allowed} are allowed.", limit=allowed)
    try:
        message = Message(text)
    except InputError as error:
        return error
    return _arguments_of(message.value, message)


def _most_brackets(text: bytes, most: int) -> int:
    return max(most, len(text)) // _BYTES_PER_BRACKET


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def _read(value: Any, message: Message | None = None, reason: InputError | None = None) -> Incoming:
    try:
        return _incoming.validate_python(value, context=message)
    except ValidationError as error:
        reason = reason or _reason(error)
    fields = value if isinstance(value, dict) else {}
    kind, number, changes = (fields.get(name) for name in ("type", "requestId", "modifications"))
    if kind == "Event":
        return Event(type="Event")
    if kind == "Authenticate":
        return Authenticate.model_construct(token_type="User")  # noqa: S106 - it has none, so it is refused
    if kind == "ModifyQuerySet" and isinstance(changes, list):
        version = fields.get("newVersion")
        read = [_read_modification(one, message) for one in changes]
        return ModifyQuerySet.model_construct(new_version=version if _is_count(version) else 0, modifications=read)
    if _is_count(number) and kind not in ("Connect", "ModifyQuerySet"):
        kind = "Mutation" if kind == "Mutation" else "Action"
        return Call.model_construct(type=kind, request_id=number, udf_path=_text(fields, "udfPath"), args=reason)
    raise reason


def _read_modification(value: Any, message: Message | None) -> Add | Remove:
    try:
        return _modification.validate_python(value, context=message)
    except ValidationError as error:
        reason = _reason(error)
    if isinstance(value, dict) and _is_count(number := value.get("queryId")):
        return Add.model_construct(query_id=number, udf_path=_text(value, "udfPath"), args=reason)
    raise reason


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _text(fields: dict[str, Any], name: str) -> str:
    found = fields.get(name)
    return found if isinstance(found, str) else ""


def _reason(error: ValidationError) -> InputError:
    first = error.errors(include_url=False)[0]
    if isinstance(first["input"], InputError):
        return first["input"]
    place = ".".join(str(part) for part in first["loc"])
    return InputError(f"This is no message of a Convex client: {place or 'message'}: {first['msg']}.")


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
