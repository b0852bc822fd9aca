"""Searches as Convex's clients call them: each behaviour that its own tests ask for, over the wire that these speak."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import App, MutationCtx, Page, PaginationOptions, QueryCtx, SearchIndex, Table, public
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores


class Dish(Table):
    text: str
    kitchen: str | None = None
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    f: int = 0
    g: int = 0
    h: int = 0

    by_text = SearchIndex("text", filters=("kitchen", *"abcdefgh"))


app = App()
DISHES = [
    Dish(text="Gulab jamun: gulab is rose water, and jamun a fruit", kitchen="indian"),
    Dish(text="Gulai, a stew of coconut milk", kitchen="indonesian"),
    Dish(text="Rose cake", kitchen="austrian"),
]


def search(ctx: QueryCtx, query: str, kitchen: str | None) -> Any:
    given: dict[str, Any] = {} if kitchen is None else {"kitchen": kitchen}
    return ctx.db.query(Dish).with_search_index(Dish.by_text, query, **given)


@app.mutation(access=public)
async def populate(ctx: MutationCtx) -> None:
    await ctx.db.insert_many(DISHES)


@app.query(access=public)
async def looked_for(ctx: QueryCtx, query: str, kitchen: str | None = None) -> list[str]:
    return [dish.text for dish in await search(ctx, query, kitchen).collect()]


@app.mutation(access=public)
async def found(ctx: MutationCtx, query: str, kitchen: str | None = None, writes: bool = False) -> list[str]:
    if writes:
        await ctx.db.insert(DISHES[0])
    return [dish.text for dish in await search(ctx, query, kitchen).collect()]


@app.query(access=public)
async def pages(ctx: QueryCtx, query: str, options: PaginationOptions, kitchen: str | None = None) -> Page[Dish]:
    page: Page[Dish] = await search(ctx, query, kitchen).paginate(options)
    return page


@app.mutation(access=public)
async def pages_in_a_mutation(
    ctx: MutationCtx, query: str, options: PaginationOptions, kitchen: str | None = None
) -> Page[Dish]:
    page: Page[Dish] = await search(ctx, query, kitchen).paginate(options)
    return page


@app.query(access=public)
async def refused(ctx: QueryCtx, way: str) -> int:
    dishes = ctx.db.query(Dish)
    if way == "field":
        return len(await dishes.with_search_index(Dish.by_text, "rose", text="x").collect())
    if way == "ninth":
        given: dict[str, Any] = {"kitchen": "x", **dict.fromkeys("abcdefgh", 0)}
        return len(await dishes.with_search_index(Dish.by_text, "rose", **given).collect())
    return len(await dishes.with_search_index(Dish.by_text, "many").collect())


@app.mutation(access=public)
async def fill(ctx: MutationCtx, count: int) -> None:
    await ctx.db.insert_many(Dish(text="many") for _ in range(count))


@asynccontextmanager
async def restaurant(url: str) -> AsyncIterator[TestApp]:
    async with TestApp(app, url, dev=True) as test:
        await test.run_mutation(populate)
        yield test


async def call(test: TestApp, kind: str, name: str, **args: Any) -> Any:
    body = {"path": f"test_search_wire:{name}", "format": "convex_encoded_json", "args": [args]}
    answer = (await test.http.post(f"/api/{kind}", json=body)).json()
    return answer["value"] if answer["status"] == "success" else answer["errorMessage"]


@pytest.mark.parametrize(("kind", "name"), [("query", "looked_for"), ("mutation", "found")])
async def test_queries_and_mutations_find_the_best_row_first(database_url: str, kind: str, name: str) -> None:
    """CP1, CP2, CP3, CP4, CP5, CP7, CP12, CP14, CP15."""
    async with restaurant(database_url) as test:
        both = [DISHES[0].text, DISHES[2].text]
        for query, kitchen, wanted in (
            ("gulab rose", None, both),
            ("gu1ab", None, []),
            ("gulab jam", None, both[:1]),
            ("jam gulab", None, both[:1]),
            ("gul cake", None, both[1:]),
            ("gulab rose", "indian", both[:1]),
            ("gulab rose", "indian ", []),
        ):
            given = {} if kitchen is None else {"kitchen": kitchen}
            assert await call(test, kind, name, query=query, **given) == wanted, query


async def test_a_mutation_finds_what_it_has_written(database_url: str) -> None:
    """CP16."""
    async with restaurant(database_url) as test:
        assert await call(test, "mutation", "found", query="gulab rose", writes=True) == [
            DISHES[0].text, DISHES[0].text, DISHES[2].text
        ]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [("query", "pages"), ("mutation", "pages_in_a_mutation")])
@pytest.mark.parametrize("kitchen", [None, "indian"])
async def test_pages_of_one_row_come_in_order_and_a_full_one_is_not_the_last(
    database_url: str, kind: str, name: str, kitchen: str | None
) -> None:
    """CP10, CP11, CP13."""
    async with restaurant(database_url) as test:
        cursor, seen = None, list[str]()
        given = {} if kitchen is None else {"kitchen": kitchen}
        for _ in range(2 if kitchen is None else 1):
            options = {"numItems": 1, "cursor": cursor}
            page = await call(test, kind, name, query="gul", options=options, **given)
            assert (page["isDone"], len(page["page"])) == (False, 1)
            cursor, seen = page["continueCursor"], [*seen, page["page"][0]["text"]]
        assert seen == [dish.text for dish in DISHES[: len(seen)]], "the one with more hits comes first"
        page = await call(test, kind, name, query="gul", options={"numItems": 1, "cursor": cursor}, **given)
        assert (page["isDone"], page["page"]) == (True, [])


async def test_errors_of_searches_have_the_codes_that_convex_gives_them(database_url: str) -> None:
    """CP21, CP22, CP26."""
    async with restaurant(database_url) as test:
        assert "Uncaught IncorrectFilterFieldError: Search index by_text has no filter text" in await call(
            test, "query", "refused", way="field"
        )
        assert "Uncaught TooManyFilterConditionsInSearchQueryError: " in await call(
            test, "query", "refused", way="ninth"
        )
        await call(test, "mutation", "fill", count=1024.0)
        assert await call(test, "query", "refused", way="many") == 1024
        await call(test, "mutation", "fill", count=1.0)
        assert "Uncaught SearchQueryScannedTooManyDocumentsError: " in await call(test, "query", "refused", way="many")
