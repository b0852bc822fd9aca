"""Plans captured changes: for each row of a task, whether it runs, and why.

Writes nothing. Changes of one row come in the order of its locks, so the last of a batch is its present state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from penstock.changes.change import CapturedChange, read_values
from penstock.dataclass import dataclass
from penstock.reactive.evaluate import MICROSECOND, Values, holds, plain_decimal, read_each, same
from penstock.reactive.expression import Condition, Expression
from penstock.reactive.task import Change, TaskSpec, kinds_of
from penstock.schema.fields import Kind
from penstock.values import EPOCH

Gone = Literal["left", "deleted"]
Read = Callable[[Kind, Any], Any]
_FARTHEST = datetime(9999, 1, 1, tzinfo=UTC)
_LONGEST_PARTITION = 200  # as keys of jobs are
_EMPTY = '""'  # a job whose key is the empty text has none
_NUMBERS = {Kind.DECIMAL.value, Kind.REAL.value, Kind.INTERVAL.value}  # equal ones may be captured differently
_GONE: dict[str, Gone] = {"leave": "left", "delete": "deleted"}


@dataclass(slots=True)
class RowPlan:
    """The plan for one row of a task."""

    task: int  # the number of the task
    key: str  # the key of the row
    runs: bool  # whether it is to be run
    drops: bool  # if not: whether a waiting run of it is no longer needed
    change: Change  # why it is to be run
    changed_at: datetime  # when it was changed last
    due_at: datetime  # when it is to be run, if nothing puts it off
    before: str | None = None  # what was captured of it before the last change
    after: str | None = None  # the same after it
    partition: str | None = None  # rows with the same one are run one at a time; None for no such thing
    place: int = 0  # its place among those of one partition that are due at the same moment
    latest_at: datetime | None = None  # until when further changes may put it off; None for ever
    gone: Gone | None = None  # whether it is not there any more, for the task
    forgets_at: datetime | None = None  # from when on its record is forgotten; None for never
    # the version that runs it again though nothing of the row has changed; -1 if the row calls for it
    version: int = -1


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task as a planner has it ready. Unless `current`, its changes were captured for an earlier filter."""

    number: int
    spec: TaskSpec
    condition: Condition | None
    expressions: tuple[Expression, ...] | None
    kinds: Mapping[str, Kind] = field(repr=False)
    current: bool = True

    @classmethod
    def of(cls, number: int, spec: TaskSpec, *, current: bool = True) -> PlannedTask:
        condition, expressions = spec.condition(), spec.expressions()
        parts = (*(() if condition is None else (condition,)), *(expressions or ()))
        return cls(number, spec, condition, expressions, kinds_of(parts), current)


def plan_rows(changes: Iterable[tuple[PlannedTask, CapturedChange]], now: datetime, read: Read) -> list[RowPlan]:
    """One plan for each row, from changes in their order, each with the task that wants to hear of it."""
    plans: dict[tuple[int, str], RowPlan] = {}
    told = set[tuple[int, str]]()  # rows told by the interests that the tasks are declared with
    for task, change in changes:
        kind = _kind_for(task, change, read)
        if kind is None or change.key is None:
            continue
        place = task.number, change.key
        if task.current:
            told.add(place)
        elif place in told:
            continue
        plan = _plan(task, change, kind, now, read)
        if not (task.current or plan.runs or plan.gone):
            continue  # no change is dropped because an earlier declaration captured fewer values
        known = plans.get(place)
        plans[place] = plan
        if known is not None:
            _join(known, plan)
    return list(plans.values())


def due(spec: TaskSpec, captured: Mapping[str, Any], now: datetime, read: Read) -> datetime | None:
    """The time at which a row runs; None if it is not known, so that the row does not run."""
    soon = _soon(spec, now)
    if spec.run_at is None:
        return soon
    moment = read(Kind.DATETIME, captured.get(spec.run_at))
    return None if moment is None else max(soon, min(EPOCH + moment * MICROSECOND, _FARTHEST))


def _soon(spec: TaskSpec, now: datetime) -> datetime:
    return now + timedelta(seconds=spec.debounce) if spec.debounce else now


def partition_of(spec: TaskSpec, captured: Mapping[str, Any], read: Read) -> str | None:
    """The key under which rows run one at a time; None for no such thing. Equal values are spelled alike."""
    if spec.partition is None:
        return None
    value = captured.get(spec.partition)
    if spec.partition_kind in _NUMBERS:
        number = read(Kind(spec.partition_kind), value)
        if isinstance(number, (Decimal, int, float)):
            return _number(Decimal(str(number)))
    return str(value)[:_LONGEST_PARTITION] or _EMPTY


def _number(value: Decimal) -> str:
    if not value.is_finite():
        return str(value)
    shortest = plain_decimal(value)
    is_long = int(shortest.as_tuple().exponent) > _LONGEST_PARTITION
    return (str(shortest) if is_long else f"{shortest:f}")[:_LONGEST_PARTITION]


def forgets_at(spec: TaskSpec, gone: Gone | None, now: datetime) -> datetime | None:
    if gone is None or spec.cleanup == "never" or (gone == "left" and spec.cleanup == "source_deleted"):
        return None
    return now + timedelta(seconds=spec.keep_for)


def _plan(task: PlannedTask, change: CapturedChange, kind: str, now: datetime, read: Read) -> RowPlan:
    spec = task.spec
    runs, at, partition = kind in hears(spec), _soon(spec, now), None
    if runs and (spec.run_at is not None or spec.partition is not None):
        captured = change.values("after" if change.after is not None else "before")
        if spec.run_at is not None and kind not in _GONE:
            found = due(spec, captured, now, read)
            runs, at = found is not None, found or at
        partition = partition_of(spec, captured, read)
    latest = None if spec.max_wait is None else now + timedelta(seconds=spec.max_wait)
    return RowPlan(
        task=task.number,
        key=change.key or "",
        runs=runs,
        drops=not runs and (kind in _GONE or kind in hears(spec)),
        change=kind,  # type: ignore[arg-type]  # only changes of rows come here
        before=change.before,
        after=change.after,
        partition=partition,
        place=change.seq,
        changed_at=change.changed_at,
        due_at=at,
        latest_at=latest,
        gone=_GONE.get(kind),
        forgets_at=forgets_at(spec, _GONE.get(kind), now),
    )


def hears(spec: TaskSpec) -> tuple[str, ...]:
    """The kinds of change that a task hears of. One with `run_at` hears of each change of that."""
    return spec.on if spec.run_at is None else (*spec.on, "change")


def _join(known: RowPlan, plan: RowPlan) -> None:
    """Join two plans of one row: the last counts, but for a row that has only just entered."""
    if known.runs and known.change == "enter" and plan.change == "change":
        plan.change = "enter"
    if plan.runs or plan.drops or not known.runs:
        return
    plan.runs, plan.change, plan.before = True, known.change, known.before
    plan.partition, plan.place, plan.due_at = known.partition, known.place, known.due_at


def _kind_for(task: PlannedTask, change: CapturedChange, read: Read) -> str | None:
    """The kind of change that it is for the task; None if it is none, as far as is known."""
    if task.current:
        return change.kind if task.spec.exact else _kind(task, change, read)
    left = change.kind == "leave"  # an earlier filter, and it may match the one of now
    after = change.values("after")
    known = change.after is not None and task.kinds.keys() <= after.keys()
    if known and (left or not task.spec.exact):
        return _kind(task, change, read)
    if known and not _means(task, _side(task, after, read)):
        return None
    return None if left else change.kind


def _kind(task: PlannedTask, change: CapturedChange, read: Read) -> str | None:
    """The kind of a change, where triggers capture more than the task declares."""
    # One that enters may have another key now: under that it was not there before.
    before = None if change.before is None or change.kind == "enter" else values_of(task, change.before, read)
    after = None if change.after is None else values_of(task, change.after, read)
    was, is_now = _means(task, before), _means(task, after)
    if before is None or after is None:
        return "delete" if was else "enter" if is_now else None
    if was is not is_now:
        return "enter" if is_now else "leave"
    run_at = task.spec.run_at
    moved = run_at is not None and change.values("before").get(run_at) != change.values("after").get(run_at)
    if not was or not (moved or "change" in task.spec.on):
        return None
    if moved or task.expressions is None:
        return "change"
    looks = [read_each(task.expressions, side) for side in (before, after)]
    return None if same(*looks) else "change"


def values_of(task: PlannedTask, captured: str, read: Read) -> Values:
    return _side(task, read_values(captured), read)


def _side(task: PlannedTask, captured: Mapping[str, Any], read: Read) -> Values:
    return {name: read(kind, captured.get(name)) for name, kind in task.kinds.items()}


def _means(task: PlannedTask, values: Values | None) -> bool:
    return values is not None and (task.condition is None or holds(task.condition, values))
