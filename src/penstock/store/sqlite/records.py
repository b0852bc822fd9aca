"""Records of reactive tasks on SQLite, as they are listed and changed by whoever looks after them."""

from __future__ import annotations

import builtins
import json
from collections.abc import Collection, Sequence
from datetime import datetime
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
from penstock.store.rows.records import ahead_of, matching_rows, spelled_key, state_of, where_values
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.capture import is_known, key_text
from penstock.store.sqlite.dialect import SQLITE, encode_datetime
from penstock.store.sqlite.jobrows import time_of
from penstock.store.sqlite.jobs import SqliteJobs
from penstock.store.sqlite.session import Begin, reading, writing
from penstock.store.sqlite.taskends import SqliteTaskEnds
from penstock.store.sqlite.tasks import SqliteTasks

_BEGINNING: RowKey = (-1, "")
_LAST = "~"  # after all times
_TIMES = (6, 7, 11, 12, 13)


class SqliteRecords:
    """See `store.records.Records`."""

    def __init__(
        self, begin_read: Begin, begin_write: Begin, jobs: SqliteJobs, tasks: SqliteTasks, ends: SqliteTaskEnds
    ) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._jobs = jobs
        self._tasks = tasks
        self._ends = ends
        self._queries = load_queries("penstock.store.sqlite", "records", "?")

    async def list(
        self, session: Session, where: RecordQuery, limit: int, after: RowKey | None = None
    ) -> builtins.list[RecordState]:
        """Records that meet a filter, by task and key, those after one."""
        task, key = after or _BEGINNING
        rows = await self._fetch(
            session,
            "records_failed" if where.states == FAILED else "records",
            **_where(where),
            limit=limit,
            after_task=task,
            after_key=key,
        )
        return [_state(row) for row in rows]

    async def due(
        self, session: Session, where: RecordQuery, limit: int, after: tuple[datetime | None, RowKey] | None = None
    ) -> builtins.list[RecordState]:
        """The same, those first that are due first."""
        moment, (task, key) = after or (None, _BEGINNING)
        text = "" if after is None else _LAST if moment is None else encode_datetime(moment)
        values: dict[str, Any] = {"after_due": text, "after_task": task, "after_key": key, "limit": limit}
        return [_state(row) for row in await self._fetch(session, "records_due", **_where(where), **values)]

    async def among(
        self, session: OpenTransaction, where: RecordQuery, tasks: Sequence[int], keys: Sequence[str]
    ) -> builtins.list[RecordState]:
        """The same of these rows only."""
        values = _where(where) | {"tasks": json.dumps(tasks), "keys": json.dumps(keys)}
        return [_state(row) for row in await self._fetch(session, "records_of", **values)]

    async def count(self, session: Session, where: RecordQuery) -> builtins.list[RecordCount]:
        """How many records meet a filter."""
        return [
            RecordCount(*row)
            for row in await self._fetch(
                session, "count_failed" if where.states == FAILED else "count_records", **_where(where)
            )
        ]

    async def backlog(self, most: int) -> builtins.list[TaskBacklog]:
        """How much there is to do for each task, counted up to `most`."""
        async with reading(self._begin_read) as session:
            rows = await self._fetch(session, "backlog", most=most)
        return [
            TaskBacklog(*(*row[:6], time_of(row[6]), bool(row[7]), time_of(row[8]), time_of(row[9]))) for row in rows
        ]

    async def asked(self, session: Session, job: UUID) -> bool:
        """Whether somebody has asked for a job to be canceled, and nobody has carried that out."""
        return bool((await self._fetch(session, "asked", id=job.bytes))[0][0])

    async def ahead(self, session: Session, job: UUID, now: datetime) -> Ahead | None:
        """What is before a job that waits at the gate of its pool, of what has its concurrency key."""
        rows = await self._fetch(session, "ahead", id=job.bytes, now=encode_datetime(now))
        return ahead_of(rows[0], UUID(bytes=rows[0][0])) if rows else None

    async def matching(
        self,
        session: Session,
        definition: TableDefinition,
        condition: Condition,
        limit: int,
        after: Sequence[Any] | None = None,
    ) -> SourcePiece:
        """Rows of a table that meet a condition, in the order of their keys."""
        spelled = key_text("r", definition.key)
        known = is_known(definition.key)
        return await matching_rows(session, SQLITE, definition, condition, limit, after, spelled, known)

    async def spelled(self, session: Session, definition: TableDefinition, key: Sequence[Any]) -> str:
        """The key of a row as the change feed spells it."""
        text = key_text("r", definition.key)
        return await spelled_key(session, SQLITE, definition, key, text, [""] * len(definition.key))

    async def rerun(
        self, rows: Sequence[RowKey], now: datetime, states: Collection[str] | None = None
    ) -> builtins.list[RowKey]:
        """Run rows again, or of these only those whose jobs stand so; those that are."""
        async with writing(self._begin_write) as session:
            return await self._ends.rerun(session, rows, now, states)

    async def skip(self, rows: Sequence[RowKey], now: datetime) -> builtins.list[RowKey]:
        """End the pending jobs of rows as skipped; those that were pending."""
        async with writing(self._begin_write) as session:
            held = await self._ends.hold(session, rows)
            return await self._tasks.end_pending(session, [row for row in held if row[3]], JobState.SKIPPED, now)

    async def delete(self, rows: Sequence[RowKey], now: datetime) -> builtins.list[RowKey]:
        """Forget records; those that are forgotten."""
        async with writing(self._begin_write) as session:
            held = await self._ends.hold(session, rows)
            live = [row for row in held if row[3]]
            ended = set(await self._tasks.end_pending(session, live, JobState.CANCELED, now))
            gone = await self._fetch(session, "forget", rows=json.dumps([(row[0], row[1]) for row in held]))
            await self._fetch(session, "forget_ends", ids=json.dumps([row[2].hex() for row in gone]))
            left = [UUID(bytes=row[2]) for row in live if (row[0], row[1]) not in ended]
            if left:
                await self._jobs.request_cancel(session, left, now)
            return [(row[0], row[1]) for row in gone]

    # ----- steps

    async def _fetch(self, session: OpenTransaction, name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await session.fetch(query.statement, query.args(values))


def _where(where: RecordQuery) -> dict[str, Any]:
    values = where_values(where)
    return values | {name: None if values[name] is None else json.dumps(values[name]) for name in ("tasks", "states")}


def _state(row: Row) -> RecordState:
    return state_of(row, UUID(bytes=row[2]), [time_of(row[place]) for place in _TIMES])
