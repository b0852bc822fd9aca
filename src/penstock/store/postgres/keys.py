"""Keys of jobs on PostgreSQL."""

from __future__ import annotations

from penstock.store.rows.keys import StoredKeys
from penstock.store.sql.queries import load_queries


class PostgresKeys(StoredKeys):
    """See `store.contract.Keys`."""

    def __init__(self) -> None:
        super().__init__(load_queries("penstock.store.postgres", "keys", "$"))
