"""Why a reactive task has run for a row, or has not: look up what decides it, and tell it in sentences.

The state of the run comes first, then what keeps it from starting, then whether changes are heard of.
`reactive/describe` shows the parts of a filter with their results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from penstock.api.pools.activity import hindrance
from penstock.api.tasks.selection import spellings, task_of
from penstock.api.tasks.views import TaskExplanation, WatchedValue, key_text, plain_key, record_of
from penstock.calls.enqueue.jobs import JobCalls
from penstock.changes.change import read_values
from penstock.dataclass import dataclass
from penstock.errors import RowInvalid
from penstock.jobs.job import JobStatus, job_id
from penstock.jobs.states import JobState
from penstock.reactive.describe import Finding, show
from penstock.reactive.describe import explain as findings_of
from penstock.reactive.evaluate import Values, holds, row_values
from penstock.reactive.expression import TERMS, Expression
from penstock.reactive.task import ReactiveTask, interest_name, kinds_of
from penstock.schema.table import Table
from penstock.store.nouns.changes import Lag
from penstock.store.nouns.pools import PoolRow
from penstock.store.nouns.records import Ahead, RecordQuery
from penstock.store.nouns.tasks import HELD, RecordRow, TaskRow
from penstock.store.session import Session
from penstock.store.sql.values import decode_key, decode_like
from penstock.transaction.rows import read_row

_READER = "tasks"
_COUNTED = 10_000
_ANY = RecordQuery()
_STANDS = {"first": "comes first", "again": "comes first, and waits for its next attempt", "runs": "is being run"}


@dataclass(frozen=True, slots=True)
class _Found:
    """A row, its record and its job in the database, at one moment."""

    row: Table | None
    unread: RowInvalid | None
    kept: RecordRow | None
    record: RecordRow | None
    job: JobStatus | None
    pool: PoolRow | None
    ahead: Ahead | None  # the first job with the same `key`
    asked: bool  # whether somebody asked to cancel the job


@dataclass(frozen=True, slots=True)
class _Seen:
    """Everything that decides: the task as stored and as declared here, the row, and how far the planners are."""

    now: datetime
    task: TaskRow
    known: ReactiveTask | None
    found: _Found
    matches: bool | None
    lag: Lag | None  # None if no planner ever ran
    amiss: tuple[str, ...]  # faults of the capture
    changed: tuple[str, ...]  # watched values that differ from those of the last run
    names: dict[int, str]  # of tasks, by number


async def explain(calls: JobCalls, own: Sequence[ReactiveTask], name: str, key: Any) -> TaskExplanation:
    """Why a task has run for a row, or has not."""
    tasks = await calls.store.tasks.list()
    task = task_of(tasks, name)
    name = task.plan.name
    known = next((one for one in own if one.name == name), None)
    found = await _look_up(calls, task, known, key)
    matches, findings = _findings(known, found.row)
    watched = _compare_watched(calls, known, found.record, found.row)
    changed = tuple(one.name for one in watched if one.now is not None and one.then not in {None, one.now})
    names = {one.id: one.plan.name for one in tasks}
    amiss, lag = await _amiss(calls, name), await _lag(calls)
    seen = _Seen(calls.now(), task, known, found, matches, lag, amiss, changed, names)
    return TaskExplanation(
        task=name,
        key=key if found.kept is None else plain_key(found.kept.key),
        reasons=tuple(_reasons(seen)),
        exists=None if known is None else found.row is not None or found.unread is not None,
        matches=matches,
        findings=findings,
        watched=watched,
        record=None if found.kept is None else record_of(found.kept, name),
        job=found.job,
    )


# ----- reading


async def _look_up(calls: JobCalls, task: TaskRow, known: ReactiveTask | None, key: Any) -> _Found:
    store, keys = calls.store, await spellings(calls, task, None if known is None else known.definition, key)

    async def look(session: Session) -> _Found:
        found = await store.records.among(session, _ANY, [task.id], keys)
        pools = {pool.name: pool for pool in await store.pools.list(session)}
        row, unread = (None, None) if known is None else await _row(calls, session, known, keys)
        return _Found(
            row=row,
            unread=unread,
            kept=found[0] if found else None,
            record=await store.tasks.find(session, task.id, found[0].key) if found else None,
            job=await store.jobs.find(session, found[0].job, calls.now()) if found else None,
            pool=pools.get(task.plan.pool),
            ahead=await store.records.ahead(session, found[0].job, calls.now())
            if found and task.plan.spec.partition
            else None,
            asked=bool(found) and found[0].live and await store.records.has_cancel_request(session, found[0].job),
        )

    return await calls.read(look)


async def _row(
    calls: JobCalls, session: Session, known: ReactiveTask, keys: Sequence[str]
) -> tuple[Table | None, RowInvalid | None]:
    statements = calls.engine.statements.of(known.definition.table, known.definition)
    for key in keys:
        try:
            rows = await session.fetch(statements.get(), decode_key(calls.store.dialect, known.definition, key))
            if rows:
                return read_row(statements, rows[0]), None
        except RowInvalid as error:
            return None, error
    return None, None


def _findings(task: ReactiveTask | None, row: Table | None) -> tuple[bool | None, tuple[Finding, ...]]:
    if task is None or row is None:
        return None, ()
    if task.condition is None:
        return True, ()
    values = row_values(task.definition, row, kinds_of((task.condition,)))
    return holds(task.condition, values), tuple(findings_of(task.condition, values))


def _compare_watched(
    calls: JobCalls, task: ReactiveTask | None, record: RecordRow | None, row: Table | None
) -> tuple[WatchedValue, ...]:
    if task is None or task.watch is None:
        return ()
    definition, kinds = task.definition, kinds_of(task.watch.expressions)
    text = None if record is None else record.after if record.after is not None else record.before
    now = None if row is None else row_values(definition, row, kinds)
    then: Values | None = None
    if text is not None:
        then = decode_like(calls.store.dialect, definition, read_values(text), kinds, now or {})
    return tuple(
        WatchedValue(name, None if then is None else _text_of(one, then), None if now is None else _text_of(one, now))
        for name, one in zip(task.watch.names, task.watch.expressions, strict=True)
    )


def _text_of(expression: Expression, values: Values) -> str:
    if isinstance(expression, TERMS):
        return show(expression, values)
    return str(holds(expression, values))


async def _lag(calls: JobCalls) -> Lag | None:
    changes = calls.store.changes
    for reader in await changes.readers():
        if reader.name == _READER:
            return await changes.lag(reader.position, _COUNTED)
    return None


async def _amiss(calls: JobCalls, name: str) -> tuple[str, ...]:
    states = [row.state for row in await calls.store.interests.list() if row.interest.name == interest_name(name)]
    if not states:
        return ("missing",)
    return () if "ok" in states else tuple(dict.fromkeys(states))


# ----- sentences


def _reasons(seen: _Seen) -> Iterator[str]:
    yield from _of_run(seen)
    if seen.found.unread is not None:
        yield f"The row cannot be read, so no run of it succeeds that does: {_line(str(seen.found.unread))}"
    if seen.found.kept is not None and seen.found.kept.live:
        yield from _in_the_way(seen)
    yield from _of_changes(seen)
    if seen.known is None:
        yield "This program does not declare the task, so it cannot look at the row; a program that does runs it."
    if seen.task.reconciling is not None and not seen.task.reconciling.audit:
        yield f"All rows of the task are being looked at: {seen.task.reconciling.looked:,} so far."


def _of_run(seen: _Seen) -> Iterator[str]:
    """Tell the state of the run, or how the last one ended."""
    kept = seen.found.kept
    if kept is None:
        yield from _of_no_run(seen)
        return
    why = f"because of {_CHANGES.get(kept.change, kept.change)}"
    if kept.state == JobState.PENDING.value:
        when = "" if kept.run_at is None or kept.run_at <= seen.now else f", due at {kept.run_at}"
        said = "" if not kept.error or kept.error == HELD else f"; its last attempt: {_line(kept.error)}"
        yield f"A run is pending {why}{when}{said}."
    elif kept.state == JobState.RUNNING.value:
        yield f"It is being run {why}, since {kept.started_at}."
        if seen.found.job is not None and seen.found.job.args.get("generation") != kept.generation:
            yield "The row has changed since, or a retry was asked for: it is run once more afterwards."
    elif kept.state is None:
        yield "Its job is lost: retry it."
    else:
        error = f": {_line(kept.error)}" if kept.error else ""
        if kept.started_at is None:
            when = "before its next attempt" if kept.attempt else "before it began"
            yield f"Its run {why} {_ENDS[kept.state]} {when}, at {kept.finished_at}{error}."
        else:
            yield f"It was run {why}, and {_ENDS[kept.state]} at {kept.finished_at}{error}."
        if seen.found.row is not None and seen.matches and not seen.changed:
            yield "Nothing that is watched has changed since."
    if kept.gone is not None:
        yield f"The row {'is deleted' if kept.gone == 'deleted' else 'has left the filter'}, as far as is known."


def _of_no_run(seen: _Seen) -> Iterator[str]:
    if seen.known is not None and seen.found.row is None and seen.found.unread is None:
        yield "There is no such row, and nothing is known of one."
    elif seen.matches is False:
        yield "It was not run: the row does not match the filter."
    else:
        yield "It was not run: no change of the row has been planned for."
        if seen.known is not None and "enter" not in seen.known.on:
            yield f"The task is only run on {', '.join(seen.known.on)}."
        if seen.known is not None and seen.known.run_at is not None and seen.found.row is not None:
            column = seen.known.run_at
            yield f"It is run at the time in {column}, which is {seen.found.row.__dict__.get(column)}."


def _in_the_way(seen: _Seen) -> Iterator[str]:
    task = seen.task
    if seen.found.asked:
        yield "Somebody has asked for the run to be canceled, which workers carry out."
    if task.paused:
        yield "The task is paused: none of its runs starts until it is resumed."
    if task.held_until is not None and task.held_until > seen.now:
        yield f"The task is held until {task.held_until}."
    ahead = seen.found.ahead
    if ahead is not None:
        what = _first(seen, ahead)
        yield f"Rows with the same {task.plan.spec.partition} are run one at a time: {what} {_STANDS[ahead.stands]}."
    if seen.found.pool is not None and (why := hindrance(seen.found.pool)) is not None:
        yield why


def _first(seen: _Seen, ahead: Ahead) -> str:
    """Name the job that comes first: that of a row of some task, or one enqueued with the same key."""
    if ahead.task is None or ahead.key is None:
        return f"job {job_id(ahead.job)} of the same concurrency key"
    other = "" if ahead.task == seen.task.id else f" of {seen.names.get(ahead.task, 'another task')}"
    return f"row {key_text(plain_key(ahead.key))}{other}"


def _of_changes(seen: _Seen) -> Iterator[str]:
    if seen.changed:
        yield f"{', '.join(seen.changed)} changed since that run was planned."
    for state in seen.amiss:
        yield f"Changes of the table are not captured as they should be: {_AMISS[state]}. Start the program once."
    if seen.lag is None:
        yield "No planner has ever read the changes: run one, with penstock worker or services=('planner',)."
    elif seen.lag.rows:
        number = f"{seen.lag.rows:,}" if seen.lag.rows < _COUNTED else f"over {_COUNTED:,}"
        yield f"Planners are {number} changes behind; the oldest is of {seen.lag.oldest_at}."


_CHANGES = {
    "enter": "a row that began to match",
    "change": "a change",
    "leave": "a row that left the filter",
    "delete": "a deleted row",
    "manual": "a retry by hand",
    "reconcile": "a look at all rows",
}
_ENDS = {"success": "succeeded", "failed": "failed", "skipped": "was skipped", "canceled": "was canceled"}
_AMISS = {
    "missing": "a trigger is missing",
    "disabled": "a trigger is switched off",
    "altered": "a trigger or a column is not as it was",
    "gone": "the table is gone",
}


def _line(text: str) -> str:
    return next(iter(text.splitlines()), "").removesuffix(".")
