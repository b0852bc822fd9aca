"""Values as a store's driver gives them, in the one form in which `reactive.evaluate` reads them.

Owns reading what no declaration promises: in a table that another program owns, a value may be of another type than
its field, as rows are then read too. What cannot be read as its field's type is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from penstock.reactive.evaluate import normal_value
from penstock.schema.fields import PLAIN, Kind
from penstock.schema.table import TableDefinition
from penstock.store.dialect import Dialect

_CONFIG = ConfigDict(val_json_bytes="base64")  # as tables have it
_TYPES = {kind: annotation for annotation, kind in PLAIN.items()}


def stored_values(
    dialect: Dialect, definition: TableDefinition, stored: Mapping[str, Any], columns: Iterable[str]
) -> dict[str, Any]:
    """The values of some columns of a row as a store's driver gave them."""
    return {name: stored_value(dialect, definition.column(name).kind, stored.get(name)) for name in columns}


def stored_value(dialect: Dialect, kind: Kind, value: Any) -> Any:
    """One value as a store's driver gave it; None if it is none of its kind."""
    if value is None:
        return None
    try:
        neutral = dialect.decode_value(kind, value)
        found = normal_value(kind, neutral)
        return normal_value(kind, _read(kind, neutral)) if found is None else found
    except Exception:  # noqa: BLE001 - whatever it is, it is not a value of this kind
        return None


def _read(kind: Kind, value: Any) -> Any:
    if kind is Kind.JSON:  # an array column of PostgreSQL
        return json.dumps(value) if isinstance(value, (list, tuple)) else None
    return _adapter(kind).validate_python(value, strict=False)


@lru_cache
def _adapter(kind: Kind) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPES[kind], config=_CONFIG)
