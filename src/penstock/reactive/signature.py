"""Expressions as a text that is equal for equal ones, and can be read again.

Owns that text, which outlives processes and versions of Python: a declaration is compared with the one declared
before. Each node is a JSON array that begins with its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from penstock.reactive import expression as ex
from penstock.schema.fields import Kind

_MICROSECOND = timedelta(microseconds=1)
_NODES: dict[str, type[Any]] = {
    "field": ex.Field,
    "path": ex.Path,
    "constant": ex.Constant,
    "length": ex.Length,
    "arithmetic": ex.Arithmetic,
    "compare": ex.Compare,
    "one_of": ex.OneOf,
    "missing": ex.Missing,
    "text": ex.TextIs,
    "matches": ex.Matches,
    "has": ex.Has,
    "holds": ex.Holds,
    "every": ex.Every,
    "some": ex.Some,
    "not": ex.Not,
}
_NAMES = {node: name for name, node in _NODES.items()}
_WRITE: dict[Kind, Callable[[Any], Any]] = {
    Kind.REAL: float.hex,
    Kind.BYTES: bytes.hex,
    Kind.DATETIME: lambda value: value.astimezone(UTC).isoformat(),
    Kind.DATE: date.isoformat,
    Kind.INTERVAL: lambda value: value // _MICROSECOND,
    Kind.DECIMAL: lambda value: str(plain_decimal(value)),
    Kind.UUID: str,
}
_READ: dict[Kind, Callable[[Any], Any]] = {
    Kind.REAL: float.fromhex,
    Kind.BYTES: bytes.fromhex,
    Kind.DATETIME: datetime.fromisoformat,
    Kind.DATE: date.fromisoformat,
    Kind.INTERVAL: lambda value: timedelta(microseconds=value),
    Kind.DECIMAL: Decimal,
    Kind.UUID: UUID,
}


def signature(expression: ex.Expression) -> str:
    """The text of an expression; equal texts mean equal expressions."""
    return json.dumps(_written(expression), ensure_ascii=True, separators=(",", ":"))


def read_signature(text: str) -> Any:
    return _read(json.loads(text))


def _written(node: Any) -> Any:
    if isinstance(node, ex.Constant):
        write = _WRITE.get(node.kind)
        return ["constant", node.kind.value, node.value if write is None else write(node.value)]
    name = _NAMES.get(type(node))
    if name is None:
        return node.value if isinstance(node, Kind) else list(map(_written, node)) if isinstance(node, tuple) else node
    return [name, *(_written(getattr(node, part)) for part in node.__dataclass_fields__)]


def _read(given: Any) -> Any:
    name, *parts = given
    if name == "constant":
        kind = Kind(parts[0])
        read = _READ.get(kind)
        return ex.Constant(kind, parts[1] if read is None else read(parts[1]))
    if name in {"field", "arithmetic"}:
        parts[-1] = Kind(parts[-1])
    if name == "path":
        return ex.Path(parts[0], tuple(parts[1]))
    if name == "one_of":
        return ex.OneOf(_read(parts[0]), tuple(map(_read, parts[1])))
    if name in {"every", "some"}:
        return _NODES[name](tuple(map(_read, parts[0])))
    return _NODES[name](*(_read(part) if isinstance(part, list) else part for part in parts))


def plain_decimal(value: Decimal) -> Decimal:
    if not value:
        return Decimal(0)
    sign, digits, exponent = value.as_tuple()
    kept = "".join(map(str, digits)).rstrip("0")
    return Decimal((sign, tuple(map(int, kept)), int(exponent) + len(digits) - len(kept)))
