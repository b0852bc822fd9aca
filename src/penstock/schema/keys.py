"""Keys: the columns that tell the rows of a table apart, and the ids by which programs call rows.

Owns the declaration of keys, and the reading of ids of tables that other programs own. An id is the key as text where
it is one column, else a tuple of values in the order of the declaration.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.errors import DeclarationError, IdInvalid
from penstock.schema.fields import Column, Kind

_INTEGERS_TOO = (Kind.DECIMAL, Kind.BOOLEAN)  # as the change feed may have their values
_HEX = "\\x"


def check_key(table: str, key: object, fields: Collection[str]) -> tuple[str, ...]:
    columns = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, (tuple, list)) else ()
    if not columns or not all(isinstance(column, str) for column in columns):
        raise DeclarationError(
            f"Table {table}: its key {key!r} is neither a column nor a tuple of columns.",
            fix='Write key="order_id" or key=("tenant", "number").',
        )
    unknown = [column for column in columns if column not in fields]
    if unknown:
        raise DeclarationError(f"Table {table}: its key {', '.join(map(repr, unknown))} is not one of its fields.")
    if len(set(columns)) < len(columns):
        raise DeclarationError(f"Table {table}: its key ({', '.join(columns)}) names a column twice.")
    return columns


def encode_one(table: str, column: Column, given: Any) -> Any:
    """The key that an id stands for, of a table with one key column, in the form a store takes."""
    try:
        as_fed = column.kind is Kind.BYTES and isinstance(given, str) and given.startswith(_HEX)
        return column.encode(_bytes(given) if as_fed else _check(column, given))
    except (ValueError, TypeError):  # pydantic's error is a ValueError
        raise wrong_id(given, table, f"Pass an id of {table}, as insert and rows of it give it.") from None


def check_several(table: str, key: Sequence[Column], given: Any) -> tuple[Any, ...]:
    """An id of a table with several key columns: a tuple of values. Texts are read as their columns' kinds."""
    whose = f", whose key is ({', '.join(column.name for column in key)})"
    if not isinstance(given, (tuple, list)) or len(given) != len(key):
        raise wrong_id(given, table, f"Pass a tuple of these {len(key)} values, in this order.", whose)
    found = []
    for column, value in zip(key, given, strict=True):
        try:
            found.append(_bytes(value) if column.kind is Kind.BYTES else _check(column, value))
        except (ValueError, TypeError):  # pydantic's error is a ValueError
            why = f"{whose}: {value!r} is no {column.name}, which is {column.kind.value}"
            raise wrong_id(given, table, "Pass the values as rows have them.", why) from None
    return tuple(found)


def wrong_id(given: Any, table: str, fix: str, why: str = "") -> IdInvalid:
    """The error for what is no id of a table; `why` follows the table's name."""
    return IdInvalid(f"{given!r} is not an id of table {table}{why}.", fix=fix, table=table)


def _check(column: Column, value: Any) -> Any:
    if value is None:
        raise TypeError(value)
    as_json = type(value) is int and (column.kind in _INTEGERS_TOO or bool(column.choices))
    lenient = as_json or isinstance(value, str)
    found = column.adapter.validate_python(value, strict=not lenient)
    if lenient and isinstance(found, datetime) and found.tzinfo is None:
        return found.replace(tzinfo=UTC)  # as columns without time zone are read, and the change feed spells them
    return found


def _bytes(value: Any) -> bytes:
    """Bytes, from bytes, from JSON, or as the change feed spells them."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise TypeError(value)
    return bytes.fromhex(value[len(_HEX) :]) if value.startswith(_HEX) else b64decode(value, validate=True)
