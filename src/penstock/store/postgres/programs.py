"""What programs have declared, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.store.postgres.connections import Connections
from penstock.store.postgres.jobs import run
from penstock.store.sql.queries import load_queries


class PostgresPrograms:
    """See `store.contract.Programs`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._queries = load_queries("penstock.store.postgres", "programs", "$")

    async def declare(self, kinds: Mapping[str, str]) -> None:
        """Make functions known."""
        known = {row[0]: row[1] for row in await run(self._connections, self._queries["declared"], {})}
        new = {name: kind for name, kind in kinds.items() if known.get(name) != kind}
        if new:  # who finds all as it is needs no right to write
            await run(self._connections, self._queries["declare"], {"names": [*new], "kinds": [*new.values()]})
