"""Encoders: the values of one annotation as JSON at rest, and back, equal and of the same class.

Owns the form of stored values: arguments, results, contexts, messages and JSON columns alike. Secrets are stored as
they are. A member of a union that would come back as another one is tagged: ``{"@str": "word"}``.
"""

from __future__ import annotations

import dataclasses
import enum
import marshal
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, time
from decimal import Decimal
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, ValidationError
from pydantic_core import (
    CoreSchema,
    PydanticSerializationUnexpectedValue,
    SchemaSerializer,
    SchemaValidator,
    core_schema,
    to_json,
    to_jsonable_python,
)

from penstock.errors import ValueInvalid
from penstock.schema.ids import Id
from penstock.schema.proofs import proof_of
from penstock.schema.tighten import make_from
from penstock.values import encode_json
from penstock.wire.integers import BigInt
from penstock.wire.schemas import change_schema, fields_of, replace
from penstock.wire.tags import AT_REST, INT64_MAX, INT64_MIN

MASKED = "••••••"
IS_HIDDEN = "penstock.is_hidden"  # in the metadata of a schema: of a secret
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
_CONTAINERS = frozenset({dict, list})
_NO_REFERENCES = 2  # the version of marshal that writes equal values alike
_ALL = {"text", "array", "object", "null", "bool", "number"}


class Encoder:
    """Encodes the values of one annotation, which are valid, and decodes them.

    A value of an annotation that is not proven is read back at once, and refused if it would change.

    Args:
        schema: Pydantic's schema of the annotation.
        read: Makes the validator that reads JSON, and checks Python values, from the schema as it is changed here.
        result: Whether it is the annotation of a result: NaN and infinity are written as text.
        given: Whether values may have been changed since they were validated, as those of rows.

    Attributes:
        schema: Pydantic's schema of the annotation.
    """

    def __init__(
        self,
        schema: CoreSchema,
        read: Callable[[CoreSchema], SchemaValidator],
        *,
        result: bool = False,
        given: bool = False,
    ) -> None:
        self.takes_tags = False  # whether the validator takes bytes as clients tag them
        self._difference = difference
        self.schema, self._strict = schema, False if result else None
        self._config: Any = {**_CONFIG, "ser_json_inf_nan": "strings"} if result else _CONFIG
        self._options: dict[str, Any] = {"by_alias": True, "warnings": False}
        self._stored = self._change_schema()
        self.validator = read(self._stored)
        self._serializer = self._serializer_of(self._stored)
        self._proof = proof_of(self._stored, given=given)

    def encode(self, value: Any, what: str) -> str:
        """A value as JSON text.

        Raises:
            ValueInvalid: It would come back as another value or of another class, or JSON cannot hold it.
            LimitExceeded: It is nested deeper than 64 levels.
        """
        text = encode_json(value, what, self.dump)
        if self._proof(value) or (change := self.change(text, value)) is None:
            return text
        if (tagging := self._tagging) is not None:
            tagged = encode_json(value, what, partial(tagging.to_json, **self._options))
            if (change := self.change(tagged, value)) is None:
                return tagged
        raise ValueInvalid(
            f"{what} cannot be stored, as a reader would not get the same: {change}.",
            fix="Annotate it with the type of the value itself, or use one that JSON gives back.",
        )

    def decode(self, text: str | bytes) -> Any:
        return self.validator.validate_json(text, strict=self._strict)

    def dump(self, value: Any) -> bytes:
        """A value as JSON text, without a check."""
        return self._serializer.to_json(value, **self._options)

    @cached_property
    def secrets(self) -> frozenset[str]:
        """The names under which values hold secrets; an empty one for the value itself."""
        found = {""} if _hides(self._stored) else set[str]()

        def note(node: dict[str, Any]) -> None:
            for name, field in fields_of(node):
                if _hides(field["schema"]):
                    found.update({name, field.get("serialization_alias", name)})

        change_schema(self._stored, note)
        return frozenset(found)

    def mask(self, stored: Any) -> Any:
        """A stored value, as JSON has it, with a mask for each secret; or all of it if it cannot be read."""
        if not self.secrets:
            return stored
        try:
            value = self.decode(to_json(stored))
        except ValidationError:
            return dict.fromkeys(stored, MASKED) if isinstance(stored, dict) else MASKED
        return self._serializer.to_python(value, mode="json", context=MASKED, **self._options)

    @cached_property
    def _tagging(self) -> SchemaSerializer | None:
        found = self._change_schema(tagging=True)
        return None if found == self._stored else self._serializer_of(found)

    def _change_schema(self, *, tagging: bool = False) -> CoreSchema:
        def change(node: dict[str, Any]) -> None:
            if node.get("type") == "json" or node.get("computed_fields"):
                self._options["round_trip"] = True  # only for these, as it takes time
            if node.get("type") == "bytes":
                self._difference = _difference  # as marshal writes subclasses like bytes
            _store(node, self._config, tagging=tagging)

        return change_schema(self.schema, change)

    def _serializer_of(self, schema: CoreSchema) -> SchemaSerializer:
        return make_from(schema, lambda: SchemaSerializer(schema, self._config))

    def change(self, text: str | bytes, value: Any) -> str | None:
        """How a value would change until it is read; None if it would not."""
        try:
            found = self.decode(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            return ": ".join([*filter(None, [".".join(map(str, first["loc"]))]), first["msg"]])
        except Exception as error:  # noqa: BLE001 - of a validator of the user's own
            return f"{type(error).__name__} in its validator"
        return change if (change := self._difference(value, found)) is None else f"it{change}"


def difference(one: Any, other: Any) -> str | None:
    """How two values differ, in words without the values; None if they are equal and of the same classes throughout.

    An id may come back as text, which it is.
    """
    with suppress(ValueError):  # of a class that is not Python's own
        if marshal.dumps(one, _NO_REFERENCES) == marshal.dumps(other, _NO_REFERENCES):
            return None
    return _difference(one, other)


def _difference(one: Any, other: Any) -> str | None:
    kind = str if isinstance(one, Id) and type(other) is str else type(one)
    if kind is not type(other):
        return f" is a {kind.__name__}, and comes back as a {type(other).__name__}"
    parts = _parts(one, other)
    for step, mine, theirs in parts or ():
        if (found := _difference(mine, theirs)) is not None:
            return f".{step}{found}"
    return None if parts is not None or _mark(one) == _mark(other) else f" changes, being a {kind.__name__}"


def _parts(one: Any, other: Any) -> Iterable[tuple[Any, Any, Any]] | None:
    """The parts of two values of one class, with their names; None of values that are compared as a whole."""
    if isinstance(one, dict):
        return [("keys", list(one), list(other)), *zip(one, one.values(), other.values(), strict=False)]
    if isinstance(one, deque) and one.maxlen != other.maxlen:
        return [("maxlen", one.maxlen, other.maxlen)]
    if isinstance(one, set | frozenset):
        one, other = sorted(one, key=repr), sorted(other, key=repr)
    if isinstance(one, list | tuple | deque):
        return [("length", len(one), len(other)), *zip(range(len(one)), one, other, strict=False)]
    if isinstance(one, BaseModel):
        names: Any = [*type(one).__pydantic_fields__, "__pydantic_extra__", "__pydantic_private__"]
    elif dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
    else:
        return None
    return [(name, getattr(one, name, None), getattr(other, name, None)) for name in names]


def _mark(value: Any) -> Any:
    """The mark of a value that tells it from others of its class, where `==` does not."""
    if isinstance(value, float | complex | Decimal | time):
        return repr(value)  # NaN, minus zero, the digits of a decimal
    if isinstance(value, datetime):
        return value.replace(tzinfo=None, fold=0), value.utcoffset()
    has_equality = type(value).__eq__ is not object.__eq__  # type: ignore[comparison-overlap]
    return value if has_equality else getattr(value, "__dict__", value)


# ----- pydantic's schema, changed


def _store(node: dict[str, Any], config: Any, *, tagging: bool) -> None:
    """Change a node so that what it writes is what it reads, at any time."""
    kind = node.get("type")
    node.pop("now_op", None)  # what lay in the future when it came may be read later
    if kind in {"model", "dataclass", "typed-dict"} and "config" in node:
        node["config"] = {**node["config"], **config}
    if kind == "union":
        _tag(node, tagging=tagging)
    elif kind == "any" and "serialization" not in node:
        _tag_any(node, tagging=tagging)
    elif (change := _CHANGES.get(str(kind))) is not None:
        change(node)
    function = node.get("serialization", {}).get("function")
    if getattr(function, "__module__", "") == "pydantic.types" and "_serialize_secret" in function.__name__:
        node["serialization"] = core_schema.plain_serializer_function_ser_schema(_reveal, info_arg=True)
        node["metadata"] = {**node.get("metadata", {}), IS_HIDDEN: True}


def _reveal(value: Any, info: Any) -> Any:
    if not isinstance(value, Secret | SecretStr | SecretBytes):  # but of another member of a union
        raise PydanticSerializationUnexpectedValue("a secret is expected")
    return MASKED if info.context == MASKED else value.get_secret_value()


def _write_all(node: dict[str, Any]) -> None:
    """Write fields also if they are left out elsewhere, under names under which they are read."""
    for name, field in fields_of(node):
        field.pop("serialization_exclude", None)
        field.pop("serialization_exclude_if", None)
        field.pop("serialization_alias", None)
        if (given := field.get("validation_alias")) is None:
            continue
        paths = [[given]] if isinstance(given, str) else given if isinstance(given[0], list) else [given]
        if all(len(path) > 1 for path in paths):
            paths = field["validation_alias"] = [*paths, [name]]
        field["serialization_alias"] = next(path[0] for path in paths if len(path) == 1)


def _hides(node: Any) -> bool:
    """Whether values are secrets, or hold some without a name."""
    if isinstance(node, list | tuple):
        return any(map(_hides, node))
    if not isinstance(node, dict) or fields_of(node):
        return False
    return IS_HIDDEN in (node.get("metadata") or {}) or any(map(_hides, node.values()))


def _read_members(node: dict[str, Any]) -> None:
    """Let a literal read enum members by their values."""
    if not any(isinstance(one, enum.Enum) for one in node["expected"]):
        return
    members = {to_jsonable_python(one): one for one in node["expected"]}
    if len(members) < len(node["expected"]):
        return
    by_value = core_schema.no_info_after_validator_function(members.__getitem__, core_schema.literal_schema([*members]))
    replace(node, core_schema.json_or_python_schema(by_value, {**node}))


def _tag(node: dict[str, Any], *, tagging: bool) -> None:
    """Let a union whose members may look alike in JSON read them with tags, too; and write tags."""
    choices = [one[0] if isinstance(one, tuple) else one for one in node["choices"]]
    kinds = [_kinds(one) for one in choices]
    if sum(map(len, kinds)) == len(set().union(*kinds)):
        return
    names = _names(choices)
    either = [
        core_schema.no_info_after_validator_function(
            itemgetter(name),
            core_schema.typed_dict_schema(
                {name: core_schema.typed_dict_field(choice)}, extra_behavior="forbid", config=_CONFIG
            ),
        )
        for name, choice in zip(names, choices, strict=True)
    ]
    ref, metadata = node.pop("ref", None), node.pop("metadata", None)
    plain: Any = {**node, "choices": list(map(_with_tag, names, choices)) if tagging else choices}
    read = core_schema.union_schema([*((one, TAGGED) for one in either), (plain, "")], mode="left_to_right")
    replace(node, core_schema.json_or_python_schema(read, plain, ref=ref, metadata=metadata))


def _tag_any(node: dict[str, Any], *, tagging: bool) -> None:
    """Let `Any` read bytes and a `BigInt` in their tags; and write these."""
    plain: Any = {**node}
    if tagging:
        plain["serialization"] = core_schema.plain_serializer_function_ser_schema(_with_tags)
    read = core_schema.no_info_after_validator_function(_without_tags, plain)
    replace(node, core_schema.json_or_python_schema(read, plain, ref=plain.pop("ref", None)))


def _with_tags(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _with_tags(item) for key, item in value.items()}
    if kind is list:
        return [_with_tags(item) for item in value]
    if kind is bytes:
        return {AT_REST[bytes]: b64encode(value).decode()}
    return {AT_REST[int]: int(value)} if kind is BigInt else value


def _without_tags(value: Any) -> Any:
    """A value that was just read from JSON; it is changed in place, as most have no tag."""
    kind = type(value)
    if kind is list:
        for place, item in enumerate(value):
            if type(item) in _CONTAINERS:
                value[place] = _without_tags(item)
    if kind is not dict:
        return value
    if len(value) == 1:
        ((name, content),) = value.items()
        if name == AT_REST[int] and type(content) is int and INT64_MIN <= content <= INT64_MAX:
            return BigInt(content)
        if name == AT_REST[bytes] and type(content) is str:
            with suppress(ValueError):
                return b64decode(content, validate=True)
    for key, item in value.items():
        if type(item) in _CONTAINERS:
            value[key] = _without_tags(item)
    return value


def _with_tag(name: str, choice: Any) -> Any:
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
    return _KINDS.get(kind, _ALL) if "serialization" not in node else _ALL


_CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "model-fields": _write_all,
    "typed-dict": _write_all,
    "dataclass-args": _write_all,
    "literal": _read_members,
}
