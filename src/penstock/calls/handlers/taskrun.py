"""One run of a reactive task: its row, the change, and the requests of its handler. All kinds of task ctx share it.

Rows and records of many runs are read in one snapshot, with the requested columns and the columns of filter and watch.
`TaskAttempt` decides whether a row is still as its run was planned for; `calls/jobs/job` ends the run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.calls.run.attempts import Attempts
from penstock.calls.run.engine import Engine
from penstock.changes.change import read_values
from penstock.dataclass import dataclass
from penstock.errors import DataError, DeclarationError, PenstockError, Snooze, TaskConditionFailed, ValueInvalid
from penstock.functions.function import AnyFunction
from penstock.jobs.job import Outcome
from penstock.jobs.states import JobEvent
from penstock.observe.errortext import error_text
from penstock.observe.logs import event as log_event
from penstock.reactive.evaluate import holds, read_each, row_values, same
from penstock.reactive.expression import Field
from penstock.reactive.task import Change, ReactiveTask, kinds_of
from penstock.schema.fields import Kind
from penstock.schema.ids import Id
from penstock.schema.table import Table, TableDefinition, make_row
from penstock.store.nouns.tasks import HELD
from penstock.store.session import OpenTransaction, Row, Session, reading
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.statements import TableStatements
from penstock.store.sql.values import decode_captures, decode_fields, decode_key, decode_like
from penstock.transaction.rows import read_rows
from penstock.values import EPOCH

Asked = Sequence[tuple[AnyFunction, Mapping[str, Any]]]

_LONGEST = timedelta(days=366)
_LEFT_FOR = timedelta(seconds=30)  # like a job whose function is unknown


@dataclass
class TaskCall:
    """The arguments of one job of a task."""

    generation: int  # the number of the change
    key: str  # of the row, as the change feed spells it
    change: Change
    before: str | None  # the captured row as JSON
    after: str | None
    version: int = -1  # older versions of the handler do not run it; -1 for any


@dataclass(kw_only=True)
class TaskAttempt(TaskCall):
    """One attempt."""

    task: ReactiveTask
    engine: Engine
    number: int  # of the task
    deferred: datetime | None = None  # the handler puts it off until then

    @property
    def doc_id(self) -> Any:
        return doc_id_of(self.engine.store.dialect, self.task.definition, self.key)

    def spell_key(self, statements: TableStatements) -> list[Any]:
        """Give the key as the driver takes its values. On SQLite other programs may spell them otherwise."""
        dialect, definition = statements.dialect, statements.definition
        if definition.managed or dialect.given is None:
            return statements.key_args(definition.encode_key(self.doc_id))
        return decode_key(dialect, definition, self.key)

    @property
    def watched_values(self) -> dict[str, Any]:
        """The watched values by their declared names, as they were when the run was planned."""
        watch, captured = self.task.watch, self._read_captured(self.after if self.after is not None else self.before)
        if watch is None:
            return decode_fields(self.engine.store.dialect, self.task.definition, captured)
        named = dict(zip(watch.names, watch.expressions, strict=True))
        found = decode_fields(
            self.engine.store.dialect,
            self.task.definition,
            {one.column: captured.get(one.column) for one in named.values() if isinstance(one, Field)},
        )
        kinds = kinds_of(self._expressions)
        values = decode_captures(self.engine.store.dialect, self.task.definition, captured, kinds)
        seen = dict(zip(watch.names, read_each(watch.expressions, values), strict=True))
        return {
            name: found[one.column] if isinstance(one, Field) else _plain(getattr(one, "kind", None), seen[name])
            for name, one in named.items()
        }

    @property
    def previous(self) -> Table | None:
        definition, captured = self.task.definition, self._read_captured(self.before)
        if not self.task.wants_row or not captured.keys() >= definition.positions.keys():
            return None
        fields = decode_fields(self.engine.store.dialect, definition, captured)
        if definition.managed and "id" in fields:
            fields["id"] = Id(fields["id"])
        return make_row(definition.row_type, fields)

    def check(self, generation: int | None, row: Table | None, names: Sequence[str] | None) -> Table:
        """The present row, with these fields or all; TaskConditionFailed if it is not as the run was planned for."""
        if generation != self.generation:
            raise self._failure("has changed since", "changed")
        if row is None:
            raise self._failure("is gone", "gone")
        captured = self._read_captured(self.after)
        # Values that an earlier declaration did not capture count as unchanged.
        compared = tuple(one for one in self._triggers() if kinds_of((one,)).keys() <= captured.keys())
        parts = (*(() if self.task.condition is None else (self.task.condition,)), *compared)
        values = row_values(self.task.definition, row, kinds_of(parts))
        if self.task.condition is not None and not holds(self.task.condition, values):
            raise self._failure("does not match any more", "left")
        if self.after is not None and self.change not in {"leave", "delete"}:
            then = decode_like(self.engine.store.dialect, self.task.definition, captured, kinds_of(compared), values)
            if not same(*(read_each(compared, one) for one in (then, values))):
                raise self._failure("has changed since", "changed")
        return row if names is None else self._part(row, names)

    async def error_for(
        self, session: OpenTransaction, generation: int | None, error: TaskConditionFailed
    ) -> PenstockError:
        """The error to raise for a row that does not match this program's declaration.

        If another release has declared the task otherwise since, the run is left to a worker of that release.
        """
        if generation != self.generation:
            return error
        if await self.engine.store.tasks.signature(session, self.number) == self.task.signature:
            return error
        why = f"Another release has declared the task otherwise, and is to run it. Here: {error.what}"
        return Snooze(_LEFT_FOR, reason=why)

    def columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """The columns to read for these fields and for the check; ValueInvalid for a field the table lacks."""
        definition, condition = self.task.definition, self.task.condition
        asked = kinds_of((*(() if condition is None else (condition,)), *self._triggers()))
        wanted = {*definition.key, *(definition.column(name).name for name in names), *asked}
        return tuple(column.name for column in definition.columns if column.name in wanted)

    def outcome_if_held(self) -> Outcome | None:
        """The outcome of a run that must not begin, as its task is held or needs a higher version; else None."""
        if self.version > self.task.version:
            why = f"Version {self.version} of its handler is to run it, and this worker has {self.task.version}"
            return Outcome(JobEvent.SNOOZED, delay=_LEFT_FOR, error=why)
        if not self.engine.pauses.concerns(self.number):
            return None
        wait = self.engine.pauses.begin(self.number, self.key, self.engine.clock.now())
        if wait is None and self.number in self.engine.pauses.here(self.engine.clock.now()):
            return Outcome(JobEvent.HANDED_BACK)
        return None if wait is None else Outcome(JobEvent.SNOOZED, delay=wait, error=HELD, blocks_key=True)

    def defer(self, delay: timedelta | None, until: datetime | None, now: datetime) -> None:
        self.deferred = _moment("defer_current", delay, until, now)

    def throttle(self, delay: timedelta | None, until: datetime | None, now: datetime, *, local: bool) -> None:
        self.engine.pauses.hold(self.number, _moment("throttle_all", delay, until, now), local=local)

    def outcome_if_deferred(self) -> Outcome | None:
        if self.deferred is None:
            return None
        return Outcome(JobEvent.SNOOZED, delay=self._wait(), error="Deferred by its handler")

    def error_of_run(self, error: Exception) -> Exception:
        """The error of a run whose handler has raised this one."""
        if self.deferred is None or isinstance(error, TaskConditionFailed):
            return error
        return Snooze(self._wait(), reason=f"Deferred by its handler, which raised {error_text(error)}")

    def __enter__(self) -> None:
        """Begin the call of the handler; what it raises becomes the error of the run."""

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and (meant := self.error_of_run(error)) is not error:
            raise meant from error

    def log(self, message: str, facts: dict[str, Any], *, of_row: bool = True) -> None:
        key = self.key if of_row else None
        log_event("task.log", task=self.task.name, key=key, message=message, facts=facts)

    # ----- steps

    def _wait(self) -> timedelta:
        assert self.deferred is not None  # noqa: S101 - who asks has looked
        return max(timedelta(0), self.deferred - self.engine.clock.now())

    @property
    def _expressions(self) -> tuple[Any, ...]:
        return () if self.task.watch is None else self.task.watch.expressions

    def _triggers(self) -> tuple[Any, ...]:
        """The values whose change causes a further run, so that this one must not handle it."""
        if "change" in self.task.on:
            return self._expressions
        return () if self.task.run_at is None else (Field(self.task.run_at, Kind.DATETIME),)

    def _read_captured(self, text: str | None) -> dict[str, Any]:
        return {} if text is None else read_values(text)

    def _part(self, row: Table, names: Sequence[str]) -> Table:
        definition = self.task.definition
        wanted = dict.fromkeys((*definition.key, *(definition.column(name).name for name in names)))
        return make_row(definition.row_type, {name: row.__dict__[name] for name in wanted})

    def _failure(self, why: str, reason: str) -> TaskConditionFailed:
        values = read_values(self.key)
        key, table = values[0] if len(values) == 1 else self.key, self.task.definition.name
        what = f"{self.task.name}: row {key} of {table} {why}."
        return TaskConditionFailed(what, task=self.task.name, reason=reason)


def doc_id_of(dialect: Dialect, definition: TableDefinition, key: str) -> Any:
    """The id of a row from its key in the change feed."""
    values = read_values(key)
    if definition.managed:
        return Id[Any](values[0])
    captured = dict(zip(definition.key, values, strict=True))
    return definition.key_in(decode_fields(dialect, definition, captured))


def _plain(kind: Kind | None, value: Any) -> Any:
    if value is None:
        return None
    if kind is Kind.DATETIME:
        return EPOCH + timedelta(microseconds=value)
    if kind is Kind.INTERVAL:
        return timedelta(microseconds=value)
    return json.loads(json.dumps(value, default=_number)) if kind is Kind.JSON else value


def _number(value: Any) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _moment(word: str, delay: Any, until: Any, now: datetime) -> datetime:
    if (delay is None) is (until is None):
        raise DeclarationError(f"{word} takes either a delay or until.", fix=f"Write {word}(timedelta(minutes=5)).")
    if delay is not None:
        if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= _LONGEST:
            raise ValueInvalid(f"{word} takes a timedelta from 0 to a year, not {delay!r}.")
        return now + delay
    if not isinstance(until, datetime) or until.tzinfo is None or until > now + _LONGEST:
        raise ValueInvalid(f"{word}: until takes an aware datetime within a year, not {until!r}.")
    moment: datetime = until
    return moment


# ----- the rows of many runs


async def get_documents(
    runner: Attempts, runs: Sequence[TaskAttempt], fields: Sequence[str] | None
) -> list[Table | PenstockError]:
    """For each run its row, or why it has changed or cannot be read; ValueInvalid for a field the table lacks."""
    first, engine = runs[0], runner.engine
    definition = first.task.definition
    statements = engine.statements.of(definition.table, definition)
    names = None if fields is None else first.columns(fields)

    async def once() -> list[Table | PenstockError]:
        async with reading(engine.store.begin_read) as session:
            generations = await engine.store.tasks.generations(session, first.number, [run.key for run in runs])
            found = await _rows(session, statements, runs, names)
            return [await _check(session, run, generations.get(run.key), found.get(run.key), fields) for run in runs]

    return await runner.attempt(once)


async def generations_of(engine: Engine, calls: Asked) -> dict[tuple[int, str], int | None]:
    """The generations of runs that are about to share a transaction, if their handlers ask for rows.

    They are read before it begins, since each read in it could conflict. `TaskAttempt.check` compares the row itself,
    so an old generation does no harm.
    """
    found: dict[tuple[int, str], int | None] = {}
    for name, keys in _keys(engine, calls).items():
        number = engine.tasks[name].id
        generations = await engine.store.tasks.generations(None, number, keys)
        found |= {(number, key): generations.get(key) for key in keys}
    return found


def ids_of(engine: Engine, calls: Asked) -> dict[type[Table], dict[Any, None]]:
    """The ids of the rows of these runs, as tables encode them."""
    found: dict[type[Table], dict[Any, None]] = {}
    tasks = {task.name: task.definition for task in engine.reactive.values()}
    for name, keys in _keys(engine, calls).items():
        definition = tasks[name]
        ids = (definition.encode_key(doc_id_of(engine.store.dialect, definition, key)) for key in keys)
        found.setdefault(definition.table, {}).update(dict.fromkeys(ids))
    return found


def _keys(engine: Engine, calls: Asked) -> dict[str, list[str]]:
    """The keys of rows of runs, by the names of tasks whose handlers ask for rows."""
    found: dict[str, list[str]] = {}
    for function, arguments in calls:
        task = engine.reactive.get(function.name)
        if task is not None and task.name in engine.readers:
            found.setdefault(task.name, []).append(arguments["key"])
    return found


async def _check(
    session: Session,
    run: TaskAttempt,
    generation: int | None,
    row: Table | PenstockError | None,
    fields: Sequence[str] | None,
) -> Table | PenstockError:
    if isinstance(row, PenstockError):
        return row
    try:
        return run.check(generation, row, fields)
    except TaskConditionFailed as error:
        return await run.error_for(session, generation, error)


async def _rows(
    session: Session, statements: TableStatements, runs: Sequence[TaskAttempt], names: tuple[str, ...] | None
) -> dict[str, Table | PenstockError]:
    """The rows of runs by their keys, or why one cannot be read.

    A row of another program is read whole, to check it whole.
    """
    definition = statements.definition
    part = names if definition.managed else None
    if len(runs) > 1 and statements.dialect.any_of:
        with contextlib.suppress(DataError):  # if one row is unreadable, each is read alone
            ids = {run.doc_id: run.key for run in runs}
            keys = [definition.encode_key(one) for one in ids]
            many = statements.get_many(keys) if part is None else (statements.part(part, many=True)[0], [keys])
            rows = _make_rows(statements, await session.fetch(*many), part)
            return {ids[key]: row for row in rows if (key := definition.key_in(row.__dict__)) in ids}
    one = statements.get() if part is None else statements.part(part)[0]
    found: dict[str, Table | PenstockError] = {}
    for run in runs:
        try:
            rows = _make_rows(statements, await session.fetch(one, run.spell_key(statements)), part)
            found |= zip((run.key,), rows, strict=False)  # one row or none
        except DataError as error:
            found[run.key] = error
    return found


def _make_rows(statements: TableStatements, rows: Sequence[Row], part: tuple[str, ...] | None) -> list[Table]:
    if part is None:
        return list(read_rows(statements, rows))
    return [make_row(statements.definition.row_type, given) for given in statements.part(part)[1](rows)]
