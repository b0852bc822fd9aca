"""Pages in Chromium: their consoles stay empty, all can use them, and no text of a user becomes a part of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright, expect
from stage.clients import COMPILERS, node_modules
from stage.needs import program
from stage.waits import SOON

expect.set_options(timeout=SOON * 1000)


_AWAY = ("WebSocket connection to", "Failed to load resource: net::ERR_")  # the server, for a moment


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    path = program("chromium")
    node_modules()
    async with async_playwright() as play:
        opened = await play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            await opened.close()


@asynccontextmanager
async def quiet_page(opened: Browser, **how: Any) -> AsyncIterator[Page]:
    """A page of somebody who has no other; it must log no errors, beside those of the browser itself."""
    context = await opened.new_context(**how)
    context.set_default_timeout(SOON * 1000)
    page = await context.new_page()
    errors: list[str] = []
    page.on("console", lambda line: errors.append(line.text) if line.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    own = [line for line in errors if not line.startswith(_AWAY)]
    assert not own, own  # pytest tells nothing of an assertion here
    await context.close()


HOSTILE = (
    """"><img src=x onerror="document.title='taken'"><script>document.title='taken'</script>' onfocus=alert() {{7}}"""
)


def axe() -> Path:
    """The script that finds what readers of some kinds cannot use; add it to a page before `check`."""
    return node_modules(COMPILERS) / "node_modules" / "axe-core" / "axe.min.js"


async def check(page: Page) -> None:
    """Everybody can use the page as it is now, by day and by night, and no text of a user has become part of it."""
    await page.wait_for_load_state()  # a click waits for the first byte of a page only
    asked = {"resultTypes": ["violations"]}  # it takes long to describe all that is right
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found: list[Any] = (await page.evaluate("asked => axe.run(asked)", asked))["violations"]
        told = [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found]
        assert not told, told  # pytest tells nothing of an assertion here
    for width in (390, 768, 1280):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
    assert "penstock" in await page.title()
