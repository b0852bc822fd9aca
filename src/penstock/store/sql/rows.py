"""Reads rows by name into values of dataclasses, by the annotations of their fields.

Owns the choice of conversions. Each store says what converts the types that its driver gives in a form of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from operator import itemgetter
from types import NoneType
from typing import Any, Protocol, get_args, get_origin, get_type_hints

from penstock.store.session import Row

Convert = Callable[[Any], Any]
Part = Callable[[Row], Any]


class Store(Protocol):
    """What converts the values of a store, by type."""

    forms: Mapping[Any, Convert]


@lru_cache(1024)
def parts_of(kind: Any, columns: tuple[str, ...], store: type[Store]) -> dict[str, Part]:
    """What makes the fields of a class from a row with these columns.

    A field without a column is left out if it has a default. If not, it is another dataclass, which is made of columns
    of the same row.
    """
    types = get_type_hints(kind)
    return {
        one.name: _part(one.name, types[one.name], columns, store)
        for one in fields(kind)
        if one.name in columns or (one.default is one.default_factory is MISSING and is_dataclass(types[one.name]))
    }


def _part(name: str, kind: Any, columns: tuple[str, ...], store: type[Store]) -> Part:
    if name not in columns:
        parts = parts_of(kind, columns, store)
        return lambda row: kind(**{field: part(row) for field, part in parts.items()})
    kind, optional = _without_none(kind)
    convert = _conversion(kind, store)
    return itemgetter(name) if convert is None else _converted(name, convert, optional=optional)


def _without_none(kind: Any) -> tuple[Any, bool]:
    """A type, without the None that it may be."""
    options = get_args(kind)
    others = [one for one in options if one is not NoneType]
    optional = len(others) < len(options)
    return (others[0] if optional and len(others) == 1 else kind), optional


def _converted(name: str, convert: Convert, *, optional: bool) -> Part:
    if not optional:
        return lambda row: convert(row[name])
    return lambda row: None if (value := row[name]) is None else convert(value)


def _conversion(kind: Any, store: type[Store]) -> Convert | None:
    """What converts a value as the driver gives it; None if it is right already."""
    found = store.forms.get(kind) or getattr(kind, "parse", None)
    if found is not None or get_origin(kind) is not tuple:
        return found
    items = store.forms[tuple]
    return lambda value: tuple(items(value))
