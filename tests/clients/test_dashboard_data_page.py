"""Functions, data and live queries in Chromium: a function is called, a row is found and edited, all of it live."""

from __future__ import annotations

from contextlib import aclosing
from typing import Literal

import pytest
from playwright.async_api import Page, expect
from stage.chromium import HOSTILE, axe, browser, check, quiet_page
from stage.sockets import listening

from penstock import App, Id, Index, MutationCtx, QueryCtx, Table, asgi_app
from penstock.testing import TestApp

pytestmark = pytest.mark.long

app = App()


class Room(Table, name="room_of_pages"):
    name: str
    beds: int = 2
    kind: Literal["single", "double"] = "double"
    extras: list[str] = []  # noqa: RUF012 - pydantic copies it
    password: str = "hidden-word"

    by_name = Index("name")


@app.mutation
async def add(ctx: MutationCtx, name: str, beds: int = 2, kind: Literal["single", "double"] = "double") -> Id[Room]:
    """Add a room."""
    return await ctx.db.insert(Room(name=name, beds=beds, kind=kind))


@app.query
async def rooms(ctx: QueryCtx, name: str) -> list[Room]:
    return await ctx.db.query(Room).with_index(Room.by_name, name=name).take(10)


async def call_a_function(page: Page, url: str, test: TestApp) -> None:
    """Call the mutation with its form: first wrongly."""
    await page.goto(f"{url}/dashboard/functions")
    await check(page)
    await page.get_by_role("link", name=add.name).click()
    await page.get_by_label("name").fill(HOSTILE)
    await page.get_by_label("beds").fill("1.5")
    await page.get_by_label("kind").select_option("single")
    await page.get_by_role("button", name="Run the mutation").click()
    await expect(page.get_by_label("beds")).to_have_attribute("aria-invalid", "true")
    await check(page)
    await page.get_by_label("beds").fill("3")
    await page.get_by_role("button", name="Run the mutation").click()
    await expect(page.get_by_label("Result")).to_contain_text("room_of_pages_")


async def edit_a_row(page: Page, url: str, test: TestApp) -> None:
    """Find the row with a filter, and edit it: first wrongly."""
    await page.goto(f"{url}/dashboard/data")
    await expect(page.get_by_text("live", exact=True)).to_be_visible()
    await check(page)
    await page.get_by_role("link", name="room_of_pages").click()
    await page.get_by_label("and column").select_option("beds")
    await page.locator("select[name=operator]").select_option(">=")
    await page.get_by_label("Value").fill("3")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.get_by_text("live", exact=True)).to_be_visible()
    rows = page.locator("[data-live=rows] tbody tr")
    await expect(rows).to_have_count(1)
    for beds in (2, 4):
        await test.run_mutation(add, "other", beds)
    await expect(rows).to_have_count(2)  # it came by itself
    await check(page)
    assert "hidden-word" not in await page.content()

    await rows.last.get_by_role("link").click()
    await expect(page.get_by_text("live", exact=True)).to_be_visible()
    await page.get_by_role("textbox", name="extras").fill("[")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("This is no JSON")).to_be_visible()
    await check(page)
    await page.get_by_role("textbox", name="extras").fill('["sea view"]')
    await page.get_by_label("beds").fill("5")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("The row is changed.")).to_be_visible()
    (room,) = await test.run_query(rooms, HOSTILE)
    assert (room.beds, room.extras, room.password) == (5, ["sea view"], "hidden-word")


async def test_a_person_calls_a_function_and_edits_a_row(database_url: str) -> None:
    async with (
        TestApp(app, database_url, dev=True) as test,
        listening(asgi_app(app, backend=test, dashboard=True)) as url,
        browser() as opened,
        quiet_page(opened) as page,
        aclosing(test.live(rooms, HOSTILE)) as watched,
    ):
        await page.context.add_init_script(path=axe())
        await anext(watched)
        await call_a_function(page, url, test)
        await edit_a_row(page, url, test)
        await page.goto(f"{url}/dashboard/data/room_of_pages/new")
        await check(page)
        await page.goto(f"{url}/dashboard/live")
        await expect(page.locator("[data-live=queries] tbody")).to_contain_text(rooms.name)
        left = page.locator("[data-live=queries] tbody tr", has_text="penstock.dashboard:rows").first
        await expect(left).to_contain_text("kept")  # the table is watched only while somebody looks at it
        await page.locator("[data-live=queries] summary").first.click()
        await check(page)
