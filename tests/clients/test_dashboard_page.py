"""The dashboard in Chromium: signing in, acts, live changes, hostile texts; readers of all kinds can use each page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import expect
from stage.chromium import HOSTILE, axe, browser, check, quiet_page
from stage.identities import provider
from stage.sockets import listening
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from penstock import OIDC, ActionCtx, App, Index, JobFilter, MutationCtx, Table, WorkId, WorkResult, asgi_app
from penstock.testing import TestApp, TestClock

pytestmark = pytest.mark.long

ADMIN = "the-admin-token"

app = App()
mail = app.workpool("mail", max_parallelism=3)


class Letter(Table):
    to: str

    by_to = Index("to")


@app.action
async def send(ctx: ActionCtx, to: str, token: str) -> dict[str, str]:
    if to != "Ada":
        raise ValueError(f"no mailbox {to}")
    return {"sent": to, "password": token}


@app.internal_mutation
async def note(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    await ctx.db.insert(Letter(to=str(result)))


async def test_anybody_can_use_the_pages_about_one_call_and_about_the_database(database_url: str) -> None:
    async with (
        TestApp(app, database_url, dev=True) as test,
        listening(asgi_app(app, backend=test, dashboard=True)) as url,
        browser() as opened,
        quiet_page(opened, timezone_id="Asia/Tokyo") as page,
    ):
        await page.context.add_init_script(path=axe())
        job = await mail.with_options(name=HOSTILE, on_complete=note).enqueue(test, send, to=HOSTILE, token="x")
        await test.engine.store.leases.take(HOSTILE, timedelta(minutes=1), test.clock.now())
        await test.run_until_idle(raise_errors=False)
        await page.goto(f"{url}/dashboard/")
        for name in ("Schema", "Health", "Logs"):
            await page.get_by_role("link", name=name, exact=True).click()
            await expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
            await expect(page.get_by_text("live", exact=True)).to_be_visible()
            await check(page)
        await page.get_by_label("Job").fill(job)
        await page.get_by_role("button", name="Filter").click()
        await page.locator("[data-live=events] tbody a").first.click()
        await page.get_by_role("link", name="Timeline", exact=True).last.click()
        await expect(page.get_by_role("row", name="no mailbox")).to_be_visible()
        await check(page)
        await page.goto(f"{url}/dashboard/timeline")
        await page.set_viewport_size({"width": 390, "height": 900})
        await page.reload()
        await expect(page.get_by_role("link", name="Timeline", exact=True)).to_be_in_viewport()
        await check(page)
        await page.goto(f"{url}/dashboard/timeline?of={quote(HOSTILE)}")
        await expect(page.get_by_text("Nothing is known of it.")).to_be_visible()
        await check(page)


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
            ("Work: limit", "mail is limited to 7 jobs at once."),
            ("Work: pause", "mail is paused. Running jobs continue."),
            ("Job: retry", "It is retried."),
            ("Job: cancel", "Asked for it to be canceled."),
        ]


async def test_a_person_signs_in_at_a_provider_of_another_site(sqlite_url: str) -> None:
    clock = TestClock()
    with provider(clock) as issuer:
        issuer.visitor, issuer.asks = {"name": "Ada", "scopes": ["dashboard:look"]}, True
        guarded = App(auth=[OIDC(issuer.url, "shop", "board")])
        async with (
            TestApp(guarded, sqlite_url, clock=clock) as test,
            listening(asgi_app(guarded, backend=test, dashboard=True)) as near,
            browser() as opened,
            quiet_page(opened) as page,
        ):
            url = near.replace("127.0.0.1", "localhost")  # the provider is then of another site
            await page.context.add_init_script(path=axe())
            await page.goto(f"{url}/dashboard/work?state=failed")
            await check(page)
            await page.get_by_role("link", name="Sign in with 127.0.0.1").click()
            await page.get_by_role("link", name="Back").click()
            await expect(page.get_by_text("No jobs match.")).to_be_visible()
            assert page.url == f"{url}/dashboard/work?state=failed"
            await expect(page.get_by_text("live", exact=True)).to_be_visible()
            assert {one["name"] for one in await page.context.cookies()} == {"penstock_dashboard"}
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_role("link", name="Sign in with 127.0.0.1")).to_be_visible()


async def test_another_site_can_neither_frame_a_page_nor_send_its_forms(sqlite_url: str) -> None:
    async with (
        TestApp(app, sqlite_url, dev=True) as test,  # which asks nobody to sign in: the browser alone keeps others out
        listening(asgi_app(app, backend=test, dashboard=True)) as url,
        browser() as opened,
    ):
        evil = f"""
            <iframe src="{url}/dashboard/"></iframe>
            <form method="post" action="{url}/dashboard/work">
            <input name="act" value="pause"><input name="of" value="mail"><button>Win</button></form>
        """
        async with listening(Starlette(routes=[Route("/", HTMLResponse(evil))])) as elsewhere:
            page = await opened.new_page()
            async with page.expect_console_message(lambda line: "frame-ancestors" in line.text):
                await page.goto(elsewhere.replace("127.0.0.1", "localhost"))
            assert "Overview" not in await page.frames[1].content()
            async with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
                await page.get_by_role("button", name="Win").click()
            assert (await (await answered.value).text(), (await answered.value).status) == (
                "This form was not sent by a page of the dashboard.",
                403,
            )
            (pool,) = await test.pools()
            assert not pool.paused
