"""Filters of reactive tasks, from the row that is written to the handler that runs, on both stores."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.reactive import Stage, record_of, settle

from penstock import DeclarationError, JobState, Table
from penstock.clock import SystemClock


class Thing(Table):
    a: int | None = None
    b: int | None = None
    text: str | None = None
    data: Any = None
    at: datetime | None = None


Case = tuple[Callable[[Any], Any] | None, list[dict[str, Any]], list[dict[str, Any]]]

CASES: dict[str, Case] = {
    "fi1": (
        lambda t: (t.text == "x") & (t.data["in"]["deep"] == 5),
        [{"text": "x", "data": {"in": {"deep": 5}}}],
        [{"text": "x", "data": {"in": {"deep": 6}}}, {"text": "y", "data": {"in": {"deep": 5}}}, {"text": "x"}],
    ),
    "fi2": (
        lambda t: (t.a == 1) | ((t.a == 2) & ((t.b == 3) | (t.b == 4))),
        [{"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 4}],
        [{"a": 2}, {"a": 2, "b": 5}, {"a": 3, "b": 3}, {}],
    ),
    "fi3": (
        lambda t: t.data["tags"].has("hot") | t.data["tags"].has("new"),
        [{"data": {"tags": ["hot"]}}, {"data": {"tags": ["old", "new"]}}],
        [{"data": {"tags": ["old"]}}, {"data": {"tags": "hot"}}, {"data": {}}, {}, {"data": {"tags": [["hot"]]}}],
    ),
    "fi7": (
        lambda t: (t.a >= 10) & (t.a < 20) & (t.b != 7),
        [{"a": 10, "b": 6}, {"a": 19, "b": 8}],
        [{"a": 9, "b": 6}, {"a": 20, "b": 6}, {"a": 15, "b": 7}, {"b": 1}],
    ),
    "fi8": (
        lambda t: t.text.matches(r"^ab[0-9]+$"),
        [{"text": "ab1"}, {"text": "ab123"}],
        [{"text": "ab"}, {"text": "xab1"}, {"text": "ab1x"}, {"text": "AB1"}, {}],
    ),
    "fi9": (lambda t: ~t.text.is_none(), [{"text": ""}, {"text": "x"}], [{}, {"text": None}]),
    "fi10": (
        lambda t: t.data["list"].length() == 2,
        [{"data": {"list": [1, 2]}}, {"data": {"list": [None, None]}}],
        [
            {"data": {"list": [1]}},
            {"data": {"list": [1, 2, 3]}},
            {"data": {"list": {"a": 1, "b": 2}}},
            {"data": {"list": 2}},
            {},
        ],
    ),
    "fi11": (lambda t: (t.text == "x") & (t.a > 5), [{"text": "x", "a": 6}], [{"text": "x", "a": 5}, {"a": 6}]),
    "fi13": (lambda t: (t.text == "x") & (t.a == 1), [{"text": "x", "a": 1}], [{"text": "x"}, {"a": 1}]),
    "fi14": (lambda t: t.a.in_((1, 2, 3)), [{"a": 1}, {"a": 3}], [{"a": 4}, {}]),
    "fi15": (lambda t: (t.a == 1) | (t.text == "x"), [{"a": 1}, {"text": "x"}, {"a": 1, "text": "x"}], [{"a": 2}, {}]),
    "fi16": (lambda t: t.text.matches("[Aa]da|ADA"), [{"text": "Ada"}, {"text": "xADAx"}], [{"text": "Eve"}, {}]),
    "fi17": (lambda t: t.data["gone"].is_none(), [{"data": {}}, {}, {"data": {"gone": None}}], [{"data": {"gone": 0}}]),
    "fi18": (
        lambda t: (t.data["n"]["x"] > 5) & t.data["n"]["y"].in_(("p", "q")),
        [{"data": {"n": {"x": 6, "y": "p"}}}],
        [
            {"data": {"n": {"x": 5, "y": "p"}}},
            {"data": {"n": {"x": 6, "y": "r"}}},
            {"data": {"n": 6}},
            {"data": {"x": 6}},
        ],
    ),
    "qe1": (None, [{}, {"a": 1}], []),
}


async def runs_for(url: str, *names: str) -> None:
    """Of each case, which rows run when they are inserted, and when they become so."""
    for name in names:
        function, matching, others = CASES[name]
        stage = Stage()
        stage.task(Thing, filter=function)
        async with stage.open(url) as test:
            rows = await stage.insert(test, *(Thing(**fields) for fields in (*matching, *others)))
            await settle(test)
            assert set(stage.ids()) == set(rows[: len(matching)]), name
            for target in others[:1]:
                for row in rows[: len(matching)]:
                    await stage.patch(test, Thing, row, **{**EMPTY, **target})
            await settle(test)
            assert stage.taken() == [], "they left"
            if others:
                for row, fields in zip(rows, matching, strict=False):
                    await stage.patch(test, Thing, row, **{**EMPTY, **fields})
                await settle(test)
                assert [ran.change for ran in stage.taken()] == ["enter"] * len(matching), name
            for row in rows:
                await stage.delete(test, Thing, row)
            await settle(test)


EMPTY: dict[str, Any] = {"a": None, "b": None, "text": None, "data": None}


async def test_fi1_fi2_fi3_fi7_fi8_rows_run_for_what_they_are(database_url: str) -> None:
    await runs_for(database_url, "fi1", "fi2", "fi3", "fi7", "fi8")


async def test_fi9_fi10_fi11_fi13_fi14_near_misses_do_not_run(database_url: str) -> None:
    await runs_for(database_url, "fi9", "fi10", "fi11", "fi13", "fi14")


async def test_fi15_fi16_fi17_fi18_qe1_nor_do_rows_without_what_is_asked_for(database_url: str) -> None:
    await runs_for(database_url, "fi15", "fi16", "fi17", "fi18", "qe1")


async def test_fi4_a_field_is_compared_with_another(database_url: str) -> None:
    stage = Stage()
    stage.task(Thing, filter=lambda t: t.a > t.b)
    async with stage.open(database_url) as test:
        rows = await stage.insert(test, Thing(a=1, b=2), Thing(a=2, b=2), Thing(a=3, b=2), Thing(a=3))
        await settle(test)
        assert stage.ids() == [rows[2]]
        await stage.patch(test, Thing, rows[0], b=0)
        await settle(test)
        assert stage.ids() == [rows[0]]


def test_fi5_cl3_a_filter_that_asks_for_the_time_is_refused() -> None:
    with pytest.raises(DeclarationError, match="time"):
        Stage().task(Thing, filter=lambda t: t.at > SystemClock().now())


async def test_fi6_a_row_that_leaves_during_its_debounce_does_not_run(database_url: str) -> None:
    stage = Stage()
    stage.task(Thing, filter=lambda t: t.a == 1, debounce=timedelta(minutes=1))
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Thing(a=1))
        await test.plan()
        await stage.patch(test, Thing, row, a=2)
        assert await settle(test) == 0
        assert stage.taken() == []
        record = await record_of(test, row)
        assert record is not None
        assert (record.live, record.gone) == (False, "left")
        job = await test.job_calls.find(record.job)
        assert job is not None
        assert job.state is JobState.SKIPPED


def test_fi12_what_cannot_be_translated_is_refused() -> None:
    with pytest.raises(DeclarationError, match="filter"):
        Stage().task(Thing, filter=lambda t: t.data["list"].any(lambda one: one > 5))
    with pytest.raises(DeclarationError, match="nothing"):
        Stage().task(Thing, filter=lambda t: t.nothing == 5)


async def test_f25_what_cannot_be_computed_holds_up_no_other_row(database_url: str) -> None:
    stage = Stage()
    huge = 2**62
    stage.task(Thing, "length", filter=lambda t: t.data["list"].length() >= 2)
    stage.task(Thing, "product", filter=lambda t: t.a * t.b > 10, watch=(lambda t: t.a * t.a,))
    stage.task(Thing, "pattern", filter=lambda t: t.text.matches("(a+)+b"))
    stage.task(Thing, "neither", filter=lambda t: ~((t.text == "a") | (t.a == 1)))
    async with stage.open(database_url) as test:
        rows = await stage.insert(
            test,
            Thing(a=huge, b=huge, data={"list": 5}, text="a" * 200),
            Thing(a=-huge, b=huge, data="list"),
            Thing(a=5, b=5, data={"list": [1, 2]}, text="aab"),
            Thing(a=1, b=1, data=[], text="a"),
        )
        await settle(test)
        ran = {name: {one.doc_id for one in stage.ran if one.task == name} for name in
               ("length", "product", "pattern", "neither")}  # fmt: skip
        assert ran["length"] == {rows[2]}
        assert rows[2] in ran["product"]
        assert not {rows[1], rows[3]} & ran["product"]
        assert ran["pattern"] == {rows[2]}
        assert ran["neither"] == set(rows[:3]), "neither of two is both nots, and what is compared stays compared"
        stage.taken()
        await stage.patch(test, Thing, rows[0], a=4, b=4)
        await settle(test)
        assert "product" in {one.task for one in stage.taken()}
