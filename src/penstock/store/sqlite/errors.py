"""From sqlite3's errors to penstock's."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Any

from penstock.errors import (
    ConfigError,
    ConstraintViolation,
    DatabaseBusy,
    DatabaseFull,
    DatabaseUnavailable,
    DataError,
    PenstockError,
    RowInvalid,
    UniqueViolation,
    ValueInvalid,
)
from penstock.schema.table import TableDefinition

_ESCAPED = re.compile("[\udc80-\udcff]")  # a byte, with surrogateescape
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_AWAY = (DatabaseUnavailable, "The database file cannot be reached: {error}.", "Check the file and its disk.")
_BROKEN = (
    ConfigError,
    "The file is not a sound SQLite database: {error}.",
    "Name another file, or restore this one from a backup.",
)
_LOCKED = (DatabaseBusy, "Another process holds the write lock of the database for too long.", "Try again.")
_MEANINGS: dict[int, tuple[type[PenstockError], str, str]] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_INTERRUPT: (
        DatabaseBusy,
        "A statement took too long and was stopped.",
        "Read less, or raise statement_timeout.",
    ),
    sqlite3.SQLITE_FULL: (DatabaseFull, "The disk of the database is full.", "Free some space, then try again."),
    sqlite3.SQLITE_READONLY: (ConfigError, "The database file is read-only.", "Make the file and its folder writable."),
    sqlite3.SQLITE_IOERR: _AWAY,
    sqlite3.SQLITE_CANTOPEN: _AWAY,
    sqlite3.SQLITE_NOMEM: _AWAY,
    sqlite3.SQLITE_PROTOCOL: _AWAY,
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: _BROKEN,
    sqlite3.SQLITE_CONSTRAINT: (ConstraintViolation, "A table refused the row: {error}.", ""),
    sqlite3.SQLITE_TOOBIG: (ValueInvalid, "SQLite cannot take a value: {error}.", ""),
}
_UNIQUE = {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY}
_NO_TEXT = "Could not decode to UTF-8"
_COLUMNS = re.compile(r"UNIQUE constraint failed: (?P<columns>.+)")


def is_busy(error: BaseException) -> bool:
    """Whether another connection holds the lock that was needed."""
    return isinstance(error, sqlite3.Error) and _primary(error) in _BUSY


def translate(error: BaseException) -> BaseException:
    """The error of penstock's tree that a driver's error means; any other error unchanged."""
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return ValueInvalid(f"SQLite cannot take a value: {error}.")
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    if is_text_invalid(error):
        return text_invalid(error)
    if code in _UNIQUE:
        return _unique(error)
    return _by_code(_primary(error), error)


def is_text_invalid(error: sqlite3.Error) -> bool:
    """Whether it could not read text, which is no UTF-8."""
    return getattr(error, "sqlite_errorcode", None) is None and _NO_TEXT in str(error)


def text_invalid(error: sqlite3.Error, table: TableDefinition | None = None, rows: Sequence[Any] = ()) -> RowInvalid:
    """The error for text that is not UTF-8; in rows of a table, it names the first one with an escaped byte."""
    facts: dict[str, Any] = {} if table is None else {"table": table.name}
    names = () if table is None else tuple(table.positions)
    fields = ((row, *field) for row in rows if len(row) == len(names) for field in zip(names, row, strict=True))
    for row, column, value in fields:
        if table is not None and f"'{column}'" in str(error) and _ESCAPED.search(str(value)):
            facts |= {"row": table.key_at(row), "column": column}
            break
    named = ", ".join(f"{what} {fact}" for what, fact in facts.items())
    what = f"The database holds text that is not UTF-8: {named}{named and ': '}{error}."
    return RowInvalid(what, fix="Correct the row.", **facts)


def _by_code(code: int, error: sqlite3.Error) -> PenstockError:
    if isinstance(error, sqlite3.DataError | sqlite3.InterfaceError):
        return ValueInvalid(f"SQLite cannot take a value: {error}.")
    kind, what, fix = _MEANINGS.get(code, (DataError, "The database refused a statement: {error}.", ""))
    facts = {"slow": True} if code == sqlite3.SQLITE_INTERRUPT else {}
    return kind(what.format(error=error), fix=fix, **facts)


def _unique(error: sqlite3.Error) -> UniqueViolation:
    found = _COLUMNS.search(str(error))
    columns = found["columns"] if found else ""
    table = columns.partition(".")[0]
    names = ", ".join(part.rpartition(".")[2] for part in columns.split(", "))
    return UniqueViolation(
        f"Table {table}: a unique index already holds this key ({names}).", table=table, index=None, columns=names
    )


def _primary(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR) & 0xFF
