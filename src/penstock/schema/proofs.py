"""Proofs: which values come back from JSON as they are, told without reading them back.

Scalars do that a validator has just passed. An instance may be of a subclass, or changed since it was made. So its
class and its fields' classes are looked at. All other values are read back.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from types import NoneType
from typing import Any
from uuid import UUID

from penstock.schema.ids import ID_OF
from penstock.values import INT64_MAX, INT64_MIN

Proof = Callable[[Any], bool]

_JSON = frozenset({str, int, bool, NoneType})


def always(_value: Any) -> bool:
    return True


def never(_value: Any) -> bool:
    return False


def _has_offset_in_minutes(value: Any) -> bool:
    """Whether JSON can say the offset of a point in time: those of before 1900 often have seconds."""
    offset = value.utcoffset() if type(value) is datetime else None
    return offset is not None and not offset % timedelta(minutes=1)


_GIVEN: dict[str, Proof] = {
    "none": lambda value: value is None,
    "str": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "int": lambda value: type(value) is int and INT64_MIN <= value <= INT64_MAX,
    "float": lambda value: type(value) is float and isfinite(value),
    "bytes": lambda value: type(value) is bytes,
    "decimal": lambda value: type(value) is Decimal and value.is_finite(),
    "uuid": lambda value: type(value) is UUID,
    "date": lambda value: type(value) is date,
    "datetime": _has_offset_in_minutes,
    "timedelta": lambda value: type(value) is timedelta,
}
_SUBCLASSED = {"datetime", "date", "timedelta", "decimal", "bytes"}  # whose validators keep a subclass
_FREE = {"type", "ref", "metadata", "strict", "microseconds_precision", "tz_constraint"}  # no more: no constraint


def proof_of(node: Any, *, given: bool = False) -> Proof:
    """The proof of values that a validator has just passed, or that are `given` as they are."""
    kind, metadata = node["type"], node.get("metadata") or {}
    if "serialization" in node:
        return always if ID_OF in metadata and not given else never
    if kind in _GIVEN and not given:
        return _GIVEN[kind] if kind in _SUBCLASSED else always
    if kind in _GIVEN:
        return _GIVEN[kind] if node.keys() <= _FREE else never
    compose = _COMPOSED.get(kind)
    return never if compose is None else compose(node, given)


def _choice(node: Any, given: bool) -> Proof:
    values = [one.value if isinstance(one, enum.Enum) else one for one in node.get("expected") or node["members"]]
    is_odd = given or "missing" in node or issubclass(node.get("cls", str), enum.Flag) or len({*values}) < len(values)
    return never if is_odd or not {type(value) for value in values} <= _JSON else always


def _nullable(node: Any, given: bool) -> Proof:
    proof = proof_of(node["schema"], given=given)
    return proof if proof in {always, never} else lambda value: value is None or proof(value)


def _list(node: Any, given: bool) -> Proof:
    proof = proof_of(node.get("items_schema", {"type": "any"}), given=given)
    if proof in {always, never} or "min_length" in node or "max_length" in node:
        return proof if not given else never
    return lambda value: type(value) is list and all(map(proof, value))


def _model(node: Any, _given: bool) -> Proof:
    cls, inner, config = node["cls"], node["schema"], node.get("config", {})
    is_odd = any(name.startswith("str_") for name in config) or "post_init" in node or node.get("custom_init")
    is_open = "allow" in {inner.get("extra_behavior"), config.get("extra_fields_behavior")}
    if is_odd or is_open or inner["type"] != "model-fields" or cls.__private_attributes__:
        return never
    proof = _fields(inner, given=True)
    return lambda value: type(value) is cls and proof(value.__dict__)


def _fields(node: Any, given: bool) -> Proof:
    found = {name: proof_of(one["schema"], given=given) for name, one in node["fields"].items()}
    wanted = [(name, proof) for name, proof in found.items() if proof is not always]
    if never in found.values() or node.get("extra_behavior") == "allow":
        return never
    # a list is quicker than a generator
    return lambda value: all([name not in value or proof(value[name]) for name, proof in wanted])  # noqa: C419


_COMPOSED: dict[str, Callable[[Any, bool], Proof]] = {
    "default": lambda node, given: proof_of(node["schema"], given=given),
    "literal": _choice,
    "enum": _choice,
    "nullable": _nullable,
    "list": _list,
    "typed-dict": lambda node, given: never if given else _fields(node, given=False),
    "model": _model,
}
