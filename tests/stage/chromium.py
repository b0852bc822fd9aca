"""Pages in Chromium, which is skipped where it is not installed; their consoles must stay empty."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright
from stage.clients import COMPILERS, node_modules
from stage.needs import program


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Chromium, without a window."""
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
    page = await context.new_page()
    errors: list[str] = []
    page.on("console", lambda line: errors.append(line.text) if line.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert [line for line in errors if not line.startswith("WebSocket connection to")] == []
    await context.close()


def axe() -> Path:
    """The script that finds what readers of some kinds cannot use; add it to a page before `usable`."""
    return node_modules(COMPILERS) / "node_modules" / "axe-core" / "axe.min.js"


async def usable(page: Page) -> None:
    """Everybody can use the page as it is now, by day and by night, and no text of a user has become part of it."""
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found: list[Any] = (await page.evaluate("axe.run()"))["violations"]
        assert not [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found]
    for width in (390, 768, 1280):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
    assert "penstock" in await page.title()
