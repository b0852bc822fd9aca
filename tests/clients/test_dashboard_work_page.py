"""The pages about work, data and one call in Chromium: all readers can use them, and acts ask first."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlencode

import pytest
from playwright.async_api import expect
from programs.everynoun import app, failing, mail, put, send, texts
from stage.clients import axe, browser, check, quiet_page
from stage.sockets import listening

from penstock import asgi_app
from penstock.testing import TestApp

pytestmark = pytest.mark.long

HOSTILE = """<img src=x onerror="document.title='taken'">' {{7}} & more"""


async def test_a_person_looks_after_work_tasks_outboxes_and_crons(database_url: str) -> None:
    failing.clear()
    failing.add(HOSTILE)
    async with (
        TestApp(app, database_url, dev=True) as test,
        listening(asgi_app(app, backend=test, dashboard=True)) as server,
        browser() as opened,
        quiet_page(opened) as page,
    ):
        url = f"{server.replace('127.0.0.1', 'localhost')}/dashboard"
        await page.context.add_init_script(path=axe())
        await mail.enqueue(test, send, to=HOSTILE)
        (key,) = await test.run_mutation(put, [HOSTILE])
        await test.run_until_idle(raise_errors=False)
        for _ in range(2):
            test.clock.advance(timedelta(seconds=2))
            await test.relay.drain()
        for _ in range(3):
            await texts.with_options(concurrency_key=HOSTILE).enqueue(test, send, to="Ada")
        words = urlencode({"task": "ship", "key": key})
        paths = ("/work?pool=texts", "/tasks", "/tasks/task?task=ship", f"/tasks/row?{words}", "/outboxes", "/crons")
        about = ("/schema", "/health", "/logs", "/data", "/data/parcel_of_yard", "/live")
        for path in (*paths, "/crons/cron?cron=remind", *about):
            await page.goto(f"{url}{path}")
            await expect(page.get_by_text("live", exact=True)).to_be_visible()
            await check(page)
        for path in (f"/timeline?{urlencode({'of': key})}", "/data/parcel_of_yard/new", f"/functions/{put.name}"):
            await page.goto(f"{url}{path}")
            await check(page)

        await page.goto(f"{url}/data/parcel_of_yard/row?{urlencode({'key': key})}")
        await page.get_by_label("weight").fill("5")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("The row is changed.")).to_be_visible()
        await check(page)
        assert "hush-hush" not in await page.content()

        await page.goto(f"{url}/work?state=failed&pool=mail")
        await page.get_by_role("button", name="Retry those that match").click()
        await expect(page.get_by_role("heading", name="Retry 1 job?")).to_be_visible()
        await page.get_by_role("button", name="Yes, do it").click()
        await expect(page.get_by_text("1 job retried.")).to_be_visible()
        assert page.url.endswith("/work?state=failed&pool=mail")

        await page.goto(f"{url}/")
        await page.get_by_role("link", name="Outbox ledger is halted").click()
        await page.get_by_text("3 attempts, the first one").click()
        await check(page)
        assert "hush-hush" not in await page.content()
        reason = page.get_by_role("textbox", name="Reason to skip")
        await reason.fill("by hand")
        await mail.enqueue(test, send, to="Ada")
        failing.clear()
        await page.get_by_role("button", name="Skip", exact=False).click()
        await page.get_by_role("button", name="Yes, do it").click()
        await expect(page.get_by_text("is skipped.")).to_be_visible()
        await test.relay.drain()
        await expect(page.get_by_text("None.", exact=True)).to_be_visible()  # it came by itself
