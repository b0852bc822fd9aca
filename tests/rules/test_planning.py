"""What becomes of captured changes: of each row one plan, by the last change that counts, and the key of its line."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changes.change import CapturedChange, read_values
from penstock.reactive.planning import PlannedTask, RowPlan, partition_of, plan_rows
from penstock.reactive.task import Cause, ReactiveTask, TaskSpec, spec_of
from penstock.reactive.tracing import trace_filter, trace_watch
from penstock.schema.fields import Kind
from penstock.schema.table import Table, definition_of
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.values import decode_capture
from penstock.store.sqlite.dialect import SQLITE

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
CHANGED = NOW - timedelta(seconds=1)
CAUSES: tuple[Cause, ...] = ("enter", "change", "leave", "delete")


class Order(Table, name="planned_order"):
    status: str
    amount: int = 0
    due: datetime | None = None
    customer: str | None = None


ORDER = definition_of(Order)


def read(kind: Kind, value: Any) -> Any:
    return decode_capture(SQLITE, kind, value)


def task(*, exact: bool = True, number: int = 1, current: bool = True, **declared: Any) -> PlannedTask:
    """A task about paid orders, which watches their amount."""
    condition = trace_filter(ORDER, lambda order: order.status == "paid", "test")
    watch = trace_watch(ORDER, ("amount",), "test")
    given: dict[str, Any] = {"name": "task", "definition": ORDER, "condition": condition, "watch": watch}
    spec: TaskSpec = spec_of(ReactiveTask(**given | {"pool": "default"} | declared), exact=exact)
    return PlannedTask.of(number, spec, current=current)


def change(kind: str, before: Any = None, after: Any = None, *, key: str = "1", seq: int = 1) -> CapturedChange:
    then, now = (None if side is None else json.dumps(side) for side in (before, after))
    return CapturedChange(seq, 7, kind, f'["{key}"]', then, now, CHANGED)


def plan(of: PlannedTask, *changes: CapturedChange) -> RowPlan:
    (found,) = plan_rows([(of, one) for one in changes], NOW, read)
    return found


def kinds(of: PlannedTask, *told: str) -> tuple[str, str]:
    found = plan(of, *(change(kind, {"amount": 1}, {"amount": 2}) for kind in told))
    return ("runs" if found.runs else "drops" if found.drops else "nothing"), found.change


# ----- many changes of one row


@given(
    on=st.lists(st.sampled_from(CAUSES), min_size=1, unique=True),
    told=st.lists(st.sampled_from(CAUSES), min_size=1, max_size=6),
)
def test_of_any_changes_of_a_row_the_last_that_counts_is_planned(on: list[Cause], told: list[Cause]) -> None:
    """A change counts if it is wanted, or takes the row away; then the row is run, or what was pending is dropped."""
    found = plan(task(on=tuple(on)), *(change(kind, {"n": n}, {"n": n + 1}) for n, kind in enumerate(told)))
    counting = [kind for kind in told if kind in on or kind in {"leave", "delete"}]
    last = counting[-1] if counting else None
    assert found.runs is (last in on and not (_is_let_go(told, on)))
    if found.runs and last == "change":
        assert found.change in {"enter", "change"}
    elif found.runs:
        assert found.change == last
    assert not (found.runs and found.drops)
    assert found.gone == {"leave": "left", "delete": "deleted"}.get(told[-1])
    assert json.loads(found.after or "") == {"n": len(told)}, "the row as it is at last"


def _is_let_go(told: list[Cause], on: list[Cause]) -> bool:
    """Whether the last change that counts is one that takes the row away, and nobody wants to hear of it."""
    counting = [kind for kind in told if kind in on or kind in {"leave", "delete"}]
    return not counting or counting[-1] not in on


def test_f2_rows_of_different_tasks_with_equal_keys_are_planned_each() -> None:
    one, other = task(number=1), task(number=2)
    found = plan_rows([(one, change("enter")), (other, change("enter"))], NOW, read)
    assert [(row.task, row.key) for row in found] == [(1, '["1"]'), (2, '["1"]')]


def test_changes_of_no_row_are_passed_by() -> None:
    nothing = [replace(change(kind), key=None) for kind in ("truncate", "lost")]
    assert plan_rows([(task(exact=exact), one) for one in nothing for exact in (True, False)], NOW, read) == []


def test_f8_a_row_that_is_as_it_was_before_has_changed_all_the_same() -> None:
    back = [change("change", {"amount": 1}, {"amount": 2}), change("change", {"amount": 2}, {"amount": 1})]
    for exact in (True, False):
        sides = [replace(one, before=_paid(one.before), after=_paid(one.after)) for one in back]
        found = plan(task(exact=exact), *sides)
        assert found.runs
        assert json.loads(found.after or "")["amount"] == 1


def _paid(text: str | None) -> str:
    return json.dumps({"status": "paid"} | json.loads(text or ""))


# ----- when it runs


def test_a_run_waits_for_its_debounce_and_no_longer_than_its_latest_time() -> None:
    found = plan(task(debounce=timedelta(seconds=5), max_wait=timedelta(seconds=9)), change("enter"))
    assert (found.due_at, found.latest_at) == (NOW + timedelta(seconds=5), NOW + timedelta(seconds=9))
    found = plan(task(), change("enter"))
    assert (found.due_at, found.latest_at, found.changed_at) == (NOW, None, CHANGED)


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        ("2030-01-01T13:00:00.000000Z", NOW + timedelta(hours=1)),
        ("2020-01-01T13:00:00.000000Z", NOW),
        ("2030-01-01T14:00:00.000000+01:00", NOW + timedelta(hours=1)),
        (None, None),
        ("soon", None),
        (17, None),
        ({"a": 1}, None),
    ],
)
def test_a_row_runs_at_its_time_and_never_without_one(due: Any, expected: datetime | None) -> None:
    for kind in ("enter", "change"):
        found = plan(task(run_at="due"), change(kind, None, {"due": due}))
        assert (found.runs, found.drops) == (expected is not None, expected is None)
        assert expected is None or found.due_at == expected


@pytest.mark.parametrize(("due", "expected"), [("infinity", datetime(9999, 1, 1, tzinfo=UTC)), ("-infinity", NOW)])
def test_a_row_whose_time_never_comes_is_never_run(due: str, expected: datetime) -> None:
    (found,) = plan_rows(
        [(task(run_at="due"), change("enter", None, {"due": due}))],
        NOW,
        lambda kind, value: decode_capture(POSTGRES, kind, value),
    )
    assert (found.runs, found.due_at) == (True, expected)


def test_a_row_whose_time_changes_runs_at_the_new_one_whatever_the_task_wants_to_hear() -> None:
    early, late = "2030-01-01T13:00:00.000000Z", "2030-01-01T15:00:00.000000Z"
    entered = change("enter", None, {"status": "paid", "due": early})
    moved = change("change", {"status": "paid", "due": early}, {"status": "paid", "due": late})
    unset = change("change", {"status": "paid", "due": early}, {"status": "paid", "due": None})
    for exact in (True, False):
        of = task(run_at="due", on=("enter",), exact=exact)
        assert plan(of, moved).due_at == plan(of, entered, moved).due_at == NOW + timedelta(hours=3)
        assert plan(of, moved).runs
        assert (plan(of, unset).runs, plan(of, unset).drops) == (False, True)
        assert plan(of, entered, unset).drops


def test_a_row_that_enters_and_then_changes_unheard_keeps_its_time_and_its_key() -> None:
    entered = change("enter", None, {"customer": "c", "due": "2030-01-01T13:00:00.000000Z"})
    left = change("leave", {"customer": "c"}, {"customer": "d"})
    plain = plan(task(on=("enter",), key="customer"), entered, change("change", None, {"customer": "c"}))
    assert (plain.runs, plain.partition, plain.change) == (True, "c", "enter")
    back = plan(task(on=("leave",), key="customer"), left, change("enter", None, {"customer": "e"}))
    assert (back.runs, back.partition, back.change) == (True, "d", "leave")


# ----- where triggers tell too much

_ROWS = st.one_of(
    st.none(),
    st.fixed_dictionaries({"status": st.sampled_from(["paid", "new", None]), "amount": st.integers(0, 1)}),
)


@given(
    states=st.lists(_ROWS, min_size=2, max_size=6),
    on=st.lists(st.sampled_from(CAUSES), min_size=1, unique=True),
)
def test_what_python_decides_is_what_exact_triggers_tell(states: list[Any], on: list[Cause]) -> None:
    wide, told = [], []
    for before, after in itertools.pairwise(states):
        if before is None and after is None:
            continue
        raw = "enter" if before is None else "delete" if after is None else "change"
        wide.append(change(raw, before, after))
        was, is_now = (side is not None and side["status"] == "paid" for side in (before, after))
        meant = _meant(before, after, was=was, is_now=is_now)
        if meant is not None and (meant != "change" or "change" in on):
            told.append(change(meant, before, after))
    asked, given_ = task(exact=False, on=tuple(on)), task(on=tuple(on))
    decided = plan_rows([(asked, one) for one in wide], NOW, read)
    expected = plan_rows([(given_, one) for one in told], NOW, read)
    assert decided == expected


def _meant(before: Any, after: Any, *, was: bool, is_now: bool) -> str | None:
    if after is None or (was and not is_now):
        return ("delete" if after is None else "leave") if was else None
    if is_now and not was:
        return "enter"
    return "change" if was and before["amount"] != after["amount"] else None


def test_what_left_an_earlier_filter_may_match_the_one_of_now() -> None:
    gone, paid = {"status": "new"}, {"status": "paid"}
    assert plan_rows([(task(current=False), change("leave", paid, gone))], NOW, read) == []
    seen = {"amount": 1}
    assert plan(task(current=False), change("leave", paid | seen, gone | seen)).drops, "it does not, as far as is known"
    assert plan_rows([(task(current=False), change("leave", paid | seen, paid | seen))], NOW, read) == []
    assert plan(task(current=False), change("delete", paid)).drops
    assert plan(task(current=False), change("enter", gone, paid)).runs
    assert plan_rows([(task(current=False), change("enter", None, gone | seen))], NOW, read) == [], (
        "it does not match now"
    )


def test_nothing_is_dropped_as_an_earlier_declaration_did_not_capture_what_is_asked_for_now() -> None:
    now, before = task(run_at="due"), task(run_at="due", current=False)
    told, later = change("change", {"amount": 1}, {"amount": 2}), {"amount": 2, "due": "2040-01-01 00:00:00"}
    assert plan_rows([(before, told)], NOW, read) == []
    assert plan(now, told).drops
    both = [(before, told), (now, change("change", {"amount": 1}, later)), (before, told)]
    (found,) = plan_rows(both, NOW, read)
    assert (found.runs, json.loads(found.after or "")) == (True, later), "who captures what is asked for tells best"


@given(value=st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=4))
def test_no_value_makes_planning_fail(value: Any) -> None:
    """Another program owns the table, or has changed a column's type: its rows hold up nobody."""
    for exact in (True, False):
        of = task(exact=exact, run_at="due", key="customer")
        columns = ("status", "amount", "due", "customer")
        sides = dict.fromkeys(columns, value)
        plan_rows(
            [(of, change("change", sides, sides | {"status": "paid"})), (of, change("enter", None, {}))], NOW, read
        )


class Parted(Table):
    owner: str | None
    price: Decimal
    ratio: float
    number: int


def spelled(column: str, captured: str, dialect: Dialect = POSTGRES) -> str | None:
    task = ReactiveTask(name="task", definition=definition_of(Parted), key=column, pool="default")

    def read(kind: Kind, value: Any) -> Any:
        return decode_capture(dialect, kind, value)

    return partition_of(spec_of(task, exact=True), read_values(f'{{"{column}": {captured}}}'), read)


@pytest.mark.parametrize(
    ("column", "texts", "expected"),
    [
        ("price", ("1", "1.0", "1.00", "1E+0"), "1"),
        ("price", ("0", "0.0", "-0.00"), "0"),
        ("price", ("100", "1E+2", "100.0"), "100"),
        ("price", ("-0.5", "-0.50", "-5E-1"), "-0.5"),
        ("price", ("12345678901234567890123456789012345678.10", "12345678901234567890123456789012345678.1"), None),
        ("ratio", ("0.0", "-0.0", "0"), "0"),
        ("ratio", ("1.5", "1.50"), "1.5"),
        ("number", ("7",), "7"),
    ],
)
def test_equal_numbers_are_one_key(column: str, texts: tuple[str, ...], expected: str | None) -> None:
    found = {spelled(column, text) for text in texts}
    if column == "price":  # which is text on SQLite
        found |= {spelled(column, json.dumps(text), SQLITE) for text in texts}
    assert found == {texts[-1] if expected is None else expected}


def test_different_values_are_different_keys() -> None:
    assert len({spelled("price", text) for text in ("1", "10", "0.1", "-1", "1.01", "1E+9999")}) == 6
