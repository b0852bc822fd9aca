"""The steps of a schema push as changes of the database: the statements, their order, and their transactions.

Changes each database without making others wait. On PostgreSQL short statements run together. Long ones
run alone, under a lock that lets others read and write. A step with both is finished before the next begins, so that
one that fails leaves nothing behind. SQLite has one writer, so a table is changed in one piece. Where ALTER TABLE does
not suffice the table is written anew, as SQLite's documentation of ALTER TABLE describes (section 7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.schema.diff import ColumnStep, CreateTable, Difference, IndexStep, Step, added_columns
from penstock.schema.fields import Column
from penstock.schema.index import Index
from penstock.schema.stored import StoredTable, choices_name, index_name, next_name, required_name
from penstock.store.contract.schema import Change
from penstock.store.sql.ddl import (
    SQLITE,
    choices_sql,
    column_sql,
    create_index,
    create_table,
    fold,
    literal,
)
from penstock.store.sql.dialect import Dialect

_ANEW = "penstock_anew_"
# In the text of a column as `column_sql` writes it.
_NOT_NULL = re.compile(r"^(\S+\s+\w+(?:\s+/\*.*?\*/)?(?:\s+collate\s+\S+)?)\s+not\s+null", re.IGNORECASE)


def changes(differences: Sequence[Difference], dialect: Dialect) -> list[Change]:
    """The changes for all steps, in order. New tables come first, and together."""
    new = [difference for difference in differences if CreateTable() in difference.steps]
    found = []
    if new:
        statements = tuple(
            statement for difference in new for statement in create_table(difference.definition, dialect)
        )
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
        """Short statements first, then long ones, step by step."""
        quick = [statement for step in self.difference.steps for statement in self._quick(step)]
        if quick:
            yield self._together(quick)
        for step in self.difference.steps:
            yield from self._long(step)

    def _quick(self, step: Step) -> Iterator[str]:
        match step:
            case ColumnStep("drop check", name=name):
                yield self._alter(f"drop constraint {self._quote(name)}")
            case ColumnStep("add", column, fill):
                yield from self._add_column(column, fill)
            case ColumnStep("relax", column):
                yield self._alter(f"alter column {self._quote(column.name)} drop not null")

    def _add_column(self, column: Column, fill: object) -> Iterator[str]:
        default = "" if fill is None else literal(column.kind, fill, self.dialect)
        plain = column_sql(self.difference.definition, column, self.dialect, default, choices=False)
        # The default stays: processes of the previous version insert without the column.
        yield self._alter(f"add column {plain}")
        if column.choices:
            yield self._alter(f"add {self._choices(column)} not valid")

    def _long(self, step: Step) -> Iterator[Change]:
        match step:
            case ColumnStep("add choices" | "replace choices" | "validate choices", column):
                yield from self._limit(step.do, column)
            case ColumnStep("require", column):
                yield from self._require(column)
            case IndexStep("drop invalid", name=name):
                yield self._alone(f"drop index concurrently {self._index(name)}")
            case IndexStep("create", index):
                yield self._build(index, index_name(self._table, index.name))
            case IndexStep("replace", index):
                yield from self._replace_index(index)

    def _limit(self, do: str, column: Column) -> Iterator[Change]:
        """The old choices hold until the new ones are checked."""
        name = choices_name(self._table, column.name)
        new = next_name(name) if do == "replace choices" else name
        undo = self._alter(f"drop constraint if exists {self._quote(new)}")
        if do != "validate choices" and column.name not in added_columns(self.difference.steps):
            yield self._together([self._alter(f"add {self._choices(column, new)} not valid")])
        yield self._alone(
            self._alter(f"validate constraint {self._quote(new)}"), undo if do != "validate choices" else ""
        )
        if new != name:
            rename = self._alter(f"rename constraint {self._quote(new)} to {self._quote(name)}")
            yield self._together([self._alter(f"drop constraint {self._quote(name)}"), rename], undo)

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
        quoted, schema = self._quote(name), self.stored.schema  # an index lies in the schema of its table
        return f"{self._quote(schema)}.{quoted}" if schema else quoted

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
        """Columns first, by ALTER TABLE if it can change all of them, then indexes."""
        additions = [*added_columns(self.difference.steps).values()]
        indexes = [one for one in self.difference.steps if isinstance(one, IndexStep) and one.do != "drop invalid"]
        table = self.difference.definition.name
        replaced = [index_name(table, step.index.name) for step in indexes if step.do == "replace"]
        if self._changed_columns() or any(not step.column.optional and step.fill is None for step in additions):
            yield from self._write_anew(additions, replaced)
        else:
            yield from map(self._add_column, additions)
            yield from (f"drop index {self.dialect.quote(name)}" for name in replaced)
        for step in indexes:
            yield create_index(self.difference.definition, step.index, self.dialect)

    def _changed_columns(self) -> dict[str, Column]:
        """Columns that exist and are declared otherwise now."""
        changed = [one.column for one in self.difference.steps if isinstance(one, ColumnStep) and one.do != "add"]
        folded = {fold(column.name, self.dialect): column for column in changed}
        return {name: column for name, column in folded.items() if name in self.stored.columns}

    def _add_column(self, step: ColumnStep) -> str:
        default = "" if step.fill is None else literal(step.column.kind, step.fill, self.dialect)
        column = column_sql(self.difference.definition, step.column, self.dialect, default)
        return f"alter table {self._table} add column {column}"

    def _write_anew(self, additions: Sequence[ColumnStep], replaced: Sequence[str]) -> Iterator[str]:
        """Copy the rows into a new table that takes the name of the old one. Undeclared columns stay as they are."""
        changed = self._changed_columns()
        columns = [
            column_sql(self.difference.definition, changed[key], self.dialect) if key in changed else column.sql
            for key, column in self.stored.columns.items()
        ]
        columns += [column_sql(self.difference.definition, step.column, self.dialect) for step in additions]
        filled = {
            self.dialect.quote(step.column.name): literal(step.column.kind, step.fill, self.dialect)
            for step in additions
            if step.fill is not None
        }
        yield from rewrite(self.stored, columns, filled, self.dialect, without=replaced)

    @property
    def _table(self) -> str:
        return self.dialect.quote(self.stored.name)


# ----- a table of SQLite, written anew


def rewrite(
    stored: StoredTable,
    columns: Sequence[str],
    filled: Mapping[str, str],
    dialect: Dialect,
    without: Sequence[str] = (),
) -> Iterator[str]:
    """Copy the rows into a new table with these columns, given as SQL, which takes the name of the old one.

    `filled` are values for new columns. Indexes and triggers are made again, but those that are named in `without`.
    """
    table, anew = dialect.quote(stored.name), dialect.quote(_ANEW + stored.name)
    parts = ",\n    ".join([*columns, *stored.constraints])
    yield f"create table {anew} (\n    {parts}\n) {stored.options}".rstrip()
    rowid = [] if "without" in stored.options.lower() else ["_rowid_"]
    kept = [*rowid, *(dialect.quote(column.name) for column in stored.columns.values() if not column.generated)]
    yield (
        f"insert into {anew} ({', '.join([*kept, *filled])}) select {', '.join([*kept, *filled.values()])} from {table}"
    )
    yield f"drop table {table}"
    yield f"alter table {anew} rename to {table}"
    yield from (sql for name, sql in stored.attached.items() if name.lower() not in without)


def rewrite_relaxed(stored: StoredTable, column: str, dialect: Dialect) -> Iterator[str]:
    """The statements that let a column of SQLite hold NULL; none if it may already."""
    texts = {name: each.sql for name, each in stored.columns.items()}
    relaxed = _NOT_NULL.sub(r"\1", texts[column.lower()], count=1)
    if relaxed != texts[column.lower()]:
        yield from rewrite(stored, [*(texts | {column.lower(): relaxed}).values()], {}, dialect)
