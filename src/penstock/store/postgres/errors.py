"""From asyncpg's errors to penstock's: which of them mean try again, and which are somebody's mistake."""

from __future__ import annotations

import asyncio
import re

import asyncpg

from penstock.errors import (
    Conflict,
    ConstraintViolation,
    ContextError,
    DatabaseBusy,
    DatabaseFull,
    DatabaseUnavailable,
    DataError,
    PenstockError,
    UniqueViolation,
    ValueInvalid,
)

_CONFLICTS = {"40001", "40P01"}
_BUSY = {"55P03", "57014"}
_LOST = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError, EOFError, asyncio.IncompleteReadError)
_UNAVAILABLE = {"57P01", "57P02", "57P03", "57P05", "53300", "25006"}
_FULL = {"53100", "53200"}
_KEY = re.compile(r"Key \((?P<columns>.*?)\)=")


def is_connection_lost(error: BaseException) -> bool:
    """Whether an error says that the connection is gone, or will be."""
    return isinstance(error, _LOST) or getattr(error, "sqlstate", None) in _UNAVAILABLE


def translate(error: BaseException) -> BaseException:
    """The error of penstock's tree that a driver's error means; any other error unchanged."""
    if isinstance(error, TimeoutError):
        return DatabaseBusy("The database did not answer in time.", fix="Try again; or raise statement_timeout.")
    if is_connection_lost(error):
        return DatabaseUnavailable(f"The connection to the database was lost: {error}.", fix="Try again.")
    if not isinstance(error, asyncpg.PostgresError):
        return _input_error(error)
    return _by_state(error)


def _by_state(error: asyncpg.PostgresError) -> PenstockError:
    state = error.sqlstate or ""
    detail = getattr(error, "detail", None) or ""
    text = f"{error.message or error}".rstrip(".")
    if state in _CONFLICTS:
        return Conflict(f"Another transaction was first: {text}.")
    if state in _BUSY:
        return DatabaseBusy(f"The database was too slow, or a lock was held for too long: {text}.", fix="Try again.")
    if state in _FULL:
        return DatabaseFull(f"The database has no room left: {text}.", fix="Free or add space, then try again.")
    if state == "23505":
        found = _KEY.search(detail)
        return UniqueViolation(
            f"Table {error.table_name}: unique index {error.constraint_name} already holds this key.",
            table=error.table_name,
            index=error.constraint_name,
            columns=found["columns"] if found else None,
        )
    if state.startswith("23"):
        return ConstraintViolation(
            f"Table {error.table_name} refused the row: {text}.", table=error.table_name, constraint=error.constraint_name
        )
    if state == "25P02":
        return ContextError(
            "The transaction has failed before this call, and can only be rolled back.",
            fix="Run what may fail with ctx.run_mutation, and catch its error there.",
        )
    if state.startswith("22"):
        return ValueInvalid(f"The database refused a value: {text}.")
    return DataError(f"The database refused a statement: {text}.", sqlstate=state)


def _input_error(error: BaseException) -> BaseException:
    if isinstance(error, asyncpg.DataError | OverflowError | UnicodeEncodeError):
        return ValueInvalid(f"The database cannot take a value: {error}.")
    return error
