"""Reads rows into values of dataclasses: a field is the column of its name, converted as its annotation says.

Owns the choice of conversions, and writes a function for each class and list of columns: thousands of jobs are read in
a second. Each store says what converts the types that its driver gives in a form of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import NoneType
from typing import Any, Protocol, get_args, get_origin, get_type_hints

from penstock.store.session import Row

Convert = Callable[[Any], Any]
Part = Callable[[Row], Any]


class Store(Protocol):
    """The converters of the values of a store, by type."""

    forms: Mapping[Any, Convert]


@lru_cache(1024)
def reader_of(
    kind: Any, columns: tuple[str, ...], store: type[Store], own: tuple[str, ...]
) -> Callable[[Row, Mapping[str, Part]], Any]:
    """The function that makes a value of a class from a row with these columns, and from what makes its `own` fields.

    A field without a column is left out if it has a default. If not, it is another dataclass, which is made of columns
    of the same row.
    """
    known: dict[str, Any] = {}
    made = _make(kind, columns, store, own, known)
    places = "".join(f"c{place}, " for place in range(len(columns)))
    exec(f"def read(row, own):\n    {places} = row\n    return {made}\n", known)  # noqa: S102 - no text of others
    read: Callable[[Row, Mapping[str, Part]], Any] = known["read"]
    return read


def _make(kind: Any, columns: tuple[str, ...], store: type[Store], own: tuple[str, ...], known: dict[str, Any]) -> str:
    types, given = get_type_hints(kind), []
    for one in fields(kind):
        name, has_default = one.name, not one.default is one.default_factory is MISSING
        if name in own:
            given.append(f"{name}=own[{name!r}](row)")
        elif name in columns:
            given.append(f"{name}={_convert(columns.index(name), types[name], store, known)}")
        elif not has_default and is_dataclass(types[name]):
            given.append(f"{name}={_make(types[name], columns, store, (), known)}")
    return f"{_name_for(kind, known)}({', '.join(given)})"


def _convert(place: int, kind: Any, store: type[Store], known: dict[str, Any]) -> str:
    options = get_args(kind)
    others = [one for one in options if one is not NoneType]
    optional = len(others) < len(options)
    convert = _conversion(others[0] if optional and len(others) == 1 else kind, store)
    if convert is None:
        return f"c{place}"
    made = f"{_name_for(convert, known)}(c{place})"
    return f"None if c{place} is None else {made}" if optional else made


def _conversion(kind: Any, store: type[Store]) -> Convert | None:
    """The converter of a value as the driver gives it; None if it is right already."""
    found = store.forms.get(kind) or getattr(kind, "parse", None)
    if found is not None or get_origin(kind) is not tuple:
        return found
    items = store.forms.get(tuple, tuple)
    return lambda value: tuple(items(value))


def _name_for(one: Any, known: dict[str, Any]) -> str:
    """The name that something has for the function."""
    name = f"f{len(known)}"
    known[name] = one
    return name
