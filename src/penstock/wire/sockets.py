"""Messages of the web socket that Convex's clients speak; see docs/clients.md.

Owns their fields and their spelling. Values are written by `wire.outgoing`; they come here as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from penstock.errors import InputError
from penstock.wire.incoming import Message
from penstock.wire.tags import u64_text

_CHUNK = 5_000_000  # characters

_Count = Annotated[int, Field(ge=0, lt=2**53, strict=True)]


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
    base_version: _Count
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
    args: Any = None
    journal: str | None = None


class Remove(_Incoming):
    """Watch a query no more."""

    type: Literal["Remove"]
    query_id: _Count


class ModifyQuerySet(_Incoming):
    """Watch some queries, and others no more."""

    type: Literal["ModifyQuerySet"]
    base_version: _Count
    new_version: _Count
    modifications: list[Annotated[Add | Remove, Field(discriminator="type")]]


class Call(_Incoming):
    """Call a mutation or an action."""

    type: Literal["Mutation", "Action"]
    request_id: _Count
    udf_path: str
    args: Any = None


class Event(_Incoming):
    """What the client tells of itself."""

    type: Literal["Event"]


Incoming = Annotated[Connect | Authenticate | ModifyQuerySet | Call | Event, Field(discriminator="type")]
_incoming: TypeAdapter[Incoming] = TypeAdapter(Incoming)


def read_message(text: str | bytes) -> tuple[Message, Incoming]:
    """A message, and the JSON that it is made of.

    Raises:
        InputError: It is none.
    """
    message = Message(text)
    try:
        return message, _incoming.validate_python(message.value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"This is no message of a Convex client: {place or 'message'}: {first['msg']}.") from error


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


def fatal_error(error: str) -> bytes:
    return to_json({"type": "FatalError", "error": error})


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
