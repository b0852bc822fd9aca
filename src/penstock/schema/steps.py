"""What a schema push is made of: steps, rows that stand against them, and problems.

Owns these values. Leaves deciding on them to `diff`, and their SQL to `store/push/alter`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from penstock.schema.fields import Column
from penstock.schema.index import Index
from penstock.schema.stored import StoredTable
from penstock.schema.table import TableDefinition

Rule = Literal["any", "null", "not null", "other", "duplicate"]


@dataclass(frozen=True, slots=True)
class CreateTable:
    """The table does not exist yet."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column; `fill` is what the rows that exist get, in the form a store takes, or None for NULL."""

    column: Column
    fill: Any


@dataclass(frozen=True, slots=True)
class RelaxColumn:
    """A column may hold NULL from now on."""

    column: Column


@dataclass(frozen=True, slots=True)
class RequireColumn:
    """A column may hold NULL no longer."""

    column: Column


@dataclass(frozen=True, slots=True)
class AddChoices:
    """A column is limited to its choices from now on."""

    column: Column


@dataclass(frozen=True, slots=True)
class ReplaceChoices:
    """A column has other choices than before."""

    column: Column


@dataclass(frozen=True, slots=True)
class ValidateChoices:
    """The choices of a column hold for new rows, but were never checked against the old ones."""

    column: Column


@dataclass(frozen=True, slots=True)
class DropCheck:
    """A check that is not declared any more, or that an interrupted push has left behind."""

    name: str
    column: Column


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """A new index."""

    index: Index


@dataclass(frozen=True, slots=True)
class ReplaceIndex:
    """An index whose columns or uniqueness have changed: it stands until the new one can take its place."""

    index: Index


@dataclass(frozen=True, slots=True)
class DropInvalidIndex:
    """What an interrupted push has left behind."""

    name: str


Step = (
    CreateTable
    | AddColumn
    | RelaxColumn
    | RequireColumn
    | AddChoices
    | ReplaceChoices
    | ValidateChoices
    | DropCheck
    | CreateIndex
    | ReplaceIndex
    | DropInvalidIndex
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a table cannot be changed to fit its declaration."""

    table: str
    what: str  # what does not fit, as a whole sentence
    fix: str  # the way out
    column: str = ""  # the column, or the columns, it is about
    index: str = ""  # the index it is about
    rows: int | None = None  # how many rows stand against it, where that is the reason


@dataclass(frozen=True, slots=True)
class Guard:
    """Rows that a step would lose or break; they have to be counted before."""

    # which rows offend: any, those with NULL or with a value in the columns, those with other values than the choices,
    # those that are not unique in the columns
    rule: Rule
    table: str
    what: str  # the problem as a sentence that lacks the number of rows at its end
    fix: str
    columns: tuple[str, ...] = ()
    choices: tuple[str | int, ...] = ()
    index: str = ""
    always: bool = False  # whether it is a problem even if no row offends

    def problem(self, rows: int) -> Problem | None:
        """The problem it is if this many rows offend."""
        if not rows and not self.always:
            return None
        what = f"{self.what} {rows} row{'' if rows == 1 else 's'}."
        return Problem(self.table, what, self.fix, ", ".join(self.columns), self.index, rows)


@dataclass(frozen=True, slots=True)
class Difference:
    """What lies between a declaration and the stored table."""

    definition: TableDefinition
    declared: StoredTable  # the declaration in the form of a stored table
    stored: StoredTable | None  # the table as it is; None if it does not exist
    steps: tuple[Step, ...] = ()  # what to do, in order
    guards: tuple[Guard, ...] = ()  # rows that must not exist for it
    problems: tuple[Problem, ...] = ()  # why it cannot be done, whatever the rows are
    notes: tuple[str, ...] = ()  # what is left alone
