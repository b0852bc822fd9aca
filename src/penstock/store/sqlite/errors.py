"""From sqlite3's errors to penstock's."""

from __future__ import annotations

import re
import sqlite3

from penstock.errors import (
    ConfigError,
    ConstraintViolation,
    DatabaseBusy,
    DatabaseFull,
    DatabaseUnavailable,
    DataError,
    PenstockError,
    UniqueViolation,
    ValueInvalid,
)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_LOST = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNIQUE = {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY}
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
    if code in _UNIQUE:
        return _unique(error)
    return _by_code(_primary(error), error)


def _by_code(code: int, error: sqlite3.Error) -> PenstockError:
    if code in _BUSY:
        return DatabaseBusy("Another process holds the write lock of the database for too long.", fix="Try again.")
    if code == sqlite3.SQLITE_INTERRUPT:
        return DatabaseBusy("A statement took too long and was stopped.", fix="Read less, or raise statement_timeout.")
    if code == sqlite3.SQLITE_FULL:
        return DatabaseFull("The disk of the database is full.", fix="Free some space, then try again.")
    if code == sqlite3.SQLITE_READONLY:
        return ConfigError("The database file is read-only.", fix="Make the file and its folder writable.")
    if code in _LOST:
        return DatabaseUnavailable(f"The database file cannot be reached: {error}.", fix="Check the file and its disk.")
    if code in _BROKEN:
        return ConfigError(f"The file is not a sound SQLite database: {error}.", fix="Restore it from a backup.")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return ConstraintViolation(f"A table refused the row: {error}.")
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError | sqlite3.InterfaceError):
        return ValueInvalid(f"SQLite cannot take a value: {error}.")
    return DataError(f"The database refused a statement: {error}.")


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
