"""The operations of migration files that Alembic lacks: columns kept equal by triggers, and backfills.

Owns the SQL of the triggers. Leaves running it to `running`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from alembic import op
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import UserDefinedType

from penstock.schema.fields import Kind
from penstock.schema.stored import sync_name
from penstock.store.sql.ddl import kind_type
from penstock.store.sql.dialect import Dialect

_POSTGRES_SYNC = """
create function {function}() returns trigger language plpgsql as $sync$
begin
    {body}
    return new;
end $sync$"""


class Stored(UserDefinedType[Any]):
    """The SQL type in which penstock keeps a field: the same one as a schema push gives it.

    Args:
        kind: text, integer, real, boolean, bytes, datetime, date, interval, decimal, uuid or json.
        long: Whether it is a decimal of more than 15 digits.
    """

    cache_ok = True

    def __init__(self, kind: str, *, long: bool = False) -> None:
        self.kind, self.long = kind, long


@compiles(Stored)  # type: ignore[misc,no-untyped-call,unused-ignore]  # SQLAlchemy leaves it untyped
def _compiled(stored: Stored, _compiler: object, **_facts: object) -> str:
    return kind_type(Kind(stored.kind), dialect(), long=stored.long)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """Old rows that get values, in batches: each is a transaction of its own, and a killed run goes on with the next.

    Args:
        table: The SQL name of the table.
        values: Columns and SQL expressions over a row; or a function from a row to the columns that it changes. Rows
            are dicts of values as the database's driver gives and takes them.
        where: An SQL condition: the rows that still need a value.
        batch: Rows of one transaction.
        key: The column that tells rows apart, a text or an integer.
    """

    table: str
    values: Mapping[str, str] | Callable[[dict[str, Any]], Mapping[str, Any]]
    where: str = "true"
    batch: int = 1000
    key: str = "id"


@dataclass(frozen=True, slots=True)
class Relax:
    """On SQLite a column that may hold NULL is a table that is written anew: the runner reads its text first."""

    table: str
    column: str


def dialect() -> Dialect:
    """The dialect of the database for which a file's SQL is being written."""
    given: Dialect = op.get_context().opts["penstock"]
    return given


def relax(table: str, column: str) -> None:
    """Let a column hold NULL. On SQLite the table is copied, with its triggers, checks and indexes."""
    if op.get_context().dialect.name == "sqlite":
        op.get_context().opts["pieces"].append(Relax(table, column))
    else:
        op.alter_column(table, column, nullable=True)


def sync(table: str, name: str, up: Mapping[str, str], down: Mapping[str, str] | None = None) -> None:
    """Keep new columns and old ones equal by triggers, whoever writes a row: a process of the old or the new release.

    Args:
        table: The SQL name of the table.
        name: A name for the triggers.
        up: New columns, each with the SQL expression over the row's old columns.
        down: Old columns, each with the SQL expression over the new ones. Without, the triggers only fill new columns
            that are NULL.
    """
    write = _sqlite_sync if op.get_context().dialect.name == "sqlite" else _postgres_sync
    for statement in write(dialect(), table, name, up, down or {}):
        op.execute(statement.replace(":", r"\:"))  # SQLAlchemy takes a word after a colon for a parameter


def unsync(table: str, name: str) -> None:
    """Drop the triggers of `sync`."""
    quote = dialect().quote
    if op.get_context().dialect.name == "sqlite":
        for event in ("insert", "insert_down", "up", "down"):
            op.execute(f"drop trigger if exists {quote(sync_name(table, name, event))}")
    else:
        op.execute(f"drop trigger {quote(sync_name(table, name))} on {dialect().table(table)}")
        op.execute(f"drop function {_function(dialect(), table, name)}()")


def _function(sql: Dialect, table: str, name: str) -> str:
    schema, dot, _name = table.rpartition(".")
    return f"{sql.table(schema)}.{sql.quote(sync_name(table, name))}" if dot else sql.quote(sync_name(table, name))


def _postgres_sync(sql: Dialect, table: str, name: str, up: Mapping[str, str], down: Mapping[str, str]) -> list[str]:
    def given(values: Mapping[str, str]) -> str:
        """Assign columns, with expressions that name the columns of the row."""
        targets = ", ".join(f"new.{sql.quote(column)}" for column in values)
        return f"select {', '.join(values.values())} into {targets} from (select new.*) as written;"

    def differs(columns: Mapping[str, str]) -> str:
        return " or ".join(f"new.{sql.quote(one)} is distinct from old.{sql.quote(one)}" for one in columns)

    def unlike(values: Mapping[str, str]) -> str:
        """Whether columns are others than those of the expressions: a backfill must not write the old ones again."""
        given = "new.{0} is distinct from (select {1} from (select new.*) as written)"
        return " or ".join(given.format(sql.quote(column), value) for column, value in values.items())

    empty = " and ".join(f"new.{sql.quote(column)} is null" for column in up)
    body = f"if {empty} then {given(up)} end if;"
    if down:
        body = (
            f"if tg_op = 'INSERT' then if {empty} then {given(up)} else {given(down)} end if; "
            f"elsif {differs(up)} then if {unlike(up)} then {given(down)} end if; "
            f"elsif {differs(down)} then {given(up)} end if;"
        )
    trigger, function = sql.quote(sync_name(table, name)), _function(sql, table, name)
    fires = f"before insert or update on {sql.table(table)} for each row execute function {function}()"
    return [_POSTGRES_SYNC.format(function=function, body=body).strip(), f"create trigger {trigger} {fires}"]


def _sqlite_sync(sql: Dialect, table: str, name: str, up: Mapping[str, str], down: Mapping[str, str]) -> list[str]:
    def trigger(event: str, of: str, when: str, values: Mapping[str, str]) -> str:
        assigned = ", ".join(f"{sql.quote(column)} = {value}" for column, value in values.items())
        return (
            f"create trigger {sql.quote(sync_name(table, name, event))} after {of} on {sql.table(table)} for each row "
            f"when {when} begin update {sql.table(table)} set {assigned} where _rowid_ = new._rowid_; end"
        )

    def columns(of: Mapping[str, str]) -> str:
        return f"update of {', '.join(map(sql.quote, of))}"

    def all_null(of: Mapping[str, str]) -> str:
        return " and ".join(f"new.{sql.quote(column)} is null" for column in of)

    def differs(of: Mapping[str, str]) -> str:
        return " or ".join(f"new.{sql.quote(column)} is not old.{sql.quote(column)}" for column in of)

    def unlike(of: Mapping[str, str]) -> str:
        """As on PostgreSQL; also, these triggers fire each other."""
        row = f"from {sql.table(table)} where _rowid_ = new._rowid_"
        return " or ".join(f"new.{sql.quote(column)} is not (select {value} {row})" for column, value in of.items())

    made = [trigger("insert", "insert", all_null(up), up)]
    if not down:
        return [*made, trigger("up", columns(up), all_null(up), up)]
    filled = trigger("down", columns(up), f"({differs(up)}) and ({unlike(up)})", down)
    inserted = trigger("insert_down", "insert", f"not ({all_null(up)})", down)
    return [*made, inserted, filled, trigger("up", columns(down), f"({differs(down)}) and ({unlike(down)})", up)]
