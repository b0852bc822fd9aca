"""Schema: tables with their fields and indexes, unused indexes, and the changes of a migration."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from penstock.changes.searches import TableVectors, searches_of
from penstock.dashboard.page import Page, View
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, SchemaMismatch
from penstock.schema.fields import Column
from penstock.schema.index import redundant_indexes
from penstock.schema.stored import StoredColumn, StoredIndex, StoredTable, index_name
from penstock.schema.table import TableDefinition
from penstock.store.nouns.searches import SearchRow
from penstock.store.push.migrate import load_migrations, push

_EVERY = 10.0  # seconds
_KEY = "key"


Searches = Mapping[tuple[str, str], SearchRow]  # by name and digest


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
        """How many notes there are about it, without the one that a field is a key."""
        return sum(one.note not in {"", _KEY} for one in self.fields) + sum(len(one.notes) for one in self.indexes)


async def _load(view: View) -> Mapping[str, Any]:
    store, definitions = view.backend.engine.store, view.backend.app.definitions()
    names = [one.name for one in definitions]
    stored = await store.catalog.read_tables(names) if names else {}
    applied = await store.catalog.list_migrations()
    rows = await store.searches.list() if any(one.searches for one in definitions) else []
    searches = {(row.name, row.digest): row for row in rows}
    plan, trouble = None, ""
    try:
        plan = await push(store, definitions, apply=False)
    except (SchemaMismatch, DeclarationError) as error:
        trouble = str(error)
    counted = await store.statistics.list_unused(names)
    unused = {one.name for one in counted or ()}
    return {
        "tables": [
            _table(one, stored.get(one.name), unused, searches) for one in sorted(definitions, key=lambda one: one.name)
        ],
        "counts_use": counted is not None,
        "files": await store.migration_files.list(),
        "applied": sorted(applied),
        "missing": [name for name, _ in load_migrations(store.dialect.name) if name not in applied],
        "plan": plan,
        "trouble": trouble,
    }


def _table(
    definition: TableDefinition, stored: StoredTable | None, unused: Collection[str], searches: Searches
) -> TableLine:
    has = stored or StoredTable(definition.name, {})
    fields = [_field(one, definition, has.columns.get(one.name)) for one in definition.columns]
    declared = {one.name for one in fields}
    fields += [
        FieldLine(name, one.type, one.nullable, "not declared")
        for name, one in has.columns.items()
        if definition.managed and name not in declared
    ]
    owner = "penstock" if definition.managed else "another program"
    return TableLine(definition.name, owner, tuple(fields), tuple(_indexes(definition, has.indexes, unused, searches)))


def _field(column: Column, definition: TableDefinition, found: StoredColumn | None) -> FieldLine:
    note = "not in the database" if found is None else _KEY if column.name in definition.key else ""
    return FieldLine(column.name, column.kind.value if found is None else found.type, column.optional, note)


def _indexes(
    definition: TableDefinition, stored: Mapping[str, StoredIndex], unused: Collection[str], searches: Searches
) -> Iterator[IndexLine]:
    declared = {index_name(definition.name, name): index for name, index in definition.indexes.items()}
    redundant = {one.name: other.name for one, other in redundant_indexes([*declared.values()] * definition.managed)}
    for full, index in declared.items():
        found = stored.get(full)
        notes = ["not in the database"] * (definition.managed and found is None)
        notes += ["its building was interrupted"] * (found is not None and not found.valid)
        if index.name in redundant:
            notes.append(f"redundant: {redundant[index.name]} begins with its columns")
        notes += ["unused"] * (full in unused)
        yield IndexLine(index.name, ", ".join(index.columns), index.unique, tuple(notes))
    for search in searches_of([definition]):
        state = searches.get((search.name, search.digest))
        notes = ["not in the database"] if state is None else ["being filled"] * (state.cursor is not None)
        what = "vectors" if isinstance(search, TableVectors) else "words"
        yield IndexLine(search.index.name, f"{what} of {', '.join(search.columns)}", False, tuple(notes))
    for one in stored.values():
        if one.name not in declared:
            notes = ["not declared"] * definition.managed + ["unused"] * (one.name in unused)
            yield IndexLine(one.name, f"{', '.join(one.columns)} {one.extra}".strip(), one.unique, tuple(notes))


PAGES = (Page("/schema", "Schema", "schema.html", _load, {}, every=_EVERY),)
