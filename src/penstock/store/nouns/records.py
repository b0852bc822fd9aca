"""Records of reactive tasks, as administrators list and change them.

Changes lock records first, in the order of keys: planners and workers lock records in this order too, and look
at job rows after them.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

from penstock.jobs.states import JobState
from penstock.reactive.expression import Condition
from penstock.schema.table import TableDefinition
from penstock.store.contract.jobs import Jobs
from penstock.store.contract.records import (
    FAILED,
    STANDS,
    Ahead,
    RecordCount,
    RecordQuery,
    RecordState,
    RowKey,
    SourcePiece,
    TaskBacklog,
)
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.nouns.noun import Access, Noun
from penstock.store.rows.records import matching_rows, spelled_key, state_of, where_values

_BEGINNING: RowKey = (-1, "")
_FIRST = datetime(1, 1, 1, tzinfo=UTC)


class Ends(Protocol):
    """Ends jobs of tasks."""

    async def hold(self, session: OpenTransaction, rows: Sequence[RowKey]) -> Sequence[Row]:
        """The records of rows: their tasks, keys and jobs, whether these are live, and their states."""

    async def rerun(
        self, session: OpenTransaction, rows: Sequence[RowKey], now: datetime, states: Collection[str] | None = None
    ) -> list[RowKey]:
        """Run rows again, or only those whose jobs have these states; the rows run."""


class StoredRecords(Noun, ABC):
    """See `store.contract.Records`."""

    def __init__(self, access: Access, jobs: Jobs, ends: Ends) -> None:
        super().__init__(access, "records")
        self._jobs = jobs
        self._ends = ends

    async def list(
        self, session: Session, where: RecordQuery, limit: int, after: RowKey | None = None
    ) -> builtins.list[RecordState]:
        task, key = after or _BEGINNING
        name = "records_failed" if where.states == FAILED else "records"
        values = where_values(where) | {"limit": limit, "after_task": task, "after_key": key}
        return self._states(await self._fetch(session, name, **values))

    async def due(
        self, session: Session, where: RecordQuery, limit: int, after: tuple[datetime | None, RowKey] | None = None
    ) -> builtins.list[RecordState]:
        moment, (task, key) = after or (_FIRST, _BEGINNING)
        values: dict[str, Any] = {"after_due": moment, "after_task": task, "after_key": key, "limit": limit}
        return self._states(await self._fetch(session, "records_due", **where_values(where), **values))

    async def among(
        self, session: OpenTransaction, where: RecordQuery, tasks: Sequence[int], keys: Sequence[str]
    ) -> builtins.list[RecordState]:
        values = where_values(where) | {"tasks": builtins.list(tasks), "keys": builtins.list(keys)}
        return self._states(await self._fetch(session, "records_of", **values))

    async def count(self, session: Session, where: RecordQuery) -> builtins.list[RecordCount]:
        name = "count_failed" if where.states == FAILED else "count_records"
        return [RecordCount(*row) for row in await self._fetch(session, name, **where_values(where))]

    async def backlog(self, most: int) -> builtins.list[TaskBacklog]:
        time = self._access.time
        return [
            TaskBacklog(*(*row[:6], time(row[6]), bool(row[7]), time(row[8]), time(row[9])))
            for row in await self._look("backlog", most=most)
        ]

    async def asked(self, session: Session, job: UUID) -> bool:
        return bool((await self._fetch(session, "asked", id=job))[0][0])

    async def ahead(self, session: Session, job: UUID, now: datetime) -> Ahead | None:
        for found, stands, task, key in await self._fetch(session, "ahead", id=job, now=now):
            return Ahead(self._access.uuid(found), STANDS[stands], task, key)
        return None

    async def matching(
        self,
        session: Session,
        definition: TableDefinition,
        condition: Condition,
        limit: int,
        after: Sequence[Any] | None = None,
    ) -> SourcePiece:
        spelled, known = self._key_text(definition), self._is_known(definition)
        return await matching_rows(session, self._access.dialect, definition, condition, limit, after, spelled, known)

    async def spelled(self, session: Session, definition: TableDefinition, key: Sequence[Any]) -> str:
        text, casts = self._key_text(definition), self._casts(definition)
        return await spelled_key(session, self._access.dialect, definition, key, text, casts)

    async def rerun(
        self, rows: Sequence[RowKey], now: datetime, states: Collection[str] | None = None
    ) -> builtins.list[RowKey]:
        async with self._writing() as session:
            return await self._ends.rerun(session, rows, now, states)

    async def skip(self, rows: Sequence[RowKey], now: datetime) -> builtins.list[RowKey]:
        async with self._writing() as session:
            live = [row for row in await self._ends.hold(session, rows) if row[3]]
            ended = await self._end(session, live, JobState.SKIPPED, now) if live else set()
        return [(row[0], row[1]) for row in live if row[2] in ended]

    async def delete(self, rows: Sequence[RowKey], now: datetime) -> builtins.list[RowKey]:
        async with self._writing() as session:
            held = await self._ends.hold(session, rows)
            live = [row for row in held if row[3]]
            ended = await self._end(session, live, JobState.CANCELED, now) if live else set()
            gone = await self._forget(session, held)
            left = [self._access.uuid(row[2]) for row in live if row[2] not in ended]
            if left:
                await self._jobs.request_cancel(session, left, now)
        return gone

    # ----- different on each store

    @abstractmethod
    async def _end(self, session: Session, live: Sequence[Row], state: JobState, now: datetime) -> set[Any]:
        """End the pending jobs of records; the ids of those that were pending, as the driver gives them."""

    @abstractmethod
    async def _forget(self, session: Session, held: Sequence[Row]) -> builtins.list[RowKey]:
        """Forget records that are held, if there is no job any more; those that are forgotten."""

    @abstractmethod
    def _key_text(self, definition: TableDefinition) -> str:
        """SQL that spells the key of a row, called ``r``, as the change feed does."""

    @abstractmethod
    def _is_known(self, definition: TableDefinition) -> str:
        """A condition that is true of rows that have a key; empty if all have."""

    @abstractmethod
    def _casts(self, definition: TableDefinition) -> Sequence[str]:
        """SQL that gives each value of a key its type."""

    # ----- steps

    def _states(self, rows: Sequence[Row]) -> builtins.list[RecordState]:
        time = self._access.time
        return [state_of(row, self._access.uuid(row[2]), [time(row[n]) for n in (6, 7, 11, 12, 13)]) for row in rows]
