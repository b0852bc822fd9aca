"""Twins: the tables in which one use of a component keeps its rows, each like a table of the component."""

from __future__ import annotations

from typing import Any

from penstock.schema.table import Table


def twin_of(table: type[Table], prefix: str) -> type[Table]:
    """Declare a table like another, in which a component keeps its rows; these are of the other's class.

    Args:
        table: The other table, which penstock manages.
        prefix: The beginning of the twin's SQL name.
    """
    rows, name = table.__row_type__ or table, prefix + table.__declared__.sql_name
    names = {"__module__": table.__module__, "__qualname__": f"{name}.{rows.__name__}", "__row_type__": rows}
    metaclass: Any = type(rows)
    twin: type[Table] = metaclass(rows.__name__, (rows,), names, name=name, live=table.__declared__.live)
    return twin
