"""Signing in over HTTP and over web sockets, and access and rate limits as callers from outside meet them."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from doors.test_serving import served
from doors.test_socket import closed
from programs.identities import ADMIN, House, house, provider
from stage.sockets import SocketClient, socket_client
from stage.waits import SOON, events, until

from penstock import (
    App,
    ApplicationError,
    MutationCtx,
    TokenBucket,
    asgi_app,
)
from penstock.client import AsyncClient
from penstock.client import client as client_module
from penstock.errors import Unauthenticated
from penstock.identity.api_key import PREFIX, hash_of
from penstock.testing import TestApp, TestClock

MODULE = "programs.identities"
SECOND = timedelta(seconds=1)


async def authenticate(client: SocketClient, token: str = "", kind: str = "User", **more: Any) -> None:
    said = {"baseVersion": client.identity, "tokenType": kind, **more}
    client.identity += 1
    await client.send({"type": "Authenticate", **said, **({"value": token} if token else {})})


async def signed(client: SocketClient) -> dict[int, Any]:
    """Wait for the transition to the newest identity; what changed until then."""
    changed: dict[int, Any] = {}
    while client.version["identity"] < client.identity:
        changed |= await client.transition()
    return changed


async def refused(client: SocketClient) -> tuple[str, int, bool]:
    message = await client.receive()
    while message["type"] == "Transition":
        message = await client.receive()
    assert message["type"] == "AuthError", message
    assert await closed(client) == (1000, "AuthError")
    return message["error"], message["baseVersion"], message["authUpdateAttempted"]


async def test_a_token_or_a_key_signs_in_over_http(database_url: str) -> None:
    async with house(database_url) as one:
        token = f"Bearer {one.issuer.token()}"
        assert (await one.call("query", "whoami")).json()["value"] is None
        said = (await one.call("query", "whoami", token)).json()["value"]
        assert (said["subject"], said["tokenIdentifier"]) == ("ada", f"{one.issuer.url}|ada")
        assert (await one.call("mutation", "write", token, text="x")).json()["value"] == "ada"
        failed = (await one.call("mutation", "write", text="x")).json()
        assert failed["errorData"] == {"code": "NotSignedIn", "message": "Sign in to do this."}
        url = f"/api/query?path={MODULE}:papers&args={{}}&format=json"
        assert (await one.http.get(url, headers={"authorization": token})).json()["value"] == ["x"]
        ts = (await one.http.post("/api/query_ts")).json()["ts"]
        body = {"path": f"{MODULE}:papers", "args": {}, "ts": ts}
        found = await one.http.post("/api/query_at_ts", json=body, headers={"authorization": token})
        assert found.json()["value"] == ["x"]

        key, now = PREFIX + "k", one.test.clock.now()
        await one.test.engine.store.api_keys.create("robot", hash_of(key), [], now, None)
        assert (await one.call("mutation", "write", f"Bearer {key}", text="y")).json()["value"] == "robot"

        for wrong, code in {
            "Bearer x.y.z": "InvalidAuthHeader",
            key: "InvalidAuthHeader",
            f"Bearer {one.issuer.token(aud='other')}": "NoAuthProvider",
            f"Bearer {one.issuer.token(exp=one.test.clock.now() - 6 * SECOND)}": "Unauthenticated",
            "Convex wrong": "Unauthenticated",
        }.items():
            answer = await one.call("mutation", "write", wrong)
            assert (answer.status_code, answer.json()["code"]) == (401, code)
            assert answer.headers["www-authenticate"] == "Bearer"
            rest = await one.http.post("/rest/test_signing_in/whoami", headers={"authorization": wrong})
            assert (rest.status_code, rest.json()["code"]) == (401, code)
        assert (await one.call("query", "whoami", "Basic eDp5")).json()["value"] is None


async def test_an_administrator_is_the_system_or_acts_as_a_user(sqlite_url: str) -> None:
    async with house(sqlite_url) as one:
        assert (await one.call("function", "inner", f"Convex {ADMIN}")).json()["value"] is True
        assert (await one.call("query", "whoami", f"Bearer {ADMIN}")).json()["value"] is None
        assert (await one.call("function", "inner", f"Bearer {one.issuer.token()}")).status_code == 401
        user = base64.b64encode(json.dumps({"tokenIdentifier": "i|bob", "name": "Bob"}).encode()).decode()
        said = (await one.call("query", "whoami", f"Convex {ADMIN}:{user}")).json()["value"]
        assert (said["issuer"], said["subject"], said["name"]) == ("i", "bob", "Bob")
        wrong = base64.b64encode(b'{"subject": 3}').decode()
        assert (await one.call("query", "whoami", f"Convex {ADMIN}:{wrong}")).status_code == 401
        async with one.socket() as client:
            await client.watch(0, "whoami")
            await authenticate(client, ADMIN, "Admin", impersonating={"issuer": "i", "subject": "bob"})
            await signed(client)
            assert client.answers[0]["tokenIdentifier"] == "i|bob"
            await authenticate(client, "wrong", "Admin")
            said, *what = await refused(client)
            assert ("The admin token is wrong." in said, what) == (True, [1, True])


async def test_a_token_that_is_wrong_or_has_expired_ends_the_connection(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    async with house(database_url) as one:
        async with one.socket() as client:
            await authenticate(client, "x.y.z")
            said, version, attempted = await refused(client)
            assert (version, attempted) == (0, True)
            assert "no JSON Web Token" in said
            await until(lambda: said in [facts["error"] for facts in events(caplog, "socket.closed")])
        async with one.socket() as client, one.socket() as caller, one.socket() as writer:
            for socket in (client, caller, writer):
                expires_at = one.test.clock.now() + (3600 if socket is writer else 60) * SECOND
                await authenticate(socket, one.issuer.token(exp=expires_at))
                await socket.watch(0, "papers")
                await socket.until(0, [])
            one.test.clock.advance(66 * SECOND)
            await caller.call("Mutation", "write", 0, text="late")
            assert await refused(caller) == ("Token expired 6 seconds ago. Sign in again.", 1, False)
            await writer.call("Mutation", "write", 0, text="in time")
            while writer.answers[0] != ["in time"]:
                await writer.receive()
            assert (await refused(client))[2] is False
            assert client.answers[0] == [], "an update after the token's end is not sent"


@asynccontextmanager
async def watched(one: House, token: str) -> AsyncIterator[AsyncIterator[str]]:
    """What a stream says behind its first answer, which is empty."""
    headers = {"authorization": f"Bearer {token}"}
    async with one.http.stream("GET", f"/api/subscribe?path={MODULE}:papers", headers=headers) as stream:
        lines = stream.aiter_lines()
        while not (line := await anext(lines)).startswith("data:"):
            pass
        assert line.endswith('"value":[]}')
        yield lines


async def test_a_stream_ends_when_its_token_expires(sqlite_url: str) -> None:
    async with house(sqlite_url) as one, watched(one, one.issuer.token()) as lines:
        one.test.clock.advance(3606 * SECOND)
        await one.call("mutation", "write", f"Bearer {one.issuer.token()}", text="secret")
        assert "secret" not in "".join([line async for line in lines])


async def test_a_revoked_key_ends_what_it_watches(database_url: str) -> None:
    async with house(database_url) as one, one.socket() as client:
        key, keys, now = PREFIX + "k", one.test.engine.store.api_keys, one.test.clock.now()
        await keys.create("robot", hash_of(key), [], now, None)
        await authenticate(client, key)
        await client.watch(0, "papers")
        await client.until(0, [])
        async with watched(one, key) as lines:
            await keys.revoke("robot")
            one.test.clock.advance(3 * SECOND)
            await one.call("mutation", "write", f"Bearer {one.issuer.token('robot')}", text="secret")
            said, _, attempted = await refused(client)
            assert ("revoked" in said, attempted) == (True, False)
            assert "secret" not in "".join([line async for line in lines])
        assert client.answers[0] == []


async def test_a_client_outlives_its_tokens(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE", 0.0)
    async with house(database_url) as one:
        fetched: list[str] = []

        async def fetch() -> str:
            fetched.append(one.issuer.token(exp=one.test.clock.now() + 60 * SECOND))
            return fetched[-1]

        async with AsyncClient(one.url, token=fetch) as client, client.live(f"{MODULE}:papers") as answers:
            assert await anext(answers) == []
            one.test.clock.advance(66 * SECOND)
            assert await client.mutation(f"{MODULE}:write", text="x") == "ada"
            assert await anext(answers) == ["x"]
            assert len(fetched) == 3
            async with AsyncClient(one.url, token=fetched[-1]) as held:
                assert (await held.query(f"{MODULE}:whoami"))["subject"] == "ada"
                async with held.live(f"{MODULE}:papers") as watched:
                    assert await anext(watched) == ["x"]
                    one.test.clock.advance(66 * SECOND)
                    await client.mutation(f"{MODULE}:write", text="y")
                    with pytest.raises(Unauthenticated, match="expired"):
                        await anext(watched)


async def test_a_call_that_is_sent_again_by_somebody_else_is_another_call(sqlite_url: str) -> None:
    async with house(sqlite_url) as one:
        for user in ("ada", "bob", "ada"):
            async with socket_client(one.url, MODULE) as client:
                await client.connect("the-same-session", count=1)
                await authenticate(client, one.issuer.token(user))
                await client.call("Mutation", "write", 5, text="x")
                message = await client.receive()
                while message["type"] != "MutationResponse":
                    message = await client.receive()
                assert message["result"] == user
        assert (await one.call("query", "number")).json()["value"] == 2, "the third one was known already"


# ----- access and rate limits

app = App()
app.rate_limit("login", TokenBucket(rate=1, period=timedelta(minutes=1), capacity=2))


@app.mutation(rate_limit="login")
async def login(ctx: MutationCtx, password: str) -> None:
    """Refuse all passwords."""
    raise ApplicationError("wrong")


async def test_callers_behind_a_proxy_have_tokens_by_the_address_that_it_forwards(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"path": f"{__name__}:login", "args": {"password": "guess"}}

    async def limited(url: str, forwarded: str) -> bool:
        async with httpx.AsyncClient(base_url=url, headers={"x-forwarded-for": forwarded}, timeout=SOON) as http:
            return (await http.post("/api/mutation", json=body)).status_code == 429

    async with served(sqlite_url, app) as url:
        same = ("203.0.113.1", "192.0.2.9, 203.0.113.1", "203.0.113.1")  # the first of two is what the caller claims
        assert [await limited(url, one) for one in same] == [False, False, True]
        assert [await limited(url, f"2001:db8::{one}") for one in (1, 2, 3)] == [False, False, True]
        for address, wanted in (("203.0.113.1", "RateLimited"), ("203.0.113.2", "wrong")):
            async with socket_client(url, __name__, forwarded_for=address) as client:
                await client.connect()
                await client.call("Mutation", "login", password="guess")
                while (answer := await client.receive())["type"] != "MutationResponse":
                    pass
                data = answer["errorData"]
                assert (data["code"] if isinstance(data, dict) else data) == wanted
                assert data == wanted or data.keys() == {"code", "message", "retryAfter"}
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "198.51.100.1")
    async with served(sqlite_url, app) as url:
        assert [await limited(url, f"203.0.113.{one}") for one in (3, 4, 5)] == [False, False, True]


# ----- odd claims

VALUES: list[Any] = [
    0, 1.5, 2**63, 10**400, float("nan"), 253402300799, -62135596801, True, None, "", "\0", "\ud800", "x" * 3000,
    "1e400", [], {}, [1, None, "\ud800"], {"a": {"b": "\ud800"}}, {"$integer": "x"}, {"\ud800": 1},
]  # fmt: skip
CLAIMS = ("sub", "iss", "aud", "exp", "nbf", "iat", "email_verified", "name", "scopes", "\ud800")


async def test_no_claim_breaks_a_door(sqlite_url: str) -> None:
    clock = TestClock()
    with provider(clock) as issuer:
        app = House(issuer).app
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


async def test_no_header_of_a_token_breaks_its_check(sqlite_url: str) -> None:
    async with house(sqlite_url) as one:
        _, payload, signature = one.issuer.token().split(".")
        for name in ("kid", "alg", "typ", "crit", "b64", "jwk"):
            for value in VALUES:
                said = json.dumps({"alg": "ES256", "kid": "first", name: value}).encode()
                head = base64.urlsafe_b64encode(said).rstrip(b"=").decode()
                with pytest.raises(Unauthenticated):
                    await one.test.tokens.verify(f"{head}.{payload}.{signature}")


async def tried(http: httpx.AsyncClient, clock: TestClock, token: str) -> list[str]:
    """What is wrong with the answers that a token gets at each door."""
    headers, wrong = {"authorization": f"Bearer {token}"}, []
    for kind, name, args in (("query", "whoami", {}), ("mutation", "write", {"text": "x"})):
        body = {"path": f"{MODULE}:{name}", "args": args, "format": "json"}
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
