"""What is printed of an object with settings, in logs, errors and at the prompt, has none of its secrets."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from programs.identities import provider
from starlette.requests import Request

from penstock import OIDC, App, CustomJWT, PenstockError, asgi_app
from penstock.api.identity.codes import SignIn
from penstock.client import AsyncClient, Client
from penstock.config import Config
from penstock.identity.api_key import PREFIX, hash_of
from penstock.server.callers import anonymous, with_token
from penstock.testing import TestApp, TestClock

SECRET = "s3cr3t-0123456789-abcdefghijklmnopqrstuvwxyz"


def url_with_secret(url: str) -> str:
    """The URL of a database on a server that asks for no password, with one."""
    return url.replace(":@", f":{SECRET}@").replace("postgres@", f"postgres:{SECRET}@")


def reachable(*roots: object) -> Iterator[object]:
    """Objects of penstock's classes that can be reached from some, through anything but modules and classes."""
    seen, left = set[int](), list(roots)
    while left:
        one = left.pop()
        if id(one) in seen or issubclass(type(one), type) or type(one).__name__ in {"module", "frame"}:
            continue
        seen.add(id(one))
        left += gc.get_referents(one)
        if type(one).__module__.startswith("penstock"):
            yield one


async def test_no_object_of_a_program_prints_a_secret(database_url: str) -> None:
    clock = TestClock()
    with provider(clock) as issuer:
        oidc = OIDC(issuer.url, "shop", "board", SECRET)
        app = App(auth=[oidc, CustomJWT("shop", secret=SECRET, algorithm="HS256")])
        given: dict[str, Any] = {"admin_token": SECRET, "metrics_token": SECRET}
        url = url_with_secret(database_url)
        config = Config(database=url, read_url=f"postgresql://a:{SECRET}@h/d", direct_database=url, **given)
        async with TestApp(app, url, clock=clock, **given) as test:
            asgi = asgi_app(app, backend=test, dashboard=True)
            key = PREFIX + SECRET
            await test.engine.store.api_keys.create("a", hash_of(key), ["dashboard:edit"], clock.now(), None)
            transport = httpx.ASGITransport(asgi)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://h", headers={"origin": "http://h"}
            ) as http:
                for token in (SECRET, key):
                    answer = await http.post("/dashboard/sign-in", data={"token": token})
                    assert answer.status_code == 303
                await http.get("/dashboard/sign-in/with", params={"provider": issuer.url})
                wrong = {"authorization": f"Bearer {issuer.token(aud='other')}"}
                refused = await http.post("/api/query", json={"path": "a:b", "args": {}}, headers=wrong)
                assert refused.json()["code"] == "NoAuthProvider"
                assert "board" not in refused.text, "nor settings that callers need not know"
            nobody = anonymous(Request({"type": "http", "headers": []}))
            clients = [Client("http://h", token=SECRET), AsyncClient("http://h", token=SECRET)]
            caller = await with_token(nobody, key, test.tokens)
            kept = list(reachable(app, test, asgi, config, oidc, SignIn(oidc, ""), caller, *clients))
            assert len({type(one) for one in kept}) > 50
            printed = {type(one).__qualname__: text for one in kept for text in (repr(one), str(one)) if SECRET in text}
            signing = [one for one in kept if isinstance(one, SignIn)]
            secrets = [getattr(one, name) for one in signing for name in ("state", "nonce", "verifier")]
            printed |= {type(one).__qualname__: repr(one) for one in kept if any(text in repr(one) for text in secrets)}
    assert not printed


REFUSED: list[Callable[[], object]] = [
    lambda: App(admin_token=SECRET[:5]).config(),
    lambda: App(admin_token=SECRET.encode()),
    lambda: App(auth=[SECRET]),  # type: ignore[list-item]  # wrong
    lambda: OIDC(f"http://ada:{SECRET}@shop.example", "shop"),
    lambda: CustomJWT("shop", jwks=f"http://ada:{SECRET}@shop.example/?key={SECRET}", algorithm="ES256"),
    lambda: CustomJWT("shop", secret=SECRET[:31], algorithm="HS256"),
    lambda: CustomJWT("shop", secret=SECRET, jwks="https://shop.example/keys", algorithm="HS256"),
    lambda: CustomJWT("shop", secret=SECRET, algorithm=SECRET),  # type: ignore[arg-type]  # wrong
]


def test_no_refusal_of_a_setting_prints_it() -> None:
    for number, make in enumerate(REFUSED):
        with pytest.raises(PenstockError) as refused:
            make()
        assert SECRET[:5] not in "".join(traceback.format_exception_only(refused.value)), number
