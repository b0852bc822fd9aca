"""What is watched: which writes of a row run it again, on both stores."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.reactive import Stage, settle

from penstock import Table, TaskCtx


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
CASES: dict[str, tuple[Any, Table, list[tuple[dict[str, Any], bool]]]] = {
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
    for name, (watch, row, _) in CASES.items():
        stage.task(type(row), name, watch=watch)
    async with stage.open(database_url) as test:
        for name, (_, row, steps) in CASES.items():
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
