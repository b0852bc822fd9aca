"""The operations of migration files that Alembic lacks: columns kept equal by triggers, and backfills.

Owns the SQL of the triggers. Leaves running it to `running`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from alembic import op
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import UserDefinedType

from penstock.dataclass import dataclass
from penstock.schema.fields import Kind
from penstock.schema.stored import sync_name
from penstock.store.sql.ddl import kind_type
from penstock.store.sql.dialect import Dialect

_EVENTS = ("insert", "insert_down", "down", "up")  # of the triggers on SQLite
_FUNCTION = """
create function {function}() returns trigger language plpgsql as $sync$
begin
    {body}
    return new;
end $sync$"""
_Case = tuple[str, str, Mapping[str, str]]  # an event, its condition, and the columns that are written then


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
def _compile(stored: Stored, _compiler: object, **_facts: object) -> str:
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

    def sql(self, dialect: Dialect) -> str:
        """All batches as one statement, or a comment if a function gives the values."""
        if callable(self.values):
            return (
                f"-- {getattr(self.values, '__name__', 'a function')} changes rows of {self.table} where {self.where}"
            )
        values = ", ".join(f"{dialect.quote(column)} = {value}" for column, value in self.values.items())
        return f"update {dialect.table(self.table)} set {values} where {self.where};"


@dataclass(frozen=True, slots=True)
class Relax:
    """On SQLite the runner copies a table to let a column hold NULL, and reads the table's text before."""

    table: str
    column: str

    @property
    def remark(self) -> str:
        """A comment of SQL in place of the text, which is long."""
        return f"-- {self.table} is copied, so that {self.column} may hold NULL"


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
    """Keep new columns and old ones equal by triggers, when processes of the old and of the new release write rows.

    Args:
        table: The SQL name of the table.
        name: A name for the triggers.
        up: New columns, each with the SQL expression over the row's old columns.
        down: Old columns, each with the SQL expression over the new ones. Without, the triggers only fill new columns
            that are NULL.
    """
    sql, is_sqlite = dialect(), op.get_context().dialect.name == "sqlite"
    row = f"from {sql.table(table)} where _rowid_ = new._rowid_" if is_sqlite else "from (select new.*) as written"
    other = "is not" if is_sqlite else "is distinct from"

    def differs(values: Mapping[str, str]) -> str:
        """Whether columns were changed to others than their expressions say, as a backfill and these triggers do."""
        changed = " or ".join(f"new.{sql.quote(one)} {other} old.{sql.quote(one)}" for one in values)
        unlike = " or ".join(f"new.{sql.quote(one)} {other} (select {value} {row})" for one, value in values.items())
        return f"({changed}) and ({unlike})"

    empty = " and ".join(f"new.{sql.quote(column)} is null" for column in up)
    cases = [("insert", empty, up), ("update", empty, up)]
    if down:
        cases = [("insert", empty, up), ("insert", f"not ({empty})", down)]
        cases += [("update", differs(up), down), ("update", differs(down), up)]
    for statement in (_sqlite_sync if is_sqlite else _postgres_sync)(sql, table, name, cases):
        op.execute(statement.replace(":", r"\:"))  # SQLAlchemy takes a word after a colon for a parameter


def unsync(table: str, name: str) -> None:
    """Drop the triggers of `sync`."""
    quote = dialect().quote
    if op.get_context().dialect.name == "sqlite":
        for event in _EVENTS:
            op.execute(f"drop trigger if exists {quote(sync_name(table, name, event))}")
    else:
        op.execute(f"drop trigger {quote(sync_name(table, name))} on {dialect().table(table)}")
        op.execute(f"drop function {_function(dialect(), table, name)}()")


def _function(sql: Dialect, table: str, name: str) -> str:
    schema, dot, _name = table.rpartition(".")
    return f"{sql.table(schema)}.{sql.quote(sync_name(table, name))}" if dot else sql.quote(sync_name(table, name))


def _postgres_sync(sql: Dialect, table: str, name: str, cases: Sequence[_Case]) -> Iterator[str]:
    branches = (
        f"if tg_op = '{event.upper()}' and ({when}) then select {', '.join(values.values())} "
        f"into {', '.join(f'new.{sql.quote(column)}' for column in values)} from (select new.*) as written;"
        for event, when, values in cases
    )
    trigger, function = sql.quote(sync_name(table, name)), _function(sql, table, name)
    yield _FUNCTION.format(function=function, body=f"{' els'.join(branches)} end if;").strip()
    fires = f"before insert or update on {sql.table(table)} for each row"
    yield f"create trigger {trigger} {fires} execute function {function}()"


def _sqlite_sync(sql: Dialect, table: str, name: str, cases: Sequence[_Case]) -> Iterator[str]:
    for suffix, (event, when, values) in zip(_EVENTS, cases, strict=False):
        assigned = ", ".join(f"{sql.quote(column)} = {value}" for column, value in values.items())
        yield (
            f"create trigger {sql.quote(sync_name(table, name, suffix))} after {event} on {sql.table(table)} "
            f"for each row when {when} begin update {sql.table(table)} set {assigned} where _rowid_ = new._rowid_; end"
        )
