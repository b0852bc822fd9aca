"""What the database says about the use of its tables and of itself (`store.nouns.statistics`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableUse:
    """The rows of a table, and how it is read, since the server began to count."""

    name: str
    dead: int  # rows that vacuum has still to remove
    live: int
    scans: int  # reads of the whole table
    scanned: int  # rows that these read


@dataclass(frozen=True, slots=True)
class UnusedIndex:
    """An index that no query has used since the server began to count."""

    table: str
    name: str
    size: int  # in bytes


@dataclass(frozen=True, slots=True)
class Statistics:
    """The use of a database. SQLite counts neither tables nor indexes, and has no connections."""

    overdue: int  # finished jobs whose status should have been deleted
    tables: Sequence[TableUse] = ()
    unused: Sequence[UnusedIndex] = ()
    connections: int = 0  # open ones of all programs
    max_connections: int | None = None  # those that the server permits
    log_size: int | None = None  # bytes of SQLite's write-ahead log
    size: int = 0  # bytes of the database on disk
