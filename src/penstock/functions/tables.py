"""The tables of a program: those that the modules of its functions name, so that nobody has to list them.

Owns finding them, and that no two have one name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from penstock.errors import DeclarationError
from penstock.functions.function import AnyFunction
from penstock.schema.table import Table


def tables_of(functions: Iterable[AnyFunction]) -> list[type[Table]]:
    """Tables that the modules of functions name: directly, or through modules of the same package.

    The module of a wrapped handler, of a task or an outbox, tells of tables that penstock creates. Those of other
    programs are theirs to create, and a handler that needs one names it.
    """
    found: dict[type[Table], None] = {}
    for function in functions:
        declared = function.declared
        own: dict[str, Any] = declared.__globals__
        handlers = None if own.get("__name__") == declared.__module__ else sys.modules.get(declared.__module__)
        module = own if handlers is None else vars(handlers)
        root = str(module.get("__name__", "")).partition(".")[0]
        beside = _tables_in(module)
        for value in list(module.values()):
            if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == root:
                beside += _tables_in(vars(value))
        found.update((table, None) for table in beside if handlers is None or table.__managed__)
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
