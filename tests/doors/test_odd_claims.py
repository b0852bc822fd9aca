"""Tokens with a good signature and any JSON in a claim: each signs in or is refused, and breaks nothing."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
from stage.provider import Provider, provider

from penstock import OIDC, App, Identity, MutationCtx, QueryCtx, Table, TokenBucket, Unauthenticated, asgi_app
from penstock.testing import TestApp, TestClock

VALUES: list[Any] = [
    0, -0.0, -1, 1.5, 1e-320, 2**53 + 1, 2**63, 10**15, 10**400, 1e18, float("inf"), float("-inf"), float("nan"),
    253402300799, 253402300798.9, 253402300800, 253402300794, -62135596800, -62135596801, 8210266876800, True, False,
    None, "", " ", "\0", "\ud800", "x" * 3000, "253402300799", "1e400", "nan", "٣", "1_0", [], {}, [[]],
    [1, None, "\ud800"], {"": ""}, {"a": {"b": "\ud800"}}, {"$integer": "x"}, {"formatted": 3}, {"\ud800": 1}, [{}],
]  # fmt: skip
CLAIMS = (
    "sub", "iss", "aud", "exp", "nbf", "iat", "nonce", "azp", "email_verified", "name", "scopes", "\ud800",
)  # fmt: skip


class Paper(Table):
    owner: str


def lobby(issuer: Provider) -> App:
    app = App(tables=[Paper], auth=[OIDC(issuer.url, "shop")])
    app.rate_limit("write", TokenBucket(rate=10**6, period=timedelta(seconds=1)))

    @app.query
    async def whoami(ctx: QueryCtx) -> Identity | None:
        return await ctx.auth.get_user_identity()

    @app.mutation(rate_limit="write")
    async def write(ctx: MutationCtx) -> None:
        await ctx.db.insert(Paper(owner=(await ctx.auth.require()).token_identifier))

    return app


async def test_no_claim_breaks_a_door(sqlite_url: str) -> None:
    clock = TestClock()
    with provider(clock) as issuer:
        app = lobby(issuer)
        async with TestApp(app, sqlite_url, clock=clock) as test:
            asgi = asgi_app(app, backend=test, dashboard=True)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://h") as http:
                broken = [
                    (claim, repr(value)[:40], found)
                    for claim in CLAIMS
                    for value in VALUES
                    if (found := await tried(http, clock, issuer.token(**{"scopes": ["dashboard:look"], claim: value})))
                ]
    assert not broken


async def test_no_header_of_a_token_breaks_its_check() -> None:
    clock = TestClock()
    with provider(clock) as issuer:
        async with TestApp(lobby(issuer), clock=clock) as test:
            _, payload, signature = issuer.token().split(".")
            for name in ("kid", "alg", "typ", "crit", "b64", "zip", "jwk", "jku", "x5c", "cty"):
                for value in VALUES:
                    said = json.dumps({"alg": "ES256", "kid": "first", name: value}).encode()
                    head = base64.urlsafe_b64encode(said).rstrip(b"=").decode()
                    with suppress(Unauthenticated):
                        found = await test.tokens.verify(f"{head}.{payload}.{signature}")
                        raise AssertionError((name, value, found))


async def tried(http: httpx.AsyncClient, clock: TestClock, token: str) -> list[str]:
    """What is wrong with the answers that a token gets at each door."""
    headers, wrong = {"authorization": f"Bearer {token}"}, []
    for kind, name in (("query", "whoami"), ("mutation", "write")):
        body = {"path": f"{__name__}:{name}", "args": {}, "format": "json"}
        answer = await http.post(f"/api/{kind}", json=body, headers=headers)
        said = answer.text
        if answer.status_code != 200 or json.loads(said)["status"] != "success":
            if answer.status_code != 401:
                wrong.append(f"{kind}: {answer.status_code} {said[:100]}")
        elif name == "whoami" and not json.loads(said)["value"]["subject"].strip():
            wrong.append("nobody is signed in")
    clock.advance(timedelta(seconds=3))  # so that no attempt to sign in is throttled
    form = await http.post("/dashboard/sign-in", data={"token": token}, headers={"origin": "http://h"})
    return wrong + ([f"dashboard: {form.status_code}"] if form.status_code not in {303, 403} else [])
