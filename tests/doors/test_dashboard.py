"""The dashboard without a browser: who may see and do what, which headers its answers have, and what is sent live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, Self

import httpx
import pytest
from pydantic_core import from_json
from stage.waits import SOON

from penstock import ActionCtx, App, ConfigError, asgi_app
from penstock.dashboard.mask import mask
from penstock.identity.api_key import PREFIX, hash_of
from penstock.schema.encoder import MASKED
from penstock.testing import TestApp

ADMIN = "the-admin-token"
HERE = "http://localhost"


class Board:
    """An app with a dashboard, and a browser that has not signed in."""

    def __init__(self) -> None:
        self.app = App()
        self.mail = self.app.workpool("mail", max_parallelism=3)
        self.test: TestApp
        self.asgi: Any

        @self.app.action
        async def send(ctx: ActionCtx, to: str, token: str = "hidden") -> str:
            if to == "nobody":
                raise ValueError("<script>nobody</script>")
            return f"sent to {to}"

        self.send = send

    def browser(self, address: str = HERE, client: str = "192.0.2.7", **headers: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.asgi, client=(client, 4711))
        return httpx.AsyncClient(transport=transport, base_url=f"{address}/dashboard", headers=headers)

    async def signed_in(self, scope: str | None = None) -> httpx.AsyncClient:
        """A browser of somebody with a key with one scope, or with the admin token."""
        token = ADMIN
        if scope is not None:
            token = f"{PREFIX}{scope}"
            now = self.test.clock.now()
            await self.test.engine.store.api_keys.create(scope, hash_of(token), [scope], now, None)
        browser = self.browser(origin=HERE)
        answer = await browser.post("/sign-in", data={"token": token}, params={"next": "/work"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/work")
        return browser


class Stream:
    """The events of a page, as a browser on this machine reads them."""

    def __init__(self, asgi: Any, path: str) -> None:
        headers = [(b"accept", b"text/event-stream"), (b"host", b"localhost")]
        self._scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "client": ("127.0.0.1", 1), "scheme": "http", "server": ("localhost", 80),
            "root_path": "", "http_version": "1.1",
        }  # fmt: skip
        self._asgi, self._left = asgi, asyncio.Event()
        self._sent: asyncio.Queue[bytes] = asyncio.Queue()

    async def next(self) -> dict[str, str]:
        """The fragments of the next event."""
        while not (text := await asyncio.wait_for(self._sent.get(), SOON)).startswith(b"data: "):
            pass
        found: dict[str, str] = from_json(text.removeprefix(b"data: "))
        return found

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._asgi(self._scope, self._receive, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        await self._serving

    async def _receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self._sent.put_nowait(message.get("body", b""))


@asynccontextmanager
async def board(database: str | None = None, *, dev: bool = False) -> AsyncIterator[Board]:
    one = Board()
    async with TestApp(one.app, database, admin_token=ADMIN, dev=dev) as test:
        one.test, one.asgi = test, asgi_app(one.app, backend=test, dashboard=True)
        yield one


async def test_there_is_none_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    async with (
        TestApp(app) as test,
        httpx.AsyncClient(transport=httpx.ASGITransport(asgi_app(app, backend=test)), base_url=HERE) as http,
    ):
        assert (await http.get("/dashboard/")).status_code == 404

        def missing(name: str) -> Any:
            raise ModuleNotFoundError(name="jinja2")

        monkeypatch.setattr("penstock.server.asgi.importlib.import_module", missing)
        with pytest.raises(ConfigError, match=r"penstock-backend\[dashboard\]"):
            asgi_app(app, backend=test, dashboard=True)


async def test_who_has_not_signed_in_sees_the_form_only() -> None:
    async with board() as one, one.browser() as browser:
        answer = await browser.get("/?pool=mail")
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in?next=%2F%3Fpool%3Dmail")
        assert (await browser.get("/", headers={"accept": "text/event-stream"})).status_code == 401
        assert (await browser.post("/", data={"act": "pause"})).status_code == 401
        form = await browser.get(answer.headers["location"].removeprefix("/dashboard"))
        policy = form.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert (form.headers["x-content-type-options"], form.headers["cache-control"]) == ("nosniff", "no-store")
        for origin in ({}, {"origin": "http://evil.test"}, {"origin": "null"}):
            assert (await browser.post("/sign-in", data={"token": ADMIN}, headers=origin)).status_code == 403
        own = {"origin": HERE}
        for token in ("", "wrong", "<b>" * 9, f"{PREFIX}unknown"):
            refused = await browser.post("/sign-in", data={"token": token}, headers=own)
            assert refused.status_code == 403
            assert "<b>" not in refused.text
            assert ("neither the admin token, nor an API key" in refused.text) != token.startswith(PREFIX)
        assert not browser.cookies


async def test_a_session_is_a_strict_cookie_and_ends_with_its_key() -> None:
    async with board() as one, aclosing(await one.signed_in("dashboard:look")) as browser:
        assert (await browser.get("/")).status_code == 200
        await one.test.engine.store.api_keys.revoke("dashboard:look")
        one.test.clock.advance(timedelta(seconds=3))
        assert (await browser.get("/")).status_code == 303
        async with one.browser("https://board.test", origin="https://board.test") as other:
            answer = await other.post("/sign-in", data={"token": ADMIN}, params={"next": "//evil.test"})
            assert answer.headers["location"].startswith("/dashboard/")
            words = answer.headers["set-cookie"].lower()
            assert all(word in words for word in ("httponly", "samesite=strict", "secure", "path=/dashboard"))
            assert (await other.post("/sign-out")).status_code == 303
            assert (await other.get("/")).status_code == 303


async def test_in_development_only_a_browser_on_this_machine_need_not_sign_in() -> None:
    async with board(dev=True) as one:
        for address, client, headers, status in (
            (HERE, "127.0.0.1", {}, 200),
            ("http://[::1]:8000", "::1", {}, 200),
            (HERE, "::ffff:127.0.0.1", {}, 200),
            (HERE, "2002:7f00:1::7", {}, 303),  # 127.0.0.1 behind a tunnel, and behind a translator
            (HERE, "64:ff9b::7f00:1", {}, 303),
            ("http://rebound.test", "127.0.0.1", {}, 303),
            (HERE, "192.0.2.7", {}, 303),
            (HERE, "127.0.0.1", {"x-forwarded-for": "192.0.2.7"}, 303),
        ):
            async with one.browser(address, client, **headers) as browser:
                assert (await browser.get("/")).status_code == status, (address, client)


async def test_a_path_without_a_page_leads_to_those_that_there_are() -> None:
    for dev, status in ((True, 307), (False, 404)):
        async with board(dev=dev) as one, one.browser() as browser:
            first = await browser.get(f"{HERE}/")
            assert (first.status_code, first.headers.get("location")) == (status, "/dashboard/" if dev else None)
            lost = await browser.get("/nothing/here")
            assert lost.status_code == 404
            assert "There is no such page." in lost.text
            assert 'href="/dashboard/"' in lost.text


async def test_what_changes_is_sent_once_it_has_changed(database_url: str) -> None:
    async with board(database_url, dev=True) as one:
        async with Stream(one.asgi, "/dashboard/") as live:
            assert set(await live.next()) == {"figures", "needs", "charts", "pools", "workers"}
            await one.mail.enqueue(one.test, one.send, to="Ada")
            found = await live.next()
            assert "<b>1</b><small>may start now" in found["figures"]
            assert "workers" not in found
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "penstock-dashboard" and not task.done()]


def test_secrets_are_hidden_by_their_names() -> None:
    given = {
        "to": "Ada",
        "apiKey": 1,
        "access_token": "x",
        "PRIVATE_KEYS": ["x"],
        "key": "row-7",
        "nested": [{"PASSWORDS": ["y"], "monkey": "z"}],
        "pin": None,
    }
    hidden = {"to": "Ada", "apiKey": MASKED, "access_token": MASKED, "PRIVATE_KEYS": MASKED, "key": "row-7"}
    assert mask(given) == {**hidden, "nested": [{"PASSWORDS": MASKED, "monkey": "z"}], "pin": None}
    assert mask({"IBAN": "x"}, {"iban"}) == {"IBAN": MASKED}
