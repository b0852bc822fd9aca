"""Pages of the dashboard in a browser: texts that must never become a part of them, and who can use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.async_api import Page
from stage.clients import COMPILERS, node_modules

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
