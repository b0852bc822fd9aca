"""A page in Chromium signs in, as a React program of Convex does: refresh, new keys, sign-out and expired sessions."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from stage.chromium import browser, quiet_page
from stage.clients import node_modules
from stage.household import House, house
from stage.waits import until
from starlette.responses import HTMLResponse

from penstock.clock import SystemClock
from penstock.testing import TestClock

pytestmark = pytest.mark.long

LIFETIME = timedelta(seconds=60)  # of a token; the client fetches the next one 10 seconds before its end
STEP = timedelta(seconds=2)
# Notes who the page says is signed in, and the papers, each time that something is drawn.
NOTE = """
  window.shown = [];
  const note = () => shown.push([...document.querySelectorAll("p, li")].map((one) => one.innerText).join(", "));
  new MutationObserver(note).observe(document, { childList: true, subtree: true, characterData: true });
"""


@cache
def html() -> str:
    """The page, built by esbuild with the packages of the chat."""
    source = (Path(__file__).parent / "signing_in.jsx").read_bytes()
    folder = node_modules()
    command = [str(folder / "node_modules" / ".bin" / "esbuild"), "--bundle", "--loader=jsx", "--jsx=automatic"]
    built = subprocess.run(command, input=source, cwd=folder, check=True, capture_output=True).stdout.decode()
    return f'<!doctype html><link rel="icon" href="data:,"><div id="page"></div><script>{built}</script>'


class Visit:
    """A page of a house, and the sessions of its users at the provider.

    Attributes:
        key: The key that signs the tokens.
        fetched: How many tokens the page has fetched.
        ended: Whether the provider gives out no more tokens.
    """

    def __init__(self, house: House, page: Page) -> None:
        self.house, self.page = house, page
        self.key, self.fetched, self.ended = "first", 0, False
        self.status = page.get_by_role("status")
        self.papers = page.get_by_role("listitem")

    def token(self, user: str) -> str | None:
        """A new token."""
        self.fetched += 1
        expires_at = self.house.issuer.clock.now() + LIFETIME
        more = {"jti": str(self.fetched)}  # another one in each token, as many providers have it
        return None if self.ended else self.house.issuer.token(user, key=self.key, exp=expires_at, **more)

    async def click(self, button: str) -> None:
        await self.page.get_by_role("button", name=button, exact=True).click()

    async def refreshes(self) -> None:
        """Let time go on until the page fetches a token."""
        fetched = self.fetched

        async def later() -> bool:
            self.house.test.clock.advance(STEP)
            await self.page.clock.fast_forward(STEP.seconds * 1000)
            return self.fetched > fetched

        await until(later)

    async def shown(self) -> list[str]:
        """What the page has shown since this was last asked."""
        found: list[str] = await self.page.evaluate("shown.splice(0)")
        return found


@asynccontextmanager
async def visit(database: str) -> AsyncIterator[Visit]:
    """A visit of a house."""
    clock = TestClock(SystemClock().now())
    async with house(database, clock) as one, browser() as opened, quiet_page(opened) as page:
        made = Visit(one, page)
        await page.clock.install(time=clock.now())
        await page.expose_function("issueToken", made.token)
        await page.add_init_script(NOTE)
        one.web.add_route("/", lambda _: HTMLResponse(html()))
        await page.goto(one.url)
        yield made


async def test_a_page_signs_in_refreshes_its_token_and_signs_out(database_url: str) -> None:
    async with visit(database_url) as ada:
        await expect(ada.status).to_have_text("signed out: nobody")
        await ada.click("Ada")
        await expect(ada.status).to_have_text("signed in: ada")
        await ada.click("Write")
        await expect(ada.papers).to_have_text(["a paper"])
        await ada.shown()
        runs = ada.house.runs
        ada.house.issuer.rotate("second")
        ada.key = "second"
        await ada.refreshes()
        ada.house.test.clock.advance(timedelta(seconds=20))  # beyond the end of the token before
        await ada.click("Write")
        await expect(ada.papers).to_have_count(2)
        assert await ada.shown() == ["signed in: ada, a paper, a paper"], "the new token draws nothing"
        assert (ada.house.runs, ada.fetched) == (runs + 1, 3), "and runs nothing; a client fetches two as it signs in"
        await ada.click("Sign out")
        await expect(ada.status).to_have_text("signed out: nobody")
        await expect(ada.papers).to_have_count(0)
        await ada.click("Bob")
        await expect(ada.status).to_have_text("signed in: bob")
        await ada.click("Write")
        await expect(ada.papers).to_have_text(["a paper"])


async def test_a_page_whose_token_has_expired_stays_signed_in_while_its_session_does(database_url: str) -> None:
    async with visit(database_url) as ada:
        await ada.click("Ada")
        await ada.click("Write")
        await expect(ada.papers).to_have_count(1)
        await ada.shown()
        ada.house.test.clock.advance(2 * LIFETIME)
        await ada.click("Write")
        await expect(ada.papers).to_have_count(2)
        assert await ada.shown() == ["signed in: ada, a paper, a paper"]
        await ada.page.reload()
        await expect(ada.papers).to_have_count(2)
        assert not [text for text in await ada.shown() if "signed out" in text or "nobody" in text]
        ada.ended = True
        ada.house.test.clock.advance(2 * LIFETIME)
        other = f"Bearer {ada.house.issuer.token('ada')}"
        await ada.house.call("mutation", "write", other, text="from elsewhere")
        await expect(ada.status).to_have_text("signed out: nobody")
        assert not [text for text in await ada.shown() if "elsewhere" in text]
        ada.ended = False
        await ada.click("Ada")
        await expect(ada.papers).to_have_text(["a paper", "a paper", "from elsewhere"])
