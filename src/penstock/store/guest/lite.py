"""Translates errors of sqlite3 in the user's own transaction. Loaded when a guest is one of SQLite."""

from __future__ import annotations

import sqlite3

from penstock.errors import ContextError, DatabaseBusy
from penstock.store.guest.refusals import causes, driver_refused, is_of_a_driver, no_tables, not_open
from penstock.store.sqlite.errors import translate


def sqlite_meaning(driver: str, error: BaseException) -> BaseException:
    """The error of penstock's tree that an error of sqlite3, or of a library above it, means."""
    for cause in causes(error):
        if isinstance(cause, sqlite3.Error):
            return _meaning(driver, cause)
    if is_of_a_driver(error):
        return driver_refused(driver, error)
    return translate(error)


def _meaning(driver: str, error: sqlite3.Error) -> BaseException:
    text = str(error)
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, sqlite3.ProgrammingError):
        if "thread" in text:
            return ContextError(
                f"The {driver} connection belongs to another thread.",
                fix="Pass it in the thread that opened it, or open it with check_same_thread=False.",
            )
        if "closed" in text:
            return not_open(driver)
    if code == sqlite3.SQLITE_ERROR and "no such table: " in text:
        return no_tables(text)
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return DatabaseBusy(
            "Another connection wrote after this transaction had read, so it can no longer write.",
            fix="Roll back, and start again with BEGIN IMMEDIATE.",
        )
    if (code or 0) & 0xFF == sqlite3.SQLITE_READONLY:
        return ContextError("The connection is read-only.", fix="Pass a writable one.")
    return translate(error)
