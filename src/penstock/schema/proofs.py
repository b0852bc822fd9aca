"""Proofs: which values come back from JSON as they are, told without reading them back.

A scalar that a validator has just passed always does. An instance may have been changed since it was made, or be of a
subclass, so that its class and those of its fields are looked at.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import date, datetime, timedelta
from math import isfinite
from typing import Any
from uuid import UUID

from penstock.schema.ids import ID_OF, Id
from penstock.values import INT64_MAX, INT64_MIN

IS_HIDDEN = "penstock.is_hidden"  # in the metadata of a schema: of a secret

Proof = Callable[[Any], bool]

_ANY: Any = {"type": "any"}
_TEXT, _JSON = frozenset({str}), frozenset({str, int, bool, type(None)})
_GIVEN: dict[str, Proof] = {
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
_PASSED = {*_GIVEN, "none", "decimal"}
_FREE = {"type", "ref", "metadata", "strict", "serialization", "fail_fast"}  # a schema of no more has no constraint
_FREE |= {"items_schema", "keys_schema", "values_schema"}


def always(_value: Any) -> bool:
    return True


def never(_value: Any) -> bool:
    return False


def is_plain(value: Any) -> bool:
    """Whether a value is of JSON's own types throughout; an id is text."""
    kind = type(value)
    if kind is dict:
        return set(map(type, value)) <= _TEXT and all(map(is_plain, value.values()))
    if kind is list:
        return all(map(is_plain, value))
    if kind is int:
        return bool(INT64_MIN <= value <= INT64_MAX)
    return kind in _JSON or (kind is float and isfinite(value)) or isinstance(value, Id)


def proof_of(node: Any, refs: dict[tuple[str, bool], Any], *, given: bool = False) -> Proof:
    """The proof of values that a validator has just passed, or that are `given` as they are.

    `refs` holds the schemas of references, and their proofs.
    """
    kind, metadata = node["type"], node.get("metadata") or {}
    if metadata.get(IS_HIDDEN) and not given:
        return proof_of(node["json_schema"]["schema"], refs)
    if "serialization" in node and kind != "datetime":
        return always if ID_OF in metadata and not given else never
    if kind in _PASSED:
        return always if not given else _GIVEN.get(kind, never) if node.keys() <= _FREE else never
    compose = _COMPOSED.get(kind)
    return never if compose is None else compose(node, refs, given)


def _inner(name: str) -> Callable[[Any, Any, bool], Proof]:
    return lambda node, refs, given: proof_of(node[name], refs, given=given)


def _definitions(node: Any, refs: Any, given: bool) -> Proof:
    refs.update({one["ref"]: one for one in node["definitions"]})
    return proof_of(node["schema"], refs, given=given)


def _reference(node: Any, refs: Any, given: bool) -> Proof:
    key = node["schema_ref"], given
    if key not in refs:
        refs[key] = lambda value: refs[key](value)  # noqa: PLW0108 - while the proof is made, which may contain itself
        refs[key] = proof_of(refs[node["schema_ref"]], refs, given=given) if node["schema_ref"] in refs else never
    return refs[key]  # type: ignore[no-any-return]


def _choice(node: Any, _refs: Any, given: bool) -> Proof:
    values = [one.value if isinstance(one, enum.Enum) else one for one in node.get("expected") or node["members"]]
    is_odd = given or "missing" in node or issubclass(node.get("cls", str), enum.Flag)
    return never if is_odd or not {type(value) for value in values} <= _JSON else always


def _nullable(node: Any, refs: Any, given: bool) -> Proof:
    proof = proof_of(node["schema"], refs, given=given)
    return proof if proof in {always, never} else lambda value: value is None or proof(value)


def _list(node: Any, refs: Any, given: bool) -> Proof:
    proof, cls = proof_of(node.get("items_schema", _ANY), refs, given=given), {"list": list, "set": set}[node["type"]]
    if proof in {always, never} or (given and not node.keys() <= _FREE):
        return always if proof is always else never
    return lambda value: type(value) is cls and all(map(proof, value))


def _dict(node: Any, refs: Any, given: bool) -> Proof:
    proof, keys = proof_of(node.get("values_schema", _ANY), refs, given=given), node.get("keys_schema", _ANY)
    if keys["type"] != "str" or proof in {always, never} or (given and not node.keys() | keys.keys() <= _FREE):
        return always if proof is always and keys["type"] == "str" else never
    return lambda value: type(value) is dict and set(map(type, value)) <= _TEXT and all(map(proof, value.values()))


def _union(node: Any, refs: Any, given: bool) -> Proof:
    """Of members that look different in JSON, as others have tags."""
    choices = [one[0] if isinstance(one, tuple) else one for one in node["choices"]]
    if not given and all(proof_of(one, refs) is always for one in choices):
        return always
    proofs = [proof_of(one, refs, given=True) for one in choices]
    return lambda value: any(proof(value) for proof in proofs)


def _typed_dict(node: Any, refs: Any, given: bool) -> Proof:
    return never if given or node.get("extra_behavior") == "allow" else _fields(node, refs, given=False)


def _model(node: Any, refs: Any, _given: bool) -> Proof:
    cls, inner, config = node["cls"], node["schema"], node.get("config", {})
    is_odd = any(name.startswith("str_") for name in config) or "post_init" in node or node.get("custom_init")
    is_open = "allow" in {inner.get("extra_behavior"), config.get("extra_fields_behavior")}
    if is_odd or is_open or inner["type"] != "model-fields" or cls.__private_attributes__:
        return never
    proof = _fields(inner, refs, given=True)
    return lambda value: type(value) is cls and proof(value.__dict__)


def _fields(node: Any, refs: Any, *, given: bool) -> Proof:
    found = {name: proof_of(one["schema"], refs, given=given) for name, one in node["fields"].items()}
    wanted = [(name, proof) for name, proof in found.items() if proof is not always]
    if never in found.values() or not wanted:
        return never if wanted else always
    # a list is quicker than a generator
    return lambda value: all([name not in value or proof(value[name]) for name, proof in wanted])  # noqa: C419


_COMPOSED: dict[str, Callable[[Any, Any, bool], Proof]] = {
    "any": lambda _node, _refs, _given: is_plain,
    "default": _inner("schema"),
    "lax-or-strict": _inner("strict_schema"),
    "definitions": _definitions,
    "definition-ref": _reference,
    "literal": _choice,
    "enum": _choice,
    "nullable": _nullable,
    "list": _list,
    "set": _list,
    "dict": _dict,
    "union": _union,
    "typed-dict": _typed_dict,
    "model": _model,
}
