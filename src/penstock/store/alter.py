"""The steps of a schema push as changes of the database: which statements, in which order, and which together.

Owns how each database is changed without making others wait. On PostgreSQL what takes a short lock runs together, and
what takes long runs alone, under a lock that lets everyone read and write; each step that needs both is finished before
the next begins, so that one that fails leaves nothing behind. On SQLite, which has one writer, a table is changed in one
piece; what its ALTER TABLE cannot do is done by writing the table anew, as https://sqlite.org/lang_altertable.html says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.schema.diff import (
    AddChoices,
    AddColumn,
    CreateIndex,
    CreateTable,
    Difference,
    DropCheck,
    DropInvalidIndex,
    RelaxColumn,
    ReplaceChoices,
    ReplaceIndex,
    RequireColumn,
    Step,
    ValidateChoices,
)
from penstock.schema.fields import Column
from penstock.schema.index import Index
from penstock.schema.stored import StoredTable, choices_name, index_name, next_name, required_name
from penstock.store.contract import Change
from penstock.store.ddl import SQLITE, choices_sql, column_sql, create_index, create_table, fold, index_in_schema, literal
from penstock.store.dialect import Dialect

_ANEW = "penstock_anew_"


def changes(differences: Sequence[Difference], dialect: Dialect) -> list[Change]:
    """What to do for all steps, in order. New tables come first, and together."""
    new = [difference for difference in differences if CreateTable() in difference.steps]
    found = []
    if new:
        statements = tuple(statement for difference in new for statement in create_table(difference.definition, dialect))
        found.append(Change(", ".join(difference.definition.name for difference in new), statements))
    for difference in differences:
        if difference.stored is not None and difference.steps:
            found += _alter(difference, difference.stored, dialect)
    return found


def _alter(difference: Difference, stored: StoredTable, dialect: Dialect) -> list[Change]:
    if dialect.name == SQLITE:
        statements = tuple(_SqliteTable(difference, stored, dialect).statements())
        return [Change(difference.definition.name, statements)]
    return list(_PostgresTable(difference, stored, dialect).changes())


@dataclass(frozen=True, slots=True)
class _PostgresTable:
    """Changes of one table on PostgreSQL."""

    difference: Difference
    stored: StoredTable
    dialect: Dialect

    def changes(self) -> Iterator[Change]:
        """What is quick, then what is long, step by step."""
        quick = [statement for step in self.difference.steps for statement in self._quick(step)]
        if quick:
            yield self._together(quick)
        for step in self.difference.steps:
            yield from self._long(step)

    def _quick(self, step: Step) -> Iterator[str]:
        match step:
            case DropCheck(name):
                yield self._alter(f"drop constraint {self._quote(name)}")
            case AddColumn(column, fill):
                yield from self._add_column(column, fill)
            case RelaxColumn(column):
                yield self._alter(f"alter column {self._quote(column.name)} drop not null")
            case _:
                pass

    def _add_column(self, column: Column, fill: object) -> Iterator[str]:
        default = "" if fill is None else literal(column.kind, fill, self.dialect)
        plain = column_sql(self.difference.definition, column, self.dialect, default, choices=False)
        yield self._alter(f"add column {plain}")
        if default:
            yield self._alter(f"alter column {self._quote(column.name)} drop default")
        if column.choices:
            yield self._alter(f"add {self._choices(column)} not valid")

    def _long(self, step: Step) -> Iterator[Change]:
        match step:
            case AddChoices(column):
                yield from self._add_choices(column)
            case ReplaceChoices(column):
                yield from self._replace_choices(column)
            case ValidateChoices(column):
                yield self._alone(self._alter(f"validate constraint {self._quote(self._choices_name(column))}"))
            case RequireColumn(column):
                yield from self._require(column)
            case DropInvalidIndex(name):
                yield self._alone(f"drop index concurrently {self._index(name)}")
            case CreateIndex(index):
                yield self._build(index, index_name(self._table, index.name))
            case ReplaceIndex(index):
                yield from self._replace_index(index)
            case _:
                pass

    def _add_choices(self, column: Column) -> Iterator[Change]:
        name = self._quote(self._choices_name(column))
        undo = self._alter(f"drop constraint if exists {name}")
        if not any(isinstance(step, AddColumn) and step.column is column for step in self.difference.steps):
            yield self._together([self._alter(f"add {self._choices(column)} not valid")])
        yield self._alone(self._alter(f"validate constraint {name}"), undo)

    def _replace_choices(self, column: Column) -> Iterator[Change]:
        old = self._choices_name(column)
        new = next_name(old)
        undo = self._alter(f"drop constraint if exists {self._quote(new)}")
        yield self._together([self._alter(f"add {self._choices(column, new)} not valid")])
        yield self._alone(self._alter(f"validate constraint {self._quote(new)}"), undo)
        rename = self._alter(f"rename constraint {self._quote(new)} to {self._quote(old)}")
        yield self._together([self._alter(f"drop constraint {self._quote(old)}"), rename], undo)

    def _require(self, column: Column) -> Iterator[Change]:
        """A check proves that there is no NULL while others write; then SET NOT NULL need not look."""
        name, check = self._quote(column.name), self._quote(required_name(self._table, column.name))
        undo = self._alter(f"drop constraint if exists {check}")
        yield self._together([self._alter(f"add constraint {check} check ({name} is not null) not valid")])
        yield self._alone(self._alter(f"validate constraint {check}"), undo)
        drop = self._alter(f"drop constraint {check}")
        yield self._together([self._alter(f"alter column {name} set not null"), drop], undo)

    def _build(self, index: Index, name: str) -> Change:
        build = create_index(self.difference.definition, index, self.dialect, name, concurrently=True)
        return self._alone(build, f"drop index concurrently if exists {self._index(name)}")

    def _replace_index(self, index: Index) -> Iterator[Change]:
        """The old index serves until the new one takes its name."""
        old = index_name(self._table, index.name)
        new = next_name(old)
        yield self._build(index, new)
        rename = f"alter index {self._index(new)} rename to {self._quote(old)}"
        undo = f"drop index concurrently if exists {self._index(new)}"
        yield self._together([f"drop index {self._index(old)}", rename], undo)

    @property
    def _table(self) -> str:
        return self.difference.definition.name

    def _quote(self, name: str) -> str:
        return self.dialect.quote(name)

    def _index(self, name: str) -> str:
        return index_in_schema(self.stored, name, self.dialect)

    def _choices_name(self, column: Column) -> str:
        return choices_name(self._table, column.name)

    def _choices(self, column: Column, name: str = "") -> str:
        return choices_sql(self.difference.definition, column, self.dialect, name)

    def _alter(self, what: str) -> str:
        return f"alter table {self.dialect.table(self._table)} {what}"

    def _together(self, statements: Sequence[str], undo: str = "") -> Change:
        return Change(self._table, tuple(statements), undo=undo)

    def _alone(self, statement: str, undo: str = "") -> Change:
        return Change(self._table, (statement,), alone=True, undo=undo)


@dataclass(frozen=True, slots=True)
class _SqliteTable:
    """Changes of one table on SQLite."""

    difference: Difference
    stored: StoredTable
    dialect: Dialect

    def statements(self) -> Iterator[str]:
        """Columns first, by ALTER TABLE where it can do all of them, then indexes."""
        steps = self.difference.steps
        replaced = [self._index(step) for step in steps if isinstance(step, ReplaceIndex)]
        if self._added_only():
            for step in steps:
                if isinstance(step, AddColumn):
                    yield self._add_column(step)
            yield from (f"drop index {self.dialect.quote(name)}" for name in replaced)
        else:
            yield from self._anew(replaced)
        for step in steps:
            if isinstance(step, CreateIndex | ReplaceIndex):
                yield create_index(self.difference.definition, step.index, self.dialect)

    def _added_only(self) -> bool:
        added = {step.column.name for step in self.difference.steps if isinstance(step, AddColumn)}
        return all(
            (step.column.optional or step.fill is not None)
            if isinstance(step, AddColumn)
            else isinstance(step, CreateIndex | ReplaceIndex) or step.column.name in added
            for step in self._column_steps()
        )

    def _add_column(self, step: AddColumn) -> str:
        default = "" if step.fill is None else literal(step.column.kind, step.fill, self.dialect)
        column = column_sql(self.difference.definition, step.column, self.dialect, default)
        return f"alter table {self._table} add column {column}"
