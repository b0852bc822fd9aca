"""Input from the wire: a JSON text, and in it the arguments of calls.

Owns the tags and the limits of input. Leaves checking arguments to each function's signature, which takes them
as JSON text; they pass unchanged unless there is something in them to look at.
"""

from __future__ import annotations

import base64
import math
import re
from itertools import chain, compress
from typing import Any

from pydantic_core import from_json, to_json

from penstock.errors import ArgumentsInvalid, InputError, LimitExceeded, ValueInvalid
from penstock.wire.tags import KEYS_ARE, fits_key, read_tag

MAX_NESTING = 64
_CONTAINERS = frozenset({dict, list})
_SUSPICIOUS = re.compile(rb'[\x7f-\xff\\]|__proto__|"[^"]{1025}')  # of a text with keys that do not fit, perhaps
_MOST_ARGUMENTS = 1000  # more than any function has, and few enough to tell of each that it is unknown


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
        self._deep = raw.count(b"{") + raw.count(b"[") > MAX_NESTING

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
            return to_json(_resolve(args, 1))
        if self._deep:
            _check_nesting(args)
        text = to_json(args)
        return to_json(_resolve(args, 1)) if b"Infinity" in text else text  # 1e999 is one


def check_keys(arguments: bytes) -> None:
    """Refuse keys that Convex's clients could not receive again."""
    level = [from_json(arguments)] if _SUSPICIOUS.search(arguments) else []
    while level:
        for key in chain.from_iterable(one for one in level if type(one) is dict):
            if not fits_key(key):
                raise ValueInvalid(f"The key {key[:100]!r} is none {KEYS_ARE}.", fix="Send a list of pairs.")
        items = chain.from_iterable(one.values() if type(one) is dict else one for one in level)
        level = [item for item in items if type(item) in _CONTAINERS]


def _check_nesting(value: Any) -> None:
    """Refuse deep nesting level by level, as a copy of millions of parts would take long."""
    level = [value]
    for _ in range(MAX_NESTING):
        items = [*chain.from_iterable(one.values() if type(one) is dict else one for one in level)]
        level = [*compress(items, map(_CONTAINERS.__contains__, map(type, items)))]  # without a step of Python for each
        if not level:
            return
    raise _too_deep()


def _resolve(value: Any, depth: int) -> Any:
    """A value with tags resolved: integers and floats as JSON numbers, bytes as base 64."""
    if isinstance(value, dict | list):
        if depth > MAX_NESTING:
            raise _too_deep()
        if isinstance(value, list):
            return [_resolve(item, depth + 1) for item in value]
        if any(key.startswith("$") for key in value):
            return _tagged(value)
        return {key: _resolve(item, depth + 1) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueInvalid("A number is too large for a float.", fix="Send infinity with the tag $float.")
    return value


def _tagged(value: dict[str, Any]) -> Any:
    if len(value) != 1:
        name = next(key for key in value if key.startswith("$"))
        raise ValueInvalid(f"The key {name!r} begins with a dollar, which is reserved for tags.")
    ((name, content),) = value.items()
    found = read_tag(name, content)
    return base64.b64encode(found).decode("ascii") if isinstance(found, bytes) else found


def _too_deep() -> LimitExceeded:
    return LimitExceeded(f"The arguments are nested deeper than {MAX_NESTING} levels.", limit=MAX_NESTING)
