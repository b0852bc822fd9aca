"""The tables of a program: those that the modules of its functions name, so that nobody has to list them.

Owns finding them, and that no two have one name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from penstock.errors import DeclarationError
from penstock.functions.registry import Registry
from penstock.schema.table import Table


def tables_of(registry: Registry) -> list[type[Table]]:
    """Tables that the modules of functions name: directly, or through modules of the same package."""
    found: dict[type[Table], None] = {}
    for function in registry:
        module = function.declared.__globals__
        root = str(module.get("__name__", "")).partition(".")[0]
        for value in list(module.values()):
            if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == root:
                found.update(dict.fromkeys(_tables_in(vars(value))))
        found.update(dict.fromkeys(_tables_in(module)))
    return list(found)


def _tables_in(namespace: Mapping[str, Any]) -> list[type[Table]]:
    return [
        value
        for value in list(namespace.values())
        if isinstance(value, type) and issubclass(value, Table) and value is not Table and "__declared__" in vars(value)
    ]


def distinct(tables: Iterable[type[Table]]) -> list[type[Table]]:
    """Each of them once.

    Raises:
        DeclarationError: Two of them have one name.
    """
    found: dict[str, type[Table]] = {}
    for table in tables:
        known = found.setdefault(table.__declared__.sql_name, table)
        if known is not table:
            raise _same_name(known, table)
    return list(found.values())


def _same_name(first: type[Table], second: type[Table]) -> DeclarationError:
    return DeclarationError(
        f"Two tables are named {first.__declared__.sql_name}: {first.__module__}.{first.__qualname__} and "
        f"{second.__module__}.{second.__qualname__}.",
        fix='Give one of them another name="…".',
    )
