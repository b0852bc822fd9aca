"""The dashboard without a browser: who may see and do what, signing in by redirect, and what is sent live."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from doors.board_fixtures import ADMIN, HERE, board
from programs.identities import Provider, provider
from pydantic_core import from_json
from stage.sockets import listening
from stage.waits import SOON, until

from penstock import OIDC, ActionCtx, App, ConfigError, asgi_app
from penstock.identity.api_key import PREFIX
from penstock.testing import TestApp, TestClock

app = App()
mail = app.workpool("mail", max_parallelism=3)


@app.action
async def send(ctx: ActionCtx, to: str) -> str:
    return f"sent to {to}"


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
    async with board(app, dev=False) as one, one.browser() as browser:
        answer = await browser.get("/?pool=mail")
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in?next=%2F%3Fpool%3Dmail")
        assert (await browser.get("/", headers={"accept": "text/event-stream"})).status_code == 401
        assert (await browser.post("/", data={"act": "pause"})).status_code == 401
        form = await browser.get(answer.headers["location"].removeprefix("/dashboard"))
        policy = form.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert (form.headers["x-content-type-options"], form.headers["cache-control"]) == ("nosniff", "no-store")
        for origin in ({}, {"origin": "http://evil.test"}, {"origin": "null"}):
            assert (await browser.post("/sign-in", data={"token": ADMIN}, headers=origin)).status_code == 403
        own = {"origin": HERE}
        for token in ("", "<b>" * 9, f"{PREFIX}unknown"):
            refused = await browser.post("/sign-in", data={"token": token}, headers=own)
            assert refused.status_code == 403
            assert "<b>" not in refused.text
            assert ("neither the admin token, nor an API key" in refused.text) != token.startswith(PREFIX)
        assert not browser.cookies


async def test_a_session_is_a_strict_cookie_and_ends_with_its_key() -> None:
    async with board(app, dev=False) as one, aclosing(await one.signed_in("dashboard:look")) as browser:
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
    async with board(app, dev=True) as one:
        for address, client, headers, status in (
            (HERE, "127.0.0.1", {}, 200),
            ("http://[::1]:8000", "::1", {}, 200),
            (HERE, "2002:7f00:1::7", {}, 303),  # 127.0.0.1 behind a tunnel, and behind a translator
            ("http://rebound.test", "127.0.0.1", {}, 303),
            (HERE, "192.0.2.7", {}, 303),
            (HERE, "127.0.0.1", {"x-forwarded-for": "192.0.2.7"}, 303),
        ):
            async with one.browser(address, client, **headers) as browser:
                assert (await browser.get("/")).status_code == status, (address, client)


async def test_a_path_without_a_page_leads_to_those_that_there_are() -> None:
    for dev, status in ((True, 307), (False, 404)):
        async with board(app, dev=dev) as one, one.browser() as browser:
            first = await browser.get(f"{HERE}/")
            assert (first.status_code, first.headers.get("location")) == (status, "/dashboard/" if dev else None)
            lost = await browser.get("/nothing/here")
            assert lost.status_code == 404
            assert "There is no such page." in lost.text
            assert 'href="/dashboard/"' in lost.text


async def test_what_changes_is_sent_once_it_has_changed(database_url: str) -> None:
    def pages() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks()} & {"penstock-dashboard"}

    async def nobody_looks() -> bool:
        return not pages()

    async with (
        board(app, database_url) as one,
        listening(one.asgi) as url,
        httpx.AsyncClient(base_url=url, timeout=SOON, headers={"accept": "text/event-stream"}) as http,
    ):
        async with http.stream("GET", "/dashboard/") as stream:
            lines = (line async for line in stream.aiter_lines() if line.startswith("data: "))
            first = from_json((await anext(lines)).removeprefix("data: "))
            assert set(first) == {"figures", "needs", "failing", "charts", "pools", "workers"}
            assert pages()
            await mail.enqueue(one.test, send, to="Ada")
            found = from_json((await anext(lines)).removeprefix("data: "))
            assert ">1</a></b><small>may start now" in found["figures"]
            assert "workers" not in found
        await until(nobody_looks)


# ----- signing in by redirect

BOARD = "https://board.test"
CLIENT = "board client"


class Door:
    """A dashboard with a provider, and browsers that have not signed in."""

    def __init__(self, issuer: Provider, test: TestApp, app: App) -> None:
        self.issuer, self.test = issuer, test
        self._asgi = asgi_app(app, backend=test, dashboard=True)

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self._asgi), base_url=BOARD)

    async def sent(self, browser: httpx.AsyncClient, where: str = "/work?state=failed") -> str:
        """Where the provider sends a browser back to."""
        words = {"provider": self.issuer.url, "next": where}
        leaves = await browser.get("/dashboard/sign-in/with", params=words)
        assert leaves.status_code == 303, leaves.text
        async with httpx.AsyncClient(trust_env=False, timeout=SOON) as at_provider:
            found = await at_provider.get(leaves.headers["location"])
        return found.headers["location"]

    async def refused(self, browser: httpx.AsyncClient, back: str, text: str) -> None:
        """Coming back this way is refused, with a text, and begins no session."""
        answer = await browser.get(back)
        assert (answer.status_code, text in answer.text) == (403, True), answer.text
        assert "penstock_dashboard" not in browser.cookies
        assert (await browser.get("/dashboard/")).status_code == 303


@asynccontextmanager
async def door(secret: str = "") -> AsyncIterator[Door]:
    clock = TestClock()
    with provider(clock) as issuer:
        issuer.visitor = {"name": "Ada <b>", "scopes": ["dashboard:operate"]}
        app = App(auth=[OIDC(issuer.url, "shop", CLIENT, secret)])
        async with TestApp(app, clock=clock) as test:
            yield Door(issuer, test, app)


async def test_a_provider_signs_somebody_in_by_redirect() -> None:
    async with door("s: e/cret") as one, one.browser() as browser:
        form = (await browser.get("/dashboard/sign-in?next=/work")).text
        assert f"Sign in with {urlsplit(one.issuer.url).netloc}" in form
        leaves = await browser.get("/dashboard/sign-in/with", params={"provider": one.issuer.url})
        words = dict(parse_qsl(urlsplit(leaves.headers["location"]).query))
        assert words["redirect_uri"] == f"{BOARD}/dashboard/sign-in/back"
        assert (words["code_challenge_method"], words["scope"]) == ("S256", "openid profile")
        cookie = leaves.headers["set-cookie"].lower()
        assert all(f"; {word}" in cookie for word in ("httponly", "samesite=lax", "secure", "max-age=600"))
        assert all(words[name] not in cookie for name in ("state", "nonce"))

        answer = await browser.get(await one.sent(browser))
        assert 'content="0;url=/dashboard/work?state=failed"' in answer.text
        cookies = [text.lower() for text in answer.headers.get_list("set-cookie")]
        assert any("penstock_dashboard=" in text and "samesite=strict" in text for text in cookies)
        assert any("penstock_sign_in=" in text and "max-age=0" in text for text in cookies)
        pair = one.issuer.redeemed[-1]["authorization"].removeprefix("Basic ")
        assert base64.b64decode(pair) == b"board+client:s%3A+e%2Fcret"
        assert f"Ada &lt;b&gt; ({one.issuer.url})" in (await browser.get("/dashboard/")).text
        origin = {"origin": BOARD}
        assert (await browser.post("/dashboard/work", data={"act": "nothing"}, headers=origin)).status_code == 403

        for where in ("//evil.test", "/\\evil.test", '/"><b>'):
            elsewhere = (await browser.get(await one.sent(browser, where))).text
            assert 'content="0;url=/dashboard/' in elsewhere
            assert "evil.test" not in elsewhere
            assert "<b>" not in elsewhere
        await browser.post("/dashboard/sign-out", headers=origin)
        assert (await browser.get("/dashboard/")).status_code == 303


async def test_nobody_signs_in_with_what_was_meant_for_another_sign_in() -> None:
    async with door() as one, one.browser() as browser, one.browser() as other:
        back = await one.sent(browser)
        await one.refused(other, back, "did not begin in this browser")
        theirs = await one.sent(other)
        await one.refused(browser, theirs, "did not begin in this browser")
        await one.refused(browser, back, "did not begin in this browser")  # its own was used up by the wrong state
        kept = dict(other.cookies)
        assert (await other.get(theirs)).status_code == 200
        other.cookies.clear()
        other.cookies.update(kept)
        await one.refused(other, theirs, "did not begin in this browser")  # the same state again

        code = dict(parse_qsl(urlsplit(theirs).query))["code"]
        stolen = httpx.URL(await one.sent(browser)).copy_set_param("code", code)
        await one.refused(browser, str(stolen), "refused the sign-in, with status 400")
        unused = dict(parse_qsl(urlsplit(await one.sent(other)).query))["code"]
        injected = httpx.URL(await one.sent(browser)).copy_set_param("code", unused)
        await one.refused(browser, str(injected), "refused the sign-in, with status 400")  # its verifier is another
        for changes in ({"state": ""}, {"state": "ä"}, {"iss": "https://evil.test"}):
            changed = httpx.URL(await one.sent(browser)).copy_merge_params(changes)
            await one.refused(browser, str(changed), "did not begin in this browser")
        assert one.issuer.asked["/authorize"] > 5


async def test_an_id_token_of_another_kind_signs_nobody_in() -> None:
    async with door() as one, one.browser() as browser:
        whole = one.issuer.visitor
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"nonce": "another"}, "another nonce"),
            ({"aud": "shop"}, "refused: Audience"),
            ({"aud": [CLIENT, "shop"], "azp": "shop"}, "another azp"),
            ({"iss": "https://evil.test"}, "another iss"),
            ({"exp": one.test.clock.now() - timedelta(minutes=1)}, "expired"),
            ({"key": "unknown"}, "has no key"),
            ({"scopes": []}, "lacks the scope dashboard:look"),
        ]
        for claims, text in wrong:
            one.issuer.visitor = whole | claims
            await one.refused(browser, await one.sent(browser), text)
        one.issuer.visitor = whole
        for documents, text in (
            (b"{}", "cannot be asked who has signed in"),
            (b'{"id_token": "x.y.z"}', "no JSON Web Token"),
        ):
            one.issuer.documents["/token"] = documents
            await one.refused(browser, await one.sent(browser), text)
        token = one.issuer.token(aud=CLIENT, scopes=["dashboard:edit"])
        refused = await browser.post("/dashboard/sign-in", data={"token": token}, headers={"origin": BOARD})
        assert refused.status_code == 403, "an ID token of the dashboard is no token of the app"


async def test_what_a_provider_says_wrong_is_shown_as_text() -> None:
    async with door() as one, one.browser() as browser:
        one.issuer.answer = {"error": "access_denied", "error_description": "<script>no</script>"}
        await one.refused(browser, await one.sent(browser), "access_denied: &lt;script&gt;no&lt;/script&gt;")
        one.issuer.answer = {}
        unknown = await browser.get("/dashboard/sign-in/with?provider=https://evil.test")
        assert (unknown.status_code, "Nobody can sign in there" in unknown.text) == (403, True)
    for keys, text in (("", "cannot be fetched"), ("keys", "authorization_endpoint")):
        async with door() as one, one.browser() as browser:
            document = json.dumps({"issuer": one.issuer.url, "jwks_uri": f"{one.issuer.url}/{keys}"})
            one.issuer.documents["/.well-known/openid-configuration"] = document.encode()
            answer = await browser.get("/dashboard/sign-in/with", params={"provider": one.issuer.url})
            assert (answer.status_code, text in answer.text) == (403, True), answer.text
