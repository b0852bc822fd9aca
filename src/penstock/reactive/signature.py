"""Expressions as a text that is equal for equal ones, and can be read again.

Owns that text, which outlives processes and versions of Python: a declaration is compared with the one declared
before. Each node is a JSON array that begins with its name.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from penstock.reactive import expression as ex
from penstock.reactive.evaluate import FORMS
from penstock.schema.fields import Kind

_NAMES = {node: name for name, node in ex.NODES.items()}


def signature(expression: ex.Expression) -> str:
    """The text of an expression; equal texts mean equal expressions."""
    return json.dumps(_write(expression), ensure_ascii=True, separators=(",", ":"))


def read_signature(text: str) -> Any:
    return _read(json.loads(text))


def _write(node: Any) -> Any:
    if isinstance(node, ex.Constant):
        return ["constant", node.kind.value, FORMS[node.kind].write(node.value)]
    name = _NAMES.get(type(node))
    if name is None:
        return node.value if isinstance(node, Kind) else list(map(_write, node)) if isinstance(node, tuple) else node
    return [name, *(_write(getattr(node, one.name)) for one in fields(node))]


def _read(given: Any) -> Any:
    name, *parts = given
    if name == "constant":
        kind = Kind(parts[0])
        return ex.Constant(kind, FORMS[kind].read(parts[1]))
    if name in {"field", "arithmetic"}:
        parts[-1] = Kind(parts[-1])
    if name == "path":
        return ex.Path(parts[0], tuple(parts[1]))
    if name == "one_of":
        return ex.OneOf(_read(parts[0]), tuple(map(_read, parts[1])))
    if name in {"every", "some"}:
        return ex.NODES[name](tuple(map(_read, parts[0])))
    return ex.NODES[name](*(_read(part) if isinstance(part, list) else part for part in parts))
