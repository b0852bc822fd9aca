"""Records of reactive tasks on SQLite: the one writer holds them all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.jobs.states import JobState
from penstock.schema.table import TableDefinition
from penstock.store.contract.records import RowKey
from penstock.store.contract.session import Row, Session
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.noun import Access
from penstock.store.nouns.records import Ends, Records
from penstock.store.sqlite.capture import is_known, key_text
from penstock.store.sqlite.tasks import SqliteTasks


class SqliteRecords(Records):
    """See `store.nouns.Records`."""

    def __init__(self, access: Access, jobs: Jobs, ends: Ends, tasks: SqliteTasks) -> None:
        super().__init__(access, jobs, ends)
        self._tasks = tasks

    async def _end(self, session: Session, live: Sequence[Row], state: JobState, now: datetime) -> set[Any]:
        return await self._tasks.end_pending(session, live, state, now)

    async def _forget(self, session: Session, held: Sequence[Row]) -> list[RowKey]:
        gone = await self._fetch(session, "forget", rows=json.dumps([(row[0], row[1]) for row in held]))
        await self._fetch(session, "forget_ends", ids=[self._access.uuid(row[2]) for row in gone])
        return [(row[0], row[1]) for row in gone]

    def _key_text(self, definition: TableDefinition) -> str:
        return key_text("r", definition.key)

    def _is_known(self, definition: TableDefinition) -> str:
        return is_known(definition.key)

    def _casts(self, definition: TableDefinition) -> Sequence[str]:
        return [""] * len(definition.key)
