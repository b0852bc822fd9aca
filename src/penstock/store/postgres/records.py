"""Records of reactive tasks on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.jobs.states import JobState
from penstock.schema.table import TableDefinition
from penstock.store.contract.records import RowKey
from penstock.store.contract.session import Row, Session
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.noun import Access
from penstock.store.nouns.records import Records
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.spelling import key_text
from penstock.store.postgres.taskends import PostgresTaskEnds


class PostgresRecords(Records):
    """See `store.nouns.Records`."""

    def __init__(self, access: Access, jobs: Jobs, ends: PostgresTaskEnds) -> None:
        super().__init__(access, jobs, ends)
        self._task_ends = ends

    async def _end(self, session: Session, live: Sequence[Row], state: JobState, now: datetime) -> set[Any]:
        return await self._task_ends.skip(session, [(row[0], row[1], row[2]) for row in live], now, state)

    async def _forget(self, session: Session, held: Sequence[Row]) -> list[RowKey]:
        tasks, keys = [row[0] for row in held], [row[1] for row in held]
        return [(row[0], row[1]) for row in await self._fetch(session, "forget", tasks=tasks, keys=keys)]

    def _key_text(self, definition: TableDefinition) -> str:
        return key_text("r", _types(definition))

    def _is_known(self, definition: TableDefinition) -> str:  # noqa: ARG002 - all rows have one
        return ""

    def _casts(self, definition: TableDefinition) -> Sequence[str]:
        return [f"::{kind}" for kind in _types(definition).values()]


def _types(definition: TableDefinition) -> dict[str, str]:
    """The columns of a key with their types."""
    return {column.name: POSTGRES.types[column.kind] for column in definition.key_columns}
