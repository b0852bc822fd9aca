"""Makes pydantic's schemas as strict as a database is: aware datetimes, 64-bit integers, bytes that JSON can say.

Owns the changes and refusals in a core schema; used for tables, arguments and results.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NewType, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, core_schema

from penstock.values import INT64_MAX, INT64_MIN
from penstock.wire.integers import is_int64, of_text
from penstock.wire.schemas import change_schema, replace
from penstock.wire.tags import AT_REST

T = TypeVar("T")

_NEW_TYPE: Any = NewType
_CLASSES = frozenset({"model", "dataclass", "typed-dict"})
_COLLECTIONS = {"list", "set", "frozenset", "tuple"}
if "fail_fast" in core_schema.DictSchema.__annotations__:  # of dicts not every pydantic knows it
    _COLLECTIONS.add("dict")


def schema_of(annotation: Any, config: ConfigDict) -> CoreSchema:
    """Pydantic's schema of an annotation with settings, in a new type, as a class by itself takes no settings.

    An alias would do it, too, but pydantic writes its address into the schemas of models, and a later one may have it.
    """
    return TypeAdapter(_NEW_TYPE("Annotation", annotation), config=config).core_schema


def tighten(schema: CoreSchema) -> CoreSchema:
    """Copy a schema so that it refuses naive datetimes and integers over 64 bits by default.

    The first wrong item refuses a collection: a list of millions of errors would take seconds and gigabytes.
    """
    return change_schema(change_schema(schema, refuse_lookalikes), _tighten)


def strict_validator(schema: CoreSchema) -> SchemaValidator:
    """A validator of arguments: classes are strict and refuse unknown keys, unless their config says otherwise."""
    return plain_validator(change_schema(tighten(schema), _make_strict))


def take_text_integers(node: dict[str, Any]) -> None:
    """Let an `Int64` take a text of digits, as plain JSON has it."""
    if is_int64(node):
        replace(node, core_schema.no_info_before_validator_function(of_text, cast("CoreSchema", node.copy())))


def plain_validator(schema: CoreSchema, *, strict: bool = False) -> SchemaValidator:
    """A validator of results and of columns: bytes are read from base 64."""
    config = core_schema.CoreConfig(val_json_bytes="base64", strict=strict)
    return make_from(schema, lambda: SchemaValidator(schema, config))


def make_from(schema: CoreSchema, make: Callable[[], T]) -> T:
    """Make a validator or a serializer of a changed schema."""
    classes: set[Any] = set()

    def note(node: dict[str, Any]) -> None:
        if node.get("type") in _CLASSES and "cls" in node:
            classes.add(node["cls"])

    change_schema(schema, note)
    # A complete class lends the validator that it was made with, which knows nothing of the change.
    complete = [cls for cls in classes if cls.__dict__.get("__pydantic_complete__")]
    try:
        for cls in complete:
            cls.__pydantic_complete__ = False
        return make()
    finally:
        for cls in complete:
            cls.__pydantic_complete__ = True


def mixes_bytes(schema: CoreSchema) -> bool:
    """Whether a union has texts and bytes, which only a tag tells apart in JSON."""
    found = list[bool]()
    change_schema(schema, lambda node: found.append({"str", "bytes"} <= set(map(_kind, node.get("choices", ())))))
    return any(found)


def take_tagged_bytes(node: dict[str, Any]) -> None:
    """Read bytes in the tag that clients give them, and all that has none as text where a union has both."""
    if node.get("type") == "union":
        node["choices"] = sorted(node["choices"], key=lambda choice: _kind(choice) == "json-or-python")
    elif node.get("type") == "bytes":
        _take_tag(node, AT_REST[bytes])


def take_tags(node: dict[str, Any]) -> None:
    """Read bytes and integers in their tags, which tell them from other values in `Any`."""
    take_tagged_bytes(node)
    if node.get("type") in {"int", "float", "decimal"}:
        _take_tag(node, AT_REST[int])


def _take_tag(node: dict[str, Any], tag: str) -> None:
    plain = cast("CoreSchema", {**node})
    config = core_schema.CoreConfig(val_json_bytes="base64")
    fields = {tag: core_schema.typed_dict_field(plain)}
    tagged = core_schema.typed_dict_schema(fields, extra_behavior="forbid", config=config)
    either = core_schema.no_info_after_validator_function(itemgetter(tag), tagged)
    replace(node, core_schema.json_or_python_schema(core_schema.union_schema([plain, (either, "@")]), plain))


def _kind(choice: Any) -> Any:
    schema = choice[0] if isinstance(choice, tuple) else choice
    return schema.get("type") if isinstance(schema, dict) else None


def _tighten(node: dict[str, Any]) -> None:
    if node.get("type") == "datetime":
        node.setdefault("tz_constraint", "aware")
    elif node.get("type") == "int":
        if not node.keys() & {"ge", "gt"}:
            node["ge"] = INT64_MIN
        if not node.keys() & {"le", "lt"}:
            node["le"] = INT64_MAX
    elif str(node.get("type")) in _COLLECTIONS:
        node.setdefault("fail_fast", True)


def refuse_lookalikes(node: dict[str, Any]) -> None:
    """Change a literal or an enum, for which pydantic takes each equal value: True for 1, and 1 for an IntEnum."""
    if node.get("type") not in {"literal", "enum"}:
        return
    choices = node.get("expected") or node["members"]
    types = {type(one) for one in choices}
    if node["type"] == "enum":
        types |= {type(one.value) for one in choices}

    def check(value: Any) -> Any:
        if not isinstance(value, tuple(types)) or (type(value) is bool and bool not in types):
            raise PydanticCustomError("lookalike", "Input should be of the class of one of the choices")
        return value

    if int in types or not types <= {str, type(None)}:
        replace(node, core_schema.no_info_before_validator_function(check, cast("CoreSchema", {**node})))


def _make_strict(node: dict[str, Any]) -> None:
    if node.get("type") not in _CLASSES or "config" not in node:  # without one, that of the class around it holds
        return
    config = node["config"]
    if "strict" not in config:
        node["strict"] = False  # in Python, a dict of the fields will do as well as an instance
    if "extra_fields_behavior" not in config and node.get("extra_behavior") == "ignore":
        del node["extra_behavior"]
    node["config"] = {"strict": True, "extra_fields_behavior": "forbid", **config}
