"""Values as the client sends and receives them.

Owns turning Python's values into the wire's JSON and back, with the standard library alone. Values beyond JSON
leave with a tag; dates, decimals, UUIDs and the like leave as the strings that functions take for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from penstock.errors import ValueInvalid
from penstock.wire.tags import MAX_PLAIN_INTEGER, is_plain_float, read_tag, tag_bytes, tag_float, tag_integer


def encode(value: Any) -> bytes:
    """A value as JSON text; ValueInvalid if no function can take it."""
    try:
        return json.dumps(_encode(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ValueInvalid("A text contains a lone surrogate, which is not valid Unicode.") from error
    except RecursionError as error:
        raise ValueInvalid("A value is nested too deeply, or refers to itself.") from error


def decode(text: bytes) -> Any:
    return json.loads(text, object_hook=_untag)


def _untag(found: dict[str, Any]) -> Any:
    if len(found) == 1:
        ((name, content),) = found.items()
        if name.startswith("$"):
            return read_tag(name, content)
    return found


def _encode(value: Any) -> Any:  # noqa: PLR0911 - one way out for each kind of value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _encode(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if -MAX_PLAIN_INTEGER <= value <= MAX_PLAIN_INTEGER else tag_integer(value)
    if isinstance(value, float):
        return float(value) if is_plain_float(value) else tag_float(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return tag_bytes(value)
    if isinstance(value, Mapping):
        return {_key(key): _encode(item) for key, item in value.items()}
    if isinstance(value, Sequence | AbstractSet):
        return [_encode(item) for item in value]
    return _as_text(value)


def _key(key: Any) -> str:
    if isinstance(key, str) and not key.startswith("$"):
        return str(key)
    what = "begins with a dollar" if isinstance(key, str) else "is no text"
    raise ValueInvalid(f"The key {key!r} {what}.", fix="Send a list of pairs.")


def _as_text(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, Decimal | UUID):
        return str(value)
    if hasattr(value, "model_dump"):
        if any(field.exclude for field in type(value).model_fields.values()):
            raise ValueInvalid(f"A {type(value).__qualname__} leaves out fields.", fix="Send a dict of its values.")
        return _encode(value.model_dump(by_alias=True, round_trip=True))
    raise ValueInvalid(f"A {type(value).__qualname__} cannot be sent.", fix="Send JSON values, or a pydantic model.")


def _duration(value: timedelta) -> str:
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    seconds = f"{value.seconds}.{value.microseconds:06d}"
    return f"{sign}P{value.days}DT{seconds}S"
