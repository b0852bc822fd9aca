"""Keys of jobs on PostgreSQL."""

from __future__ import annotations

from penstock.store.queries import load_queries
from penstock.store.storedkeys import StoredKeys


class PostgresKeys(StoredKeys):
    """See `store.contract.Keys`."""

    def __init__(self) -> None:
        super().__init__(load_queries("penstock.store.postgres", "keys", "$"))
