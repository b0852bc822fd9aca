"""Access and rate limits as callers from outside meet them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from doors.test_serving import served
from stage.listening import listening
from stage.sockets import socket_client
from stage.waits import SOON

from penstock import App, ApplicationError, MutationCtx, QueryCtx, TokenBucket, asgi_app, signed_in
from penstock.client import Client
from penstock.errors import Overloaded
from penstock.testing import TestApp

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
