"""What is watched: which writes of a row run it again, on both stores."""

from __future__ import annotations

from typing import Any

import pytest
from stage.reactive import Stage, settle

from penstock import DeclarationError, Table


class Person(Table):
    name: str = ""
    age: int | None = None
    data: dict[str, Any] | None = None
    tags: list[str] | None = None


class Cart(Table):
    price: int = 0
    pieces: int = 0
    note: str = ""


async def runs_for(stage: Stage, url: str, first: Table, *steps: tuple[dict[str, Any], bool]) -> None:
    """Insert a row, and change it step by step: each runs it or does not."""
    async with stage.open(url) as test:
        (row,) = await stage.insert(test, first)
        await settle(test)
        assert stage.changes() == ["enter"]
        for fields, runs in steps:
            await stage.patch(test, type(first), row, **fields)
            await settle(test)
            assert stage.changes() == ["change"] * runs, fields


async def test_wp1_watched_fields_run_also_within_json(database_url: str) -> None:
    stage = Stage()
    stage.task(Person, watch=("name", "data.city.zip"))
    home = {"city": {"zip": "1", "name": "Bonn"}}
    await runs_for(
        stage,
        database_url,
        Person(name="Ada", data=home),
        ({"name": "Eve"}, True),
        ({"name": "Eve"}, False),
        ({"age": 5}, False),
        ({"data": {"city": {"zip": "2", "name": "Bonn"}}}, True),
        ({"data": {"city": {"zip": "2", "name": "Rome"}, "more": 1}}, False),
    )


async def test_wp2_none_zero_and_content_are_told_apart(database_url: str) -> None:
    stage = Stage()
    stage.task(Person, watch=("age", "data", "tags"))
    await runs_for(
        stage,
        database_url,
        Person(),
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
    )


async def test_wp3_a_deep_path_runs_for_itself_only(database_url: str) -> None:
    stage = Stage()
    stage.task(Person, watch=("data.a.b.c.d",))
    deep = {"a": {"b": {"c": {"d": 1, "e": 1}}}}
    await runs_for(
        stage,
        database_url,
        Person(data=deep),
        ({"data": {"a": {"b": {"c": {"d": 1, "e": 2}, "x": 1}}}}, False),
        ({"data": {"a": {"b": {"c": {"d": 2, "e": 2}}}}}, True),
        ({"data": {"a": {"b": "elsewhere"}}}, True),
        ({"data": {"a": 3}}, False),
    )


async def test_wp4_watching_the_id_is_one_run_for_each_row(database_url: str) -> None:
    stage = Stage()
    stage.task(Person, watch=("id",))
    await runs_for(stage, database_url, Person(), ({"name": "Ada"}, False), ({"data": {"a": 1}}, False))


async def test_wp5_a_product_runs_only_if_it_is_another(database_url: str) -> None:
    stage = Stage()
    stage.task(Cart, watch=(lambda c: c.price * c.pieces,))
    await runs_for(
        stage,
        database_url,
        Cart(price=10, pieces=2),
        ({"price": 5, "pieces": 4}, False),
        ({"note": "hello"}, False),
        ({"pieces": 5}, True),
        ({"price": 0}, True),
        ({"pieces": 7}, False),
    )


@pytest.mark.parametrize("watch", [("-name",), ({"name": 0},), {"name": 0}, ("nothing",), ()])
def test_wp6_watching_all_but_something_is_refused(watch: Any) -> None:
    with pytest.raises(DeclarationError, match="watch"):
        Stage().task(Person, watch=watch)


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
