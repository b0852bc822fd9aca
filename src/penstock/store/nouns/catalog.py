"""The promises of a store about its own description of tables, and the way to change them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from penstock.dataclass import dataclass
from penstock.schema.stored import StoredTable


@dataclass(frozen=True, slots=True)
class Change:
    """A piece of a schema push: statements that take effect together, or one that runs alone."""

    table: str  # the table it changes, for errors and logs
    statements: tuple[str, ...]
    # whether it runs outside a transaction: it may take long, but keeps nobody from reading and writing
    alone: bool = False
    undo: str = ""  # removes the remains of a statement run alone that failed


class Description(Protocol):
    """The database's own description of its tables."""

    async def read_tables(self, names: Sequence[str]) -> dict[str, StoredTable]:
        """The named tables and views that exist, in one query; views and tables of others too."""

    async def tables_in_use(self) -> list[str]:
        """Tables with the columns that penstock adds to each, where names are looked for."""

    async def list_migrations(self) -> set[str]:
        """Names of penstock's own migrations that are applied."""

    async def count(self, sql: str) -> int:
        """The number that a query gives: rows that a change would lose or break."""


class Catalog(Description, Protocol):
    """The description of tables, and the way to change them."""

    def lock(self) -> AbstractAsyncContextManager[SchemaLock]:
        """Keep all other processes from changing the schema; `DatabaseBusy` if one does so for too long."""


class SchemaLock(Description, Protocol):
    """The right to change the schema. On SQLite all that is done under it is one transaction."""

    async def migrate(self, name: str, sql: str) -> None:
        """Apply one of penstock's own migrations, and remember that it is applied."""

    async def apply(self, change: Change) -> None:
        """Make one change; `UniqueViolation` or `ConstraintViolation` if rows stand against it."""
