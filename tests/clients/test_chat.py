"""The chat of the examples, in a browser and in scripts, as its users have it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import chat
import pytest
from playwright.async_api import Browser, Page, expect
from stage.chromium import browser, quiet_page
from stage.clients import CHAT, ChatServer, Server, client, serving
from stage.needs import program
from stage.sockets import Wire

pytestmark = pytest.mark.long


PHONE = {"width": 360, "height": 640}
# Counts the messages that are drawn, each time that something is drawn.
COUNT = """
() => {
  window.counts = [];
  const count = () => window.counts.push(document.querySelectorAll(".message").length);
  new MutationObserver(count).observe(document.body, { childList: true, subtree: true });
}
"""


@asynccontextmanager
async def visitor(opened: Browser, url: str, name: str, **how: Any) -> AsyncIterator[Page]:
    """A page of the chat."""
    async with quiet_page(opened, **how) as page:
        await page.add_init_script(f"localStorage.author ??= {json.dumps(name)}")
        await page.goto(url)
        yield page


@asynccontextmanager
async def ada(database: str, **how: Any) -> AsyncIterator[tuple[Server, Wire, Page]]:
    """The page of one visitor, over a wire."""
    async with (
        serving(database, ChatServer) as server,
        Wire(server.port).running() as wire,
        browser() as opened,
        visitor(opened, wire.url, "Ada", **how) as page,
    ):
        yield server, wire, page


async def write(page: Page, text: str) -> None:
    """Type a message and send it."""
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def texts(page: Page) -> list[str]:
    """The messages that a page shows, the newest first."""
    return await page.locator(".message .text").all_inner_texts()


async def put(database: str, count: int, first: int = 0) -> None:
    """Write messages by a program of one's own."""
    async with chat.app.open(database) as backend:
        for number in range(first, first + count):
            await backend.run_mutation(chat.send, channel="general", author="Eve", text=f"message {number}")


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


async def test_scrolling_back_shows_every_message_once(database_url: str) -> None:
    await put(database_url, 100)
    async with ada(database_url, viewport=PHONE) as (_, _, page):
        await expect(page.locator(".message").first).to_contain_text("message 99")
        assert await page.locator(".message").count() < 100
        await page.get_by_role("log").focus()
        numbers = itertools.count(100)
        while "message 0" not in await texts(page):
            await put(database_url, 1, first=next(numbers))
            await page.locator(".messages .hint").scroll_into_view_if_needed()
        await expect(page.get_by_text("The beginning of the channel.")).to_be_visible()
        found = [int(text.removeprefix("message ")) for text in await texts(page)]
        assert found[-100:] == list(range(99, -1, -1))
        assert len(found) == len(set(found)) > 100


async def test_a_message_is_shown_at_once_and_never_taken_away(database_url: str) -> None:
    await put(database_url, 3)
    async with ada(database_url) as (_, wire, page):
        await expect(page.locator(".message")).to_have_count(3)
        await page.evaluate(COUNT)
        wire.flowing.clear()
        await write(page, "one")
        await write(page, "two")
        await expect(page.locator(".message.pending")).to_have_count(2)
        assert (await texts(page))[:2] == ["two", "one"]
        wire.flowing.set()
        await expect(page.locator(".message.pending")).to_have_count(0)
        assert (await texts(page))[:2] == ["two", "one"]
        counts = await page.evaluate("window.counts")
        assert counts == sorted(counts)
        assert counts[-1] == 5


async def test_a_page_that_was_cut_off_catches_up_and_sends_once(database_url: str) -> None:
    await put(database_url, 1)
    async with ada(database_url) as (server, wire, page):
        await expect(page.get_by_role("status")).to_have_text("live")
        wire.refuses = True
        wire.cut()
        await expect(page.get_by_role("status")).to_have_text("connecting")
        await write(page, "from afar")
        await put(database_url, 1, first=1)
        await server.kill()
        await server.start()
        wire.refuses = False
        await expect(page.get_by_role("status")).to_have_text("live")
        await expect(page.locator(".message")).to_have_count(3)
        assert (await texts(page)).count("from afar") == 1
