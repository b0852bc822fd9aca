"""Makes a database fit the program: penstock's own numbered migrations, then the declared tables.

A push compares first, and takes no lock if the database fits. Otherwise it takes the schema lock, compares again,
counts the rows that forbid a change, and changes the schema if there are none. `schema/diff` finds the differences,
`ddl` and `alter` write the SQL, and the stores' catalogs run it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files

from penstock.dataclass import dataclass
from penstock.errors import ConstraintViolation, DeclarationError, SchemaMismatch, UniqueViolation
from penstock.observe.logs import event
from penstock.schema.diff import Difference, check_names, diff
from penstock.schema.index import Index, redundant_indexes
from penstock.schema.stored import StoredTable
from penstock.schema.table import TableDefinition
from penstock.store.nouns.catalog import Change, Description, SchemaLock
from penstock.store.push.alter import changes
from penstock.store.sql.ddl import count_sql, describe, own_sql
from penstock.store.sql.dialect import Dialect
from penstock.store.store import Store


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a push: the result of one look at the database."""

    migrations: tuple[tuple[str, str], ...]  # names and SQL of penstock's own migrations that are missing, in order
    differences: tuple[Difference, ...]
    changes: tuple[Change, ...]
    left: tuple[str, ...] = ()  # tables of components that no program uses any more

    @property
    def empty(self) -> bool:
        """Whether the database fits already."""
        return not self.migrations and not self.changes

    @property
    def sql(self) -> tuple[str, ...]:
        """Statements that make the tables fit, in order."""
        return tuple(statement for change in self.changes for statement in change.statements)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on what is stored but not declared, and left alone."""
        kept = "is of a component that no program uses any more, and keeps its rows: use it again, or drop the table"
        notes = (note for one in self.differences for note in (*one.notes, *one.remarks))
        return (*notes, *(f"{table} {kept}" for table in self.left))

    @property
    def drift(self) -> tuple[str, ...]:
        """The remarks on what somebody has to decide."""
        return tuple(note for one in self.differences for note in one.notes)

    @property
    def redundant(self) -> tuple[tuple[str, Index, Index], ...]:
        """Table, index, and the other one that makes it superfluous."""
        tables = [one.definition for one in self.differences if one.definition.managed]
        return tuple((one.name, *pair) for one in tables for pair in redundant_indexes([*one.indexes.values()]))

    @property
    def tables(self) -> frozenset[str]:
        """Tables that are created or altered."""
        return frozenset(one.definition.name for one in self.differences if one.steps)


async def push(store: Store, definitions: Sequence[TableDefinition], *, apply: bool = True) -> Plan:
    """Make the database fit the declared tables, in any number of processes at once; the plan it has carried out.

    On SQLite all of it is one transaction. On PostgreSQL each piece is one, and the next push completes an interrupted
    one. Without `apply` nothing is written.

    Raises:
        DeclarationError: A table cannot be held by this store, or names collide.
        SchemaMismatch: Rows or columns would be lost or broken; all problems of all tables, and nothing is changed.
        DatabaseBusy: Another process changes the schema, or keeps a table locked, for too long.
    """
    definitions = list({definition.table: definition for definition in definitions}.values())
    check_names(definitions)
    for definition in definitions:
        store.check_definition(definition)
        if store.dialect.owns(definition.name):
            raise DeclarationError(
                f"Table {definition.table.__name__}: {definition.name} is a name for penstock's own tables, as "
                f"schema={store.dialect.schema!r} is set.",
                fix="Choose another schema, which nobody else uses.",
            )
    found = await _compare(store.catalog, store.dialect, definitions, notes=not apply)
    if not apply or found.empty:
        await _refuse_problems(store.catalog, store.dialect, found)
        return found
    async with store.catalog.lock() as lock:
        found = await _compare(lock, store.dialect, definitions)
        await _refuse_problems(lock, store.dialect, found)
        await _apply(lock, store.dialect, found)
    return found


async def differences(store: Store, definitions: Sequence[TableDefinition]) -> tuple[Difference, ...]:
    """The differences of declared and stored tables, whether a push would change, leave or refuse them.

    Of its guards only those are left that forbid something: rows stand against it.
    """
    check_names(definitions)
    found = await _compare(store.catalog, store.dialect, definitions)
    for one in found.differences:
        counts = [await store.catalog.count(count_sql(guard, store.dialect)) for guard in one.guards]
        one.guards = [guard for guard, count in zip(one.guards, counts, strict=True) if guard.problem(count)]
    return found.differences


async def _compare(
    description: Description, dialect: Dialect, definitions: Sequence[TableDefinition], *, notes: bool = True
) -> Plan:
    applied = await description.list_migrations()
    pending = tuple((name, dialect.qualify(sql)) for name, sql in load_migrations(dialect.name) if name not in applied)
    names = list(dict.fromkeys(definition.name for definition in definitions))
    stored = await description.read_tables(names) if names else {}
    _refuse_twins(definitions, stored)
    differences = tuple(
        diff(definition, describe(definition, dialect), stored.get(definition.name)) for definition in definitions
    )
    if notes and any(one.stored is None and one.definition.managed for one in differences):
        await _note_look_alikes(description, differences)
    return Plan(pending, differences, tuple(changes(differences, dialect)))


async def _note_look_alikes(description: Description, differences: Sequence[Difference]) -> None:
    """Note with each new table undeclared ones with the same columns: it may be a renamed one."""
    declared = {one.stored.name for one in differences if one.stored}
    kept = [one for one in await description.tables_in_use() if one not in declared]
    others = await description.read_tables(kept) if kept else {}
    for one in differences:
        one.notes += [
            f"{one.definition.name} is new, and {other.name}, which nobody declares, has the same columns. Did you "
            + (
                f"rename it? Ids begin with the name of their table: declare {one.definition.table.__name__} with "
                f'name="{other.name}", and its rows stay.'
                if one.definition.row_type is one.definition.table
                else "rename its component? Use it under its former name, and its rows stay."
            )
            for other in others.values()
            if one.stored is None and _columns(other) == _columns(one.declared)
        ]


def _columns(table: StoredTable) -> dict[str, str]:
    return {name: column.type.casefold() for name, column in table.columns.items()}


@cache
def load_migrations(store: str) -> tuple[tuple[str, str], ...]:
    """Names and SQL of penstock's own migrations, in order, for the dialect of this name."""
    shared, own = (files(package) / "migrations" for package in ("penstock.store", f"penstock.store.{store}"))
    found = {file.name: own_sql(file.read_text("utf-8"), store) for file in shared.iterdir()}
    for file in own.iterdir():
        found[file.name] = found.get(file.name, "") + file.read_text("utf-8")
    return tuple((name.removesuffix(".sql"), sql) for name, sql in sorted(found.items()))


def _refuse_twins(definitions: Sequence[TableDefinition], stored: Mapping[str, StoredTable]) -> None:
    """Refuse two declarations of one table: neither would notice rows written with the other."""
    found: dict[tuple[str, str], TableDefinition] = {}
    for definition in definitions:
        table = stored.get(definition.name)
        known = definition if table is None else found.setdefault((table.schema, table.name), definition)
        if known is not definition:
            names = f"{known.table.__name__} ({known.name}) and {definition.table.__name__} ({definition.name})"
            raise DeclarationError(
                f"Tables {names} are one table of the database.", fix="Declare it once, and use that class everywhere."
            )


async def _refuse_problems(
    description: Description, dialect: Dialect, found: Plan, when: str = "; nothing was changed"
) -> None:
    problems = [problem for difference in found.differences for problem in difference.problems]
    for difference in found.differences:
        for guard in difference.guards:
            problem = guard.problem(await description.count(count_sql(guard, dialect)))
            problems += [problem] if problem else []
    if problems:
        listed = "".join(f"\n- {problem.what} {problem.fix}" for problem in problems)
        raise SchemaMismatch(
            f"The stored tables do not fit the declared ones{when}:{listed}",
            problems=[asdict(problem) for problem in problems],
        )


async def _apply(lock: SchemaLock, dialect: Dialect, found: Plan) -> None:
    for note in (note for one in found.differences if one.stored is None for note in one.notes):
        event("schema.noted", logging.WARNING, note=note)
    for name, sql in found.migrations:
        await lock.migrate(name, sql)
        event("schema.migrated", migration=name)
    for change in found.changes:
        event("schema.changing", table=change.table, sql=" ".join("; ".join(change.statements).split()))
        try:
            await lock.apply(change)
        except (UniqueViolation, ConstraintViolation):
            await _refuse_problems(lock, dialect, found, ", by rows written while the schema was being changed")
            raise
    if not found.empty:
        made = sum(difference.stored is None for difference in found.differences)
        changes = len(found.changes)
        event("schema.applied", migrations=len(found.migrations), changes=changes, tables_made=made)
