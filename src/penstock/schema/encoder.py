"""Encoders: the values of one annotation as JSON at rest, and back, equal and of the same class.

Owns the form of stored values: arguments, results, contexts, messages and JSON columns alike. Secrets are stored as
they are. A member of a union that would come back as another one is tagged: ``{"@str": "word"}``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, time
from decimal import Decimal
from functools import cached_property
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import (
    CoreSchema,
    PydanticSerializationUnexpectedValue,
    SchemaSerializer,
    SchemaValidator,
    core_schema,
    to_jsonable_python,
)

from penstock.errors import DeclarationError, ValueInvalid
from penstock.schema.ids import Id
from penstock.schema.proofs import IS_HIDDEN, Prover
from penstock.schema.tighten import changed, made_of
from penstock.values import encode_json

MASKED = "••••••"
TAGGED = "@"  # the label of tagged members in pydantic's errors

_CONFIG: Any = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_timedelta": "iso8601",
    "ser_json_temporal": "iso8601",
    "ser_json_inf_nan": "constants",  # which `encode_json` refuses
    "validate_by_alias": True,
}
_AS_TEXT = {"str", "bytes", "date", "datetime", "time", "timedelta", "uuid", "url", "multi-host-url", "complex"}
_KINDS = {name: {"text"} for name in _AS_TEXT} | {name: {"array"} for name in ("list", "tuple", "set", "frozenset")}
_KINDS |= {name: {"object"} for name in ("dict", "model", "typed-dict", "dataclass")}
_KINDS |= {"none": {"null"}, "bool": {"bool"}, "int": {"number"}, "float": {"number"}, "decimal": {"text", "number"}}
_ALL = {"text", "array", "object", "null", "bool", "number"}
_NO_KEYS = {"list", "tuple", "set", "frozenset", "dict", "model", "typed-dict", "dataclass", "named-tuple", "call"}


class Encoder:
    """Encodes the values of one annotation, which are valid, and decodes them.

    A value of an annotation that is not proven is read back at once, and refused if it would change.

    Args:
        schema: Pydantic's schema of the annotation.
        read: Makes the validator that reads JSON, and checks Python values, from the schema as it is changed here.
        what: Names the annotation in an error.
        result: Whether it is the annotation of a result: NaN and infinity are written as text.
        given: Whether values may have been changed since they were validated, as those of rows.

    Raises:
        DeclarationError: No value of the annotation can come back.
    """

    def __init__(
        self,
        schema: CoreSchema,
        read: Callable[[CoreSchema], SchemaValidator],
        what: str,
        *,
        result: bool = False,
        given: bool = False,
    ) -> None:
        self._given, self._strict = schema, False if result else None
        self._config: Any = {**_CONFIG, "ser_json_inf_nan": "strings"} if result else _CONFIG
        try:
            self._stored = self._changed()
        except DeclarationError as error:
            raise DeclarationError(f"{what}: {error.what}", fix=error.fix) from None
        self.validator = read(self._stored)
        self._serializer = self._serializer_of(self._stored)
        self._proof = Prover().proof(self._stored, given=given)

    def encode(self, value: Any, what: str) -> str:
        """A value as JSON text.

        Raises:
            ValueInvalid: It would come back as another value or of another class, or JSON cannot hold it.
            LimitExceeded: It is nested deeper than 64 levels.
        """
        text = encode_json(value, what, lambda given: _dump(self._serializer, given))
        if self._proof(value) or (change := self._change(text, value)) is None:
            return text
        if (tagging := self._tagging) is not None:
            tagged = encode_json(value, what, lambda given: _dump(tagging, given))
            if (change := self._change(tagged, value)) is None:
                return tagged
        raise ValueInvalid(
            f"{what} cannot be stored, as a reader would not get the same: {change}.",
            fix="Annotate it with the type of the value itself, or use one that JSON gives back.",
        )

    def decode(self, text: str | bytes) -> Any:
        return self.validator.validate_json(text, strict=self._strict)

    def dump(self, value: Any) -> bytes:
        """A value as JSON text, without a check."""
        return _dump(self._serializer, value)

    def masked(self, text: str | bytes) -> Any:
        """What JSON text holds, with a mask for each secret; ValidationError if it cannot be read."""
        return self._serializer.to_python(
            self.decode(text), mode="json", by_alias=True, round_trip=True, warnings="none", context=MASKED
        )

    @cached_property
    def _tagging(self) -> SchemaSerializer | None:
        found = self._changed(tagging=True)
        return None if found == self._stored else self._serializer_of(found)

    def _changed(self, *, tagging: bool = False) -> CoreSchema:
        return changed(self._given, lambda node: _store(node, self._config, tagging=tagging))

    def _serializer_of(self, schema: CoreSchema) -> SchemaSerializer:
        return made_of(schema, lambda: SchemaSerializer(schema, self._config))

    def _change(self, text: str, value: Any) -> str | None:
        """How a value would change until it is read; None if it would not."""
        try:
            found = self.decode(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            return ": ".join([*filter(None, [".".join(map(str, first["loc"]))]), first["msg"]])
        except Exception as error:  # noqa: BLE001 - of a validator of the user's own
            return f"{type(error).__name__} in its validator"
        return difference(value, found)


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """How two values differ, in words without the values; None if they are equal and of the same classes throughout.

    An id may come back as text, which it is.
    """
    kind = str if isinstance(one, Id) and type(other) is str else type(one)
    if kind is not type(other):
        return f"{path or 'it'} is a {kind.__name__}, and comes back as a {type(other).__name__}"
    for step, mine, theirs in _parts(one, other):
        if (found := difference(mine, theirs, f"{path}.{step}".lstrip("."))) is not None:
            return found
    return None if _equal(one, other) else f"{path or 'it'} changes, being a {kind.__name__}"


_MISSING = object()


def _parts(one: Any, other: Any) -> Iterator[tuple[Any, Any, Any]]:
    if isinstance(one, BaseModel):
        for name in type(one).__pydantic_fields__:
            yield name, one.__dict__.get(name, _MISSING), other.__dict__.get(name, _MISSING)
        yield "__pydantic_extra__", one.__pydantic_extra__, other.__pydantic_extra__
        yield "__pydantic_private__", one.__pydantic_private__, other.__pydantic_private__
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            yield field.name, getattr(one, field.name, _MISSING), getattr(other, field.name, _MISSING)
    elif isinstance(one, dict):
        yield "keys", list(one), list(other)
        for (key, mine), theirs in zip(one.items(), other.values(), strict=True):
            yield key, mine, theirs
    elif isinstance(one, list | tuple | deque):
        yield "length", len(one), len(other)
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield place, mine, theirs
    elif isinstance(one, set | frozenset):
        yield "members", sorted(map(_spelled, one)), sorted(map(_spelled, other))


def _spelled(value: Any) -> str:
    return f"{type(value).__qualname__} {value!r}"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, BaseModel | dict | list | tuple | deque) or dataclasses.is_dataclass(one):
        return True  # as all their parts are
    if isinstance(one, float | Decimal):
        return repr(one) == repr(other)  # NaN and minus zero, too
    if isinstance(one, datetime) and one.tzinfo is not None and other.tzinfo is not None:
        return bool(one.astimezone(UTC) == other.astimezone(UTC))
    if isinstance(one, time):
        return bool(one.isoformat() == other.isoformat())
    if type(one).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]  # a class without an equality of its own
        one, other = getattr(one, "__dict__", one), getattr(other, "__dict__", other)
    return bool(one == other)


# ----- pydantic's schema, changed


def _dump(serializer: SchemaSerializer, value: Any) -> bytes:
    return serializer.to_json(value, by_alias=True, round_trip=True, warnings="none")


def _store(node: dict[str, Any], config: Any, *, tagging: bool) -> None:
    """Change a node so that what it writes is what it reads."""
    kind = node.get("type")
    if kind in {"model", "dataclass", "typed-dict"} and "config" in node:
        node["config"] = {**node["config"], **config}
    if kind == "union":
        _tag(node, tagging=tagging)
    elif (change := _CHANGES.get(str(kind))) is not None:
        change(node)
    function = node.get("serialization", {}).get("function")
    if getattr(function, "__module__", "") == "pydantic.types" and "_serialize_secret" in function.__name__:
        node["serialization"] = core_schema.plain_serializer_function_ser_schema(_reveal, info_arg=True)
        node["metadata"] = {**node.get("metadata", {}), IS_HIDDEN: True}


def _reveal(value: Any, info: Any) -> Any:
    if info.context == MASKED:
        return MASKED
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def _in_minutes(value: Any) -> Any:
    """A point in time whose offset JSON can say: of whole minutes, which those of before 1900 often are not."""
    if not isinstance(value, datetime):
        raise PydanticSerializationUnexpectedValue("a datetime is expected")
    offset = value.utcoffset()
    return value.astimezone(UTC) if offset is not None and offset.seconds % 60 else value


def _say_offset(node: dict[str, Any]) -> None:
    node.setdefault("serialization", core_schema.plain_serializer_function_ser_schema(_in_minutes))


def _write_all(node: dict[str, Any]) -> None:
    """Write fields also if they are left out elsewhere, under names under which they are read."""
    fields = node["fields"]
    for name, field in fields.items() if isinstance(fields, dict) else [(one["name"], one) for one in fields]:
        field.pop("serialization_exclude", None)
        field.pop("serialization_exclude_if", None)
        field.pop("serialization_alias", None)
        if (given := field.get("validation_alias")) is None:
            continue
        paths = [[given]] if isinstance(given, str) else given if isinstance(given[0], list) else [given]
        if all(len(path) > 1 for path in paths):
            paths = field["validation_alias"] = [*paths, [name]]
        field["serialization_alias"] = next(path[0] for path in paths if len(path) == 1)


def _check_keys(node: dict[str, Any]) -> None:
    if (kind := node.get("keys_schema", {}).get("type")) in _NO_KEYS:
        raise DeclarationError(
            f"Keys of JSON objects are text, and a dict has keys of the kind {kind}.", fix="Use a list of pairs."
        )


def _read_members(node: dict[str, Any]) -> None:
    """Let a literal read enum members by their values."""
    if not any(isinstance(one, enum.Enum) for one in node["expected"]):
        return
    members = {to_jsonable_python(one): one for one in node["expected"]}
    if len(members) < len(node["expected"]):
        return
    by_value = core_schema.no_info_after_validator_function(members.__getitem__, core_schema.literal_schema([*members]))
    literal = {**node}
    node.clear()
    node.update(core_schema.json_or_python_schema(by_value, literal))


def _tag(node: dict[str, Any], *, tagging: bool) -> None:
    """Let a union whose members may look alike in JSON read them with tags, too; and write tags."""
    choices = [one[0] if isinstance(one, tuple) else one for one in node["choices"]]
    kinds = [_kinds(one) for one in choices]
    if sum(map(len, kinds)) == len(set().union(*kinds)):
        return
    names = _names(choices)
    tagged = [
        core_schema.no_info_after_validator_function(
            itemgetter(name),
            core_schema.typed_dict_schema(
                {name: core_schema.typed_dict_field(choice, required=True)},
                extra_behavior="forbid",
                config=_CONFIG,
            ),
        )
        for name, choice in zip(names, choices, strict=True)
    ]
    plain: Any = {
        **node,
        "choices": [_tagged(*one) for one in zip(names, choices, strict=True)] if tagging else choices,
    }
    ref, metadata = plain.pop("ref", None), plain.pop("metadata", None)
    node.clear()
    node.update(
        core_schema.json_or_python_schema(
            core_schema.union_schema([*((one, TAGGED) for one in tagged), (plain, "")], mode="left_to_right"),
            plain,
            ref=ref,
            metadata=metadata,
        )
    )


def _tagged(name: str, choice: Any) -> Any:
    def write(value: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        return {name: handler(value)}

    inner = {key: value for key, value in choice.items() if key != "ref"}
    return {**choice, "serialization": core_schema.wrap_serializer_function_ser_schema(write, schema=inner)}


def _names(choices: Iterable[Any]) -> list[str]:
    found: list[str] = []
    for choice in choices:
        cls = choice.get("cls")
        ref = choice.get("schema_ref", choice["type"]).partition(":")[0].rpartition(".")[2]
        name = f"@{ref if cls is None else cls.__name__}"
        found.append(name if name not in found else f"{name}{len(found)}")
    return found


def _kinds(node: Any) -> set[str]:
    """The kinds of JSON that the values of a schema may be."""
    kind = node["type"]
    if kind == "nullable":
        return {"null"} | _kinds(node["schema"])
    if kind == "default":
        return _kinds(node["schema"])
    if kind in {"literal", "enum"}:
        values = [one.value if isinstance(one, enum.Enum) else one for one in node.get("expected") or node["members"]]
        by_type: dict[type[Any], set[str]] = {str: {"text"}, bool: {"bool"}, int: {"number"}, type(None): {"null"}}
        return set().union(*(by_type.get(type(value), _ALL) for value in values))
    return _KINDS.get(kind, _ALL) if "serialization" not in node or kind == "datetime" else _ALL


_CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "model-fields": _write_all,
    "typed-dict": _write_all,
    "dataclass-args": _write_all,
    "dict": _check_keys,
    "datetime": _say_offset,
    "literal": _read_members,
}
