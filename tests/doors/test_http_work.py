"""The HTTP call-back of outside systems: who has a token ends its work, once; nobody else learns anything."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from penstock import ActionCtx, App, Failed, Finished, Pending, Retry, Running, Success, WorkId, asgi_app
from penstock.testing import TestApp

app = App(max_result_bytes=1000, max_argument_bytes=5000)
printing = app.workpool("printing", default_retry=Retry(max_attempts=2, initial_backoff=10))

tokens: list[str] = []


@app.internal_action
async def print_book(ctx: ActionCtx) -> None:
    tokens.append(await ctx.work.complete_later())


@asynccontextmanager
async def served(database: str) -> AsyncIterator[tuple[TestApp, httpx.AsyncClient, WorkId, str]]:
    """A server, and work that waits for somebody outside, with the path that ends it."""
    tokens.clear()
    async with TestApp(app, database) as backend:
        work = await printing.with_options(retry=True).enqueue(backend, print_book)
        await backend.run_until_idle()
        transport = httpx.ASGITransport(asgi_app(app, backend=backend))
        async with httpx.AsyncClient(base_url="http://shop", transport=transport) as http:
            yield backend, http, work, f"/api/work/{tokens[0]}"


async def told(http: httpx.AsyncClient, path: str, body: Any) -> Any:
    """The answer to a body that is taken."""
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def refused(http: httpx.AsyncClient, path: str, body: Any, status: int, code: str) -> None:
    content = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body)
    response = await http.post(path, content=content)
    assert (response.status_code, response.json().get("code")) == (status, code), response.text
    assert response.json().keys() == {"code", "message"}


async def test_an_outside_system_tells_of_the_result(database_url: str) -> None:
    async with served(database_url) as (backend, http, work, path):
        result = {"pages": 300, "big": 2**60, "list": [1, None, 2.5]}
        assert await told(http, path, {"result": result}) == {"accepted": True, "kind": "success"}
        assert await printing.status(backend, work) == Finished(Success(result))
        for again in ({"result": 1}, {"error": "no"}):
            assert await told(http, path, again) == {"accepted": False, "kind": "success"}
        assert await printing.status(backend, work) == Finished(Success(result))


async def test_an_outside_system_tells_of_a_failure(database_url: str) -> None:
    async with served(database_url) as (backend, http, work, path):
        assert await told(http, path, {"error": "no paper"}) == {"accepted": True, "kind": "failed"}
        assert await printing.status(backend, work) == Pending(1), "it is tried again"
        await backend.run_until_idle()
        assert await told(http, path, {"result": 1}) == {"accepted": False, "kind": "failed"}
        second = f"/api/work/{tokens[1]}"
        assert (await told(http, second, {"error": "torn", "retryable": False}))["accepted"]
        assert await printing.status(backend, work) == Finished(Failed("torn"))


async def test_many_tell_at_once_and_one_counts(database_url: str) -> None:
    async with served(database_url) as (backend, http, work, path):
        answers = await asyncio.gather(*(told(http, path, {"result": number}) for number in range(20)))
        assert [answer["accepted"] for answer in answers].count(True) == 1
        number = next(place for place, answer in enumerate(answers) if answer["accepted"])
        assert await printing.status(backend, work) == Finished(Success(number))


async def test_a_token_whose_time_is_over_is_gone(database_url: str) -> None:
    async with served(database_url) as (backend, http, work, path):
        backend.clock.advance(timedelta(hours=2))
        await refused(http, path, {"result": 1}, 410, "TokenExpired")
        await backend.worker.tick()
        await refused(http, path, {"result": 1}, 410, "TokenExpired")
        assert isinstance(await printing.status(backend, work), Pending)


async def test_tokens_of_nobody_and_bodies_that_tell_nothing_are_refused(sqlite_url: str) -> None:
    async with served(sqlite_url) as (backend, http, work, path):
        job, _, secret = tokens[0].split(".")
        for token in (
            "x",
            f"{job}.1.x",
            f"{job}.9.{secret}",
            f"job_x.1.{secret}",
            "%00",
            "%ED%A0%80",
            f"{job}.{'9' * 400}.x",
        ):
            await refused(http, f"/api/work/{token}", {"result": 1}, 404, "TokenInvalid")
        await refused(http, f"{path}x", '{"result": "\\u0000"}', 404, "TokenInvalid")
        for nowhere in ("/api/work", "/api/work/", f"{path}/", f"{path}/more"):
            await refused(http, nowhere, {"result": 1}, 404, "NotFound")
        for method in ("GET", "PUT"):
            assert (await http.request(method, path)).status_code == 405
        for body in ("", b"\xff", '{"result": NaN}', '{"result": ' + "[" * 150, '"\\ud800"'):
            await refused(http, path, body, 400, "BadJson")
        bodies: list[Any] = [
            [], 5, {}, {"result": 1, "error": "x"}, {"error": ""}, {"error": 5}, {"error": None}, {"retryable": True},
            {"error": "x", "retryable": "no"}, {"error": "x", "retryable": None}, {"result": 1, "more": 2},
            {"result": 1, "retryable": True}, {"result": {"$nonsense": 1}},
        ]  # fmt: skip
        for given in (*bodies, '{"result": 1e999}'):
            await refused(http, path, given, 400, "BadRequest")
        await refused(http, path, '{"result": ' + "[" * 70 + "]" * 70 + "}", 400, "NestedTooDeeply")
        await refused(http, path, '{"result": "\\u0000"}', 400, "ResultInvalid")
        await refused(http, path, {"result": "x" * 1001}, 413, "ResultTooLarge")
        await refused(http, path, {"result": "x" * 6000}, 413, "RequestTooLarge")
        page = {"origin": "http://evil", "content-type": "text/plain"}
        assert (await http.post(path, content='{"result":1}', headers=page)).status_code == 415
        assert isinstance(await printing.status(backend, work), Running)
        assert (await told(http, path, {"error": "x\0\U0001f600 " + "y" * 4000}))["accepted"]
        status = await backend.job(work)
        assert status is not None
        assert str(status.error).startswith("x\\0\U0001f600 y")
        assert await told(http, path, {"result": int("9" * 20)}) == {"accepted": False, "kind": "failed"}


async def test_tokens_do_not_stand_in_the_log(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "penstock"):
        async with served(sqlite_url) as (_, http, work, path):
            secret = tokens[0].rpartition(".")[2]
            await http.get(path)
            await http.post(path + "x", json={"result": 1})
            await http.post("/api/work/" + secret, json={"result": 1})
            await told(http, path, {"result": 1})
            await told(http, path.replace("_", "%5F").replace(".", "%2E"), {"result": 1})
    assert f"path=/api/work/{work}.1…" in caplog.text
    assert secret not in caplog.text
