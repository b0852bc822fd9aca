"""Translates asyncpg's errors to penstock's: try again, or somebody's mistake."""

from __future__ import annotations

import asyncio

import asyncpg

from penstock.errors import (
    Conflict,
    ContextError,
    DatabaseBusy,
    DatabaseUnavailable,
    PenstockError,
    RowInvalid,
    ValueInvalid,
)
from penstock.store.postgres.dialect import TRIGGER_FOUND
from penstock.store.postgres.sqlstate import Refusal, is_away, meaning, only_reads
from penstock.store.session import TriggerFound

_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,  # the server has hung up while the connection was idle, and asyncpg is confused by it
    OSError,
    EOFError,
    asyncio.IncompleteReadError,
)
REFUSALS = (  # the errors that a connection may raise
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
# For a value that it cannot encode, asyncpg raises a PostgresError of class 22 like the server, or one of these.
_INPUT = (OverflowError, UnicodeEncodeError, asyncpg.UnsupportedClientFeatureError)


def is_connection_lost(error: BaseException) -> bool:
    """Whether an error says that the connection is gone, or will be."""
    if isinstance(error, asyncpg.InterfaceError):
        return "closed" in str(error)  # others are about the use of a connection that lives
    return isinstance(error, _LOST) or is_away(getattr(error, "sqlstate", None)) or _only_reads(error)


def _only_reads(error: BaseException) -> bool:
    """Whether the server is a standby: another connection may lead to the one that took its place."""
    return only_reads(getattr(error, "sqlstate", None), str(error))


def had_no_effect(error: BaseException) -> bool:
    """Whether a statement did nothing: it never left for the database, or came to a server that only reads."""
    if _only_reads(error):
        return True
    if isinstance(error, asyncpg.InternalClientError):
        return "cannot switch to state" in str(error)
    return isinstance(error, asyncpg.InterfaceError)


def uncertain(error: BaseException) -> DatabaseUnavailable:
    """The error if nobody knows whether a commit took effect."""
    return DatabaseUnavailable(
        f"The connection to the database was lost during the commit: {error}.",
        fix="Check whether it took effect before you try again.",
        uncertain=True,
    )


def translate(error: BaseException) -> BaseException:
    """The error of penstock's tree that a driver's error means; any other error unchanged."""
    if isinstance(error, TimeoutError):
        return DatabaseBusy("The database did not answer in time.", fix="Try again; or raise statement_timeout.")
    if _only_reads(error):
        return DatabaseUnavailable(
            f"The database server is read-only: {_text(error)}.",
            fix="Connect to the primary; after a failover, try again.",
        )
    if is_connection_lost(error):
        return DatabaseUnavailable(f"The connection to the database was lost: {error}.", fix="Try again.")
    if not isinstance(error, asyncpg.PostgresError):
        return _by_class(error)
    if isinstance(error, asyncpg.InvalidTextRepresentationError) and (found := TRIGGER_FOUND.search(str(error))):
        return TriggerFound(found[1])
    return _by_state(error)


def _by_state(error: asyncpg.PostgresError) -> PenstockError:
    text = _text(error)
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        return Conflict(f"A table was changed meanwhile: {text}.")
    detail = getattr(error, "detail", None)
    return meaning(Refusal(error.sqlstate or "", text, error.table_name, error.constraint_name, detail))


def _text(error: BaseException) -> str:
    return str(getattr(error, "message", None) or error).rstrip(".")


def _by_class(error: BaseException) -> BaseException:
    """The meaning of the driver's own refusal, without asking the server: a value, or a use of the connection."""
    if isinstance(error, _INPUT):
        return ValueInvalid(f"The database cannot take a value: {error}.")
    if isinstance(error, asyncpg.InterfaceError):
        return ContextError(f"A database connection was misused: {error}.", fix="Await all calls of a ctx.")
    if isinstance(error, ValueError):  # a value that it cannot encode has another message
        return RowInvalid(
            f"The database holds a value that Python cannot represent: {error}.",
            fix="Correct the row, or do not read the column.",
        )
    return error
