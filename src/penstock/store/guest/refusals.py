"""Errors of work in the user's own transaction: refused connections, and the meaning of PostgreSQL drivers' errors.

`guest.lite` translates those of SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.errors import (
    ConfigError,
    Conflict,
    ContextError,
    DatabaseBusy,
    DatabaseUnavailable,
    PenstockError,
    ValueInvalid,
)
from penstock.store.postgres.sqlstate import MEANINGS, Meanings, Refusal, is_away, meaning

_TAKEN = (
    "Pass an open connection of psycopg, psycopg2, asyncpg, Django, sqlite3, aiosqlite, or SQLAlchemy (a Connection or "
    "a Session, or their async forms); not an engine, a pool or a cursor."
)
_NO_TABLES = "penstock's tables are not in the database of this connection: {text}."
_MAKE_TABLES = "Connect to the database of the app, and create its tables with penstock migrate."
_AGAIN = "Roll back, and run your transaction again."
_DRIVERS = {"psycopg", "psycopg2", "psycopg_pool", "asyncpg", "sqlalchemy", "django", "sqlite3", "aiosqlite"}
_PLAIN = (OSError, EOFError, UnicodeEncodeError, OverflowError)  # Python's own errors that drivers let through
# By SQLSTATE, or its beginning: where the next step is one in the user's own transaction.
_MEANINGS: Meanings = {
    **MEANINGS,
    "40": (Conflict, "Another transaction was first: {text}.", _AGAIN),
    "55P03": (DatabaseBusy, "A lock was held for too long: {text}.", _AGAIN),
    "57014": (
        DatabaseBusy,
        "A statement was stopped: {text}.",
        "Roll back and try again; or raise the statement_timeout of your connection.",
    ),
    "42501": (
        ConfigError,
        "The user of the database may not do this: {text}.",
        "Grant it the right, or connect as a user who has it.",
    ),
    "25P02": (
        ContextError,
        "The transaction of the connection has failed before, and can only be rolled back.",
        _AGAIN,
    ),
    "25006": (
        ContextError,
        "The transaction of the connection only reads: {text}.",
        "Use one that writes, on a server that takes writes.",
    ),
    "42P01": (ConfigError, _NO_TABLES, _MAKE_TABLES),
    "3F000": (ConfigError, _NO_TABLES, _MAKE_TABLES),
}


def no_connection(connection: object) -> ContextError:
    """The error for something that is no connection."""
    kind = type(connection)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return ContextError(f"{name} is no connection that penstock can work in.", fix=_TAKEN)


def no_driver(driver: str) -> ContextError:
    """A known library on an unknown database or driver."""
    return ContextError(f"penstock cannot work in a connection of {driver}.", fix=_TAKEN)


def not_open(driver: str) -> ContextError:
    """The connection is closed, was given back to its pool, or was never opened."""
    return ContextError(f"The {driver} connection is not open.", fix="Pass an open connection inside a transaction.")


def connection_lost(driver: str) -> DatabaseUnavailable:
    """The connection broke."""
    return DatabaseUnavailable(
        f"The {driver} connection to the database was lost.", fix="Connect again, and run your transaction again."
    )


def transaction_aborted(driver: str) -> ContextError:
    """A statement failed before, so the transaction can only be rolled back."""
    return ContextError(
        f"The transaction of the {driver} connection has failed before, and can only be rolled back.", fix=_AGAIN
    )


def no_tables(text: str) -> ConfigError:
    """The database has none of penstock's tables."""
    return ConfigError(_NO_TABLES.format(text=text), fix=_MAKE_TABLES)


def driver_refused(driver: str, error: BaseException) -> ContextError:
    """The driver itself refused to run a statement."""
    text = str(error).partition("\n")[0].rstrip(".")
    return ContextError(
        f"{driver} runs nothing on this connection: {text}.",
        fix="Pass an open, idle connection whose transaction has not failed.",
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and the ones that a library has wrapped in it, outermost first."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        orig = getattr(seen, "orig", None)  # SQLAlchemy's way
        seen = orig if isinstance(orig, BaseException) else seen.__cause__


def is_of_a_driver(error: BaseException) -> bool:
    """Whether a driver, or a library above it, raises errors of this class."""
    return any(cls.__module__.partition(".")[0] in _DRIVERS for cls in type(error).__mro__)


def postgres_meaning(driver: str, error: BaseException) -> BaseException:
    """The error of penstock's tree that an error of any PostgreSQL driver means; one of no driver unchanged."""
    for cause in causes(error):
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if isinstance(state, str):
            return _by_state(driver, state, cause)
    chain = [*causes(error)]
    if any(isinstance(cause, TimeoutError) for cause in chain):
        return DatabaseBusy("The database did not answer in time.", fix=_AGAIN)
    drivers_own = [cause for cause in chain if is_of_a_driver(cause)]
    told = drivers_own or [cause for cause in chain if isinstance(cause, _PLAIN)]
    return _without_state(driver, told[-1]) if told else error


def _by_state(driver: str, state: str, error: BaseException) -> PenstockError:
    told: Any = getattr(error, "diag", None) or error  # psycopg keeps the server's message apart, asyncpg does not
    text = str(getattr(told, "message_primary", None) or getattr(told, "message", None) or error)
    text = text.partition("\n")[0].rstrip(".")
    if is_away(state) or state.startswith("08"):
        return connection_lost(driver)
    if state == "0A000" and "cached plan" in text:
        return Conflict(f"A table was changed meanwhile: {text}.", fix=_AGAIN)
    detail = getattr(told, "message_detail", None) or getattr(told, "detail", None)
    refusal = Refusal(state, text, getattr(told, "table_name", None), getattr(told, "constraint_name", None), detail)
    return meaning(refusal, _MEANINGS)


def _without_state(driver: str, error: BaseException) -> PenstockError:
    """The meaning of a driver's own error, by the name of its class: PEP 249 gives all drivers the same names."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"DataError", "UnicodeEncodeError", "OverflowError"}:
        return ValueInvalid(f"{driver} cannot take a value: {error}.")
    if names & {"OSError", "EOFError", "OperationalError", "InternalClientError"}:
        return connection_lost(driver)
    return driver_refused(driver, error)
