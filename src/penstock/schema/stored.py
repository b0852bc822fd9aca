"""Tables as a database has them, for the comparison in a schema push, and the names of indexes and checks.

Owns the form of this description, which is the same for stored and for declared tables, and the names of
indexes and checks. Leaves reading it to the stores' catalogs, and comparing to `diff`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from hashlib import blake2s

from penstock.dataclass import dataclass

MAX_SQL_NAME = 63
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


@dataclass(frozen=True, slots=True)
class StoredColumn:
    name: str
    type: str  # its SQL type with its collation, as the store spells it
    nullable: bool
    # whether the database fills it when an insert does not name it: a default, an identity, a formula
    filled: bool = False
    generated: bool = False  # whether it is a formula over other columns, which nobody writes
    # on PostgreSQL its type without limits, and the one below domains; with brackets for arrays
    plain: str = ""
    base: str = ""
    sql: str = ""  # its text in CREATE TABLE; only on SQLite, where a change copies the table


@dataclass(frozen=True, slots=True)
class StoredIndex:
    name: str
    columns: tuple[str, ...]  # its columns as SQL, with what it says of their order
    unique: bool
    valid: bool = True  # False for an index whose building was interrupted
    extra: str = ""  # parts that penstock's indexes never have: a condition, a method, included columns


@dataclass(frozen=True, slots=True)
class StoredCheck:
    name: str
    choices: frozenset[str | int] = frozenset()  # the values it allows in a column; empty if it says something else
    valid: bool = True  # False for one that was never checked against the rows that stood there before it


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as the database has it. Names are keys in the form in which the database compares them."""

    name: str
    columns: Mapping[str, StoredColumn]
    indexes: Mapping[str, StoredIndex] = field(default_factory=dict)
    checks: Mapping[str, StoredCheck] = field(default_factory=dict)
    key: tuple[str, ...] = ("id",)  # the columns of its primary key
    kind: str = "table"  # ``table``, or what else bears its name, such as ``view``
    schema: str = ""  # the schema it lies in; empty on SQLite
    constraints: tuple[str, ...] = ()  # constraints of the table as a whole, as SQL; only on SQLite
    options: str = ""  # the text behind its columns in CREATE TABLE; only on SQLite
    # its indexes and triggers as SQL, by name; only on SQLite
    attached: Mapping[str, str] = field(default_factory=dict)


def unique_keys(table: StoredTable) -> Iterator[tuple[str, ...]]:
    """Columns whose values no two rows share: of the primary key, and of unique indexes over all rows."""
    if table.key:
        yield table.key
    yield from (columns for columns, unique in index_columns(table) if unique)


def index_columns(table: StoredTable) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The columns of each index over all rows, and whether no two rows share their values."""
    names = {column.name: name for name, column in table.columns.items()}
    for index in table.indexes.values():
        found = [_QUOTED.match(column) for column in index.columns]
        if index.valid and not index.extra.startswith("where") and all(found):
            yield tuple(names.get(one[1].replace('""', '"'), "") for one in found if one), index.unique


def index_name(table: str, index: str) -> str:
    return f"{table}_{index}"


def choices_name(table: str, column: str) -> str:
    return _fit(f"{table}_{column}_choices")


def not_null_name(table: str, column: str) -> str:
    """The name of the temporary CHECK by which PostgreSQL proves that a column holds no NULL."""
    return _fit(f"{table}_{column}~required")


def next_name(name: str) -> str:
    """The temporary name of a replacement; the tilde keeps it apart from declared names."""
    return _fit(f"{name}~next")


def sync_name(table: str, name: str, event: str = "") -> str:
    """The name of the triggers by which a migration file keeps columns equal."""
    return _fit(f"{table.rpartition('.')[2]}_{name}_sync{event and '_'}{event}")


def is_synced(table: StoredTable, column: str) -> bool:
    """Whether a trigger fills a column after inserts, as on SQLite: it cannot be NOT NULL meanwhile."""
    triggers = (sql for sql in table.attached.values() if " after insert " in sql)
    return any(f'"{column}" = ' in sql.partition(" begin update ")[2] for sql in triggers)


def _fit(name: str) -> str:
    if len(name) <= MAX_SQL_NAME:
        return name
    return f"{name[:50]}~{blake2s(name.encode(), digest_size=6).hexdigest()}"
