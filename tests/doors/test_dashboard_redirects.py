"""Signing in to the dashboard by redirect, and what somebody may try who should not get in."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
from stage.provider import Provider, provider
from stage.waits import SOON

from penstock import OIDC, App, asgi_app
from penstock.testing import TestApp, TestClock

HERE = "https://board.test"
CLIENT = "board client"


class Door:
    """A dashboard with a provider, and browsers that have not signed in."""

    def __init__(self, issuer: Provider, test: TestApp, app: App) -> None:
        self.issuer, self.test = issuer, test
        self._asgi = asgi_app(app, backend=test, dashboard=True)

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self._asgi), base_url=HERE)

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
        assert words["redirect_uri"] == f"{HERE}/dashboard/sign-in/back"
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
        origin = {"origin": HERE}
        assert (await browser.post("/dashboard/work", data={"act": "nothing"}, headers=origin)).status_code == 403

        for where in ("//evil.test", "/\\evil.test", "https://evil.test", "", '/"><b>'):
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
            ({"nonce": None}, "another nonce"),
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
        refused = await browser.post("/dashboard/sign-in", data={"token": token}, headers={"origin": HERE})
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
