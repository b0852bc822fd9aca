"""The database's own counts of how its tables, its indexes and its connections are used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from penstock.dataclass import dataclass
from penstock.store.nouns.jobs import day_to_drop
from penstock.store.nouns.noun import Noun


@dataclass(frozen=True, slots=True)
class TableUse:
    """The rows of a table, and how it is read, since the server began to count."""

    name: str
    dead: int  # rows that vacuum has still to remove
    live: int
    scans: int  # reads of the whole table
    scanned: int  # rows that these read
    own: bool = False  # whether it is penstock's


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
    max_connections: int | None = None  # connections that the server permits
    log_size: int | None = None  # bytes of SQLite's write-ahead log
    size: int = 0  # bytes of the database on disk


class DatabaseStatistics(Noun, queries=("statistics",)):
    """Looks at the database as a whole."""

    async def look(self, tables: Sequence[str], before: datetime, most: int) -> Statistics:
        """Look at some tables, and at penstock's own.

        Args:
            tables: Names of tables.
            before: Finished jobs whose time was over then are overdue.
            most: How many of these are counted.
        """
        ((overdue,),) = await self._look("overdue", before=before, day=day_to_drop(before), most=most)
        ((size,),) = await self._look("size")
        if "log" in self._queries:
            ((file,),) = await self._look("log")
            return Statistics(overdue, log_size=_size(Path(f"{file}-wal")), size=size)
        ((used, most_connections),) = await self._look("connections")
        return Statistics(
            overdue,
            self._read(TableUse, await self._look("tables", names=self._names(tables))),
            await self.list_unused(tables) or (),
            used,
            most_connections,
            size=size,
        )

    async def list_unused(self, tables: Sequence[str]) -> list[UnusedIndex] | None:
        """Indexes of these tables that no query has used; None if the database does not count."""
        if "unused" not in self._queries:
            return None
        return self._read(UnusedIndex, await self._look("unused", names=self._names(tables)))

    def _names(self, tables: Sequence[str]) -> list[str]:
        return [self._access.dialect.table(name) for name in tables]


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
