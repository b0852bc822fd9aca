"""Makes pydantic's schemas as strict as a database is: aware datetimes, 64-bit integers, bytes that JSON can say.

Owns the changes and refusals in a core schema; used for tables, arguments and results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from pydantic_core import CoreSchema, SchemaValidator, core_schema, to_json

from penstock.errors import DeclarationError
from penstock.values import INT64_MAX, INT64_MIN
from penstock.wire.integers import is_int64, of_text

_OPAQUE = frozenset(
    {"cls", "metadata", "ref", "schema_ref", "serialization", "config", "default", "expected", "members"}
)
_BY_NAME = frozenset({"fields", "choices"})
_CLASSES = frozenset({"model", "dataclass", "typed-dict"})
_COLLECTIONS = {"list", "set", "frozenset", "tuple"}
if "fail_fast" in core_schema.DictSchema.__annotations__:  # of dicts not every pydantic knows it
    _COLLECTIONS.add("dict")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BASE64 = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}


def tighten(schema: CoreSchema) -> CoreSchema:
    """The same schema, refusing naive datetimes and integers over 64 bits by default.

    The first wrong item refuses a collection: a list of millions of errors would take seconds and gigabytes.
    """
    return cast("CoreSchema", _changed(schema, _tighten))


def strict_validator(schema: CoreSchema) -> SchemaValidator:
    """A validator of arguments: classes are strict and refuse unknown keys, unless their config says otherwise."""
    return _validator(tighten(schema), _make_strict)


def lenient_validator(schema: CoreSchema) -> SchemaValidator:
    """The same, which also takes a text of digits for an `Int64`, as plain JSON has them."""

    def change(node: dict[str, Any]) -> None:
        _make_strict(node)
        if is_int64(node):
            inner = node.copy()
            node.clear()
            node.update(core_schema.no_info_before_validator_function(of_text, inner))

    return _validator(tighten(schema), change)


def wire_validator(schema: CoreSchema) -> SchemaValidator:
    """A validator of JSON in which rows may have the marks that they bear on the wire, instead of system fields."""
    return _validator(schema, _take_marks)


def _validator(schema: CoreSchema, change: Callable[[dict[str, Any]], None]) -> SchemaValidator:
    classes: set[Any] = set()

    def change_and_note(node: dict[str, Any]) -> None:
        if node.get("type") in _CLASSES and "cls" in node:
            classes.add(node["cls"])
        change(node)

    changed = _changed(schema, change_and_note)
    # A complete class lends the validator that it was made with, which knows nothing of the change.
    complete = [cls for cls in classes if cls.__dict__.get("__pydantic_complete__")]
    try:
        for cls in complete:
            cls.__pydantic_complete__ = False
        return SchemaValidator(changed, core_schema.CoreConfig(val_json_bytes="base64"))
    finally:
        for cls in complete:
            cls.__pydantic_complete__ = True


def _changed(node: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    if isinstance(node, list | tuple):
        return type(node)(_changed(item, change) for item in node)
    if not isinstance(node, dict):
        return node
    copy = {key: _changed_part(key, value, change) for key, value in node.items()}
    change(copy)
    return copy


def _changed_part(key: str, value: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    if key in _OPAQUE:
        return value
    if key in _BY_NAME and isinstance(value, dict):  # names are the user's: a field may be called config
        return {name: _changed(item, change) for name, item in value.items()}
    return _changed(value, change)


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


def _make_strict(node: dict[str, Any]) -> None:
    if node.get("type") not in _CLASSES or "config" not in node:  # without one, that of the class around it holds
        return
    config = node["config"]
    if "strict" not in config:
        node["strict"] = False  # in Python, a dict of the fields will do as well as an instance
    if "extra_fields_behavior" not in config and node.get("extra_behavior") == "ignore":
        del node["extra_behavior"]
    node["config"] = {"strict": True, "extra_fields_behavior": "forbid", **config}


def _take_marks(node: dict[str, Any]) -> None:
    declared = getattr(node.get("cls"), "__declared__", None)
    if node.get("type") != "model" or declared is None:
        return

    def take(value: Any) -> bytes:
        if isinstance(value, dict) and "_id" in value:
            value = {**value}
            row_id, milliseconds = value.pop("_id"), value.pop("_creationTime", 0)
            if declared.managed:
                value |= {"id": row_id, "creation_time": _EPOCH + timedelta(milliseconds=milliseconds)}
        return to_json(value)

    inner = core_schema.json_schema({key: value for key, value in node.items() if key != "ref"})
    ref = node.get("ref")
    node.clear()
    node.update(core_schema.no_info_before_validator_function(take, inner, ref=ref))


def check_bytes(schema: CoreSchema, where: str) -> None:
    """Refuse classes that write bytes in JSON as UTF-8, pydantic's default: most bytes are none."""
    for name in _with_bytes_as_text(schema):
        raise DeclarationError(
            f"{where}: {name} holds bytes, and its config writes them to JSON as UTF-8 text, which fits few bytes.",
            fix=f"Give {name} the pydantic config {', '.join(f'{key}={value!r}' for key, value in _BASE64.items())}.",
        )


def _with_bytes_as_text(node: Any, owner: str | None = None) -> Iterator[str]:
    """Names of such classes; `owner` is the class around a node, if its config is of this kind."""
    if isinstance(node, list | tuple):
        for item in node:
            yield from _with_bytes_as_text(item, owner)
    if not isinstance(node, dict):
        return
    if node.get("type") == "bytes" and owner is not None:
        yield owner
    if node.get("type") in _CLASSES and "config" in node:
        owner = None if _BASE64.items() <= node["config"].items() else node["cls"].__name__
    for key, value in node.items():
        if key in _BY_NAME and isinstance(value, dict):
            yield from _with_bytes_as_text(list(value.values()), owner)
        elif key not in _OPAQUE:
            yield from _with_bytes_as_text(value, owner)
