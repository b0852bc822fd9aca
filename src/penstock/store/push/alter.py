"""The steps of a schema push as changes of the database: the statements, their order, and their transactions.

Changes each database without making others wait. On PostgreSQL short statements run together. Long ones
run alone, under a lock that lets others read and write. A step with both is finished before the next begins, so that
one that fails leaves nothing behind. SQLite has one writer, so a table is changed in one piece. Where ALTER TABLE does
not suffice the table is copied into a new one, as SQLite's documentation of ALTER TABLE describes (section 7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from penstock.dataclass import dataclass
from penstock.schema.diff import ColumnStep, CreateTable, Difference, IndexStep, Step, columns_to_add
from penstock.schema.fields import Column
from penstock.schema.index import Index
from penstock.schema.stored import StoredTable, choices_name, index_name, next_name, not_null_name
from penstock.store.nouns.catalog import Change
from penstock.store.sql.ddl import SQLITE, choices_sql, column_sql, create_index, create_table, fold, literal
from penstock.store.sql.dialect import Dialect

_ANEW = "penstock_anew_"
# In the text of a column as `column_sql` writes it.
_NOT_NULL = re.compile(r"^(\S+\s+\w+(?:\s+/\*.*?\*/)?(?:\s+collate\s+\S+)?)\s+not\s+null", re.IGNORECASE)


def changes(differences: Sequence[Difference], dialect: Dialect) -> list[Change]:
    """The changes for all steps, in order. New tables come first, and together."""
    new = [one.definition for one in differences if CreateTable() in one.steps]
    statements = tuple(statement for one in new for statement in create_table(one, dialect))
    found = [Change(", ".join(one.name for one in new), statements)] if new else []
    for one in differences:
        if one.stored is not None and one.steps and dialect.name == SQLITE:
            found.append(Change(one.definition.name, tuple(_sqlite_statements(one, one.stored, dialect))))
        elif one.stored is not None and one.steps:
            found += _PostgresTable(one, one.stored, dialect).changes()
    return found


@dataclass(frozen=True, slots=True)
class _PostgresTable:
    """Changes of one table on PostgreSQL."""

    difference: Difference
    stored: StoredTable
    dialect: Dialect

    def changes(self) -> Iterator[Change]:
        """Short statements first, then long ones, step by step."""
        if quick := [statement for step in self.difference.steps for statement in self._quick(step)]:
            yield self._together(*quick)
        for step in self.difference.steps:
            yield from self._long(step)

    def _quick(self, step: Step) -> Iterator[str]:
        match step:
            case ColumnStep("drop check", name=name):
                yield self._alter(f"drop constraint {self._quote(name)}")
            case ColumnStep("add", column, fill):
                default = "" if fill is None else literal(column.kind, fill, self.dialect)
                plain = column_sql(self.difference.definition, column, self.dialect, default, choices=False)
                # The default stays: processes of the previous version insert without the column.
                yield self._alter(f"add column {plain}")
                if column.choices:
                    yield self._alter(f"add {self._choices(column)} not valid")
            case ColumnStep("relax", column):
                yield self._alter(f"alter column {self._quote(column.name)} drop not null")

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
        if do != "validate choices" and column.name not in columns_to_add(self.difference.steps):
            yield self._together(self._alter(f"add {self._choices(column, new)} not valid"))
        validate = self._alter(f"validate constraint {self._quote(new)}")
        yield self._alone(validate, undo if do != "validate choices" else "")
        if new != name:
            rename = self._alter(f"rename constraint {self._quote(new)} to {self._quote(name)}")
            yield self._together(self._alter(f"drop constraint {self._quote(name)}"), rename, undo=undo)

    def _require(self, column: Column) -> Iterator[Change]:
        """A check proves that there is no NULL while others write; then SET NOT NULL need not look."""
        name, check = self._quote(column.name), self._quote(not_null_name(self._table, column.name))
        undo = self._alter(f"drop constraint if exists {check}")
        yield self._together(self._alter(f"add constraint {check} check ({name} is not null) not valid"))
        yield self._alone(self._alter(f"validate constraint {check}"), undo)
        drop = self._alter(f"drop constraint {check}")
        yield self._together(self._alter(f"alter column {name} set not null"), drop, undo=undo)

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
        yield self._together(f"drop index {self._index(old)}", rename, undo=undo)

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

    def _together(self, *statements: str, undo: str = "") -> Change:
        return Change(self._table, statements, undo=undo)

    def _alone(self, statement: str, undo: str = "") -> Change:
        return Change(self._table, (statement,), alone=True, undo=undo)


def _sqlite_statements(difference: Difference, stored: StoredTable, dialect: Dialect) -> Iterator[str]:
    """Columns first, by ALTER TABLE if it can change all of them, then indexes. Undeclared columns stay as they are."""
    definition, added = difference.definition, columns_to_add(difference.steps)
    changed = [one.column for one in difference.steps if isinstance(one, ColumnStep) and one.do != "add"]
    declared = {fold(column.name, dialect): column for column in changed if column.name not in added}
    fills = {name: literal(one.column.kind, one.fill, dialect) for name, one in added.items() if one.fill is not None}
    indexes = [one for one in difference.steps if isinstance(one, IndexStep) and one.do != "drop invalid"]
    replaced = [index_name(definition.name, one.index.name) for one in indexes if one.do == "replace"]
    if declared or any(not one.column.optional and name not in fills for name, one in added.items()):
        columns = [
            column_sql(definition, declared[key], dialect) if key in declared else column.sql
            for key, column in stored.columns.items()
        ]
        columns += [column_sql(definition, one.column, dialect) for one in added.values()]
        filled = {dialect.quote(name): fill for name, fill in fills.items()}
        yield from rewrite(stored, columns, filled, dialect, without=replaced)
    else:
        for name, one in added.items():
            column = column_sql(definition, one.column, dialect, fills.get(name, ""))
            yield f"alter table {dialect.quote(stored.name)} add column {column}"
        yield from (f"drop index {dialect.quote(name)}" for name in replaced)
    yield from (create_index(definition, one.index, dialect) for one in indexes)


# ----- a table of SQLite, copied into a new one


def rewrite(
    stored: StoredTable,
    columns: Sequence[str],
    filled: Mapping[str, str],
    dialect: Dialect,
    without: Sequence[str] = (),
) -> Iterator[str]:
    """Copy the rows into a new table with these columns, given as SQL, which takes the name of the old one.

    `filled` are values for new columns. Indexes and triggers are made again, except the ones in `without`.
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
