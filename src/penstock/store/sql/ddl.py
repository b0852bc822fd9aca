"""The SQL of tables and their parts, as each database spells them.

Owns the text of DDL for both stores: tables, columns, checks, indexes, literals, penstock's own tables, and the query
that counts the rows that forbid a change. Leaves to `alter` which statements change an existing table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from penstock.schema.diff import Guard
from penstock.schema.fields import Column, Kind
from penstock.schema.index import Index
from penstock.schema.stored import StoredCheck, StoredColumn, StoredIndex, StoredTable, choices_name, index_name
from penstock.schema.table import TableDefinition
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.statements import index_columns

# SQLite has few types: a comment in the table's text tells the kind of a column, so that a push sees it change.
_TOLD_BY_COMMENT = (
    Kind.BOOLEAN, Kind.DATETIME, Kind.DATE, Kind.INTERVAL, Kind.DECIMAL, Kind.UUID, Kind.JSON, Kind.ENCRYPTED,
)  # fmt: skip
SQLITE = "sqlite"
# Migrations have PostgreSQL's words. Of these SQLite has others, or none.
_OF_ONE_STORE = re.compile(r"^(.*?)  -- (PostgreSQL|SQLite)\n", re.MULTILINE)
_SQLITE_WORDS = tuple(
    (re.compile(pattern, re.MULTILINE), words)
    for pattern, words in (
        (r"\bpenstock\.", "penstock_"),
        (r"^create index (if not exists )?", r"create index \1penstock_"),
        (r"^( +\w+) bigint generated always as identity primary key", r"\1 integer primary key autoincrement"),
        (r" generated always as identity primary key", " primary key"),
        (r"^( +\w+) (bigint|smallint|boolean)\b", r"\1 integer"),
        (r"^( +\w+) timestamptz\b", r"\1 text"),
        (r"^( +\w+) double precision\b", r"\1 real"),
        (r"^( +\w+) uuid\b", r"\1 blob"),
        (r' collate "C"', ""),
        (r" default false\b", " default 0"),
        (r"^\)( with \(.*\))?;", ") strict;"),
    )
)


# ----- penstock's own tables


def own_sql(migration: str, store: str) -> str:
    """A migration of both stores as one of them takes it: its own lines, with its own words for types."""

    def choose(line: re.Match[str]) -> str:
        return f"{line[1]}\n" if (line[2] == "SQLite") is (store == SQLITE) else ""

    sql = _OF_ONE_STORE.sub(choose, migration)
    for pattern, words in _SQLITE_WORDS if store == SQLITE else ():
        sql = pattern.sub(words, sql)
    return sql


# ----- a declaration in the form of a stored table


def describe(definition: TableDefinition, dialect: Dialect) -> StoredTable:
    """A declaration in the form of a stored table."""
    table = definition.name
    return StoredTable(
        name=table,
        columns={
            fold(column.name, dialect): StoredColumn(column.name, column_type(column, dialect), column.optional)
            for column in definition.columns
        },
        indexes={
            index_name(table, index.name): StoredIndex(
                index_name(table, index.name), tuple(index_columns(definition, index, dialect)), index.unique
            )
            for index in definition.indexes.values()
        },
        checks={
            choices_name(table, column.name): StoredCheck(choices_name(table, column.name), frozenset(column.choices))
            for column in definition.columns
            if column.choices
        },
        key=tuple(fold(name, dialect) for name in definition.key),
    )


def fold(name: str, dialect: Dialect) -> str:
    """A name in the form in which the database compares it: SQLite does not tell capitals apart."""
    return name.lower() if dialect.name == SQLITE else name


def column_type(column: Column, dialect: Dialect) -> str:
    """The SQL type of a column, with its collation."""
    return kind_type(column.kind, dialect, long=column.long)


def kind_type(kind: Kind, dialect: Dialect, *, long: bool = False) -> str:
    """The SQL type of columns of a kind; `long` for decimals of more digits than a float keeps."""
    if long and dialect.long_type:
        return dialect.long_type
    told = f" /* {kind.value} */" if dialect.name == SQLITE and kind in _TOLD_BY_COMMENT else ""
    return f"{dialect.types[kind]}{told}"


# ----- rows that forbid a step


def count_sql(guard: Guard, dialect: Dialect) -> str:
    """The query that counts the rows that forbid a step."""
    table = dialect.table(guard.table)
    names = list(map(dialect.quote, guard.columns))
    if guard.rule == "duplicate":
        return _count_duplicates(table, names)
    if guard.rule == "any":
        return f"select count(*) from {table}"
    if guard.rule == "other":
        return f"select count(*) from {table} where {names[0]} not in ({_list(guard.choices)})"
    return f"select count(*) from {table} where {names[0]} is {guard.rule}"


def _count_duplicates(table: str, names: list[str]) -> str:
    if not names:  # all rows get the same values
        return f"select case when count(*) > 1 then count(*) else 0 end from {table}"
    given = " and ".join(f"{name} is not null" for name in names)
    groups = f"select count(*) as members from {table} where {given} group by {', '.join(names)} having count(*) > 1"
    return f"select coalesce(sum(members), 0) from ({groups}) as duplicates"


# ----- tables and their parts


def create_table(definition: TableDefinition, dialect: Dialect) -> Iterator[str]:
    """A table and its indexes."""
    columns = ",\n".join(f"    {column_sql(definition, column, dialect)}" for column in definition.columns)
    yield f"create table {dialect.table(definition.name)} (\n{columns}\n){dialect.table_options}"
    for index in definition.indexes.values():
        yield create_index(definition, index, dialect)


def column_sql(
    definition: TableDefinition, column: Column, dialect: Dialect, default: str = "", *, choices: bool = True
) -> str:
    """A column as CREATE TABLE and ADD COLUMN take it."""
    parts = [dialect.quote(column.name), column_type(column, dialect)]
    parts += [] if column.optional else ["not null"]
    parts += ["primary key"] if column.name in definition.key else []
    parts += [f"default {default}"] if default else []
    parts += [choices_sql(definition, column, dialect)] if column.choices and choices else []
    if dialect.name == SQLITE and column.kind is Kind.BOOLEAN:
        parts.append(f"check ({dialect.quote(column.name)} in (0, 1))")
    if dialect.name == SQLITE and column.kind is Kind.JSON:
        name = dialect.quote(column.name)
        parts.append(f"check ({name} is null or json_valid({name}))")  # before 3.41 NULL was no valid JSON
    return " ".join(parts)


def choices_sql(definition: TableDefinition, column: Column, dialect: Dialect, name: str = "") -> str:
    """The constraint that limits a column to its choices."""
    name = name or choices_name(definition.name, column.name)
    return f"constraint {dialect.quote(name)} check ({dialect.quote(column.name)} in ({_list(column.choices)}))"


def create_index(
    definition: TableDefinition, index: Index, dialect: Dialect, name: str = "", *, concurrently: bool = False
) -> str:
    """An index; `name` if it is not yet to have its own."""
    unique = "unique " if index.unique else ""
    how = "concurrently " if concurrently else ""
    name = dialect.quote(name or index_name(definition.name, index.name))
    columns = ", ".join(index_columns(definition, index, dialect))
    return f"create {unique}index {how}{name} on {dialect.table(definition.name)} ({columns})"


# ----- values


def literal(kind: Kind, value: Any, dialect: Dialect) -> str:
    """A value in the neutral form as SQL: DDL takes no parameters."""
    encoded = dialect.encode_value(kind, value)
    if dialect.name != SQLITE:
        return f"{quote_text(_postgres_text(encoded))}::{dialect.types[kind].partition(' collate ')[0]}"
    if isinstance(encoded, bytes):
        return f"x'{encoded.hex()}'"
    if isinstance(encoded, str):
        return quote_text(encoded)
    return repr(encoded).replace("inf", "9e999")


def _postgres_text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.days} days {value.seconds}.{value.microseconds:06} seconds"
    return str(value)


def quote_text(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _list(choices: Sequence[str | int]) -> str:
    return ", ".join(quote_text(choice) if isinstance(choice, str) else str(int(choice)) for choice in choices)
