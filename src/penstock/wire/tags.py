"""Tags: values that JSON lacks, in JSON on the wire: integers beyond 2^53, NaN, infinity, minus zero, and bytes.

Owns their spelling: an object with one key that begins with a dollar. Knows only the standard library, so that the
client can use it too.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from penstock.errors import ValueInvalid

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_PLAIN_INTEGER = 2**53  # up to here every JSON parser gets the same integer
LONGEST_KEY = 1024
KEYS_ARE = f"that Convex's clients take: printable ASCII, at most {LONGEST_KEY} characters, no dollar first"
AT_REST: dict[type, str] = {bytes: "@bytes", int: "@int64"}  # tags of stored values where nothing else tells them

_WORD = 8

T = TypeVar("T")


def tag_integer(value: int) -> dict[str, str]:
    """An integer of 64 bits as its bytes, least first."""
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueInvalid("An integer does not fit into 64 bits.", fix="Send it as text.")
    return {"$integer": _text(value.to_bytes(_WORD, "little", signed=True))}


def tag_float(value: float) -> dict[str, str]:
    """A float that JSON has no number for: its bytes in IEEE 754, least first."""
    return {"$float": _text(struct.pack("<d", value))}


def tag_bytes(value: bytes | bytearray | memoryview) -> dict[str, str]:
    return {"$bytes": _text(value)}


def fits_key(key: str) -> bool:
    """Whether Convex's clients take the key of an object; ``__proto__`` they lose in silence."""
    return key.isascii() and key.isprintable() and len(key) <= LONGEST_KEY and key[:1] != "$" and key != "__proto__"


def is_plain_float(value: float) -> bool:
    """Whether JSON has a number for it that all parsers read alike."""
    return math.isfinite(value) and (value != 0 or math.copysign(1.0, value) > 0)


@lru_cache(maxsize=256)  # a time of a thousand clients is written once
def u64_text(value: int) -> str:
    """An unsigned integer of 64 bits as text: its bytes, least first, in base 64."""
    return _text(struct.pack("<Q", value))


def read_u64(text: Any) -> int:
    """The integer in such a text."""
    return int(_read("It", text, lambda raw: struct.unpack("<Q", raw)[0]))


def read_tag(name: str, content: Any) -> int | float | bytes:
    reader = _READERS.get(name)
    if reader is None:
        raise ValueInvalid(
            f"{name!r} is not a tag that values can have, and no key may begin with a dollar.",
            fix=f"Tags are {', '.join(_READERS)}.",
        )
    return _read(f"The content of {name}", content, reader)


def _read(what: str, content: Any, reader: Callable[[bytes], T]) -> T:
    if not isinstance(content, str):
        raise ValueInvalid(f"{what} is malformed: it must be a text in base 64.")
    try:
        return reader(base64.b64decode(content, validate=True))
    except (binascii.Error, ValueError, struct.error) as error:
        raise ValueInvalid(f"{what} is malformed: {error}.") from error


def _text(raw: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(raw).decode("ascii")


def _read_integer(raw: bytes) -> int:
    return int(struct.unpack("<q", raw)[0])


def _read_float(raw: bytes) -> float:
    value = float(struct.unpack("<d", raw)[0])
    if is_plain_float(value):
        raise ValueError(f"{value} is sent as a plain number")
    return value


_READERS: dict[str, Callable[[bytes], int | float | bytes]] = {
    "$integer": _read_integer,
    "$float": _read_float,
    "$bytes": bytes,
}
