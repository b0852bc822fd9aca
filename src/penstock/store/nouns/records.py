"""Records of reactive tasks, as administrators list and change them.

A record is the state of a task for one row. Changes lock records first, in the order of keys: planners and workers lock
records in this order too, and look at jobs after them.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.jobs.states import JobState
from penstock.reactive.evaluate import holds
from penstock.reactive.expression import Condition
from penstock.schema.table import TableDefinition
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.noun import Access, Noun
from penstock.store.nouns.tasks import RecordRow, RowKey, TaskEnds, Tasks, of_rows, row_key
from penstock.store.session import OpenTransaction, Row, Session, Statement
from penstock.store.sql.conditions import condition_sql
from penstock.store.sql.dialect import placeholder, row_of
from penstock.store.sql.values import decode_stored_values

_BEGINNING: RowKey = (-1, "")
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_ROW = "r"
_NEAR = 1_000  # records to look at before jobs


FAILED = ("failed",)


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Records that meet all of these conditions."""

    tasks: tuple[int, ...] | None = None  # of one of these tasks
    states: tuple[str, ...] | None = None  # their job stands so; ``gone`` for those whose row has left or is deleted
    error: str | None = None  # their last error contains this
    has_error: bool | None = None  # whether there is one


@dataclass(frozen=True, slots=True)
class RecordCount:
    """The number of records of a task in one state, and of those whose row is gone."""

    task: int
    state: str
    number: int
    gone: int


@dataclass(frozen=True, slots=True)
class TaskBacklog:
    """The backlog of a task, counted no further than asked."""

    task: int
    name: str
    ready: int  # how many of its jobs may start now
    scheduled: int  # how many start later: debounced, in back-off, or put off
    running: int  # how many run
    failed: int  # how many have failed
    oldest: datetime | None  # the due time of the oldest of the ready ones
    paused: bool
    # the first due time of the oldest waiting run, before anything put it off; it may be that it is not due yet
    due_first: datetime | None
    reconciled_at: datetime | None  # when all rows were looked at last; None if they never were


STANDS: tuple[Literal["first", "again", "runs"], ...] = ("first", "again", "runs")


@dataclass(frozen=True, slots=True)
class Ahead:
    """A job that comes before another with the same concurrency key, with its state."""

    job: UUID
    stands: Literal["first", "again", "runs"]
    task: int | None  # the task that it is of, if it is of one
    key: str | None  # the key of its row


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """Rows of a table that meet a filter."""

    keys: builtins.list[str]  # their keys, as the change feed spells them
    last: str | None  # the last key of those looked at, to go on after; None if there are no more


class Records(Noun, queries=("records",)):
    """Records of reactive tasks, as administrators list and change them."""

    def __init__(self, access: Access, jobs: Jobs, tasks: Tasks, ends: TaskEnds) -> None:
        super().__init__(access)
        self._jobs = jobs
        self._tasks = tasks
        self._ends = ends

    async def list(
        self, session: Session, where: RecordQuery, limit: int, after: RowKey | None = None
    ) -> builtins.list[RecordRow]:
        """Records that meet a filter, by task and key, those after one."""
        task, key = after or _BEGINNING
        values = _where(where) | {"limit": limit, "after_task": task, "after_key": key}
        if (jobs := _begins_with(where)) and limit <= _NEAR:  # they may be many after all
            found = await self._fetch(session, "records_near", **values, near=_NEAR)
            if len(found) == limit:
                return self._read(RecordRow, found)
        return self._read(RecordRow, await self._fetch(session, f"records_{jobs}" if jobs else "records", **values))

    async def due(
        self, session: Session, where: RecordQuery, limit: int, after: tuple[datetime | None, RowKey] | None = None
    ) -> builtins.list[RecordRow]:
        """Records that meet a filter by due time, ended jobs last. It sorts all that there are."""
        moment, (task, key) = after or (_FIRST, _BEGINNING)
        values: dict[str, Any] = {"after_due": moment, "after_task": task, "after_key": key, "limit": limit}
        return self._read(RecordRow, await self._fetch(session, "records_due", **_where(where), **values))

    async def among(
        self, session: OpenTransaction, where: RecordQuery, tasks: Sequence[int], keys: Sequence[str]
    ) -> builtins.list[RecordRow]:
        """Records that meet a filter among these rows of these tasks, instead of the filter's tasks."""
        values = _where(where) | {"tasks": builtins.list(tasks), "keys": builtins.list(keys)}
        return self._read(RecordRow, await self._fetch(session, "records_of", **values))

    async def count(self, session: Session, where: RecordQuery) -> builtins.list[RecordCount]:
        """The number of records that meet a filter. It reads them all."""
        name = f"count_{_begins_with(where) or 'records'}"
        return self._read(RecordCount, await self._fetch(session, name, **_where(where)))

    async def backlog(self, most: int) -> builtins.list[TaskBacklog]:
        """The backlog of each task, counted up to `most`; its cost does not grow with the records."""
        return self._read(TaskBacklog, await self._look("backlog", most=most))

    async def has_cancel_request(self, session: Session, job: UUID) -> bool:
        """Whether a job has an open request to cancel."""
        ((asked,),) = await self._fetch(session, "asked", id=job)
        return bool(asked)

    async def ahead(self, session: Session, job: UUID, now: datetime) -> Ahead | None:
        """The first job before one that waits at the gate of its pool, with the same concurrency key."""
        rows = await self._fetch(session, "ahead", id=job, now=now)
        return self._one(Ahead, rows, stands=lambda row: STANDS[row["stands"]])

    async def matching(
        self,
        session: Session,
        definition: TableDefinition,
        condition: Condition,
        limit: int,
        after: Sequence[Any] | None = None,
    ) -> SourcePiece:
        """Rows of a table that meet a condition, in the order of their keys; up to `limit` of them are looked at."""
        dialect = self._access.dialect
        asked = condition_sql(condition, definition, dialect, _ROW, own=True)
        columns = () if asked.exact else asked.columns  # Python asks again where the SQL says something wider
        key = [f"{_ROW}.{dialect.quote(name)}" for name in definition.key]
        read = (f"{_ROW}.{dialect.quote(name)}" for name in columns)
        listed = ", ".join((self._access.key_text(definition), *read))
        where = [asked.sql, *self._access.key_conditions(definition)]
        where += [] if after is None else [f"{row_of(key)} > {row_of(self._placeholders(definition))}"]
        args = [*(after or ()), limit]
        sql = f"select {listed} from {dialect.table(definition.name)} {_ROW} where {' and '.join(where)}"
        sql += f" order by {', '.join(key)} limit {placeholder(dialect.parameter, len(args))}"
        rows = await session.fetch(Statement(sql, bounded=False, reads=True), args)

        def meets(row: Row) -> bool:
            stored = dict(zip(columns, row[1:], strict=True))
            return asked.exact or holds(condition, decode_stored_values(dialect, definition, stored, columns))

        return SourcePiece([row[0] for row in rows if meets(row)], rows[-1][0] if len(rows) == limit else None)

    async def spell_key(self, session: Session, definition: TableDefinition, key: Sequence[Any]) -> str:
        """The key of a row as the change feed spells it, from its columns' values in the driver's form."""
        dialect, text = self._access.dialect, self._access.key_text(definition)
        names = [dialect.quote(name) for name in definition.key]
        given = zip(names, self._placeholders(definition), strict=True)
        is_it = " and ".join(f"{_ROW}.{name} = {value}" for name, value in given)
        sql = f"select {text} from {dialect.table(definition.name)} {_ROW} where {is_it}"
        rows = await session.fetch(Statement(sql, reads=True), key)
        if not rows:  # a column of the row may have another type than is declared, which counts where there is none
            kinds = zip(names, self._access.key_casts(definition), strict=True)
            columns = (
                f"{placeholder(dialect.parameter, n)}{cast} as {name}" for n, (name, cast) in enumerate(kinds, 1)
            )
            sql = f"select {text} from (select {', '.join(columns)}) {_ROW}"
            rows = await session.fetch(Statement(sql, reads=True), key)
        return str(rows[0][0])

    async def rerun(
        self, rows: Sequence[RowKey], now: datetime, states: Collection[str] | None = None
    ) -> builtins.list[RowKey]:
        """Run rows again, or only rows whose jobs have these states; the rows run. Attempts count from 1 again.

        Running ones are run once more when they have ended.
        """
        async with self._writing() as session:
            return await self._ends.rerun(session, rows, now, states)

    async def skip(self, rows: Sequence[RowKey], now: datetime) -> builtins.list[RowKey]:
        """End the pending jobs of rows as skipped; the rows whose jobs were pending."""
        async with self._writing() as session:
            live = [row for row in await self._ends.hold(session, rows) if row["live"]]
            ended = await self._tasks.end_pending(session, live, JobState.SKIPPED, now)
        return [row_key(row) for row in live if row["id"] in ended]

    async def delete(self, rows: Sequence[RowKey], now: datetime) -> builtins.list[RowKey]:
        """Forget records; the rows of the forgotten ones. Pending jobs are canceled first.

        Records with running jobs stay, and the cancel of their jobs is requested.
        """
        async with self._writing() as session:
            held = await self._ends.hold(session, rows)
            live = [row for row in held if row["live"]]
            ended = await self._tasks.end_pending(session, live, JobState.CANCELED, now)
            gone = await self._fetch(session, "forget", **of_rows(held))
            left = [self._access.uuid(row["id"]) for row in live if row["id"] not in ended]
            if left:
                await self._jobs.request_cancel(session, left, now)
        return [row_key(row) for row in gone]

    # ----- steps

    def _placeholders(self, definition: TableDefinition) -> builtins.list[str]:
        found = []
        for number, column in enumerate(definition.key_columns, 1):
            cast = self._access.dialect.casts.get(column.kind)
            found.append(placeholder(self._access.dialect.parameter, number) + (f"::{cast}" if cast else ""))
        return found


def _begins_with(where: RecordQuery) -> str:
    """The jobs with which a query begins, as they may be few; empty if it begins with the records."""
    if where.states == FAILED:
        return "failed"
    return "" if where.error is None else "erring"


def _where(where: RecordQuery) -> dict[str, Any]:
    return {name: [*value] if isinstance(value, tuple) else value for name, value in asdict(where).items()}
