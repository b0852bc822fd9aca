"""The chat of the examples, in a browser and in scripts, as its users have it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from stage.clients import CHAT, ChatServer, browser, client, quiet_page, serving
from stage.needs import program

pytestmark = pytest.mark.long


@asynccontextmanager
async def visitor(opened: Browser, url: str, name: str, **how: Any) -> AsyncIterator[Page]:
    """A page of the chat."""
    async with quiet_page(opened, **how) as page:
        await page.add_init_script(f"localStorage.author ??= {json.dumps(name)}")
        await page.goto(url)
        yield page


async def write(page: Page, text: str) -> None:
    """Type a message and send it."""
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def test_two_pages_and_two_scripts_talk(database_url: str) -> None:
    async with (
        serving(database_url, ChatServer) as server,
        browser() as opened,
        visitor(opened, server.url, "Ada") as ada,
        visitor(opened, server.url, "Bob") as bob,
        client("python", server.url) as python,
    ):
        await ada.get_by_label("New channel").fill("general")
        await ada.keyboard.press("Enter")
        await expect(bob.get_by_role("heading", name="#general")).to_be_visible()
        await write(ada, "hello, Bob")
        await expect(bob.locator(".message")).to_contain_text("hello, Bob")
        await expect(ada.locator(".message.own")).to_have_count(1)
        await write(bob, "hello, Ada")
        await python.mutation("chat:send", channel="general", author="Py", text="hello, both")
        for page in (ada, bob):
            await expect(page.locator(".message")).to_have_count(3)
            await expect(page.get_by_role("button", name="#general")).to_contain_text("3")
        said = await follow([sys.executable, "python/follow.py"], server.url, 3)
        assert said == ["Ada: hello, Bob", "Bob: hello, Ada", "Py: hello, both"]
        assert await follow([program("node", "nodejs"), "node/follow.mjs"], server.url, 4, send="from Node") == [
            *said,
            "node: from Node",
        ]
        await expect(ada.locator(".message")).to_have_count(4)


async def follow(command: list[str], url: str, count: int, send: str = "") -> list[str]:
    """The first lines that a script of the chat prints; it may be given one to send."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, cwd=CHAT, env=os.environ | {"PENSTOCK_URL": url}
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if send:
        process.stdin.write(f"{send}\n".encode())
    try:
        return [(await process.stdout.readline()).decode().strip() for _ in range(count)]
    finally:
        process.kill()
        await process.wait()
