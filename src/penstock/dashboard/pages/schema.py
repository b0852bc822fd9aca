"""Schema: tables with their fields and indexes, those that nobody needs, and what a migration would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.dashboard.page import Page, View
from penstock.errors import DeclarationError, SchemaMismatch
from penstock.schema.fields import Column
from penstock.schema.index import Index
from penstock.schema.stored import StoredIndex, StoredTable, index_name
from penstock.schema.table import TableDefinition
from penstock.store.push.migrate import Plan, load_migrations, push

_EVERY = 10.0  # seconds
_KEY = "key"


@dataclass(frozen=True, slots=True)
class IndexLine:
    name: str
    columns: str
    unique: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldLine:
    name: str
    type: str  # its SQL type
    nullable: bool
    note: str


@dataclass(frozen=True, slots=True)
class TableLine:
    """A table, as the program declares it and as the database has it."""

    name: str
    owner: str  # penstock, or another program
    fields: tuple[FieldLine, ...]
    indexes: tuple[IndexLine, ...]

    @property
    def notes(self) -> int:
        """How many notes there are about it, beside that a field is a key."""
        return sum(one.note not in {"", _KEY} for one in self.fields) + sum(len(one.notes) for one in self.indexes)


async def _load(view: View) -> Mapping[str, Any]:
    store, definitions = view.backend.engine.store, view.backend.app.definitions()
    names = [one.name for one in definitions]
    stored = await store.catalog.stored_tables(names) if names else {}
    applied = await store.catalog.applied_migrations()
    plan, trouble = None, ""
    try:
        plan = await push(store, definitions, apply=False)
    except (SchemaMismatch, DeclarationError) as error:
        trouble = str(error)
    unused = await store.statistics.unused(names)
    found = (None if unused is None else {one.name for one in unused}, _redundant(plan))
    return {
        "tables": [_table(one, stored.get(one.name), *found) for one in sorted(definitions, key=lambda one: one.name)],
        "counts_use": unused is not None,
        "files": await store.migration_files.list(),
        "applied": sorted(applied),
        "missing": [name for name, _ in load_migrations(store.dialect.name) if name not in applied],
        "plan": plan,
        "trouble": trouble,
    }


def _redundant(plan: Plan | None) -> Mapping[tuple[str, str], Index]:
    """By table and index, the index that makes it superfluous."""
    return {(table, index.name): other for table, index, other in (() if plan is None else plan.redundant)}


def _table(
    definition: TableDefinition,
    stored: StoredTable | None,
    unused: set[str] | None,
    redundant: Mapping[tuple[str, str], Index],
) -> TableLine:
    indexes = list(_declared(definition, stored, unused, redundant))
    known = {index_name(definition.name, name) for name in definition.indexes}
    others = [] if stored is None else [one for one in stored.indexes.values() if one.name not in known]
    indexes += [_undeclared(one, unused, managed=definition.managed) for one in others]
    fields = [_field(one, definition, stored) for one in definition.columns]
    if definition.managed and stored is not None:
        declared = {one.name for one in definition.columns}
        fields += [
            FieldLine(name, one.type, one.nullable, "not declared")
            for name, one in stored.columns.items()
            if name not in declared
        ]
    owner = "penstock" if definition.managed else "another program"
    return TableLine(definition.name, owner, tuple(fields), tuple(indexes))


def _field(column: Column, definition: TableDefinition, stored: StoredTable | None) -> FieldLine:
    found = None if stored is None else stored.columns.get(column.name)
    note = "not in the database" if found is None else _KEY if column.name in definition.key else ""
    return FieldLine(column.name, column.kind.value if found is None else found.type, column.optional, note)


def _declared(
    definition: TableDefinition,
    stored: StoredTable | None,
    unused: set[str] | None,
    redundant: Mapping[tuple[str, str], Index],
) -> Sequence[IndexLine]:
    lines = []
    for name, index in definition.indexes.items():
        full, notes = index_name(definition.name, name), []
        found = None if stored is None else stored.indexes.get(full)
        if definition.managed and found is None:
            notes.append("not in the database")
        elif found is not None and not found.valid:
            notes.append("its building was interrupted")
        if (other := redundant.get((definition.name, name))) is not None:
            notes.append(f"redundant: {other.name} begins with its columns")
        if unused is not None and full in unused:
            notes.append("unused")
        lines.append(IndexLine(name, ", ".join(index.columns), index.unique, tuple(notes)))
    return lines


def _undeclared(index: StoredIndex, unused: set[str] | None, *, managed: bool) -> IndexLine:
    notes = ["not declared"] * managed + ["unused"] * (unused is not None and index.name in unused)
    return IndexLine(index.name, f"{', '.join(index.columns)} {index.extra}".strip(), index.unique, tuple(notes))


PAGES = (Page("/schema", "Schema", "schema.html", _load, {}, every=_EVERY),)
