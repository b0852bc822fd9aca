"""Signing in over HTTP and over web sockets, and access and rate limits as callers from outside meet them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from doors.test_serving import served
from doors.test_socket import closed
from stage.identities import ADMIN, Provider, house, provider
from stage.sockets import SocketClient, listening, socket_client
from stage.waits import SOON

from penstock import (
    OIDC,
    App,
    ApplicationError,
    Identity,
    MutationCtx,
    QueryCtx,
    Table,
    TokenBucket,
    asgi_app,
    signed_in,
)
from penstock.client import AsyncClient, Client
from penstock.client import client as client_module
from penstock.errors import Overloaded, Unauthenticated
from penstock.identity.api_key import PREFIX, hash_of
from penstock.testing import TestApp, TestClock

MODULE = "stage.identities"
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
        batch = {"queries": [{"path": f"{MODULE}:papers", "args": {}}]}
        found = await one.http.post("/api/query_batch", json=batch, headers={"authorization": token})
        assert found.json()["results"][0]["value"] == ["x"]
        ts = (await one.http.post("/api/query_ts")).json()["ts"]
        body = {"path": f"{MODULE}:papers", "args": {}, "ts": ts}
        found = await one.http.post("/api/query_at_ts", json=body, headers={"authorization": token})
        assert found.json()["value"] == ["x"]

        key, now = PREFIX + "k", one.test.clock.now()
        await one.test.engine.store.api_keys.create("robot", hash_of(key), [], now, None)
        assert (await one.call("mutation", "write", f"Bearer {key}", text="y")).json()["value"] == "robot"

        for wrong, code in {
            "Bearer x.y.z": "InvalidAuthHeader",
            one.issuer.token(): "InvalidAuthHeader",
            key: "InvalidAuthHeader",
            f"Bearer {one.issuer.token(aud='other')}": "NoAuthProvider",
            f"Bearer {one.issuer.token(exp=one.test.clock.now() - 6 * SECOND)}": "Unauthenticated",
            "Convex wrong": "Unauthenticated",
        }.items():
            for kind, function in (("query", "whoami"), ("mutation", "write"), ("action", "none")):
                answer = await one.call(kind, function, wrong)
                assert (answer.status_code, answer.json()["code"]) == (401, code)
                assert answer.headers["www-authenticate"] == "Bearer"
            rest = await one.http.post("/rest/test_signing_in/whoami", headers={"authorization": wrong})
            assert (rest.status_code, rest.json()["code"]) == (401, code)
        assert (await one.call("query", "whoami", "Basic eDp5")).json()["value"] is None


async def test_an_administrator_is_the_system_or_acts_as_a_user(sqlite_url: str) -> None:
    async with house(sqlite_url) as one:
        for scheme in ("Convex", "Bearer"):
            assert (await one.call("function", "inner", f"{scheme} {ADMIN}")).json()["value"] is True
            assert (await one.call("query", "whoami", f"{scheme} {ADMIN}")).json()["value"] is None
        assert (await one.call("function", "inner", f"Bearer {one.issuer.token()}")).status_code == 401
        user = base64.b64encode(json.dumps({"tokenIdentifier": "i|bob", "name": "Bob"}).encode()).decode()
        said = (await one.call("query", "whoami", f"Convex {ADMIN}:{user}")).json()["value"]
        assert (said["issuer"], said["subject"], said["name"]) == ("i", "bob", "Bob")
        for wrong in ("e30=x", base64.b64encode(b'{"subject": 3}').decode()):
            assert (await one.call("query", "whoami", f"Convex {ADMIN}:{wrong}")).status_code == 401
        async with one.socket() as client:
            await client.watch(0, "whoami")
            await authenticate(client, ADMIN, "Admin", impersonating={"issuer": "i", "subject": "bob"})
            await signed(client)
            assert client.answers[0]["tokenIdentifier"] == "i|bob"
            await authenticate(client, "wrong", "Admin")
            assert await refused(client) == (
                "The admin token is wrong. It is the setting admin_token of this server.",
                1,
                True,
            )


async def test_a_refresh_runs_nothing_and_signing_out_changes_only_what_asks_who_calls(database_url: str) -> None:
    async with house(database_url) as one, one.socket() as client, one.socket() as other:
        await authenticate(client, one.issuer.token())
        await client.modify([client.added(0, "papers"), client.added(1, "number"), client.added(2, "whoami")])
        await client.until(1, 0)
        await signed(client)
        await authenticate(other, one.issuer.token("bob"))
        await other.modify([other.added(0, "papers"), other.added(1, "number")])
        await other.until(1, 0)
        await client.call("Mutation", "write", 7, text="x")
        while client.answers[0] != ["x"]:
            await client.receive()
        await other.until(1, 1)
        runs = one.runs
        one.test.clock.advance(60 * SECOND)
        await authenticate(client, one.issuer.token())
        assert await signed(client) == {}
        assert one.runs == runs, "the claims are the same"
        await authenticate(client, kind="None")
        changed = await signed(client)
        assert changed.keys() == {0, 2}
        assert changed[0]["errorData"]["code"] == "NotSignedIn"
        assert changed[2]["value"] is None
        await authenticate(client, one.issuer.token("bob"))
        assert (await signed(client))[0]["value"] == []
        await other.call("Mutation", "write", 1, text="y")
        await client.until(0, ["y"])
        assert (other.answers.get(0), client.answers[1]) in ((["y"], 2), ([], 2))


async def test_a_token_that_is_wrong_or_has_expired_ends_the_connection(database_url: str) -> None:
    async with house(database_url) as one:
        async with one.socket() as client:
            await authenticate(client, "x.y.z")
            said, version, attempted = await refused(client)
            assert (version, attempted) == (0, True)
            assert "no JSON Web Token" in said
        async with one.socket() as client, one.socket() as caller, one.socket() as writer:
            for socket in (client, caller, writer):
                expires_at = one.test.clock.now() + (3600 if socket is writer else 60) * SECOND
                await authenticate(socket, one.issuer.token(exp=expires_at))
                await socket.watch(0, "papers")
                await socket.until(0, [])
            one.test.clock.advance(66 * SECOND)
            await caller.call("Mutation", "write", 0, text="late")
            assert await refused(caller) == ("The token has expired. Sign in again.", 1, False)
            await writer.call("Mutation", "write", 0, text="in time")
            while writer.answers[0] != ["in time"]:
                await writer.receive()
            assert (await refused(client))[2] is False
            assert client.answers[0] == [], "an update after the token's end is not sent"


async def test_a_stream_ends_when_its_token_expires(sqlite_url: str) -> None:
    async with house(sqlite_url) as one:
        headers = {"authorization": f"Bearer {one.issuer.token()}"}
        async with one.http.stream("GET", f"/api/subscribe?path={MODULE}:papers", headers=headers) as stream:
            lines = stream.aiter_lines()
            assert [line async for line in _until_data(lines)][-1].endswith('"value":[]}')
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
        stream = one.http.stream(
            "GET", f"/api/subscribe?path={MODULE}:papers", headers={"authorization": f"Bearer {key}"}
        )
        async with stream as answers:
            lines = answers.aiter_lines()
            assert [line async for line in _until_data(lines)][-1].endswith('"value":[]}')
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


async def _until_data(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if line.startswith("data:"):
            return


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


@app.query(access=signed_in)
async def secret(ctx: QueryCtx) -> str:
    """Tell whoever has signed in."""
    return "secret"


async def test_callers_learn_that_they_have_no_access_and_when_to_come_again(database_url: str) -> None:
    async with (
        TestApp(app, database_url, admin_token="the admin token:") as test,
        listening(asgi_app(app, backend=test)) as url,
        httpx.AsyncClient(base_url=url, timeout=SOON) as http,
    ):

        async def call(kind: str, function: str, /, **args: Any) -> httpx.Response:
            body = {"path": f"{__name__}:{function}", "args": args, "format": "json"}
            return await http.post(f"/api/{kind}", json=body)

        assert (await call("query", "secret")).json()["errorData"]["code"] == "NotSignedIn"
        refused = await call("mutation", "login")
        assert "invalid arguments" in refused.json()["errorMessage"], "and costs no token"
        async with socket_client(url, __name__) as client:
            await client.connect()
            await client.watch(0, "secret")
            assert (await client.transition())[0]["errorData"]["code"] == "NotSignedIn"
            for wanted in ("wrong", "wrong", {"code", "message", "retryAfter"}):
                await client.call("Mutation", "login", None, password="guess")
                while (answer := await client.receive())["type"] != "MutationResponse":
                    pass
                data = answer["errorData"]
                assert (set(data) if isinstance(data, dict) else data) == wanted
        refused = await call("mutation", "login", password="guess")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        assert refused.json()["code"] == "RateLimited"
        test.clock.advance(timedelta(minutes=1))
        assert (await call("mutation", "login", password="guess")).json()["errorData"] == "wrong"
        test.clock.advance(timedelta(seconds=20))
        with Client(url, retries=0) as ours, pytest.raises(Overloaded) as told:
            await asyncio.to_thread(ours.mutation, f"{__name__}:login", password="guess")
        assert told.value.facts["retry_after"] == 40


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
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "198.51.100.1")
    async with served(sqlite_url, app) as url:
        assert [await limited(url, f"203.0.113.{one}") for one in (3, 4, 5)] == [False, False, True]


# ----- odd claims

VALUES: list[Any] = [
    0, -1, 1.5, 1e-320, 2**63, 10**400, 1e18, float("inf"), float("nan"), 253402300799, 253402300798.9, 253402300794,
    -62135596800, -62135596801, 8210266876800, True, None, "", " ", "\0", "\ud800", "x" * 3000, "1e400", "٣", [], {},
    [1, None, "\ud800"], {"a": {"b": "\ud800"}}, {"$integer": "x"}, {"formatted": 3}, {"\ud800": 1},
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
                    with pytest.raises(Unauthenticated):
                        await test.tokens.verify(f"{head}.{payload}.{signature}")


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
