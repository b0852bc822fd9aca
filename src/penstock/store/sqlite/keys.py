"""Keys of jobs on SQLite: ids are bytes, times are text."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from penstock.store.contract.session import Row
from penstock.store.rows.keys import StoredKeys
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime


class SqliteKeys(StoredKeys):
    """See `store.contract.Keys`."""

    def __init__(self) -> None:
        super().__init__(load_queries("penstock.store.sqlite", "keys", "?"))

    def encode(self, value: UUID | datetime) -> bytes | str:
        """An id or a time as SQLite takes it."""
        return value.bytes if isinstance(value, UUID) else encode_datetime(value)

    def decode(self, row: Row) -> tuple[UUID, bool, datetime | None, bool]:
        """A row of the query `holder`."""
        job_id, until_start, enqueued_at, canceled = row
        since = None if enqueued_at is None else datetime.fromisoformat(enqueued_at)
        return UUID(bytes=bytes(job_id)), bool(until_start), since, bool(canceled)
