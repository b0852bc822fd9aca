"""From asyncpg's errors to penstock's: which of them mean try again, and which are somebody's mistake."""

from __future__ import annotations

import asyncio
import re

import asyncpg

from penstock.errors import (
    ConfigError,
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

_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,  # the server has hung up while the connection was idle, and asyncpg is confused by it
    OSError,
    EOFError,
    asyncio.IncompleteReadError,
)
_UNAVAILABLE = {"57P01", "57P02", "57P03", "57P05", "53300", "25P03"}
# By SQLSTATE, or what it begins with.
_MEANINGS: dict[str, tuple[type[PenstockError], str, str]] = {
    "40": (Conflict, "Another transaction was first: {text}.", ""),
    "55P03": (DatabaseBusy, "A lock was held for too long: {text}.", "Try again."),
    "57014": (DatabaseBusy, "A statement was stopped: {text}.", "Try again; or raise statement_timeout."),
    "53100": (DatabaseFull, "The database has no room left: {text}.", "Free or add space, then try again."),
    "53200": (DatabaseFull, "The database has no memory left: {text}.", "Try again with less at once."),
    "42501": (
        ConfigError,
        "The user of the database may not do this: {text}.",
        "Grant it the right, or put a user who has it into the database URL.",
    ),
    "23": (ConstraintViolation, "Table {table} refused the row: {text}.", ""),
    "22": (ValueInvalid, "The database refused a value: {text}.", ""),
    "25P02": (
        ContextError,
        "The transaction has failed before this call, and can only be rolled back.",
        "Run what may fail with ctx.run_mutation, and catch its error there.",
    ),
}
_KEY = re.compile(r"Key \((?P<columns>.*?)\)=")


def is_connection_lost(error: BaseException) -> bool:
    """Whether an error says that the connection is gone, or will be."""
    if isinstance(error, asyncpg.InterfaceError):
        return "closed" in str(error)  # others are about the use of a connection that lives
    return isinstance(error, _LOST) or getattr(error, "sqlstate", None) in _UNAVAILABLE or _only_reads(error)


def _only_reads(error: BaseException) -> bool:
    """Whether the server is a standby: another connection may lead to the one that took its place."""
    state = getattr(error, "sqlstate", None)
    return state == "25006" or (state == "0A000" and "serializable mode" in str(error))


def was_not_sent(error: BaseException) -> bool:
    """Whether a statement never left for the database: its connection had been lost before."""
    if isinstance(error, asyncpg.InternalClientError):
        return "cannot switch to state" in str(error)
    return isinstance(error, asyncpg.InterfaceError) and is_connection_lost(error)


def translate(error: BaseException) -> BaseException:
    """The error of penstock's tree that a driver's error means; any other error unchanged."""
    if isinstance(error, TimeoutError):
        return DatabaseBusy("The database did not answer in time.", fix="Try again; or raise statement_timeout.")
    if _only_reads(error):
        return DatabaseUnavailable(
            f"The database server only reads: {_text(error)}.",
            fix="Connect to the one that writes; after a failover, try again.",
        )
    if is_connection_lost(error):
        return DatabaseUnavailable(f"The connection to the database was lost: {error}.", fix="Try again.")
    if not isinstance(error, asyncpg.PostgresError):
        return _input_error(error)
    return _by_state(error)


def _by_state(error: asyncpg.PostgresError) -> PenstockError:
    state = error.sqlstate or ""
    text = _text(error)
    if state == "23505":
        return _unique(error)
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        return Conflict(f"A table was changed meanwhile: {text}.")
    for prefix, (kind, what, fix) in _MEANINGS.items():
        if state.startswith(prefix):
            facts = {"slow": True} if state == "57014" and "statement timeout" in text else {}
            said = what.format(text=text, table=error.table_name)
            return kind(said, fix=fix, sqlstate=state, table=error.table_name, **facts)
    return DataError(f"The database refused a statement: {text}.", sqlstate=state)


def _text(error: BaseException) -> str:
    return str(getattr(error, "message", None) or error).rstrip(".")


def _unique(error: asyncpg.PostgresError) -> UniqueViolation:
    found = _KEY.search(getattr(error, "detail", None) or "")
    return UniqueViolation(
        f"Table {error.table_name}: unique index {error.constraint_name} already holds this key.",
        table=error.table_name,
        index=error.constraint_name,
        columns=found["columns"] if found else None,
    )


def _input_error(error: BaseException) -> BaseException:
    if isinstance(error, asyncpg.DataError | asyncpg.InterfaceError | OverflowError | UnicodeEncodeError):
        return ValueInvalid(f"The database cannot take a value: {error}.")
    return error
