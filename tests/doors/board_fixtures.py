"""The dashboard as tests use it without a browser: its pages as texts, its links and its forms."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx

from penstock import App, asgi_app
from penstock.identity.api_key import PREFIX, hash_of
from penstock.testing import TestApp

ADMIN = "the-admin-token"
HERE = "http://localhost"


class Board:
    """The dashboard of a program, and a browser on the server's machine."""

    def __init__(self, test: TestApp) -> None:
        self.test = test
        self.asgi = asgi_app(test.app, backend=test, dashboard=True)
        self.here = self.browser(client="127.0.0.1", origin=HERE)

    def browser(self, address: str = HERE, client: str = "192.0.2.7", **headers: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.asgi, client=(client, 4711))
        return httpx.AsyncClient(transport=transport, base_url=f"{address}/dashboard", headers=headers)

    async def signed_in(self, scope: str | None = None) -> httpx.AsyncClient:
        """A browser of somebody with a key with one scope, or with the admin token."""
        token, now = ADMIN if scope is None else f"{PREFIX}{scope}", self.test.clock.now()
        if scope is not None:
            await self.test.engine.store.api_keys.create(scope, hash_of(token), [scope], now, None)
        browser = self.browser(origin=HERE)
        answer = await browser.post("/sign-in", data={"token": token}, params={"next": "/work"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/work")
        return browser

    async def see(self, path: str, status: int = 200) -> str:
        """A page with its tags, and characters as its reader sees them."""
        answer = await self.here.get(path)
        assert answer.status_code == status, answer.text
        return unescape(answer.text)

    async def get(self, path: str, status: int = 200, /, **words: Any) -> str:
        """The text of a page, without tags."""
        answer = await self.here.get(path, params=words or None)
        assert answer.status_code == status, answer.text
        return text_of(answer)

    async def links(self, path: str) -> set[str]:
        """The pages to which a page leads."""
        answer = await self.here.get(path)
        assert answer.status_code == 200, path
        links = {unescape(link).partition("#")[0] for link in re.findall(r'href="([^"]*)"', answer.text)}
        whole = {path.partition("?")[0] + link if link.startswith("?") else link for link in links}
        return {link.removeprefix("/dashboard") for link in whole if "/static/" not in link and link}

    async def act(self, path: str, name: str, words: dict[str, str] | None = None, **form: Any) -> str:
        """Send a form; what is told then, or what is asked before."""
        answer = await self.answer(path, name, words, **form)
        if answer.status_code == 303:
            answer = await self.here.get(answer.headers["location"].removeprefix("/dashboard"))
        found = re.search(r'class="said" role="status">(.*?)<|<h1>(.*?)<|role="alert">(.*?)<', answer.text)
        assert found is not None
        return unescape(next(filter(None, found.groups())))

    async def answer(self, path: str, name: str, words: dict[str, str] | None = None, **form: Any) -> httpx.Response:
        return await self.here.post(path, params=words, data={"act": name, **form})

    async def ask(self, path: str, name: str, words: dict[str, str]) -> str:
        """The text of the page that asks before something is done."""
        return text_of(await self.answer(path, name, words))

    async def send(self, path: str, /, **form: Any) -> httpx.Response:
        """The answer to a form; two underscores in a name stand for a point."""
        return await self.here.post(path, data={name.replace("__", "."): str(value) for name, value in form.items()})


@asynccontextmanager
async def board(app: App, database: str | None = None, *, dev: bool = True, **settings: Any) -> AsyncIterator[Board]:
    async with TestApp(app, database, admin_token=ADMIN, dev=dev, **settings) as test:
        yield Board(test)


def text_of(page: httpx.Response) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.text)).split())
