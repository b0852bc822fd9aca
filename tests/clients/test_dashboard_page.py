"""The dashboard in Chromium: signing in, acts, live changes, hostile texts; readers of all kinds can use each page."""

from __future__ import annotations

import pytest
from playwright.async_api import expect
from stage.clients import HOSTILE, axe, browser, check, quiet_page
from stage.sockets import listening

from penstock import ActionCtx, App, JobFilter, asgi_app
from penstock.testing import TestApp

pytestmark = pytest.mark.long

ADMIN = "the-admin-token"

app = App()
mail = app.workpool("mail", max_parallelism=3)


@app.action
async def send(ctx: ActionCtx, to: str, token: str) -> dict[str, str]:
    if to != "Ada":
        raise ValueError(f"no mailbox {to}")
    return {"sent": to, "password": token}


async def test_a_person_signs_in_looks_and_acts(database_url: str) -> None:
    async with (
        TestApp(app, database_url, admin_token=ADMIN) as test,
        listening(asgi_app(app, backend=test, dashboard=True)) as url,
        browser() as opened,
        quiet_page(opened, timezone_id="Asia/Tokyo") as page,
    ):
        await page.context.add_init_script(path=axe())
        for to in ("Ada", HOSTILE):
            await mail.with_options(name=to).enqueue(test, send, to=to, token="hidden-token")
        await page.goto(f"{url}/dashboard/work?state=failed")
        await check(page)
        await page.get_by_label("API key").fill(ADMIN)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_text("No jobs match.")).to_be_visible()
        await expect(page.get_by_text("live", exact=True)).to_be_visible()

        await page.get_by_role("spinbutton", name="Limit of mail").fill("7")
        await page.evaluate("void (window.kept = document.activeElement)")
        await test.run_until_idle(raise_errors=False)
        await expect(page.get_by_text("no mailbox")).to_be_visible()  # it came by itself
        assert await page.evaluate("kept.isConnected && kept.value === '7' && document.activeElement === kept")
        await check(page)
        await page.get_by_role("button", name="Set the limit of mail").click()
        await expect(page.get_by_text("mail is limited to 7 jobs at once.")).to_be_visible()
        await page.get_by_role("button", name="Pause mail").click()
        await expect(page.get_by_role("button", name="Resume mail")).to_be_visible()
        (pool,) = await test.pools()
        assert (pool.max_parallelism, pool.paused) == (7, True)

        await page.locator("[data-live=jobs] tbody a").click()
        await expect(page.locator("[data-live=facts] time").first).to_contain_text("GMT+9")
        await check(page)
        shown = await page.content()
        assert "hidden-token" not in shown
        await page.get_by_role("button", name="Retry").click()
        await expect(page.get_by_text("It is retried.")).to_be_visible()
        await page.get_by_role("button", name="Cancel…").click()
        await check(page)
        await page.get_by_role("button", name="Yes, do it").click()
        await expect(page.get_by_text("Asked for it to be canceled.")).to_be_visible()
        await test.run_until_idle(raise_errors=False)
        (canceled,) = await test.jobs(where=JobFilter(state="canceled"))
        assert canceled.args["to"] == HOSTILE

        for name in ("Overview", "Audit"):
            await page.get_by_role("link", name=name, exact=True).click()
            await expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
            await check(page)
        acts = [(one.act, one.outcome) for one in await test.engine.store.audit.list(10)]
        assert acts[::-1] == [
            ("Jobs: limit", "mail is limited to 7 jobs at once."),
            ("Jobs: pause", "mail is paused. Running jobs continue."),
            ("Job: retry", "It is retried."),
            ("Job: cancel", "Asked for it to be canceled."),
        ]
