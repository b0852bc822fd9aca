"""Shapes: what of an object of a class leaves on the wire, and under which names; worked out once per class.

Owns the reading of pydantic's models and of dataclasses: aliases, excluded and computed fields, and fields that have a
serializer of their own. A row of a table is known by its marks, as the wire knows no tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, TypeAdapter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPAQUE = frozenset({"cls", "metadata", "config", "default", "expected", "members"})
_OWN_SHAPE = frozenset({"model", "dataclass"})
_SYSTEM = frozenset({"id", "creation_time"})  # fields of rows that leave as marks


@dataclass(frozen=True, slots=True)
class Shape:
    """What leaves of an object."""

    keys: Mapping[str, str]  # from its attributes to their names on the wire
    computed: Mapping[str, str] = field(default_factory=dict)  # the same for its computed fields
    # fields that pydantic must write, because they have a serializer of their own
    special: frozenset[str] = frozenset()
    adapter: TypeAdapter[Any] | None = None  # how pydantic writes it
    whole: bool = False  # whether pydantic must write all of it
    root: bool = False  # whether it is nothing but its root value
    # for rows: the attributes that are its id on the wire, once it has one; several as an array
    key: tuple[str, ...] = ()
    timed: bool = False  # for rows: whether it bears its creation time too
    open: bool = False  # whether objects may have fields that the class does not declare

    @property
    def is_fixed(self) -> bool:
        """Whether all its objects have the same names on the wire."""
        return not (self.whole or self.root or self.special or self.open)

    def read(self, value: Any) -> Any:
        """The object as names and values, or what it is instead of them; values are not yet written."""
        if self.root:
            return value.root
        found = self._written(value) if self.whole else self._fields(value)
        if self.key and isinstance(found, dict):
            values = [value.__dict__.get(name) for name in self.key]
            return found if None in values else {**self._marks(value.__dict__, values), **found}
        return found

    def _marks(self, row: Mapping[str, Any], values: list[Any]) -> dict[str, Any]:
        marks: dict[str, Any] = {"_id": str(values[0]) if len(values) == 1 else values}
        if self.timed:
            marks["_creationTime"] = _milliseconds(row["creation_time"])
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
        if self.special:
            found.update(self._written(value, self.special))
        return found

    def _written(self, value: Any, only: frozenset[str] | None = None) -> Any:
        assert self.adapter is not None  # noqa: S101 - what is special was found in its schema
        include = None if only is None else set(only)
        exclude = set(_SYSTEM) if self.timed else None
        return self.adapter.dump_python(
            value, mode="json", include=include, exclude=exclude, by_alias=True, warnings=False
        )


def shape_of(cls: type[Any]) -> Shape:
    """The shape of a model's or a dataclass's objects."""
    adapter = _adapter(cls)
    if adapter is None:
        names = [declared.name for declared in dataclasses.fields(cls)]
        return Shape(dict(zip(names, names, strict=True)))
    schema, definitions = _unwrap(adapter.core_schema)
    key, timed = _marks_of(cls)
    if schema.get("root_model") and not _is_special(schema["schema"], definitions) and "serialization" not in schema:
        return Shape({}, adapter=adapter, root=True)
    inner = _inner(schema)
    if inner is None or "serialization" in schema:
        return Shape({}, adapter=adapter, whole=True, key=key, timed=timed)
    fields = {name: declared for name, declared in _declared(inner) if not (timed and name in _SYSTEM)}
    computed = {declared["property_name"]: declared for declared in inner.get("computed_fields", ())}
    special = frozenset(name for name, declared in (fields | computed).items() if _is_special(declared, definitions))
    keys, more = _keys(fields, special), _keys(computed, special)
    return Shape(keys, more, special, adapter, key=key, timed=timed, open=_is_open(cls))


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


def _declared(inner: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    fields = inner["fields"]
    if isinstance(fields, dict):
        return fields.items()
    return ((declared["name"], declared) for declared in fields if not declared.get("init_only"))


def _keys(fields: Mapping[str, dict[str, Any]], special: frozenset[str]) -> dict[str, str]:
    return {
        name: declared.get("serialization_alias") or declared.get("alias") or name
        for name, declared in fields.items()
        if name not in special and not declared.get("serialization_exclude")
    }


def _is_special(node: Any, definitions: Mapping[str, Any], seen: frozenset[str] = frozenset()) -> bool:
    """Whether a value must be written by pydantic; objects inside it have shapes of their own."""
    if isinstance(node, list | tuple):
        return any(_is_special(item, definitions, seen) for item in node)
    if not isinstance(node, dict) or node.get("type") in _OWN_SHAPE:
        return False
    if "serialization_exclude_if" in node or _has_serializer(node):
        return True
    ref = node.get("schema_ref")
    if isinstance(ref, str) and ref not in seen:
        return _is_special(definitions.get(ref), definitions, seen | {ref})
    return any(_is_special(item, definitions, seen) for key, item in node.items() if key not in _OPAQUE)


def _has_serializer(node: Mapping[str, Any]) -> bool:
    """Whether a schema says how to write a value, other than a text as text."""
    serialization = node.get("serialization")
    return isinstance(serialization, dict) and serialization.get("type") != "to-string"


def _is_open(cls: type[Any]) -> bool:
    return issubclass(cls, BaseModel) and cls.model_config.get("extra") == "allow"


def _marks_of(cls: type[Any]) -> tuple[tuple[str, ...], bool]:
    """The key of a row's table, and whether its rows have a creation time; those of other programs have none."""
    declared = getattr(cls, "__declared__", None)
    return ((), False) if declared is None else (declared.key, declared.managed)


def _milliseconds(time: datetime) -> float:
    passed = time - _EPOCH
    return ((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds) / 1000
