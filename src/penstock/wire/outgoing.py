"""Output to the wire: results and error data as JSON, in one of two formats; and results of jobs, which are stored.

In the encoded formats values beyond JSON are tagged; in the others large integers, NaN and bytes leave as text. In all,
dates, decimals, UUIDs and enums leave as the strings and values that arguments take back. Formats for JavaScript refuse
what it cannot hold: a plain integer beyond ±2^53, whose type says `number`, and keys that Convex's client refuses.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from penstock.dataclass import dataclass
from penstock.errors import InputError, ResultInvalid
from penstock.wire.integers import BigInt, Way, marker
from penstock.wire.schemas import OPAQUE, fields_of
from penstock.wire.tags import (
    INT64_MAX,
    INT64_MIN,
    KEYS_ARE,
    MAX_PLAIN_INTEGER,
    fits_key,
    is_plain_float,
    tag_bytes,
    tag_float,
    tag_integer,
)

_Way = Callable[[Any], Any]
_AS_THEY_ARE = frozenset({str, bool, NoneType, datetime, date, time, timedelta, Decimal, UUID})  # to_json knows them
_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)
_PAIRS = "Return a list of pairs."


class Format(enum.Enum):
    """The format of values on the wire."""

    ENCODED = "convex_encoded_json"  # for JavaScript
    ENCODED_FLOATS = "convex_encoded_json with floats"  # for clients that refuse a number without a point
    TAGGED = "convex_encoded_json with integers"  # for clients that know integers of 64 bits
    UNTYPED = "convex_encoded_json of errors"
    JSON = "json"
    CLEAN = "json for people"
    SAID = "json in the text of an error"


_FORMATS = {
    "convex_encoded_json": Format.ENCODED,
    "convex_json": Format.ENCODED,
    "json": Format.JSON,
    "convex_clean_json": Format.JSON,
}
_ENCODED = {"npm": Format.ENCODED, "": Format.ENCODED, "python": Format.ENCODED_FLOATS}  # by the kind of client


def format_of(name: Any, client: str) -> Format:
    """The format that a caller asks for; plain JSON by default.

    Args:
        name: The name of the format. Convex's clients call them all by the same name.
        client: The name that the client gives, such as ``npm-1.28.0``.
    """
    if name is None:
        return Format.JSON
    found = _FORMATS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InputError(f"{name!r} is no format.", fix=f"Formats are {', '.join(_FORMATS)}.")
    return _ENCODED.get(client.partition("-")[0], Format.TAGGED) if found is Format.ENCODED else found


def encode_result(value: Any, form: Format) -> bytes:
    return _write(_WRITERS[form], value)


def _write(writer: _Writer, value: Any) -> bytes:
    try:
        return to_json(writer(value))
    except Unsayable as error:
        place = f"result{_place(writer, value)}"
        raise ResultInvalid(f"{place}: {error.what}", fix=error.fix, **error.facts) from None
    except RecursionError as error:
        raise ResultInvalid("A result is nested too deeply, or refers to itself.") from error
    except (PydanticSerializationError, ValueError, TypeError, AttributeError) as error:
        raise ResultInvalid(f"result{_place(writer, value)}: it cannot be written as JSON: {error}.") from error


def _place(writer: _Writer, value: Any) -> str:
    """The place in a value of what cannot be written."""
    if isinstance(value, Mapping):
        parts: Iterable[tuple[Any, Any]] = ((f".{key}", item) for key, item in value.items())
    elif isinstance(value, (*_SEQUENCES, *_SETS)):
        parts = ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        read = shape_of(type(value)).read(value)
        row = f" {read['_id']}" if isinstance(read, dict) and "_id" in read else ""
        return row + _place(writer, read)
    else:
        return ""
    for name, part in parts:
        try:
            to_json(writer(part))
        except Exception:  # noqa: BLE001 - its cause is told already
            return f"{name}{_place(writer, part)}"
    return ""


class Unsayable(ResultInvalid):
    """A part of a result that its format cannot hold; with the fact `shown`, its caller may read which."""


def _take_key(key: str) -> None:
    """Take any key."""


def _refuse_dollar(key: str) -> None:
    if key.startswith("$"):
        raise Unsayable(f"The key {key[:100]!r} begins with a dollar, as tags do.", fix=_PAIRS, shown=True)


def _refuse_unfit(key: str) -> None:
    if not fits_key(key):
        raise Unsayable(f"The key {key[:100]!r} is none {KEYS_ARE}.", fix=_PAIRS, shown=True)


def _real(value: float) -> Any:
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _tag_real(value: float) -> Any:
    return float(value) if is_plain_float(value) else tag_float(value)


class _Writer:
    """Turns values into the input of `to_json`; learns the shape of each class once.

    Args:
        tags: Whether values that JSON lacks are tagged; otherwise they are text.
        check_key: Refuses a value that cannot be a key.
        strict: Whether it refuses large integers that are not declared as `Int64`.
        mark: Stands after integers of 64 bits that are text.
    """

    def __init__(
        self,
        *,
        tags: bool = False,
        check_key: Callable[[str], None] = _take_key,
        strict: bool = False,
        mark: str = "",
    ) -> None:
        self.check_key, self._strict = check_key, strict
        self._ways: dict[type[Any], _Way] = {
            int: self.integer,
            float: _tag_real if tags else _real,
            BigInt: tag_integer if tags else lambda value: f"{int(value)}{mark}",
            bytes: tag_bytes if tags else lambda value: tag_bytes(value)["$bytes"],
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
            raise Unsayable(f"The integer {value} does not fit into 64 bits.", fix="Return it as text.")
        if self._strict:
            raise Unsayable(
                f"The integer {value} is beyond ±2^53, so JavaScript would round it.",
                fix="Declare Int64, or return text.",
                shown=True,
            )
        return self._ways[BigInt](value)

    def mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        check_key = self.check_key
        for given, item in value.items():
            key = given if type(given) is str else _key(given)
            check_key(key)
            if key in found:
                raise ResultInvalid(f"Two keys of a result are both {key!r} in JSON.")
            found[key] = item if type(item) in _AS_THEY_ARE else self(item)
        return found

    def sequence(self, values: Any) -> list[Any]:
        return [value if type(value) in _AS_THEY_ARE else self(value) for value in values]

    def sort_set(self, values: Any) -> list[Any]:
        """A set, in an order that does not depend on how it came about."""
        return sorted(self.sequence(values), key=to_json)

    def _learn(self, kind: type[Any]) -> _Way:
        if issubclass(kind, enum.Enum):
            return lambda value: self(value.value)
        if issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind):
            return self._object_way(kind)
        for bases, way in (
            (int, self.integer),
            (float, self._ways[float]),
            ((bytes, bytearray, memoryview), self._ways[bytes]),
            (Mapping, self.mapping),
            (_SEQUENCES, self.sequence),
            (_SETS, self.sort_set),
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
            raise Unsayable(f"A {kind.__qualname__} cannot be written as JSON.") from error
        return lambda value: self(adapter.dump_python(value, mode="json"))


class _FloatsWriter(_Writer):
    def __call__(self, value: Any) -> Any:
        found = super().__call__(value)
        return float(found) if type(found) is int else found


def _key(value: Any) -> str:
    """A key that is no text as JSON says it: numbers in digits, dates and UUIDs as their strings."""
    if isinstance(value, enum.Enum):
        return _key(value.value)
    if isinstance(value, str):
        return str(value)
    return str(next(iter(to_jsonable_python({value: None}, bytes_mode="base64"))))


_WRITERS: dict[Format, _Writer] = {
    Format.ENCODED: _Writer(tags=True, check_key=_refuse_unfit, strict=True),
    Format.ENCODED_FLOATS: _FloatsWriter(tags=True, check_key=_refuse_unfit),
    Format.TAGGED: _Writer(tags=True, check_key=_refuse_dollar),
    Format.UNTYPED: _Writer(tags=True, check_key=_refuse_unfit),
    Format.JSON: _Writer(strict=True),
    Format.CLEAN: _Writer(),
    Format.SAID: _Writer(mark="n"),
}


_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_OWN_SHAPE = frozenset({"model", "dataclass"})
_SYSTEM = frozenset({"id", "creation_time"})  # fields of rows that leave as marks


@dataclass(frozen=True, slots=True)
class Shape:
    keys: Mapping[str, str]  # from its attributes to their names on the wire
    computed: Mapping[str, str] = field(default_factory=dict)  # the same for its computed fields
    # fields that pydantic must write, because they have a serializer of their own
    special: frozenset[str] = frozenset()
    adapter: TypeAdapter[Any] | None = None  # its pydantic serializer
    whole: bool = False  # whether pydantic must write all of it
    root: bool = False  # whether it is nothing but its root value
    # for rows: the attributes that are its id on the wire, once it has one; several as an array
    key: tuple[str, ...] = ()
    timed: bool = False  # for rows: whether it bears its creation time too
    open: bool = False  # whether objects may have fields that the class does not declare
    large: Way | None = None  # marks the integers that it declares as `Int64`
    # by names on the wire: pydantic's ``exclude_if``
    leaves_out: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)

    @property
    def is_fixed(self) -> bool:
        """Whether all its objects have the same names on the wire."""
        return not (self.whole or self.root or self.special or self.open)

    def read(self, value: Any) -> Any:
        """The object as names and values not yet written, or the value that stands for it."""
        found = value.root if self.root else self._write(value) if self.whole else self._fields(value)
        if self.large is not None and (self.root or isinstance(found, dict)):
            found = self.large(found)
        if self.key and isinstance(found, dict):
            values = [found.get(self.keys.get(name, name), value.__dict__.get(name)) for name in self.key]
            return found if None in values else {**self._marks(value.__dict__, values), **found}
        return found

    def _marks(self, row: Mapping[str, Any], values: list[Any]) -> dict[str, Any]:
        marks: dict[str, Any] = {"_id": str(values[0]) if len(values) == 1 else values}
        if self.timed:
            marks["_creationTime"] = (row["creation_time"] - _EPOCH) // _MICROSECOND / 1000
        return marks

    def _fields(self, value: Any) -> dict[str, Any]:
        keys = self.keys
        if isinstance(value, BaseModel):
            found = {keys[name]: item for name, item in value.__dict__.items() if name in keys}
            if value.__pydantic_extra__:
                found.update(value.__pydantic_extra__)
        else:
            found = {key: getattr(value, name) for name, key in keys.items()}
        for name, key in self.computed.items():
            found[key] = getattr(value, name)
        for key, is_left_out in self.leaves_out.items():
            if key in found and is_left_out(found[key]):
                del found[key]
        if self.special:
            found.update(self._write(value, self.special))
        return found

    def _write(self, value: Any, only: frozenset[str] | None = None) -> Any:
        assert self.adapter is not None  # noqa: S101 - what is special was found in its schema
        include = None if only is None else set(only)
        exclude = set(_SYSTEM) if self.timed else None
        return self.adapter.dump_python(
            value, mode="json", include=include, exclude=exclude, by_alias=True, warnings=False
        )


def shape_of(cls: type[Any]) -> Shape:
    adapter = _adapter(cls)
    if adapter is None:
        names = [declared.name for declared in dataclasses.fields(cls)]
        return Shape(dict(zip(names, names, strict=True)))
    schema, definitions = _unwrap(adapter.core_schema)
    declared = getattr(cls, "__declared__", None)  # of a row's table; the rows of other programs have no creation time
    key, timed = getattr(cls, "__marks__", ((), False)) if declared is None else (declared.key, declared.managed)
    if schema.get("root_model") and not _is_special(schema["schema"], definitions) and "serialization" not in schema:
        return Shape({}, adapter=adapter, root=True, large=marker(schema["schema"], definitions.values()))
    inner = _inner(schema)
    if inner is None:
        return Shape({}, adapter=adapter, whole=True, key=key, timed=timed)
    left_out = _SYSTEM if timed else ()
    fields = {name: one for name, one in fields_of(inner) if name not in left_out and not one.get("init_only")}
    computed = {declared["property_name"]: declared for declared in inner.get("computed_fields", ())}
    large = _marker(fields | computed, definitions)
    if "serialization" in schema:
        return Shape({}, adapter=adapter, whole=True, key=key, timed=timed, large=large)
    plain = {name: {**declared, "serialization_exclude_if": None} for name, declared in fields.items()} | computed
    special = frozenset(name for name, declared in plain.items() if _is_special(declared, definitions))
    keys, more = _keys(fields, special), _keys(computed, special)
    absent = {key: one for name, key in keys.items() if (one := fields[name].get("serialization_exclude_if"))}
    extra = issubclass(cls, BaseModel) and cls.model_config.get("extra") == "allow"
    return Shape(keys, more, special, adapter, key=key, timed=timed, open=extra, large=large, leaves_out=absent)


def _marker(fields: Mapping[str, Any], definitions: Mapping[str, Any]) -> Way | None:
    """Mark the integers of an object's fields, by their names on the wire, where they declare `Int64`."""
    ways = dict[str, Way]()
    for name, declared in fields.items():
        schema = declared.get("schema") or declared["return_schema"]
        if (way := marker(schema, definitions.values())) is not None:
            ways[_name_of(name, declared)] = way
    return (lambda found: found | {name: ways[name](found[name]) for name in ways.keys() & found}) if ways else None


def _adapter(cls: type[Any]) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(cls)
    except Exception:
        if issubclass(cls, BaseModel):
            raise
        return None  # a dataclass of types that pydantic does not know: its fields leave as they are


def _unwrap(schema: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of the class itself, and the definitions that it refers to."""
    definitions: dict[str, Any] = {}
    while schema["type"] not in _OWN_SHAPE:
        if schema["type"] == "definitions":
            definitions.update({definition["ref"]: definition for definition in schema["definitions"]})
        elif "serialization" in schema:
            break
        following = (
            definitions.get(schema["schema_ref"]) if schema["type"] == "definition-ref" else schema.get("schema")
        )
        if following is None:
            break
        schema = following
    return schema, definitions


def _inner(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a class's schema that lists its fields; None if something else is written in their place."""
    part: dict[str, Any] | None = schema.get("schema")
    while part is not None and "fields" not in part:
        part = part.get("schema")
        if part is not None and "serialization" in part:
            return None
    return part


def _keys(fields: Mapping[str, dict[str, Any]], special: frozenset[str]) -> dict[str, str]:
    return {
        name: _name_of(name, declared)
        for name, declared in fields.items()
        if name not in special and not declared.get("serialization_exclude")
    }


def _name_of(name: str, declared: dict[str, Any]) -> str:
    return declared.get("serialization_alias") or declared.get("alias") or name


def _is_special(node: Any, definitions: Mapping[str, Any], seen: frozenset[str] = frozenset()) -> bool:
    """Whether a value must be written by pydantic; objects inside it have shapes of their own."""
    if isinstance(node, list | tuple):
        return any(_is_special(item, definitions, seen) for item in node)
    if not isinstance(node, dict) or node.get("type") in _OWN_SHAPE:
        return False
    if node.get("serialization_exclude_if") is not None:
        return True
    serialization = node.get("serialization")
    if isinstance(serialization, dict) and serialization.get("type") != "to-string":
        return True
    ref = node.get("schema_ref")
    if isinstance(ref, str) and ref not in seen:
        return _is_special(definitions.get(ref), definitions, seen | {ref})
    return any(_is_special(item, definitions, seen) for key, item in node.items() if key not in OPAQUE)
