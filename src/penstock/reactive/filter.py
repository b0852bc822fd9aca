"""A filter of the rows of reactive tasks, for lists, counts, retries and the like."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Generic

from typing_extensions import TypeVar

from penstock.dataclass import dataclass
from penstock.errors import UsageError, ValueInvalid
from penstock.jobs.states import JobState
from penstock.reactive.tracing import RowFilter
from penstock.schema.table import Table

T = TypeVar("T", bound=Table, default=Table)

GONE = "gone"
STATES = (*(state.value for state in JobState if state is not JobState.COMPLETING), GONE)


@dataclass(frozen=True, slots=True)
class TaskFilter(Generic[T]):
    """Rows of reactive tasks that meet all of these conditions; all rows of all tasks if there is none.

    Args:
        task: The name of their task, with or without its module, or several names.
        state: The state of their job, or several states: pending, running, success, failed, skipped or canceled; or
            ``"gone"``, which is any of these. Then the row has left the filter of its task, or is deleted.
        error: Text that their last error contains, upper and lower case told apart.
        has_error: Whether there is one.
        key: The id of the row, or its key in a table that another program owns; as text, too. A key of several columns
            is a tuple, and as text an array of JSON.
        table: The table that their task is about.
        rows: Only rows of that table that meet this condition now: a function of a row, as the filter of a
            task. Rows that are deleted are never among them.

    Raises:
        ValueInvalid: There is no such state, a text is none that a database can hold, or `rows` is given without
            `table`.
    """

    task: str | tuple[str, ...] | None = None
    state: str | tuple[str, ...] | None = None
    error: str | None = None
    has_error: bool | None = None
    key: Any = None
    table: type[T] | None = None
    rows: RowFilter[T] | None = None

    def __post_init__(self) -> None:
        texts: dict[str, Any] = {"task": self.tasks, "state": self.states, "error": _several(self.error)}
        for word, values in texts.items():
            for value in values or ():
                if not isinstance(value, str) or "\0" in value:
                    raise ValueInvalid(f"{word} takes a text without zero bytes, not {value!r}.")
        if unknown := [state for state in self.states or () if state not in STATES]:
            raise ValueInvalid(f"There is no state {unknown[0]!r}.", fix=f"They are {', '.join(STATES)}.")
        if self.rows is not None and self.table is None:
            raise ValueInvalid(
                "rows is a function of a row, but the table is unknown.",
                fix="Write TaskFilter(table=Order, rows=lambda order: …).",
            )

    @property
    def tasks(self) -> tuple[str, ...] | None:
        return _several(self.task)

    @property
    def states(self) -> tuple[str, ...] | None:
        return _several(self.state)

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, field.name) in {None, ()} if field.name != "key" else self.key is None
                   for field in fields(self))  # fmt: skip

    def in_states(self, *allowed: str, verb: str) -> TaskFilter[T]:
        """This filter for a verb that needs certain states; ValueInvalid if it asks for others."""
        if other := [state for state in self.states or () if state not in allowed]:
            raise ValueInvalid(
                f"What is {other[0]} cannot be {verb}.",
                fix=f"What can is {' or '.join(allowed)}; name no state for these.",
            )
        return replace(self, state=self.states or allowed)

    def check_meant(self, verb: str, *, everything: bool) -> None:
        """Refuse a filter without any condition, which would change all rows of all tasks."""
        if self.is_empty and not everything:
            raise UsageError(
                f"This would {verb} all rows of all reactive tasks.",
                fix="Say which, such as TaskFilter(task=…, state=…); or pass everything=True.",
            )


def _several(value: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    return (value,) if isinstance(value, str) else None if value is None else tuple(value)


ANYTHING: TaskFilter[Any] = TaskFilter()
