"""Filters of rows that are given as text: of which table a text is meant, and what it says.

Owns finding the table, among those that the program declares, for doors that have nothing but names. Leaves reading the
text to `reactive.filtertext`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.naming import called
from penstock.errors import ValueInvalid
from penstock.reactive.filtertext import TextFilter
from penstock.reactive.task import ReactiveTask
from penstock.schema.table import Table, definition_of


def read_rows(
    own: Sequence[ReactiveTask], tasks: Sequence[str] | None, table: type[Table] | None, text: str
) -> tuple[type[Table], TextFilter]:
    """The table that a text is about, and its filter, as `TaskFilter` takes them.

    Args:
        own: The tasks that the program declares.
        tasks: The names of those that are meant; None for all.
        table: The table that is named; without it, it is the one of the tasks.
        text: The condition on its rows.

    Raises:
        ValueInvalid: No table is named, a task is not of this program, the tasks are about several tables, or the text
            cannot be read or translated.
    """
    if table is None:
        table = _table_of(own, tasks or ())
    return table, TextFilter(definition_of(table), text)


def _table_of(own: Sequence[ReactiveTask], names: Sequence[str]) -> type[Table]:
    found = [_task(own, name).definition.table for name in names]
    if not found:
        raise ValueInvalid(
            "rows is a condition on a row, but the table is unknown.", fix="Name the task, or the table."
        )
    if any(one is not found[0] for one in found):
        raise ValueInvalid("rows is a condition on one table, but these tasks have several.")
    return found[0]


def _task(own: Sequence[ReactiveTask], name: str) -> ReactiveTask:
    found = called(own, name, lambda task: task.name)
    if found is None:
        raise ValueInvalid(
            f"This program declares no reactive task {name[:100]!r}, so its table is unknown here.",
            fix="Name a task of this program, or the table, if the program declares that.",
        )
    return found
