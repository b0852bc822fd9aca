"""Input from the wire: a JSON text, and in it the arguments of calls.

Owns the tags and the limits of input. Leaves checking arguments to each function's signature, which takes them
as JSON text; they pass unchanged unless there is something in them to look at.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator
from itertools import chain, compress, islice
from typing import Any

from pydantic_core import from_json, to_json

from penstock.errors import ArgumentsInvalid, InputError, LimitExceeded, ValueInvalid
from penstock.wire.tags import AT_REST, KEYS_ARE, fits_key, read_tag

MAX_NESTING = 64
BYTES_PER_BRACKET = 32  # at least; JSON of many small parts takes ten times as much time and memory
_CONTAINERS = frozenset({dict, list})
_SUSPICIOUS = re.compile(rb'[\x7f-\xff\\]|__proto__|"[^"]{1025}')  # of a text with keys that do not fit, perhaps
_MOST_ARGUMENTS = 1000  # more than any function has, and few enough to tell of each that it is unknown


class Arguments(bytes):
    """Arguments as JSON text, whose bytes were tagged; the text has them in base 64."""

    given: dict[str, Any]

    def with_tags(self, *kinds: type) -> bytes:
        """Tag values of these kinds as the encoder of stored values does, so that a reader tells them from others."""
        return to_json(_resolve(self.given, 1, kinds))


class Message:
    """A JSON text from the wire.

    Attributes:
        value: Its value; tags are not resolved.

    Raises:
        InputError: It is no JSON: NaN, infinity, lone surrogates, and nesting beyond all reason are none either.
    """

    __slots__ = ("_deep", "_tagged", "value")

    def __init__(self, text: bytes | str) -> None:
        try:
            raw = text.encode() if isinstance(text, str) else text
            self.value: Any = from_json(raw, allow_inf_nan=False, cache_strings="keys")
        except ValueError as error:
            raise InputError(f"This is not valid JSON: {error}.") from error
        self._tagged = b'"$' in raw or b"\\u0024" in raw
        self._deep = count_brackets(raw) > MAX_NESTING

    def arguments(self, args: Any) -> bytes:
        """Arguments in this message, an object or an array of one, as the JSON text that a signature checks."""
        if args is None:
            return b"{}"
        if isinstance(args, list) and len(args) == 1:
            args = args[0]
        if not isinstance(args, dict):
            raise ArgumentsInvalid(
                "args must be an object, or an array with one object.", fix='Send {"name": value, …}.'
            )
        if len(args) > _MOST_ARGUMENTS:
            raise ArgumentsInvalid(f"args has {len(args)} names; a call has {_MOST_ARGUMENTS} arguments at most.")
        if self._tagged:
            found = Arguments(to_json(_resolve(args, 1)))
            found.given = args
            return found
        if self._deep:
            _check_nesting(args)
        text = to_json(args)
        return to_json(_resolve(args, 1)) if b"Infinity" in text else text  # 1e999 is one


def check_keys(arguments: bytes) -> None:
    """Refuse keys that Convex's clients could not receive again."""
    for level in _levels(from_json(arguments)) if _SUSPICIOUS.search(arguments) else ():
        for key in chain.from_iterable(one for one in level if type(one) is dict):
            if not fits_key(key):
                raise ValueInvalid(f"The key {key[:100]!r} is none {KEYS_ARE}.", fix="Send a list of pairs.")


def count_brackets(text: bytes) -> int:
    """The opening brackets of a text: its parts, about."""
    return text.count(b"{") + text.count(b"[")


def _check_nesting(value: Any) -> None:
    """Refuse deep nesting level by level, as a copy of millions of parts would take long."""
    if next(islice(_levels(value), MAX_NESTING, None), None):
        raise _too_deep()


def _levels(value: Any) -> Iterator[list[Any]]:
    """The objects and arrays of a value, those at one depth at a time."""
    level = [value]
    while level:
        yield level
        items = [*chain.from_iterable(one.values() if type(one) is dict else one for one in level)]
        level = [*compress(items, map(_CONTAINERS.__contains__, map(type, items)))]  # without a step of Python for each


def _resolve(value: Any, depth: int, kinds: tuple[type, ...] = ()) -> Any:
    """A value with tags resolved: integers and floats as JSON numbers, bytes as base 64; those of some kinds tagged."""
    if isinstance(value, dict | list):
        if depth > MAX_NESTING:
            raise _too_deep()
        if isinstance(value, list):
            return [_resolve(item, depth + 1, kinds) for item in value]
        if any(key.startswith("$") for key in value):
            return _untag(value, kinds)
        return {key: _resolve(item, depth + 1, kinds) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueInvalid("A number is too large for a float.", fix="Send infinity with the tag $float.")
    return value


def _untag(value: dict[str, Any], kinds: tuple[type, ...]) -> Any:
    if len(value) != 1:
        name = next(key for key in value if key.startswith("$"))
        raise ValueInvalid(f"The key {name!r} begins with a dollar, which is reserved for tags.")
    ((name, content),) = value.items()
    found = read_tag(name, content)
    plain = base64.b64encode(found).decode("ascii") if isinstance(found, bytes) else found
    return {AT_REST[type(found)]: plain} if type(found) in kinds else plain


def _too_deep() -> LimitExceeded:
    return LimitExceeded(f"The arguments are nested deeper than {MAX_NESTING} levels.", limit=MAX_NESTING)
