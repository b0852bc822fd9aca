"""The demos in Chromium: what their users do and see, in two windows, after a reload and after a restart."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from playwright.async_api import Browser, Locator, Page, expect
from stage.clients import DemoServer, browser, quiet_page, serving
from stage.sockets import listening
from stage.waits import until
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from penstock.clock import SystemClock

pytestmark = pytest.mark.long


class Demo:
    """A demo on a server, and two visitors who have it open.

    Attributes:
        server: The server, which may be killed and started again.
        ada: A page of the first visitor.
        bob: A page of the second one, which is of another origin than the functions that it calls.
    """

    def __init__(self, server: DemoServer, opened: Browser, pages: AsyncExitStack) -> None:
        self.server = server
        self._opened = opened
        self._pages = pages

    async def visit(self, url: str) -> Page:
        page = await self._pages.enter_async_context(quiet_page(self._opened))
        await page.goto(url)
        return page

    async def open(self) -> None:
        self.ada, self.bob = await self.visit(self.server.url), await self.visit(self.server.elsewhere)

    async def restart(self) -> None:
        await self.server.kill()
        await self.server.start()


@asynccontextmanager
async def demo(name: str, database: str, files: Path, **given: str) -> AsyncIterator[Demo]:
    async with (
        serving(database, DemoServer, demo=name, files=str(files), **given) as server,
        browser() as opened,
        AsyncExitStack() as pages,
    ):
        assert isinstance(server, DemoServer)
        made = Demo(server, opened, pages)
        await made.open()
        yield made


async def enter(page: Page, text: str, label: str = "Message") -> None:
    """Type a text and send it."""
    await page.get_by_label(label, exact=True).fill(text)
    await page.keyboard.press("Enter")


def messages(page: Page) -> Locator:
    """The texts of its messages."""
    return page.get_by_label("Messages").locator("li > span")


async def test_scheduling(database_url: str, tmp_path: Path) -> None:
    async with demo("scheduling", database_url, tmp_path) as one:
        await enter(one.ada, "stays")
        await expect(messages(one.bob)).to_have_text(["stays"])
        await enter(one.ada, "/expiring goes")
        for seconds in (5, 4, 3):
            await expect(messages(one.bob)).to_have_text(["stays", f"goes (gone in {seconds} s)"])
        await one.restart()
        await expect(messages(one.bob)).to_have_text(["stays"])
        await one.ada.reload()
        await expect(messages(one.ada)).to_have_text(["stays"])


async def test_webhooks(database_url: str, tmp_path: Path) -> None:
    async with demo("webhooks", database_url, tmp_path) as one, httpx.AsyncClient(base_url=one.server.url) as http:
        posted = await http.post("/postMessage", json={"author": "User 7", "body": "hello"})
        assert (posted.status_code, posted.content) == (200, b"")
        for page in (one.ada, one.bob):
            await expect(messages(page)).to_have_text(["Over HTTP: hello"])
        await enter(one.bob, "hello, curl")
        await expect(messages(one.ada)).to_have_count(2)
        number = (await one.bob.evaluate("sessionStorage.visitor")).removeprefix("User ")
        said = [{"author": f"User {number}", "body": "hello, curl"}]
        await one.restart()
        for asked in (f"/getMessagesByAuthor?authorNumber={number}", f"/getAuthorMessages/{number}"):
            assert (await http.get(asked)).json() == said
        assert (await http.get("/getMessagesByAuthor", headers={"authorNumber": number})).json() == said
        refused = await http.get("/getMessagesByAuthor")
        assert refused.status_code == 400
        await one.ada.reload()
        await expect(messages(one.ada)).to_have_text(["Over HTTP: hello", "hello, curl"])


async def test_search(database_url: str, tmp_path: Path) -> None:
    async with demo("search", database_url, tmp_path) as one:
        found = one.bob.get_by_label("Found").locator("li")
        await enter(one.ada, "the river is high")
        await one.bob.get_by_label("Search").fill("river hig")
        await expect(found).to_have_text(["the river is high"])
        await enter(one.ada, "another river")
        await expect(found).to_have_text(["the river is high", "another river"])
        await enter(one.ada, "no such word")
        await expect(messages(one.bob)).to_have_count(3)
        await expect(found).to_have_count(2)
        await one.restart()
        await one.bob.reload()
        await one.bob.get_by_label("Search").fill("anot")
        await expect(found).to_have_text(["another river"])


async def test_vectors(database_url: str, tmp_path: Path) -> None:
    foods = {"hot beans with rice": "mexican", "snails in butter": "french", "hot rice with butter": "indian"}
    async with demo("vectors", database_url, tmp_path) as one:
        for count, (food, cuisine) in enumerate(foods.items(), 1):
            await one.ada.get_by_label("Cuisine", exact=True).select_option(cuisine)
            await enter(one.ada, food, "Food")
            await expect(one.bob.get_by_label("Foods").locator("li")).to_have_count(count)
        found = one.bob.get_by_label("Found").locator("li")
        for _ in range(2):
            await enter(one.bob, "hot rice with beans", "Search")
            await expect(found).to_have_text(["hot beans with rice", "hot rice with butter", "snails in butter"])
            await one.restart()
            await one.bob.reload()
        await one.bob.get_by_label("this cuisine only").check()
        await enter(one.bob, "hot rice with beans", "Search")
        await expect(found).to_have_text(["snails in butter"])


async def test_pages(database_url: str, tmp_path: Path) -> None:
    async with demo("pages", database_url, tmp_path) as one:
        for number in range(7):
            await enter(one.ada, f"{number}")
            await expect(messages(one.bob).first).to_have_text(f"{number}")
        await one.bob.reload()
        more = one.bob.get_by_role("button", name="Load more")
        await expect(messages(one.bob)).to_have_text(["6", "5", "4", "3", "2"])
        await more.click()
        await expect(messages(one.bob)).to_have_text(["6", "5", "4", "3", "2", "1", "0"])
        await expect(more).to_be_disabled()
        await enter(one.ada, "7")
        await expect(messages(one.bob)).to_have_text(["7", "6", "5", "4", "3", "2", "1", "0"])
        await one.restart()
        await enter(one.bob, "from Bob")
        await expect(messages(one.ada).first).to_have_text("from Bob")
        await one.bob.get_by_label("List").select_option("mine")
        await expect(messages(one.bob)).to_have_text(["from Bob"])
        await one.bob.get_by_label("List").select_option("short")
        await expect(messages(one.bob)).to_have_text(["FROM BOB", "7", "6", "5", "4"])
        await more.click()
        await enter(one.ada, "8")
        await expect(messages(one.bob)).to_have_text(["8", "FROM BOB", "7", "6", "5", "4", "3", "2", "1", "0"])


async def test_channels(database_url: str, tmp_path: Path) -> None:
    async with demo("channels", database_url, tmp_path) as one:
        await enter(one.ada, "general", "Channel")
        await enter(one.ada, "hello")
        await one.bob.get_by_role("button", name="general").click()
        await expect(messages(one.bob)).to_have_text(["hello"])
        await enter(one.ada, "empty", "Channel")
        await expect(messages(one.ada)).to_have_count(0)
        await enter(one.bob, "only in general")
        await expect(messages(one.bob)).to_have_count(2)
        await one.restart()
        await one.ada.reload()
        await one.ada.get_by_role("button", name="empty").click()
        await enter(one.ada, "only in empty")
        await expect(messages(one.ada)).to_have_text(["only in empty"])
        await expect(messages(one.bob)).to_have_text(["hello", "only in general"])


PICTURE = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
DRAWN = "one => one.complete && one.naturalWidth"


@pytest.mark.parametrize("name", ["pictures", "pictures_by_http"])
async def test_pictures(database_url: str, tmp_path: Path, name: str) -> None:
    async with demo(name, database_url, tmp_path / "files") as one:
        await enter(one.ada, "look")
        for number, page in enumerate((one.bob, one.ada), 1):
            await send_picture(page)
            await see_pictures(one.ada, number)
            await see_pictures(one.bob, number)
        await one.restart()
        await one.bob.reload()
        url = await see_pictures(one.bob, 2)
        answer = await one.bob.request.get(urljoin(one.server.url, url))
        assert (await answer.body(), answer.headers["content-type"]) == (PICTURE, "image/gif")
        await expect(messages(one.bob)).to_have_text(["look", "", ""])


async def test_system(database_url: str, tmp_path: Path) -> None:
    async with demo("system", database_url, tmp_path) as one:
        scheduled, files = one.bob.get_by_label("Scheduled"), one.bob.get_by_label("Files")
        for text in ("/delay 3600 late", "/delay 3601 later"):
            await enter(one.ada, text)
            await expect(scheduled).to_contain_text(text.split()[-1])
        await one.restart()
        await one.bob.reload()
        await expect(scheduled.locator("li")).to_have_count(2)
        await scheduled.locator("li", has_text="later").get_by_role("button").click()
        await expect(one.ada.get_by_label("Scheduled").locator("li")).to_have_text([re.compile(": late at ")])
        await enter(one.ada, "/delay 0 now")
        await expect(messages(one.bob)).to_have_text(["now"])
        await send_picture(one.ada)
        await expect(files.locator("li")).to_contain_text([f": {len(PICTURE)} bytes of image/gif"])
        await until(lambda: files.get_by_role("img").evaluate(DRAWN))


async def send_picture(page: Page) -> None:
    await page.get_by_label("Picture").set_input_files({"name": "dot.gif", "mimeType": "image/gif", "buffer": PICTURE})
    await page.get_by_role("button", name="Send picture").click()


async def see_pictures(page: Page, count: int) -> str:
    """Wait until the page has drawn so many pictures; the URL from which the last one came."""
    pictures = page.get_by_alt_text("A picture")
    await expect(pictures).to_have_count(count)
    await until(lambda: pictures.last.evaluate(DRAWN))
    return await pictures.last.get_attribute("src") or ""


async def test_users(database_url: str, tmp_path: Path) -> None:
    async with demo("users", database_url, tmp_path) as one:
        for page, name in ((one.ada, "Ada"), (one.bob, "Bob")):
            await enter(page, name, "Your name")
            await expect(page.get_by_text(f"You are {name}.")).to_be_visible()
        await enter(one.ada, "hello")
        await expect(one.bob.get_by_label("Messages")).to_contain_text("Adahello")
        await one.ada.reload()
        await expect(one.ada.get_by_text("You are Ada.")).to_be_visible()
        await one.restart()
        await enter(one.bob, "hello, Ada")
        await expect(messages(one.ada)).to_have_text(["hello", "hello, Ada"])
        await one.ada.get_by_role("button", name="Sign out").click()
        await enter(one.ada, "ADA", "Your name")
        await expect(one.bob.get_by_label("Messages")).to_contain_text("ADAhello")
        async with httpx.AsyncClient(base_url=one.server.url) as http:
            call = {"path": "messages:send", "args": {"body": "by nobody"}, "format": "json"}
            refused = await http.post("/api/mutation", json=call)
            assert refused.json()["errorData"]["code"] == "NotSignedIn"
        await expect(messages(one.bob)).to_have_count(2)


async def test_presence(database_url: str, tmp_path: Path) -> None:
    async with demo("presence", database_url, tmp_path) as one:
        others = one.bob.get_by_label("Others").locator("span")
        await expect(others).to_have_text(["🐸"])
        await one.ada.get_by_label("Face").select_option("🦊")
        await expect(others).to_have_text(["🦊"])
        await one.restart()
        await one.ada.get_by_label("Face").select_option("🐼")
        await expect(others).to_have_text(["🐼"])
        await expect(others).to_have_class(["here"])
        await one.ada.close()
        await one.bob.clock.install(time=SystemClock().now() + timedelta(seconds=11))
        await one.bob.reload()
        await expect(others).to_have_class(["away"])


class Model:
    """A language model that says a word whenever the test lets it.

    Attributes:
        asked: The conversations that it was asked to go on with.
    """

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self._words: list[asyncio.Queue[str]] = []
        self.app = Starlette(routes=[Route("/", self._answer, methods=["POST"])])

    def say(self, *words: str) -> None:
        """Let the answer that it gives have these words; the empty one ends it."""
        for word in words:
            self._words[-1].put_nowait(word)

    async def _answer(self, request: Request) -> StreamingResponse:
        self.asked.append(await request.json())
        self._words.append(asyncio.Queue())
        return StreamingResponse(self._speak(self._words[-1]), media_type="text/plain")

    async def _speak(self, words: asyncio.Queue[str]) -> AsyncIterator[str]:
        while word := await words.get():
            yield f"{word} "


async def test_assistant(database_url: str, tmp_path: Path) -> None:
    model = Model()
    async with (
        listening(model.app) as url,
        demo("assistant", database_url, tmp_path, model=url, lease="2") as one,
    ):
        answers = one.bob.locator("section p")
        await enter(one.ada, "Why?", "Question")
        await until(lambda: model.asked == [["Why?", ""]])
        model.say("Because")
        for page in (one.ada, one.bob):
            await expect(page.locator("section p")).to_have_text("Because ")
        cleo = await one.visit(one.server.elsewhere)
        await expect(cleo.locator("section p")).to_have_text("Because ")
        await one.ada.close()
        await until(lambda: len(model.asked) == 2)
        model.say("it")
        await expect(answers).to_have_text("Because it ")
        await one.restart()
        await until(lambda: len(model.asked) == 3)
        assert model.asked[1:] == [["Why?", "Because "], ["Why?", "Because it "]], "a job goes on, and is retried"
        model.say("is.", "")
        await expect(one.bob.locator("section p.done")).to_have_text("Because it is. ")
        await enter(one.bob, "Really?", "Question")
        await until(lambda: len(model.asked) == 4)
        model.say("Yes.", "")
        for page in (one.bob, cleo):
            await expect(page.locator("section p")).to_have_text(["Because it is. ", "Yes. "])
        await one.bob.get_by_role("button", name="Clear").click()
        await expect(cleo.locator("section")).to_have_count(0)
