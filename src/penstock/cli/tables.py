"""Tables as commands read them: found by name, and read piece by piece in one snapshot.

Owns how a table is named on the command line, and reading rows in the order of their key without end.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Sequence

from penstock.app import Backend
from penstock.errors import ConfigError
from penstock.schema.table import TableDefinition
from penstock.store.contract.session import Row, Session
from penstock.store.sql.statements import TableStatements
from penstock.transaction.segments import Segment, after

_PIECE = 1000


def find_table(backend: Backend, name: str) -> TableStatements:
    """A table by its SQL name, or the name of its class.

    Raises:
        ConfigError: The app has no such table.
    """
    definitions = backend.app.definitions()
    for definition in definitions:
        if name in {definition.name, definition.table.__name__}:
            return statements_of(backend, definition)
    names = [definition.name for definition in definitions]
    near = difflib.get_close_matches(name.lower(), names, 1)
    fix = f"Did you mean {near[0]}?" if near else f"Its tables are {', '.join(names) or 'none'}."
    raise ConfigError(f"The app has no table {name!r}.", fix=fix)


def statements_of(backend: Backend, definition: TableDefinition) -> TableStatements:
    """The statements of a table."""
    return backend.engine.statements.of(definition.table, definition)


async def count_rows(session: Session, statements: TableStatements) -> int:
    """How many rows a table has in a snapshot."""
    rows = await session.fetch(statements.aggregate((), "count", None, ()))
    return int(rows[0][0])


async def read_rows(session: Session, statements: TableStatements) -> AsyncIterator[Sequence[Row]]:
    """All rows of a table in a snapshot, in pieces, in the order of its key."""
    definition = statements.definition
    optional = [column.optional for column in definition.key_columns]
    pending = [Segment()]
    while pending:
        segment = pending.pop(0)
        conditions, args = segment.conditions(definition.key)
        statement = statements.scan(conditions, definition.key, "asc", limit=_PIECE, indexed=True)
        rows = await session.fetch(statement, (*args, _PIECE))
        if rows:
            yield rows
        if len(rows) == _PIECE:
            last = definition.key_values(definition.key_at(rows[-1]))
            pending = [*after(segment, definition.key, optional, last, "asc"), *pending]
