"""Records of reactive tasks on PostgreSQL, as they are listed and changed by whoever looks after them.

What is changed is held first, in the order of keys: planners and workers hold records in this order too, and look at
job rows after them.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from penstock.jobs.states import JobState
from penstock.reactive.expression import Condition
from penstock.schema.table import TableDefinition
from penstock.store.contract.records import (
    FAILED,
    Ahead,
    RecordCount,
    RecordQuery,
    RecordState,
    RowKey,
    SourcePiece,
    TaskBacklog,
)
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.jobs import PostgresJobs, run
from penstock.store.postgres.session import BEGIN_INTERNAL, PostgresSession, begin
from penstock.store.postgres.spelling import key_text
from penstock.store.postgres.taskends import PostgresTaskEnds
from penstock.store.rows.records import ahead_of, matching_rows, spelled_key, state_of, where_values
from penstock.store.sql.queries import load_queries

_BEGINNING: RowKey = (-1, "")
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_TIMES = (6, 7, 11, 12, 13)


class PostgresRecords:
    """See `store.records.Records`."""

    def __init__(self, connections: Connections, jobs: PostgresJobs, ends: PostgresTaskEnds) -> None:
        self._connections = connections
        self._jobs = jobs
        self._ends = ends
        self._queries = load_queries("penstock.store.postgres", "records", "$")

    async def list(
        self, session: Session, where: RecordQuery, limit: int, after: RowKey | None = None
    ) -> builtins.list[RecordState]:
        """Records that meet a filter, by task and key, those after one."""
        task, key = after or _BEGINNING
        rows = await self._fetch(
            session,
            "records_failed" if where.states == FAILED else "records",
            **where_values(where),
            limit=limit,
            after_task=task,
            after_key=key,
        )
        return [_state(row) for row in rows]

    async def due(
        self, session: Session, where: RecordQuery, limit: int, after: tuple[datetime | None, RowKey] | None = None
    ) -> builtins.list[RecordState]:
        """The same, those first that are due first."""
        moment, (task, key) = after or (_FIRST, _BEGINNING)
        values: dict[str, Any] = {"after_due": moment, "after_task": task, "after_key": key, "limit": limit}
        return [_state(row) for row in await self._fetch(session, "records_due", **where_values(where), **values)]

    async def among(
        self, session: OpenTransaction, where: RecordQuery, tasks: Sequence[int], keys: Sequence[str]
    ) -> builtins.list[RecordState]:
        """The same of these rows only."""
        values = where_values(where) | {"tasks": builtins.list(tasks), "keys": builtins.list(keys)}
        return [_state(row) for row in await self._fetch(session, "records_of", **values)]

    async def count(self, session: Session, where: RecordQuery) -> builtins.list[RecordCount]:
        """How many records meet a filter."""
        return [
            RecordCount(*row)
            for row in await self._fetch(
                session, "count_failed" if where.states == FAILED else "count_records", **where_values(where)
            )
        ]

    async def backlog(self, most: int) -> builtins.list[TaskBacklog]:
        """How much there is to do for each task, counted up to `most`."""
        return [TaskBacklog(*row) for row in await run(self._connections, self._queries["backlog"], {"most": most})]

    async def asked(self, session: Session, job: UUID) -> bool:
        """Whether somebody has asked for a job to be canceled, and nobody has carried that out."""
        return bool((await self._fetch(session, "asked", id=job))[0][0])

    async def ahead(self, session: Session, job: UUID, now: datetime) -> Ahead | None:
        """What is before a job that waits at the gate of its pool, of what has its concurrency key."""
        rows = await self._fetch(session, "ahead", id=job, now=now)
        return ahead_of(rows[0], UUID(int=rows[0][0].int)) if rows else None

    async def matching(
        self,
        session: Session,
        definition: TableDefinition,
        condition: Condition,
        limit: int,
        after: Sequence[Any] | None = None,
    ) -> SourcePiece:
        """Rows of a table that meet a condition, in the order of their keys."""
        spelled = key_text("r", _types(definition))
        return await matching_rows(session, POSTGRES, definition, condition, limit, after, spelled)

    async def spelled(self, session: Session, definition: TableDefinition, key: Sequence[Any]) -> str:
        """The key of a row as the change feed spells it."""
        types = _types(definition)
        casts = [f"::{kind}" for kind in types.values()]
        return await spelled_key(session, POSTGRES, definition, key, key_text("r", types), casts)

    async def rerun(
        self, rows: Sequence[RowKey], now: datetime, states: Collection[str] | None = None
    ) -> builtins.list[RowKey]:
        """Run rows again, or of these only those whose jobs stand so; those that are."""
        async with _Writing(self._connections) as session:
            return await self._ends.rerun(session, rows, now, states)

    async def skip(self, rows: Sequence[RowKey], now: datetime) -> builtins.list[RowKey]:
        """End the pending jobs of rows as skipped; those that were pending."""
        async with _Writing(self._connections) as session:
            held = [row for row in await self._ends.hold(session, rows) if row[3]]
            ended = await self._ends.skip(session, [(row[0], row[1], row[2]) for row in held], now)
            return [(row[0], row[1]) for row in held if row[2] in ended]

    async def delete(self, rows: Sequence[RowKey], now: datetime) -> builtins.list[RowKey]:
        """Forget records; those that are forgotten."""
        async with _Writing(self._connections) as session:
            held = await self._ends.hold(session, rows)
            live = [(row[0], row[1], row[2]) for row in held if row[3]]
            ended = await self._ends.skip(session, live, now, JobState.CANCELED) if live else set()
            tasks, keys = [row[0] for row in held], [row[1] for row in held]
            gone = await self._fetch(session, "forget", tasks=tasks, keys=keys)
            left: builtins.list[UUID] = [row[2] for row in live if row[2] not in ended]
            if left:
                await self._jobs.request_cancel(session, left, now)
            return [(row[0], row[1]) for row in gone]

    # ----- steps

    async def _fetch(self, session: OpenTransaction, name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await session.fetch(query.statement, query.args(values))


class _Writing:
    """A transaction that commits at the end of the block, and is undone if it raises."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._session: PostgresSession

    async def __aenter__(self) -> PostgresSession:
        self._session = await begin(self._connections, BEGIN_INTERNAL)
        return self._session

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                await self._session.commit()
        finally:
            await self._session.rollback()


def _state(row: Row) -> RecordState:
    return state_of(row, row[2], [row[place] for place in _TIMES])


def _types(definition: TableDefinition) -> dict[str, str]:
    """The columns of a key with their types."""
    return {column.name: POSTGRES.types[column.kind] for column in definition.key_columns}
