"""Proofs: which values come back from JSON as they are, told without reading them back.

A scalar that a validator has just passed always does. An instance may have been changed since it was made, or be of a
subclass, so that its class and those of its fields are looked at.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import date, datetime, timedelta
from math import isfinite
from typing import Any, ClassVar
from uuid import UUID

from penstock.schema.ids import ID_OF, Id
from penstock.values import INT64_MAX, INT64_MIN

IS_HIDDEN = "penstock.is_hidden"  # in the metadata of a schema: of a secret

Proof = Callable[[Any], bool]

_ANY: Any = {"type": "any"}
_TEXT = frozenset({str})
_JSON = frozenset({str, int, bool, type(None)})
_CLASSES: dict[str, type[Any]] = {"list": list, "set": set, "frozenset": frozenset, "tuple": tuple, "dict": dict}
_GIVEN: dict[str, Proof] = {
    "none": lambda value: value is None,
    "str": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "int": lambda value: type(value) is int and INT64_MIN <= value <= INT64_MAX,
    "float": lambda value: type(value) is float and isfinite(value),
    "bytes": lambda value: type(value) is bytes,
    "uuid": lambda value: type(value) is UUID,
    "date": lambda value: type(value) is date,
    "datetime": lambda value: type(value) is datetime and value.tzinfo is not None,
    "timedelta": lambda value: type(value) is timedelta,
}
_FREE = {"type", "ref", "metadata", "strict", "serialization", "fail_fast"}  # a schema of no more has no constraint
_INNER = {"items_schema", "keys_schema", "values_schema", "variadic_item_index"}


def always(_value: Any) -> bool:
    return True


def never(_value: Any) -> bool:
    return False


class Prover:
    """Makes proofs for the nodes of one schema, as `Encoder` stores their values."""

    def __init__(self) -> None:
        self._definitions: dict[str, Any] = {}
        self._referred: dict[tuple[str, bool], Proof] = {}

    def proof(self, node: Any, *, given: bool = False) -> Proof:
        """The proof for values that a validator has just passed, or that are `given` as they are."""
        kind, metadata = node["type"], node.get("metadata") or {}
        if metadata.get(IS_HIDDEN) and not given:
            return self.proof(node["json_schema"]["schema"])
        if "serialization" in node and kind != "datetime":
            return always if ID_OF in metadata and not given else never
        way = self._WAYS.get(kind)
        return never if way is None else way(self, node, given)

    def _definitions_of(self, node: Any, given: bool) -> Proof:
        self._definitions.update({one["ref"]: one for one in node["definitions"]})
        return self.proof(node["schema"], given=given)

    def _scalar(self, node: Any, given: bool) -> Proof:
        return always if not given else _GIVEN.get(node["type"], never) if node.keys() <= _FREE else never

    def _choice(self, node: Any, given: bool) -> Proof:
        values = [one.value if isinstance(one, enum.Enum) else one for one in node.get("expected") or node["members"]]
        is_odd = given or "missing" in node or issubclass(node.get("cls", str), enum.Flag)
        return never if is_odd or not {type(value) for value in values} <= _JSON else always

    def _nullable(self, node: Any, given: bool) -> Proof:
        inner = self.proof(node["schema"], given=given)
        return inner if inner in {always, never} else lambda value: value is None or inner(value)

    def _typed_dict(self, node: Any, given: bool) -> Proof:
        if given or node.get("extra_behavior") == "allow":
            return never
        return _of_parts({name: self.proof(one["schema"]) for name, one in node["fields"].items()})

    def _union(self, node: Any, given: bool) -> Proof:
        choices = [one[0] if isinstance(one, tuple) else one for one in node["choices"]]
        if not given and all(self.proof(one) is always for one in choices):
            return always
        proofs = [self.proof(one, given=True) for one in choices]
        return lambda value: any(proof(value) for proof in proofs)

    def _container(self, node: Any, given: bool) -> Proof:
        cls = _CLASSES[node["type"]]
        if given and not node.keys() <= _FREE | _INNER:
            return never
        items = node.get("values_schema" if cls is dict else "items_schema", _ANY)
        if cls is dict and node.get("keys_schema", _ANY)["type"] != "str":
            return never
        if cls is tuple and "variadic_item_index" not in node:
            return always if not given and all(self.proof(one) is always for one in items) else never
        inner = self.proof(items[0] if cls is tuple else items, given=given)
        if inner in {always, never}:
            return inner
        if cls is dict:
            return lambda value: (
                type(value) is dict and set(map(type, value)) <= _TEXT and all(map(inner, value.values()))
            )
        return lambda value: type(value) is cls and all(map(inner, value))

    def _model(self, node: Any, given: bool) -> Proof:  # noqa: ARG002 - an instance is as it was given, always
        cls, inner, config = node["cls"], node["schema"], node.get("config", {})
        changes = any(name.startswith("str_") for name in config) or "post_init" in node or node.get("custom_init")
        if changes or inner["type"] != "model-fields" or cls.__private_attributes__:
            return never
        if "allow" in {inner.get("extra_behavior"), config.get("extra_fields_behavior")}:
            return never
        parts = _of_parts({name: self.proof(one["schema"], given=True) for name, one in inner["fields"].items()})
        return lambda value: type(value) is cls and parts(value.__dict__)

    def _refer(self, node: Any, given: bool) -> Proof:
        key = ref, _ = node["schema_ref"], given
        if key not in self._referred:
            # while it is made, as it may contain itself
            self._referred[key] = lambda value: self._referred[key](value)  # noqa: PLW0108 - another one by then
            self._referred[key] = self.proof(self._definitions[ref], given=given) if ref in self._definitions else never
        return self._referred[key]

    _WAYS: ClassVar[dict[str, Callable[[Prover, Any, bool], Proof]]] = {
        **dict.fromkeys([*_GIVEN, "decimal"], _scalar),
        **dict.fromkeys(_CLASSES, _container),
        **dict.fromkeys(["literal", "enum"], _choice),
        "any": lambda _self, _node, _given: is_plain,
        "default": lambda self, node, given: self.proof(node["schema"], given=given),
        "lax-or-strict": lambda self, node, given: self.proof(node["strict_schema"], given=given),
        "definitions": _definitions_of,
        "definition-ref": _refer,
        "nullable": _nullable,
        "typed-dict": _typed_dict,
        "union": _union,
        "model": _model,
    }


def _of_parts(proofs: dict[str, Proof]) -> Proof:
    """The proof of a mapping with these values, each if it is there."""
    if never in proofs.values():
        return never
    wanted = [(name, proof) for name, proof in proofs.items() if proof is not always]
    if not wanted:
        return always
    # a list is quicker than a generator
    return lambda value: all([name not in value or proof(value[name]) for name, proof in wanted])  # noqa: C419


def is_plain(value: Any) -> bool:
    """Whether a value is of JSON's own types throughout; an id is text."""
    kind = type(value)
    if kind is dict:
        return set(map(type, value)) <= _TEXT and all(map(is_plain, value.values()))
    if kind is list:
        return all(map(is_plain, value))
    return kind in _JSON or (kind is float and isfinite(value)) or isinstance(value, Id)
