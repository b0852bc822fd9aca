"""The pages of files in Chromium: all readers can use them, pictures are shown, and a file is deleted."""

from __future__ import annotations

import base64

import pytest
from playwright.async_api import expect
from programs.album import Message, app, send_image
from stage.clients import HOSTILE, axe, browser, check, quiet_page
from stage.sockets import listening

from penstock import asgi_app
from penstock.testing import TestApp

pytestmark = pytest.mark.long
DOT = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")


async def test_a_person_looks_at_files_and_deletes_one(database_url: str) -> None:
    async with (
        TestApp(app, database_url, dev=True) as test,
        listening(asgi_app(app, backend=test, dashboard=True)) as server,
        browser() as opened,
        quiet_page(opened) as page,
    ):
        url = f"{server.replace('127.0.0.1', 'localhost')}/dashboard"
        await page.context.add_init_script(path=axe())
        picture = await test.storage.store(DOT, content_type="image/gif")
        script = await test.storage.store(HOSTILE.encode(), content_type="text/html")
        for file in (picture, script):
            await test.run_mutation(send_image, file, HOSTILE)
        await page.goto(f"{url}/files")
        await expect(page.get_by_text("live", exact=True)).to_be_visible()
        await check(page)
        await page.get_by_role("link", name=script).click()
        await check(page)
        await expect(page.get_by_role("link", name="Open")).to_have_count(0)
        await page.goto(f"{url}/files?type=gif")
        await page.get_by_role("link", name=picture).click()
        await expect(page.get_by_role("img", name="The file as a picture")).to_have_js_property("naturalWidth", 1)
        await check(page)
        await expect(page.get_by_role("link", name=Message.__declared__.sql_name)).to_have_count(1)
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_role("button", name="Yes, do it").click()
        await expect(page.get_by_text("The file is deleted.")).to_be_visible()
        await check(page)
        assert [one.id for one in await test.storage.list()] == [script]
