"""Signing in over HTTP and over web sockets: tokens, the admin token, refresh, sign-out and expiry."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from doors.test_socket import closed
from stage.household import ADMIN, house
from stage.sockets import SocketClient, socket_client

from penstock.client import AsyncClient
from penstock.client import client as client_module
from penstock.errors import Unauthenticated
from penstock.identity.api_key import PREFIX, hash_of

MODULE = "stage.household"
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
