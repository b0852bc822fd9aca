"""The rows of reactive tasks that a filter picks, and their changes, piece by piece; and changes of whole tasks.

Owns the meaning of a filter: names of tasks, keys of rows, and conditions on rows, as functions or as text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from penstock.api.tasks.views import TaskPage, TaskRecord, record_of
from penstock.calls.enqueue.jobs import JobCalls
from penstock.dataclass import dataclass
from penstock.errors import CursorInvalid, IdInvalid, TaskNotFound, TryAgain, ValueInvalid
from penstock.functions.function import find_named
from penstock.observe.logs import event as log_event
from penstock.reactive.filter import GONE, TaskFilter
from penstock.reactive.filtertext import TextFilter
from penstock.reactive.task import ReactiveTask
from penstock.reactive.tracing import trace_filter
from penstock.schema.table import Table, TableDefinition, definition_of
from penstock.store.nouns.records import RecordQuery
from penstock.store.nouns.tasks import RecordRow, RowKey, TaskRow, from_the_beginning
from penstock.store.session import Session
from penstock.store.sql.values import decode_key
from penstock.values import is_storable

Verb = Literal["retry", "cancel", "skip", "delete"]
_Where = TaskFilter[Any]

AT_ONCE = 500
_RELEASED_AT_ONCE = 1000
_SOURCE_AT_ONCE = 1000
_WHAT = "Looking after reactive tasks"
_SEPARATORS = ((", ", ": "), (",", ":"))  # as PostgreSQL and SQLite have them
_LIKE_BYTES = re.compile(r'(?<=[\[,])"(\\\\(?=x)|I(?=nfinity")|-(?=Infinity"))')
_NUMBERS = range(2**31)  # of tasks


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a selection: at most `limit` rows after a cursor; after `seconds` it begins no further piece."""

    limit: float = math.inf
    after: str | None = None
    seconds: float = math.inf


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Changed:
    """How many rows met the filter, how many of them were changed, and the cursor of the next part."""

    found: int
    changed: int
    next: str | None


class Selection:
    """The records that a filter picks: `tasks` are those of the database, `definitions` the tables of this program."""

    def __init__(
        self,
        calls: JobCalls,
        where: TaskFilter[Any],
        tasks: Sequence[TaskRow],
        definitions: Mapping[str, TableDefinition],
    ) -> None:
        self._calls = calls
        self._where = where
        self._definitions = dict(definitions)
        self.tasks = [task for name in where.tasks or () for task in [task_of(tasks, name)]]
        if where.tasks is None:
            self.tasks = list(tasks)
        if where.table is not None:
            table = definition_of(where.table)
            self._definitions[table.name] = table
            self.tasks = [task for task in self.tasks if task.plan.spec.table == table.name]
        narrowed = where.tasks is not None or where.table is not None
        self.query = RecordQuery(
            tasks=tuple(sorted(task.id for task in self.tasks)) if narrowed else None,
            states=where.states,
            error=where.error,
            has_error=where.has_error,
        )
        self._names = {task.id: task.plan.name for task in tasks}
        self._condition = None
        if where.rows is not None and where.table is not None:
            self._condition = trace_filter(definition_of(where.table), where.rows, "TaskFilter: rows")

    @property
    def is_plain(self) -> bool:
        """Whether one query on records answers the filter."""
        return self._where.key is None and self._condition is None

    async def each(self) -> AsyncIterator[list[RecordRow]]:
        """All of them, piece by piece."""
        after: Any = None
        while True:
            found, after = await self._piece(self._at_once, after)
            if found:
                yield found
            if after is None:
                return

    async def page(self, limit: int, after: str | None, *, by_due: bool) -> TaskPage:
        """A page of them; `ValueInvalid` for `by_due` if a function of rows picks them."""
        if by_due and self._condition is not None:
            raise ValueInvalid("Rows that a function selects are ordered by key.", fix="Leave out order.")
        place = _open_cursor(after)
        if by_due and self.is_plain:
            return await self._page_by_due(limit, place)
        found: list[RecordRow] = []
        while not found:
            found, place = await self._piece(limit, place)
            if place is None:
                break
        return TaskPage([self.name_record(one) for one in found], None if place is None else json.dumps(place))

    def name_record(self, state: RecordRow) -> TaskRecord:
        """A record with the name of its task."""
        return record_of(state, self._names.get(state.task, str(state.task)))

    async def change(self, verb: Verb, part: Part = WHOLE) -> Changed:
        """Change all of them, or a part, piece by piece, and tell workers.

        A part ends early if the database is busy or away after its first piece. Its caller gets the number of them.
        """
        machine = self._calls.engine.machine
        left, until, place = part.limit, machine.monotonic() + part.seconds, _open_cursor(part.after)
        found = changed = 0
        while True:
            at_once = int(min(self._at_once, left))
            try:
                piece, following = await self._piece(at_once, place)
                changed += await self._change(verb, piece) if piece else 0
            except TryAgain:
                if part is WHOLE or left == part.limit:
                    raise
                break
            self._calls.store.signals.notify()
            found, left, place = found + len(piece), left - at_once, following
            if place is None or left <= 0 or machine.monotonic() >= until:
                break
        return Changed(found, changed, None if place is None else json.dumps(place))

    # ----- steps

    async def _change(self, verb: Verb, piece: Sequence[RecordRow]) -> int:
        calls, records, states = self._calls, self._calls.store.records, self._where.states
        if verb == "cancel":
            await calls.cancel([one.job for one in piece])
            return len(piece)
        rows, still_in = [(one.task, one.key) for one in piece], None if states is None or GONE in states else states
        writes: dict[str, Callable[[], Awaitable[Sequence[RowKey]]]] = {
            "retry": lambda: records.rerun(rows, calls.now(), still_in),
            "skip": lambda: records.skip(rows, calls.now()),
            "delete": lambda: records.delete(rows, calls.now()),
        }
        return len(await calls.runner.attempt(writes[verb], _WHAT))

    @property
    def _at_once(self) -> int:
        return AT_ONCE if self._condition is None else _SOURCE_AT_ONCE

    async def _piece(self, limit: int, after: Any) -> tuple[list[RecordRow], Any]:
        """Some records, and what to go on after; None if there are no more."""
        records = self._calls.store.records
        if self.query.tasks == ():
            return [], None
        if self._condition is not None:
            return await self._calls.read(lambda session: self._matching(session, limit, after))
        if self._where.key is not None:
            keys = await self._keys()
            numbers = [task.id for task in self.tasks]
            return await self._calls.read(lambda one: records.among(one, self.query, numbers, keys)), None
        place: RowKey | None = None if after is None else _place(after)
        found = await self._calls.read(lambda one: records.list(one, self.query, limit, place))
        return found, (found[-1].task, found[-1].key) if len(found) == limit else None

    async def _matching(self, session: Session, limit: int, after: Any) -> tuple[list[RecordRow], Any]:
        store = self._calls.store
        assert self._where.table is not None and self._condition is not None  # noqa: PT018, S101 - who asks has looked
        definition = definition_of(self._where.table)
        try:
            place = None if after is None else decode_key(store.dialect, definition, after)
        except ValueError:
            raise _no_cursor(after) from None
        piece = await store.records.matching(session, definition, self._condition, limit, place)
        places = {key: place for place, key in enumerate(piece.keys)}
        found = await store.records.among(session, self.query, [task.id for task in self.tasks], piece.keys)
        if self._where.key is not None:
            keys = set(await self._keys())
            found = [one for one in found if one.key in keys]
        found.sort(key=lambda one: (places[one.key], one.task))
        return found, piece.last

    async def _page_by_due(self, limit: int, place: Any) -> TaskPage:
        records, after = self._calls.store.records, None if place is None else _due_place(place)
        found = await self._calls.read(lambda one: records.due(one, self.query, limit, after))
        following = None
        if len(found) == limit:
            last = found[-1]
            moment = last.run_at.isoformat() if last.live and last.run_at is not None else None
            following = json.dumps([moment, last.task, last.key])
        return TaskPage([self.name_record(one) for one in found], following)

    async def _keys(self) -> list[str]:
        """The key of the filter as the change feed may spell it, for each task that it fits."""
        found: dict[str, None] = {}
        tasks = {task.plan.spec.table: task for task in self.tasks}
        for table, task in tasks.items():
            try:
                found |= dict.fromkeys(
                    await spellings(self._calls, task, self._definitions.get(table), self._where.key)
                )
            except IdInvalid:
                if len(tasks) == 1:
                    raise
        return list(found)


# ----- what programs and the admin interface ask for


@dataclass(frozen=True, slots=True)
class Resumed:
    """A resumed task: its whole name, how many postponed runs are due now, and whether there may be more."""

    task: str
    runs: int
    more: bool


async def change_rows(
    calls: JobCalls, own: Sequence[ReactiveTask], verb: Verb, where: _Where, part: Part = WHOLE
) -> Changed:
    """Change the rows that a filter picks among the tasks of the database: all of them, or a part."""
    where = changeable(verb, where)
    done = await (await select(calls, own, where)).change(verb, part)
    task, rows = ",".join(where.tasks or ()), done.changed
    match verb:
        case "retry":
            log_event("task.retried", task=task, rows=rows)
        case "cancel":
            log_event("task.canceled", task=task, rows=rows)
        case "skip":
            log_event("task.skipped", task=task, rows=rows)
        case "delete":
            log_event("task.deleted", task=task, rows=rows)
    return done


async def pause(calls: JobCalls, name: str) -> str:
    """Let none of a task's runs start; its whole name."""
    task = task_of(await calls.store.tasks.list(), name).plan.name
    await calls.runner.attempt(lambda: calls.store.tasks.pause(task, paused=True), _WHAT)
    calls.store.signals.notify()
    log_event("task.paused", task=task)
    return task


async def resume(calls: JobCalls, name: str, limit: int | None = None) -> Resumed:
    """Let a task's runs start again; all or some of the rows that were put off are due now."""
    task, runs = task_of(await calls.store.tasks.list(), name), 0
    await calls.runner.attempt(lambda: calls.store.tasks.pause(task.plan.name, paused=False), _WHAT)
    more = True
    while more and (limit is None or runs < limit):
        at_once = _RELEASED_AT_ONCE if limit is None else min(limit - runs, _RELEASED_AT_ONCE)
        release = partial(calls.store.tasks.release, task.id, calls.now(), at_once)
        released = await calls.runner.attempt(release, _WHAT)
        runs, more = runs + released, released == at_once
        calls.store.signals.notify()
    log_event("task.resumed", task=task.plan.name, runs=runs)
    return Resumed(task.plan.name, runs, more)


async def reconcile(calls: JobCalls, name: str) -> str:
    """Have planners look at all rows of a task from the beginning; its whole name."""
    while True:
        task = task_of(await calls.store.tasks.list(), name)
        if await calls.store.tasks.plan([], None, calls.now(), from_the_beginning([task])) is not None:
            break
    calls.engine.look.set()
    calls.store.signals.notify()
    log_event("task.reconcile_asked", task=task.plan.name)
    return task.plan.name


async def select(calls: JobCalls, own: Sequence[ReactiveTask], where: _Where) -> Selection:
    """The rows that a filter picks among the tasks of the database."""
    definitions = {task.definition.name: task.definition for task in own}
    return Selection(calls, where, await calls.store.tasks.list(), definitions)


def changeable(verb: Verb, where: _Where) -> _Where:
    """A filter without the rows about which a verb can do nothing; `ValueInvalid` if it asks for these."""
    match verb:
        case "cancel":
            return where.in_states("pending", "running", verb="canceled")
        case "skip":
            return where.in_states("pending", verb="skipped")
    return where


# ----- names and keys


def task_of(tasks: Sequence[TaskRow], name: str) -> TaskRow:
    """A task by its name, with or without its module; `TaskNotFound` if the database knows none."""
    found = find_named(tasks, name, lambda task: task.plan.name)
    if found is None:
        raise TaskNotFound(
            f"The database knows no reactive task {name!r}.",
            fix="Start the program that declares it once; see penstock tasks.",
        )
    return found


async def spellings(calls: JobCalls, task: TaskRow, definition: TableDefinition | None, key: Any) -> list[str]:
    """The key of a row as the change feed spells it, or may spell it.

    The table may be unknown here, and on SQLite the spelling is the one by which another program has stored it.
    """
    found: list[str] = []
    if definition is not None:
        value = encode_key(calls, definition, key)
        found.append(await calls.read(lambda one: calls.store.records.spell_key(one, definition, value)))
        if definition.managed or calls.store.dialect.given is None:
            return found
    if len(task.plan.spec.key) > 1:
        several = [one if isinstance(one, (int, float)) else str(one) for one in _several(key, task.plan.spec.table)]
        found += [json.dumps(several, ensure_ascii=False, separators=separators) for separators in _SEPARATORS]
    else:
        found.append(json.dumps([key], ensure_ascii=False, default=str))
        if definition is None:
            with suppress(ValueError, TypeError):
                found.append(json.dumps([int(key)]))
    return [*found, *(_LIKE_BYTES.sub(_escape, text) for text in found if _LIKE_BYTES.search(text))]


def _escape(first: re.Match[str]) -> str:
    """The first character of a text that looks like bytes or an infinity, as SQLite spells it."""
    return f'"\\u{ord(first[1][0]):04x}'


def encode_key(calls: JobCalls, definition: TableDefinition, key: Any) -> list[Any]:
    """The key of a row as the driver takes it, column by column; `IdInvalid` if it is none of this table."""
    given = str(key) if definition.managed else key
    if len(definition.key) > 1:
        given = _several(key, definition.name)
    return calls.engine.statements.of(definition.table, definition).key_args(definition.encode_key(given))


def _several(key: Any, table: str) -> list[Any]:
    """The values of a key of several columns; as text it is an array of JSON."""
    given: Any = key
    if isinstance(key, str):
        with suppress(ValueError):
            given = json.loads(key)
    if not isinstance(given, (tuple, list)):
        raise IdInvalid(
            f"{key!r} is not a key of table {table}, which has several columns.",
            fix='Pass a tuple of their values; as text an array of JSON, such as [7, "a"].',
            table=table,
        )
    return list(given)


def rows_by_text(
    own: Sequence[ReactiveTask], tasks: Sequence[str] | None, table: type[Table] | None, text: str
) -> tuple[type[Table], TextFilter]:
    """A condition on rows that is given as text, with its table: the one given, or that of the named tasks.

    Raises:
        ValueInvalid: No table is named, this program declares no such task, the tasks are about several tables, or the
            text cannot be read or translated.
    """
    if table is None:
        tables = {_own_task(own, name).definition.table for name in tasks or ()}
        if not tables:
            raise ValueInvalid(
                "rows is a condition on a row, but the table is unknown.", fix="Name the task, or the table."
            )
        if len(tables) > 1:
            raise ValueInvalid("rows is a condition on one table, but these tasks have several.")
        (table,) = tables
    return table, TextFilter(definition_of(table), text)


def _own_task(own: Sequence[ReactiveTask], name: str) -> ReactiveTask:
    found = find_named(own, name, lambda task: task.name)
    if found is None:
        raise ValueInvalid(
            f"This program declares no reactive task {name[:100]!r}, so its table is unknown here.",
            fix="Name a task of this program, or the table, if the program declares that.",
        )
    return found


def _open_cursor(after: str | None) -> Any:
    if after is None:
        return None
    try:
        place = json.loads(after)
    except (ValueError, TypeError, RecursionError) as error:
        raise _no_cursor(after) from error
    if place is None:
        raise _no_cursor(after)
    return place


def _place(value: Any) -> RowKey:
    match value:
        case [task, str(key)] | (task, str(key)) if type(task) is int and task in _NUMBERS and is_storable(key):
            return task, key
    raise _no_cursor(value)


def _due_place(value: Any) -> tuple[datetime | None, RowKey]:
    match value:
        case [None, task, key]:
            return None, _place([task, key])
        case [str(moment), task, key]:
            with suppress(ValueError, OverflowError):
                return datetime.fromisoformat(moment).astimezone(UTC), _place([task, key])
    raise _no_cursor(value)


def _no_cursor(value: Any) -> CursorInvalid:
    return CursorInvalid(
        f"{value!r} is no cursor of a list of task rows.", fix="Pass the value of next from the previous page."
    )
