"""What leaves on the wire: results and error data as JSON, in one of two formats; and results of jobs, which are kept.

`Format.ENCODED` loses nothing: what JSON cannot say is tagged. `Format.CLEAN` is for people and for programs that know
no tags: large integers, NaN and bytes leave as text. In both, dates, decimals, UUIDs and enums leave as the strings and
values that arguments take back.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from penstock.errors import InputError, ResultInvalid
from penstock.wire.shapes import shape_of
from penstock.wire.tags import (
    INT64_MAX,
    INT64_MIN,
    MAX_PLAIN_INTEGER,
    is_plain_float,
    tag_bytes,
    tag_float,
    tag_integer,
)

_Way = Callable[[Any], Any]
_AS_THEY_ARE = frozenset({str, bool, NoneType, datetime, date, time, timedelta, Decimal, UUID})  # to_json knows them
_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)
_LONGEST_KEY = 1024


class Format(enum.Enum):
    """How values leave."""

    ENCODED = "convex_encoded_json"
    CLEAN = "json"


_FORMATS = {
    "convex_encoded_json": Format.ENCODED,
    "convex_json": Format.ENCODED,
    "json": Format.CLEAN,
    "convex_clean_json": Format.CLEAN,
}


def format_of(name: Any) -> Format:
    """The format that a caller asks for; clean if it does not say.

    Raises:
        InputError: There is none of this name.
    """
    if name is None:
        return Format.CLEAN
    found = _FORMATS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InputError("There is no such format.", fix=f"Formats are {', '.join(_FORMATS)}.")
    return found


def encode_result(value: Any, form: Format) -> bytes:
    """A value as JSON text.

    Raises:
        ResultInvalid: It cannot be said: an integer over 64 bits, a key or a type that JSON has no place for.
    """
    return _written(_WRITERS[form], value)


def encode_kept(value: Any) -> bytes:
    """A job's result as JSON text: as `Format.CLEAN` says it, but large integers stay numbers, as Python can read them.

    Raises:
        ResultInvalid: It cannot be said; see `encode_result`.
    """
    return _written(_KEPT, value)


def _written(writer: _Writer, value: Any) -> bytes:
    try:
        return to_json(writer(value))
    except RecursionError as error:
        raise ResultInvalid("A result is nested too deeply, or refers to itself.") from error
    except (PydanticSerializationError, ValueError, TypeError, AttributeError) as error:
        raise ResultInvalid(f"A result cannot be written as JSON: {error}.") from error


class _Writer:
    """Turns values into what `to_json` writes; learns once per class how its objects are turned."""

    def __init__(self) -> None:
        self._ways: dict[type[Any], _Way] = {
            int: self.integer,
            float: self.real,
            bytes: self.binary,
            dict: self.mapping,
            list: self.sequence,
            tuple: self.sequence,
        }

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _AS_THEY_ARE or (kind is int and -MAX_PLAIN_INTEGER <= value <= MAX_PLAIN_INTEGER):
            return value
        way = self._ways.get(kind)
        if way is None:
            way = self._ways[kind] = self._learn(kind)
        return way(value)

    def integer(self, value: int) -> Any:
        if -MAX_PLAIN_INTEGER <= value <= MAX_PLAIN_INTEGER:
            return int(value)
        if not INT64_MIN <= value <= INT64_MAX:
            raise ResultInvalid("A result holds an integer that does not fit into 64 bits.", fix="Return it as text.")
        return self.large_integer(value)

    def mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for given, item in value.items():
            key = given if type(given) is str else _key(given)
            self.check_key(key)
            if key in found:
                raise ResultInvalid(f"Two keys of a result are both {key!r} in JSON.")
            found[key] = item if type(item) in _AS_THEY_ARE else self(item)
        return found

    def sequence(self, values: Any) -> list[Any]:
        return [value if type(value) in _AS_THEY_ARE else self(value) for value in values]

    def unordered(self, values: Any) -> list[Any]:
        """A set, in an order that does not depend on how it came about."""
        return sorted(self.sequence(values), key=to_json)

    def real(self, value: float) -> Any:
        raise NotImplementedError

    def large_integer(self, value: int) -> Any:
        raise NotImplementedError

    def binary(self, value: Any) -> Any:
        raise NotImplementedError

    def check_key(self, key: str) -> None:
        """Refuse what cannot be a key."""

    def _learn(self, kind: type[Any]) -> _Way:
        if issubclass(kind, enum.Enum):
            return lambda value: self(value.value)
        if issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind):
            return self._object_way(kind)
        for bases, way in (
            (int, self.integer),
            (float, self.real),
            ((bytes, bytearray, memoryview), self.binary),
            (Mapping, self.mapping),
            (_SEQUENCES, self.sequence),
            (_SETS, self.unordered),
            (tuple(_AS_THEY_ARE - {bool, NoneType}), lambda value: value),
        ):
            if issubclass(kind, bases):  # type: ignore[arg-type]  # a class, or several
                return way
        return self._foreign_way(kind)

    def _object_way(self, kind: type[Any]) -> _Way:
        shape = shape_of(kind)
        if not shape.is_fixed:
            return lambda value: self(shape.read(value))
        for key in (*shape.keys.values(), *shape.computed.values()):
            self.check_key(key)
        return lambda value: {
            key: item if type(item) in _AS_THEY_ARE else self(item) for key, item in shape.read(value).items()
        }

    def _foreign_way(self, kind: type[Any]) -> _Way:
        """A type that only pydantic knows, such as a URL, a path or a secret."""
        try:
            adapter = TypeAdapter(kind)
        except Exception as error:
            raise ResultInvalid(f"A result holds a {kind.__qualname__}, which cannot be written as JSON.") from error
        return lambda value: self(adapter.dump_python(value, mode="json"))


class _EncodedWriter(_Writer):
    """Tags what JSON cannot say."""

    def real(self, value: float) -> Any:
        return float(value) if is_plain_float(value) else tag_float(value)

    def large_integer(self, value: int) -> Any:
        return tag_integer(value)

    def binary(self, value: Any) -> Any:
        return tag_bytes(value)

    def check_key(self, key: str) -> None:
        if key.startswith("$") or not (key.isascii() and key.isprintable()) or len(key) > _LONGEST_KEY:
            raise ResultInvalid(
                f"The key {key[:100]!r} of a result does not fit this format: keys are printable ASCII, at most "
                f"{_LONGEST_KEY} characters, and do not begin with a dollar.",
                fix="Return a list of pairs.",
            )


class _CleanWriter(_Writer):
    """Writes as text what JSON cannot say."""

    def real(self, value: float) -> Any:
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

    def large_integer(self, value: int) -> Any:
        return str(int(value))

    def binary(self, value: Any) -> Any:
        return tag_bytes(value)["$bytes"]


class _KeptWriter(_CleanWriter):
    """Leaves large integers as they are."""

    def large_integer(self, value: int) -> Any:
        return int(value)


def _key(value: Any) -> str:
    """A key that is no text as JSON says it: numbers in digits, dates and UUIDs as their strings."""
    if isinstance(value, enum.Enum):
        return _key(value.value)
    if isinstance(value, str):
        return str(value)
    return str(next(iter(to_jsonable_python({value: None}, bytes_mode="base64"))))


_WRITERS: dict[Format, _Writer] = {Format.ENCODED: _EncodedWriter(), Format.CLEAN: _CleanWriter()}
_KEPT = _KeptWriter()
