"""Compares a stored table with its declaration: the steps that make it fit, and the problems that forbid them.

Owns the rules of a schema push: additions happen by themselves. A step that would lose or break data is a problem, some
only if rows stand against it. Catalogs count those rows; `store/push/alter` has the SQL of each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Literal

from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, PenstockError
from penstock.schema.fields import Column, Kind
from penstock.schema.index import Index
from penstock.schema.owned import misfit
from penstock.schema.stored import (
    MAX_SQL_NAME,
    StoredColumn,
    StoredTable,
    choices_name,
    index_name,
    is_synced,
    next_name,
    not_null_name,
    unique_keys,
)
from penstock.schema.table import TableDefinition

_EMPTY_CONTAINERS = (list, dict, set, frozenset, tuple)


def check_names(definitions: Sequence[TableDefinition]) -> None:
    """Refuse SQL names that databases would cut off, or that would stand for two things."""
    taken: dict[str, str] = {}
    for definition in (one for one in definitions if one.managed):
        table = definition.table.__name__
        names = [(definition.name, f"table {table}"), (f"{definition.name}_pkey", f"the primary key of table {table}")]
        names += [(index_name(definition.name, one), f"index {table}.{one}") for one in definition.indexes]
        for name, what in names:
            if len(name) > MAX_SQL_NAME and not name.endswith("_pkey"):  # which PostgreSQL shortens
                raise DeclarationError(
                    f"The SQL name of {what}, {name}, has {len(name)} characters; databases take {MAX_SQL_NAME}.",
                    fix="Give the index or the table a shorter name.",
                )
            if name in taken:
                raise DeclarationError(
                    f"In SQL {what} would be named {name}, and so would {taken[name]}.",
                    fix="Give one of them another name.",
                )
            taken[name] = what


def diff(definition: TableDefinition, declared: StoredTable, stored: StoredTable | None) -> Difference:
    """Compare a table's declaration, also given in the form of a stored table, with the stored table."""
    comparison = _Comparison(definition, declared, stored)
    if not definition.managed:
        comparison.check_owned(stored)
    elif stored is None:
        comparison.steps.append(CreateTable())
    elif comparison.check_form(stored):
        comparison.compare(stored)
    return comparison


@dataclass
class Difference:
    definition: TableDefinition
    declared: StoredTable  # the declaration in the form of a stored table
    stored: StoredTable | None  # the table as it is; None if it does not exist
    steps: list[Step] = field(default_factory=list)  # the steps, in order
    guards: list[Guard] = field(default_factory=list)  # rows that must not exist for it
    problems: list[Problem] = field(default_factory=list)  # problems that do not depend on rows
    notes: list[str] = field(default_factory=list)  # what is stored otherwise than declared, and left alone
    remarks: list[str] = field(default_factory=list)  # what is left to the table's owner, such as further indexes
    gone: dict[str, StoredColumn] = field(default_factory=dict)  # columns that are stored, and not declared any more
    retyped: dict[str, tuple[StoredColumn, Column]] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return self.definition.name

    @property
    def new(self) -> dict[str, Column]:
        """Columns that are declared, and not stored."""
        return {name: step.column for name, step in columns_to_add(self.steps).items()}

    def like(self, gone: StoredColumn) -> list[str]:
        """The new columns of the type of one that is gone: it may have been renamed."""
        columns = zip(self.declared.columns.values(), self.definition.columns, strict=True)
        types = {column.name: stored.type for stored, column in columns}
        return [name for name in self.new if types[name].casefold() == gone.type.casefold()]

    @property
    def columns_without_value(self) -> dict[str, Column]:
        """Columns that are declared as required, while rows have no value for them."""
        empty = {name for guard in self.guards if guard.rule in {"any", "null"} for name in guard.columns}
        return {column.name: column for column in self.definition.columns if column.name in empty}

    @property
    def needs_file(self) -> bool:
        """Whether a push leaves or refuses a part, for which a migration file is written."""
        return bool(self.gone or self.retyped or self.columns_without_value)


class _Comparison(Difference):
    # ----- the table as a whole

    def check_owned(self, stored: StoredTable | None) -> None:
        """A table of another program must have the declared columns and key; it is never changed."""
        if stored is None:
            self._problem(
                f"Table {self.table} does not exist, and {self.definition.table.__name__} is declared managed=False.",
                "Create it with the program that owns it, or correct source= or the database's URL.",
            )
            return
        missing = [column.name for key, column in self._columns() if key not in stored.columns]
        if missing:
            listed = ", ".join(missing)
            self._problem(
                f"{self.table} has no column {listed}, which {self.definition.table.__name__} declares.",
                f"Its columns are {', '.join(column.name for column in stored.columns.values())}.",
                column=listed,
            )
        elif stored.kind == "table":
            self._check_unique(stored)
        for key, column in self._columns():
            if key in stored.columns and (fitting := misfit(column, stored.columns[key])) is not None:
                self._refuse_owned_type(column, stored.columns[key], fitting)

    def _refuse_owned_type(self, column: Column, found: StoredColumn, fitting: str) -> None:
        annotation: Any = column.info.annotation if column.info else None
        declared = annotation.__name__ if isinstance(annotation, type) else repr(annotation).replace("typing.", "")
        name, optional = self.definition.table.__name__, " | None" if column.optional else ""
        fix = f"Annotate it {fitting}{optional}." if fitting else f"Leave it out of {name}: no annotation holds them."
        if column.kind is Kind.ENCRYPTED:
            fix = "It is encrypted, and ciphertext is text: give it a column of the type text."
        self._problem(
            f"{self.table}.{column.name} is {found.type or 'of any type'} in the database, and {name} declares it as "
            f"{declared}, which does not hold its values.",
            fix,
            column=column.name,
        )

    def _check_unique(self, stored: StoredTable) -> None:
        """The declared key must be unique in the database, or be vouched for by its owner."""
        unique = list(unique_keys(stored))
        if any({*self.declared.key}.issuperset(columns) for columns in unique):
            return
        key = ", ".join(self.definition.key)
        if unique:
            listed = " or ".join(f"({', '.join(columns)})" for columns in unique)
            self._problem(
                f"{self.definition.table.__name__} declares ({key}) as the key of {self.table}, but several rows "
                "may have the same one.",
                f"The columns that tell its rows apart are {listed}; or create a unique index of ({key}) with the "
                "program that owns the table.",
            )
        else:
            self.remarks.append(f"Nothing but its owner keeps rows of {self.table} from having the same ({key}).")

    def check_form(self, stored: StoredTable) -> bool:
        """Whether it is a table that penstock can keep rows in."""
        if stored.kind != "table":
            self._problem(
                f"{self.table} is a {stored.kind}, not a table.",
                'Give the table another name="…", or drop what is there.',
            )
            return False
        if stored.key != self.declared.key:
            self._problem(
                f"{self.table} exists, and its primary key is ({', '.join(stored.key)}) instead of (id): "
                "another program has created it.",
                'Declare it with managed=False, source= and key=; or give the table another name="…".',
            )
            return False
        return True

    def compare(self, stored: StoredTable) -> None:
        """Compare a table of penstock's own, column by column and index by index."""
        added = set()
        for key, column in self._columns():
            found, wanted = stored.columns.get(key), self.declared.columns[key]
            if found is None:
                added.add(column.name)
                self._add(column)
            elif found.type.casefold() != wanted.type.casefold():
                self.retyped[column.name] = (found, column)
                self._refuse_type(column, found, wanted)
            else:
                self._compare_nullable(column, found, stored)
        for _key, column in self._columns():
            if column.name not in self.retyped:
                self._compare_choices(column, stored, new=column.name in added)
        self._note_undeclared_columns(stored)
        self._compare_indexes(stored, added)

    # ----- columns

    def _columns(self) -> Iterator[tuple[str, Column]]:
        return zip(self.declared.columns, self.definition.columns, strict=True)

    def _add(self, column: Column) -> None:
        where = f"{self.table}.{column.name}"
        factory = column.info.default_factory if column.info else None
        make_optional = "run penstock migration new, which writes a backfill."
        if not column.optional and column.required:
            what = f"{where} is new and required, but there is no value for it in"
            self._guard("any", what, f"Give it a default; or {make_optional}", column)
        elif not column.optional and factory is not None and factory not in _EMPTY_CONTAINERS:
            what = f"{where} is new, and its default_factory would have to be called for each of"
            self._guard("any", what, f"Give it a constant default; or {make_optional}", column)
        elif factory is None or factory in _EMPTY_CONTAINERS:
            self.steps.append(ColumnStep("add", column, self._fill(column)))
            return
        self.steps.append(ColumnStep("add", column))

    def _fill(self, column: Column) -> Any:
        where = f"{self.table}.{column.name}"
        try:
            return column.default()
        except (PenstockError, TypeError, ValueError, AttributeError) as error:
            self._problem(f"The default of {where} cannot be stored: {error}", "Correct it.", column=column.name)
            return None

    def _refuse_type(self, column: Column, found: StoredColumn, wanted: StoredColumn) -> None:
        self._guard(
            "not null",
            f"{self.table}.{column.name} is declared as {wanted.type}, but stored as {found.type}, with a value in",
            "Run penstock migration new: it writes the steps that convert the values.",
            column,
            always=True,
        )

    def _compare_nullable(self, column: Column, found: StoredColumn, stored: StoredTable) -> None:
        if column.optional and not found.nullable:
            self.steps.append(ColumnStep("relax", column))
        elif not column.optional and found.nullable and is_synced(stored, column.name):
            self.notes.append(f"{self.table}.{column.name} may be NULL until the contract of its migration file.")
        elif not column.optional and found.nullable:
            self.steps.append(ColumnStep("require", column))
            self._guard(
                "null",
                f"{self.table}.{column.name} is no longer optional, but it is NULL in",
                "Give these rows a value, declare it optional, or run penstock migration new, which writes a backfill.",
                column,
            )

    def _note_undeclared_columns(self, stored: StoredTable) -> None:
        for key, column in stored.columns.items():
            if key in self.declared.columns:
                continue
            if not column.generated and "~" not in key:
                self.gone[column.name] = column
            where = f"{self.table}.{column.name}"
            renamed = self._rename_question(column)
            if column.nullable or column.filled or column.generated:
                self.notes.append(f"{where} is stored, but not declared any more; it is left alone.{renamed}")
            else:
                self._problem(
                    f"{where} is not declared any more, but stored as NOT NULL without a default: inserts would fail.",
                    f"Declare it again, or run penstock migration new, which writes steps that drop it.{renamed}",
                    column=column.name,
                )

    def _rename_question(self, gone: StoredColumn) -> str:
        """The question whether a new column of the same type is one that is gone."""
        new = self.like(gone)
        return f" Did you rename it to {' or '.join(new)}? Then run penstock migration new." if new else ""

    # ----- choices

    def _compare_choices(self, column: Column, stored: StoredTable, *, new: bool) -> None:
        name = choices_name(self.table, column.name)
        leftovers = {next_name(name), not_null_name(self.table, column.name)} & stored.checks.keys()
        self.steps += [ColumnStep("drop check", column, name=leftover) for leftover in sorted(leftovers)]
        found = stored.checks.get(name)
        if not column.choices:
            self.steps += [ColumnStep("drop check", column, name=name)] if found else []
        elif found is None:
            self.steps.append(ColumnStep("add choices", column))
            if not new:
                self._guard_choices(column)
        elif found.choices != frozenset(column.choices):
            self.steps.append(ColumnStep("replace choices", column))
            if not found.choices or not found.choices <= frozenset(column.choices):
                self._guard_choices(column)
        elif not found.valid:
            self.steps.append(ColumnStep("validate choices", column))
            self._guard_choices(column)

    def _guard_choices(self, column: Column) -> None:
        choices = ", ".join(map(repr, column.choices))
        self._guard(
            "other",
            f"{self.table}.{column.name} is limited to {choices}, but has another value in",
            "Change these rows first, or keep their values among the choices.",
            column,
            choices=column.choices,
        )

    # ----- indexes

    def _compare_indexes(self, stored: StoredTable, added: set[str]) -> None:
        names = {index_name(self.table, index.name): index for index in self.definition.indexes.values()}
        leftovers = {next_name(name): index for name, index in names.items() if next_name(name) in stored.indexes}
        self.steps += [IndexStep("drop invalid", leftovers[name], name) for name in sorted(leftovers)]
        for name, index in names.items():
            found = stored.indexes.get(name)
            if found is not None and found.valid:
                wanted = self.declared.indexes[name]
                if (found.columns, found.unique, found.extra) == (wanted.columns, wanted.unique, wanted.extra):
                    continue
                self.steps.append(IndexStep("replace", index))
            else:
                self.steps += [IndexStep("drop invalid", index, name)] if found else []
                self.steps.append(IndexStep("create", index))
            self._guard_unique(index, added)
        for name, found in stored.indexes.items():
            if name not in names and name not in leftovers and name.startswith(f"{self.table}_"):
                invalid = "" if found.valid else ", and an interrupted build has left it invalid"
                self.remarks.append(f"Index {name} is stored, but not declared{invalid}; it is left alone.")

    def _guard_unique(self, index: Index, added: set[str]) -> None:
        if not index.unique:
            return
        new = columns_to_add(self.steps)
        if any(new[name].fill is None for name in index.columns if name in added):
            return  # the new column is NULL in all rows, so none of them counts; or there must be no rows at all
        self.guards.append(
            Guard(
                "duplicate",
                self.table,
                f"The unique index {self.table}.{index.name} cannot be built: its values ({', '.join(index.columns)}) "
                "are not unique in",
                "Change or delete these rows first, or declare the index without unique=True.",
                tuple(name for name in index.columns if name not in added),
                index=index.name,
            )
        )

    # ----- findings

    def _problem(self, what: str, fix: str, *, column: str = "") -> None:
        self.problems.append(Problem(self.table, what, fix, column))

    def _guard(
        self,
        rule: Rule,
        what: str,
        fix: str,
        column: Column,
        *,
        choices: tuple[str | int, ...] = (),
        always: bool = False,
    ) -> None:
        self.guards.append(Guard(rule, self.table, what, fix, (column.name,), choices, always=always))


Rule = Literal["any", "null", "not null", "other", "duplicate"]


@dataclass(frozen=True, slots=True)
class CreateTable:
    """The table does not exist yet."""


@dataclass(frozen=True, slots=True)
class ColumnStep:
    """A change of a column, or of the check that limits it to its choices."""

    # `relax`: it may hold NULL from now on, `require`: no longer; `validate`: its choices hold for new rows, but were
    # never checked against the old ones; `drop check`: one is not declared any more, or left by an interrupted push
    do: Literal["add", "relax", "require", "add choices", "replace choices", "validate choices", "drop check"]
    column: Column
    fill: Any = None  # of a new column the value for existing rows, in the form a store takes; None for NULL
    name: str = ""  # of the check


@dataclass(frozen=True, slots=True)
class IndexStep:
    """A change of an index. One that is replaced stands until the new one can take its place."""

    do: Literal["create", "replace", "drop invalid"]
    index: Index
    name: str = ""  # of an invalid one, which an interrupted push has left behind


Step = CreateTable | ColumnStep | IndexStep


def columns_to_add(steps: Sequence[Step]) -> dict[str, ColumnStep]:
    """The steps that add columns, by the column's name."""
    return {step.column.name: step for step in steps if isinstance(step, ColumnStep) and step.do == "add"}


@dataclass(frozen=True, slots=True)
class Problem:
    table: str
    what: str  # the mismatch, as a whole sentence
    fix: str  # the way out
    column: str = ""  # the column, or the columns, it is about
    index: str = ""  # the index it is about
    rows: int | None = None  # how many rows stand against it, where that is the reason


@dataclass(frozen=True, slots=True)
class Guard:
    """Rows that a step would lose or break; they have to be counted before."""

    # which rows offend: any; rows with NULL, or with a value, in the columns; rows with other values than the choices;
    # rows that are not unique in the columns
    rule: Rule
    table: str
    what: str  # the problem as a sentence that lacks the number of rows at its end
    fix: str
    columns: tuple[str, ...] = ()
    choices: tuple[str | int, ...] = ()
    index: str = ""
    always: bool = False  # whether it is a problem even if no row offends

    def problem(self, rows: int) -> Problem | None:
        """The problem if this many rows offend; None if they are no problem."""
        if not rows and not self.always:
            return None
        what = f"{self.what} {rows} row{'' if rows == 1 else 's'}."
        return Problem(self.table, what, self.fix, ", ".join(self.columns), self.index, rows)
