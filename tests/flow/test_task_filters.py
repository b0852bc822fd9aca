"""Filters and watches of reactive tasks: which rows run, and which writes of them run them again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.stories import Stage, settle

from penstock import DeclarationError, Table, TaskCtx
from penstock.clock import SystemClock


class Thing(Table):
    a: int | None = None
    b: int | None = None
    text: str | None = None
    data: Any = None
    at: datetime | None = None


Case = tuple[Callable[[Any], Any] | None, list[dict[str, Any]], list[dict[str, Any]]]

CASES: dict[str, Case] = {  # the filters; `test_filter_agreement` tries whatever can be written
    "nested": (
        lambda t: (t.text == "x") & (t.a > 5) & ((t.data["in"]["deep"] == 5) | (t.data["in"]["y"].in_(("p", "q")))),
        [{"text": "x", "a": 6, "data": {"in": {"deep": 5}}}, {"text": "x", "a": 7, "data": {"in": {"y": "q"}}}],
        [
            {"text": "x", "a": 6, "data": {"in": {"deep": 6, "y": "r"}}},
            {"text": "x", "a": 5, "data": {"in": {"deep": 5}}},
            {"text": "y", "a": 6, "data": {"in": {"deep": 5}}},
            {"text": "x", "a": 6, "data": {"in": 6}},
            {"text": "x", "a": 6},
        ],
    ),
    "between": (
        lambda t: ((t.a >= 10) & (t.a < 20) & (t.b != 7)) | t.a.in_((1, 2)) | (t.text == "all"),
        [{"a": 10, "b": 6}, {"a": 19, "b": 8}, {"a": 1}, {"text": "all"}],
        [{"a": 9, "b": 6}, {"a": 20, "b": 6}, {"a": 15, "b": 7}, {"b": 1}, {}],
    ),
    "arrays": (
        lambda t: t.data["tags"].has("hot") | (t.data["list"].length() == 2),
        [{"data": {"tags": ["old", "hot"]}}, {"data": {"list": [None, None]}}],
        [
            {"data": {"tags": ["old"], "list": [1]}},
            {"data": {"tags": "hot"}},
            {"data": {"tags": [["hot"]]}},
            {"data": {"list": {"a": 1, "b": 2}}},
            {},
        ],
    ),
    "fields": (lambda t: t.a > t.b, [{"a": 3, "b": 2}], [{"a": 1, "b": 2}, {"a": 2, "b": 2}, {"a": 3}]),
    "patterns": (
        lambda t: t.text.matches(r"^ab[0-9]+$") | t.text.matches("[Aa]da|ADA"),
        [{"text": "ab123"}, {"text": "xADAx"}],
        [{"text": "ab"}, {"text": "xab1"}, {"text": "ab1x"}, {"text": "AB1"}, {}],
    ),
    "there": (
        lambda t: ~t.text.is_none() & t.data["gone"].is_none(),
        [{"text": ""}, {"text": "x", "data": {"gone": None}}],
        [{}, {"text": "x", "data": {"gone": 0}}],
    ),
    "none": (None, [{}, {"a": 1}], []),
}


EMPTY: dict[str, Any] = {"a": None, "b": None, "text": None, "data": None}


@pytest.mark.both_stores
async def test_fi1_fi2_fi3_fi4_fi7_fi8_fi9_fi10_fi11_fi13_fi14_fi15_fi16_fi17_fi18_qe1_rt2_rt3_rows_run_as_they_are(
    database_url: str,
) -> None:
    """They run when they are inserted so, and when they become so; each task has its own rows."""
    stage = Stage()
    for name, (function, *_) in CASES.items():
        stage.task(Thing, name, filter=function)

    def ran(name: str) -> list[tuple[Any, str]]:
        return sorted((one.doc_id, one.change) for one in stage.taken() if one.task == name)

    async with stage.open(database_url) as test:
        for name, (_, matching, others) in CASES.items():
            rows = await stage.insert(test, *(Thing(**fields) for fields in (*matching, *others)))
            enter = sorted((row, "enter") for row in rows[: len(matching)])
            await settle(test)
            assert ran(name) == enter, name
            if not others:
                continue
            for row in rows[: len(matching)]:
                await stage.patch(test, Thing, row, **{**EMPTY, **others[0]})
            await settle(test)
            assert ran(name) == [], f"{name}: they left"
            for row, fields in zip(rows, matching, strict=False):
                await stage.patch(test, Thing, row, **{**EMPTY, **fields})
            await settle(test)
            assert ran(name) == enter, name


def test_fi5_fi12_cl3_what_cannot_be_translated_or_asks_for_the_time_is_refused() -> None:
    refused: list[tuple[Callable[[Any], Any], str]] = [
        (lambda t: t.at > SystemClock().now(), "time"),
        (lambda t: t.data["list"].any(lambda one: one > 5), "filter"),
        (lambda t: t.nothing == 5, "nothing"),
    ]
    for function, message in refused:
        with pytest.raises(DeclarationError, match=message):
            Stage().task(Thing, filter=function)


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


class Person(Table):
    name: str = ""
    age: int | None = None
    data: dict[str, Any] | None = None
    tags: list[str] | None = None


class Visit(Table):
    at: datetime | None = None
    note: str = ""


class Cart(Table):
    price: int = 0
    pieces: int = 0
    note: str = ""


# What is watched, a row, and changes of it: each runs it or does not.
WATCHED: dict[str, tuple[Any, Table, list[tuple[dict[str, Any], bool]]]] = {
    "wp1": (
        ("name", "data.city.zip"),
        Person(name="Ada", data={"city": {"zip": "1", "name": "Bonn"}}),
        [
            ({"name": "Eve"}, True),
            ({"name": "Eve"}, False),
            ({"age": 5}, False),
            ({"data": {"city": {"zip": "2", "name": "Bonn"}}}, True),
            ({"data": {"city": {"zip": "2", "name": "Rome"}, "more": 1}}, False),
        ],
    ),
    "wp2": (
        ("age", "data", "tags"),
        Person(),
        [
            ({"age": None}, False),
            ({"age": 0}, True),
            ({"age": None}, True),
            ({"tags": []}, True),
            ({"tags": ["a", "b"]}, True),
            ({"tags": ["a", "b"]}, False),
            ({"tags": ["b", "a"]}, True),
            ({"data": {"a": 1, "b": [2]}}, True),
            ({"data": {"b": [2], "a": 1}}, False),
            ({"data": {"a": 1, "b": [2, 3]}}, True),
            ({"data": {"a": 1, "b": None}}, True),
            ({"data": {"a": 1}}, True),
            ({"data": None}, True),
            ({"tags": None}, True),
        ],
    ),
    "wp3": (
        ("data.a.b.c.d",),
        Person(data={"a": {"b": {"c": {"d": 1, "e": 1}}}}),
        [
            ({"data": {"a": {"b": {"c": {"d": 1, "e": 2}, "x": 1}}}}, False),
            ({"data": {"a": {"b": {"c": {"d": 2, "e": 2}}}}}, True),
            ({"data": {"a": {"b": "elsewhere"}}}, True),
            ({"data": {"a": 3}}, False),
        ],
    ),
    "wp4": (("id",), Person(), [({"name": "Ada"}, False), ({"data": {"a": 1}}, False)]),
    "wp5": (
        (lambda c: c.price * c.pieces,),
        Cart(price=10, pieces=2),
        [
            ({"price": 5, "pieces": 4}, False),
            ({"note": "hello"}, False),
            ({"pieces": 5}, True),
            ({"price": 0}, True),
            ({"pieces": 7}, False),
        ],
    ),
}


async def test_wp1_wp2_wp3_wp4_wp5_only_changes_of_what_is_watched_run_a_row(database_url: str) -> None:
    stage = Stage()
    for name, (watch, row, _) in WATCHED.items():
        stage.task(type(row), name, watch=watch)
    async with stage.open(database_url) as test:
        for name, (_, row, steps) in WATCHED.items():
            (row_id,) = await stage.insert(test, row)
            await settle(test)
            assert [one.change for one in stage.taken() if one.task == name] == ["enter"]
            for fields, runs in steps:
                await stage.patch(test, type(row), row_id, **fields)
                await settle(test)
                assert [one.change for one in stage.taken() if one.task == name] == ["change"] * runs, (name, fields)


async def test_wp7_what_is_computed_runs_for_its_outcome_and_is_known_to_the_handler(database_url: str) -> None:
    """Of an array a watch computes its length, and whether it has an element; sums are kept in a field of their own."""
    stage = Stage()
    stage.task(Person, watch=(lambda p: p.tags.length(), lambda p: p.tags.has("high"), lambda p: p.age >= 18))
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Person(tags=["low"], age=3))
        await settle(test)
        assert list(stage.taken()[0].values.values()) == [1, False, False]
        for fields, values in (
            ({"tags": ["medium"]}, None),
            ({"age": 17}, None),
            ({"tags": ["high"]}, [1, True, False]),
            ({"tags": ["high", "low"]}, [2, True, False]),
            ({"tags": ["low", "high"]}, None),
            ({"age": 18}, [2, True, True]),
            ({"age": 80}, None),
        ):
            await stage.patch(test, Person, row, **fields)
            await settle(test)
            assert [list(ran.values.values()) for ran in stage.taken()] == ([] if values is None else [values]), fields


async def read_it(ctx: TaskCtx[Any]) -> None:
    """A handler that asks for its row."""
    await ctx.get_document()


async def test_a_row_that_changes_before_its_run_is_run_as_it_is_if_changes_call_for_none(database_url: str) -> None:
    stage = Stage()
    stage.task(Person, watch=("name",), on=("enter",), handler=read_it)
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Person(name="Ada"))
        await test.plan()
        await stage.patch(test, Person, row, name="Eve")
        await settle(test)
        assert [job.state.value for job in await test.jobs()] == ["success"]
        assert stage.changes() == ["enter"]


@pytest.mark.parametrize(("moved", "runs"), [({"note": "other"}, 1), ({"at": 2}, 0)])
async def test_of_a_task_that_hears_of_times_alone_a_run_ends_only_if_its_time_is_another(
    database_url: str, moved: dict[str, Any], runs: int
) -> None:
    stage = Stage()

    async def change_and_read(ctx: TaskCtx[Any]) -> None:
        if not changed:
            changed.append(ctx.doc_id)
            hours = {"at": test.clock.now() + timedelta(hours=2)} if "at" in moved else moved
            await stage.patch(test, Visit, ctx.doc_id, **hours)
        await ctx.get_document()

    changed: list[Any] = []
    stage.task(Visit, watch=("note",), on=("enter",), run_at="at", handler=change_and_read)
    async with stage.open(database_url) as test:
        await stage.insert(test, Visit(at=test.clock.now()))
        await test.plan()
        await test.run_until_idle(plan=False, advance=False)
        assert len(changed) == 1
        assert len(stage.taken()) == runs
        await settle(test, timedelta(minutes=5))
        await settle(test, timedelta(hours=2))
        assert len(stage.taken()) == 1 - runs, "the run at the other time"
