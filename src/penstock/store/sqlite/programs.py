"""What programs have declared, on SQLite."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.jobs import fetch
from penstock.store.sqlite.session import Begin, reading, writing


class SqlitePrograms:
    """See `store.contract.Programs`."""

    def __init__(self, begin_read: Begin, begin_write: Begin) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._queries = load_queries("penstock.store.sqlite", "programs", "?")

    async def declare(self, kinds: Mapping[str, str]) -> None:
        """Make functions known."""
        async with reading(self._begin_read) as session:
            known = {row[0]: row[1] for row in await fetch(session, self._queries["declared"], {})}
        new = {name: kind for name, kind in kinds.items() if known.get(name) != kind}
        if new:  # who finds all as it is takes no lock
            async with writing(self._begin_write) as session:
                for name, kind in new.items():
                    await fetch(session, self._queries["declare"], {"name": name, "kind": kind})
