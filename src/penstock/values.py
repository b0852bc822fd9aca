"""Values that cross a boundary at rest: JSON texts of arguments, results and JSON columns.

Owns their one encoding and its limits. Leaves the wire's tags to `wire`, and SQL types to the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

from pydantic_core import PydanticSerializationError, from_json, to_json

from penstock.errors import LimitExceeded, ValueInvalid

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_NESTING = 64
WORD_BYTES = 8

_CONTAINERS = (dict, list, tuple)
_UNCHANGING = (str, int, float, bool, bytes, type(None), datetime, date, timedelta, Decimal, UUID)


def _dump(value: Any) -> bytes:
    return to_json(value, bytes_mode="base64", inf_nan_mode="constants")


def encode_json(value: Any, what: str, dump: Callable[[Any], bytes] = _dump) -> str:
    """A value as JSON text: dates, decimals, UUIDs as strings, bytes as base64.

    Args:
        value: A value for JSON and pydantic; NaN and infinity are refused, as SQL's JSON cannot hold them.
        what: Names the value in an error.
        dump: Writes it, if its declared type matters.

    Raises:
        ValueInvalid: The value cannot be said in JSON.
        LimitExceeded: It is nested deeper than 64 levels.
    """
    try:
        text = dump(value).decode()
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        check_nesting(value, what)
        raise ValueInvalid(f"{what} cannot be stored as JSON: {error}.") from error
    check_json(text, what)
    return text


def check_json(text: str, what: str) -> None:
    """Refuse values that SQL's JSON cannot hold: NaN, infinity, NUL characters, and nesting beyond 64 levels."""
    suspicious = "NaN" in text or "Infinity" in text or "\\u0000" in text
    if suspicious or (len(text) > 2 * MAX_NESTING and _may_be_deep(text)):
        try:
            value = from_json(text, allow_inf_nan=True)
        except ValueError as error:
            raise LimitExceeded(f"{what} is nested deeper than {MAX_NESTING} levels.", limit=MAX_NESTING) from error
        check_nesting(value, what, check=_check_part)


def _may_be_deep(text: str) -> bool:
    return text.count("[") > MAX_NESTING // 2 or text.count("{") > MAX_NESTING // 2


def decode_json(text: str | bytes) -> Any:
    """The value of a JSON text written by `encode_json`."""
    return from_json(text)


def check_nesting(value: Any, what: str, depth: int = 0, check: Callable[[Any, str], None] | None = None) -> None:
    """Refuse a value nested deeper than 64 levels; `check` is called for each key and each value in it."""
    if check is not None:
        check(value, what)
    if not isinstance(value, _CONTAINERS):
        return
    if depth >= MAX_NESTING:
        raise LimitExceeded(f"{what} is nested deeper than {MAX_NESTING} levels.", limit=MAX_NESTING)
    for item in (*value, *value.values()) if isinstance(value, dict) else value:
        check_nesting(item, what, depth + 1, check)


def check_text(text: str, what: str) -> None:
    """Refuse characters that SQL text cannot hold: NUL characters and lone surrogates."""
    if "\0" in text:
        raise ValueInvalid(f"{what} contains a NUL character, which SQL text cannot hold.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueInvalid(f"{what} contains a lone surrogate, which is not valid Unicode.") from error


def storable(text: str) -> str:
    """A text with escapes for the characters that SQL text cannot hold."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def is_storable(text: str) -> bool:
    """Whether SQL text can hold all characters of a text."""
    return storable(text) == text


def text_bytes(text: str) -> int:
    """The number of bytes of a text."""
    return len(text) if text.isascii() else len(text.encode())


def total_bytes(values: Iterable[Any]) -> int:
    """The approximate size of values: texts and bytes by their length in bytes, all else as one word."""
    values = list(values)
    texts = [value for value in values if value.__class__ is str]
    others = [value for value in values if value.__class__ is not str]
    longer = sum(
        [len(value) - WORD_BYTES for value in others if isinstance(value, (bytes, str))]
    )  # ids are of a subclass
    return text_bytes("".join(texts)) + WORD_BYTES * len(others) + longer


def _check_part(value: Any, what: str) -> None:
    if isinstance(value, str):
        check_text(value, what)
    elif isinstance(value, float) and not isfinite(value):
        raise ValueInvalid(f"{what} contains {value}, which JSON cannot hold.")


def copier(arguments: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that gives each attempt its own copy of the arguments; immutable values are not copied."""
    return dict if all(isinstance(value, _UNCHANGING) for value in arguments.values()) else deepcopy
