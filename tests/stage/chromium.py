"""Pages in Chromium, which is skipped where it is not installed; their consoles must stay empty."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, Page, async_playwright, expect
from stage.clients import node_modules
from stage.needs import program
from stage.waits import SOON

expect.set_options(timeout=SOON * 1000)


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
    context.set_default_timeout(SOON * 1000)
    page = await context.new_page()
    errors: list[str] = []
    page.on("console", lambda line: errors.append(line.text) if line.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert [line for line in errors if not line.startswith("WebSocket connection to")] == []
    await context.close()
