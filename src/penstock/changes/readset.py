"""The read set: the keys and ranges that a transaction has read. `live/ranges` finds the changes that concern it.

Values are in the form in which the store holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.search.query import Query


class Bound(NamedTuple):
    """One end of a range on a column; `inclusive` says whether the value itself belongs to it."""

    value: Any
    inclusive: bool


@dataclass(frozen=True, slots=True)
class RangeRead:
    """Rows of a table whose `columns` begin with `prefix`, and whose next column lies between two bounds.

    `nulls` says whether rows with NULL in the next column belong to it.
    """

    table: str
    index: str | None  # name of the index that was read, or None for the table by its key
    columns: tuple[str, ...]  # the columns of the index, in order
    prefix: tuple[Any, ...] = ()  # values that the first columns equal; None stands for NULL
    lower: Bound | None = None  # lower bound of the next column, or None for no bound
    upper: Bound | None = None  # upper bound of the next column, or None for no bound
    nulls: bool = True


@dataclass(frozen=True, slots=True)
class SearchRead:
    """Rows of a table whose filters have these values, and whose text has words of a query."""

    table: str
    column: str
    filters: tuple[tuple[str, Any], ...]  # the values in the form of `reactive.evaluate`
    query: Query

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose values tell whether a row fits."""
        return (self.column, *(name for name, _ in self.filters))

    @property
    def choices(self) -> Sequence[tuple[str, tuple[Any, ...]]]:
        """The columns of its filters, each with the values that a row may have."""
        return [(name, (value,)) for name, value in self.filters]

    def __str__(self) -> str:
        said = [f"{name} = {value!r}" for name, value in self.filters]
        words = " ".join(word.tokens[0] + "*" * word.prefix for word in self.query.words)
        return " and ".join((f"{self.column} has {self.query.match} of {words!r}", *said))


@dataclass(frozen=True, slots=True)
class VectorRead:
    """Rows of a table whose filters have some of these values: any of them may be among the nearest."""

    table: str
    choices: tuple[tuple[str, tuple[Any, ...]], ...]  # as those of `SearchRead`

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose values tell whether a row fits."""
        return tuple(name for name, _ in self.choices)

    def __str__(self) -> str:
        said = [f"{name} in {', '.join(map(repr, values))}" for name, values in self.choices]
        return " and ".join(("any vector", *said))


Read = RangeRead | SearchRead | VectorRead


@dataclass(slots=True)
class ReadSet:
    ranges: list[Read] = field(default_factory=list)  # every range and every search, in order
    everything: bool = False  # whether it read by SQL, so that any change may concern it
    jobs: frozenset[UUID] = frozenset()  # whose statuses it read
    files: dict[str, bool] = field(default_factory=dict)  # whether these were there when it looked for them
    untold: bool = False  # whether it read data that is not captured, such as the number of waiting jobs
    identity: bool = False  # whether it read who calls
    request: bool = False  # whether it read the request that the call came with
    until: datetime | None = None  # the end of the time that it read: `ctx.now(every=…)` then gives another one

    def note_file(self, file_id: str, *, exists: bool) -> None:
        """Note a file that it has looked for; an empty id for one that nobody can look for again."""
        if file_id:
            self.files[file_id] = exists
        else:
            self.untold = True

    def note_jobs(self, jobs: Iterable[UUID] | None) -> None:
        """Note the jobs whose statuses were read; None for other data that is not captured."""
        if jobs is None:
            self.untold = True
        else:
            self.jobs = self.jobs.union(jobs)


def above(bound: Bound | None, value: Any) -> bool:
    """Whether a value is not below a lower bound."""
    return bound is None or bool(value >= bound.value if bound.inclusive else value > bound.value)


def below(bound: Bound | None, value: Any) -> bool:
    """Whether a value is not above an upper bound."""
    return bound is None or bool(value <= bound.value if bound.inclusive else value < bound.value)
