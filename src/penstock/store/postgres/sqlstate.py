"""The meaning of PostgreSQL's SQLSTATEs: try again, or somebody's mistake. Knows no driver.

`postgres.errors` reads asyncpg's errors with it, and `store.guest` those of the user's driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.dataclass import dataclass
from penstock.errors import (
    ConfigError,
    Conflict,
    ConstraintViolation,
    ContextError,
    DatabaseBusy,
    DatabaseFull,
    DataError,
    PenstockError,
    UniqueViolation,
    ValueInvalid,
)

Meanings = Mapping[str, tuple[type[PenstockError], str, str]]

# By SQLSTATE, or its beginning.
MEANINGS: Meanings = {
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
_UNAVAILABLE = {"57P01", "57P02", "57P03", "57P05", "53300", "25P03", "25P04"}
_KEY = re.compile(r"Key \((?P<columns>.*?)\)=")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server's refusal of a statement."""

    state: str
    text: str  # its message, without the full stop
    table: str | None = None
    constraint: str | None = None
    detail: str | None = None  # its detail, such as the key that is there already


def is_away(state: str | None) -> bool:
    """Whether the server says that the connection is gone, or will be."""
    return state in _UNAVAILABLE


def only_reads(state: str | None, text: str) -> bool:
    """Whether the server, or the transaction, takes no writes."""
    return state == "25006" or (state == "0A000" and "serializable mode" in text)


def meaning(refusal: Refusal, meanings: Meanings = MEANINGS) -> PenstockError:
    """The error of penstock's tree that a refusal means."""
    state, text, table = refusal.state, refusal.text, refusal.table
    if state == "23505":
        return _unique(refusal)
    for prefix, (kind, what, fix) in meanings.items():
        if state.startswith(prefix):
            facts = {"slow": True} if state == "57014" and "statement timeout" in text else {}
            return kind(what.format(text=text, table=table), fix=fix, sqlstate=state, table=table, **facts)
    return DataError(f"The database refused a statement: {text}.", sqlstate=state)


def _unique(refusal: Refusal) -> UniqueViolation:
    found = _KEY.search(refusal.detail or "")
    return UniqueViolation(
        f"Table {refusal.table}: unique index {refusal.constraint} already holds this key.",
        table=refusal.table,
        index=refusal.constraint,
        columns=found["columns"] if found else None,
    )
