"""A reactive task at the door: what it may be asked for, and what planners of other versions read of it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.reactive.reconciling import Reconciling
from penstock.reactive.task import ReactiveTask, TaskSpec, interest_name, spec_of
from penstock.reactive.tracing import trace_filter, trace_watch
from penstock.schema.table import Table, definition_of


class Parcel(Table, name="declared_parcel"):
    state: str
    weight: int = 0
    send_at: datetime | None = None


PARCEL = definition_of(Parcel)
SECOND = timedelta(seconds=1)


def declared(**options: Any) -> ReactiveTask:
    return ReactiveTask(**{"name": "send", "definition": PARCEL, "pool": "default", **options})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on": ("insert",)}, "on is"),
        ({"debounce": 2 * SECOND, "max_wait": SECOND}, "max_wait is shorter"),
        ({"history": 101}, "history"),
        ({"run_at": "no_such"}, "no column 'no_such'"),
        ({"run_at": "weight"}, "points in time"),
    ],
)
def test_what_cannot_be_is_refused_at_the_door(options: dict[str, Any], named: str) -> None:
    with pytest.raises(DeclarationError, match="Reactive task") as refused:
        declared(**options)
    assert named in str(refused.value)


def test_planners_of_other_versions_read_what_they_know() -> None:
    condition = trace_filter(PARCEL, lambda parcel: (parcel.state == "ready") & (parcel.weight > 2), "test")
    watch = trace_watch(PARCEL, ("weight", lambda parcel: parcel.weight * 2), "test")
    options: dict[str, Any] = {"debounce": SECOND, "max_wait": 3 * SECOND, "run_at": "send_at", "key": "state"}
    task = declared(condition=condition, watch=watch, **options)
    spec = spec_of(task, exact=False)
    assert TaskSpec.parse(spec.text()) == spec
    assert TaskSpec.parse(json.dumps(json.loads(spec.text()) | {"new": 1})) == spec
    assert spec.condition() == condition
    assert spec.expressions() == watch.expressions
    assert (spec.debounce, spec.max_wait, spec.partition, spec.key) == (1.0, 3.0, "state", ("id",))
    assert interest_name("send") == "task:send"


def test_only_what_tells_which_rows_are_meant_has_them_looked_at_anew() -> None:
    plain = declared()
    assert declared(debounce=SECOND, history=9, version=3, priority=2).signature == plain.signature
    condition = trace_filter(PARCEL, lambda parcel: parcel.state == "ready", "test")
    others = [
        declared(condition=condition),
        declared(watch=trace_watch(PARCEL, ("weight",), "test")),
        declared(on=("enter",)),
        declared(run_at="send_at"),
    ]
    assert len({one.signature for one in (plain, *others)}) == 5
    assert declared(on=("change", "enter")).signature == plain.signature


# ----- how far looking at all rows has come


def test_looking_at_all_rows_goes_through_rows_and_then_through_records() -> None:
    at: Reconciling | None = Reconciling(reprocess="reprocess_failed")
    seen = []
    for after, looked, found in (('["a"]', 10, 1), (None, 5, 0), ('["b"]', 10, 2), (None, 1, 0)):
        assert at is not None
        assert Reconciling.parse(at.text()) == at
        seen.append((at.part, at.after, at.looked, at.found))
        at = at.advance(after, looked, found)
    assert seen == [
        ("rows", None, 0, 0),
        ("rows", '["a"]', 10, 1),
        ("records", None, 15, 1),
        ("records", '["b"]', 25, 3),
    ]
    assert at is None


def test_begun_anew_it_forgets_how_far_it_was_and_not_what_is_run_again() -> None:
    at = Reconciling(part="records", after="x", looked=3, found=1, reprocess="reprocess_all", audit=True)
    assert at.begin() == Reconciling(reprocess="reprocess_all")
    assert Reconciling.parse(json.dumps(json.loads(at.text()) | {"new": 1})) == at
